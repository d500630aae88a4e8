"""The lifecycle as a table, written by hand from the design and independent of the code: what leads from where to where.

A *place* is a state with what tells its sub-states apart: `draining>sleep`, `stopping>backoff`; `*` is a drain that will
freeze, and requests that are frozen.
"""

from vllm_mm.domain import lifecycle as lc
from vllm_mm.domain.specs import RetryPolicy, StartLimits

RETRY = RetryPolicy(backoff=2.0, backoff_max=10.0, max_failures=3, stable_after=60.0)
LIMITS = StartLimits(stall=50.0, deadline=100.0)
TIMEOUTS = lc.Timeouts(suspend=20.0, wake=30.0, stop=5.0)


def fresh() -> lc.Instance:
    return lc.Instance("m", limits=LIMITS, retry=RETRY, timeouts=TIMEOUTS)


def where(instance: lc.Instance) -> str:
    detail = instance.goal or instance.then
    star = "*" if instance.frozen or instance.on_timeout is lc.OnTimeout.FREEZE else ""
    return f"{instance.state.value}{star}>{detail.value}" if detail else f"{instance.state.value}{star}"


def inputs(generation: int) -> dict[str, lc.Input]:
    """One of each input; facts are about launch number `generation`."""
    return {
        "start": lc.Start("t"),
        "wake": lc.Wake("t"),
        "drain to sleep": lc.Drain(lc.Goal.SLEEP, 10.0, "t"),
        "drain to stop": lc.Drain(lc.Goal.STOP, 10.0, "t"),
        "drain to freeze": lc.Drain(lc.Goal.SLEEP, 10.0, "t", lc.OnTimeout.FREEZE),
        "finish and stop": lc.Drain(lc.Goal.STOP, 10.0, "t", lc.OnTimeout.WAIT),
        "undrain": lc.Undrain("t"),
        "kill": lc.Kill("t"),
        "reset": lc.Reset("t"),
        "adopt": lc.Adopt(7, "t"),
        "adopt asleep": lc.Adopt(7, "t", asleep=True),
        "progressed": lc.Progressed(generation, lc.Progress("weights", 40.0)),
        "ready": lc.BecameReady(generation),
        "exited": lc.Exited(generation, "gone"),
        "exited for good": lc.Exited(generation, "bad argument", permanent=True),
        "unhealthy": lc.Unhealthy(generation, "deaf"),
        "unhealthy for good": lc.Unhealthy(generation, "wrong weights", permanent=True),
        "lied": lc.Unhealthy(generation, "other words", lied=True),
        "no leases": lc.LeasesGone(generation),
        "asleep": lc.FellAsleep(generation),
        "reaped": lc.Reaped(generation),
        "tick": lc.Tick(),
    }


FACTS = frozenset(
    {"progressed", "ready", "exited", "exited for good", "unhealthy", "unhealthy for good", "lied",
     "no leases", "asleep", "reaped"}
)  # fmt: skip

PREFIXES: dict[str, tuple[str, ...]] = {
    "stopped": (),
    "starting": ("start",),
    "ready": ("start", "ready"),
    "draining>sleep": ("start", "ready", "drain to sleep"),
    "draining>stop": ("start", "ready", "drain to stop"),
    "draining*>sleep": ("start", "ready", "drain to freeze"),
    "draining*>stop": ("start", "ready", "drain to freeze", "finish and stop"),
    "suspending": ("start", "ready", "drain to sleep", "no leases"),
    "sleeping": ("start", "ready", "drain to sleep", "no leases", "asleep"),
    "waking": ("start", "ready", "drain to sleep", "no leases", "asleep", "wake"),
    "suspending*": ("start", "ready", "drain to freeze", "deadline"),
    "suspending*>stop": ("start", "ready", "drain to freeze", "deadline", "finish and stop"),
    "sleeping*": ("start", "ready", "drain to freeze", "deadline", "asleep"),
    "sleeping*>stop": ("start", "ready", "drain to freeze", "deadline", "asleep", "finish and stop"),
    "waking*": ("start", "ready", "drain to freeze", "deadline", "asleep", "wake"),
    "waking*>stop": ("start", "ready", "drain to freeze", "deadline", "asleep", "wake", "finish and stop"),
    "stopping>stopped": ("start", "kill"),
    "stopping>backoff": ("start", "exited"),
    "stopping>failed": ("start", "exited for good"),
    "stopping>cold": ("start", "ready", "drain to sleep", "no leases", "asleep", "wake", "lied"),
    "backoff": ("start", "exited", "reaped"),
    "failed": ("start", "exited for good", "reaped"),
}
"""A legal way to each place."""

_CRASH = {
    "exited": "stopping>backoff",
    "exited for good": "stopping>failed",
    "unhealthy": "stopping>backoff",
    "unhealthy for good": "stopping>failed",
    "lied": "stopping>backoff",
}

_SLEEPLESS = dict.fromkeys((*_CRASH, "deadline"), "stopping>stopped")
_COLD = dict.fromkeys((*_CRASH, "deadline"), "stopping>cold")
_GONE = dict.fromkeys(("kill", "drain to stop", "finish and stop"), "stopping>stopped")
"""Nothing is out that could be let finish."""

EDGES: dict[str, dict[str, str]] = {
    "stopped": {"start": "starting", "adopt": "ready", "adopt asleep": "sleeping"},
    "starting": {
        **_CRASH,
        **_GONE,
        "ready": "ready",
        "deadline": "stopping>backoff",
    },
    "ready": {
        **_CRASH,
        "drain to sleep": "draining>sleep",
        "drain to freeze": "draining*>sleep",
        "drain to stop": "draining>stop",
        "finish and stop": "draining>stop",
        "kill": "stopping>stopped",
    },
    "draining>sleep": {
        **_CRASH,
        "drain to stop": "draining>stop",
        "finish and stop": "draining>stop",
        "undrain": "ready",
        "kill": "stopping>stopped",
        "no leases": "suspending",
        "deadline": "suspending",
    },
    "draining>stop": {
        **dict.fromkeys(_CRASH, "stopping>stopped"),
        "undrain": "ready",
        "kill": "stopping>stopped",
        "no leases": "stopping>stopped",
        "deadline": "stopping>stopped",
    },
    "draining*>sleep": {
        **_CRASH,
        "drain to stop": "draining>stop",
        "finish and stop": "draining*>stop",
        "undrain": "ready",
        "kill": "stopping>stopped",
        "no leases": "suspending",
        "deadline": "suspending*",
    },
    "draining*>stop": {
        **dict.fromkeys(_CRASH, "stopping>stopped"),
        "undrain": "ready",
        "kill": "stopping>stopped",
        "no leases": "stopping>stopped",
        "deadline": "suspending*>stop",
    },
    "suspending": {**_SLEEPLESS, **_GONE, "asleep": "sleeping"},
    "sleeping": {**_GONE, "wake": "waking", "exited": "stopping>stopped", "exited for good": "stopping>stopped"},
    "waking": {**_COLD, **_GONE, "ready": "ready"},
    "suspending*": {
        **_SLEEPLESS,
        "asleep": "sleeping*",
        "no leases": "suspending",
        "kill": "stopping>stopped",
        "drain to stop": "stopping>stopped",
        "finish and stop": "suspending*>stop",
    },
    "suspending*>stop": {
        **_SLEEPLESS,
        "asleep": "sleeping*>stop",
        "no leases": "stopping>stopped",
        "kill": "stopping>stopped",
        "drain to stop": "stopping>stopped",
        "undrain": "suspending*",
    },
    "sleeping*": {
        "wake": "waking*",
        "no leases": "sleeping",
        "exited": "stopping>stopped",
        "exited for good": "stopping>stopped",
        "kill": "stopping>stopped",
        "drain to stop": "stopping>stopped",
        "finish and stop": "sleeping*>stop",
    },
    "sleeping*>stop": {
        "wake": "waking*>stop",
        "no leases": "stopping>stopped",
        "exited": "stopping>stopped",
        "exited for good": "stopping>stopped",
        "kill": "stopping>stopped",
        "drain to stop": "stopping>stopped",
        "undrain": "sleeping*",
    },
    "waking*": {
        **_COLD,
        "ready": "ready",
        "no leases": "waking",
        "kill": "stopping>stopped",
        "drain to stop": "stopping>stopped",
        "finish and stop": "waking*>stop",
    },
    "waking*>stop": {
        **_COLD,
        "ready": "draining>stop",
        "no leases": "stopping>stopped",
        "kill": "stopping>stopped",
        "drain to stop": "stopping>stopped",
        "undrain": "waking*",
    },
    "stopping>stopped": {"reaped": "stopped"},
    "stopping>backoff": {
        **_GONE,
        "reaped": "backoff",
        "reset": "stopping>stopped",
    },
    "stopping>failed": {
        **_GONE,
        "reaped": "failed",
        "reset": "stopping>stopped",
    },
    "stopping>cold": {**_GONE, "reaped": "stopped"},
    "backoff": {**dict.fromkeys(_GONE, "stopped"), "reset": "stopped", "deadline": "stopped"},
    "failed": {"reset": "stopped"},
}
"""Every change of place; whatever is not listed changes none. `deadline` is a tick when the deadline has come."""

_TO_SLEEP = {"drain to sleep", "drain to freeze"}
_ADOPT = {"adopt", "adopt asleep"}
_NOT_NOW = frozenset({"start", "wake", "undrain"} | _TO_SLEEP | _ADOPT)

REFUSED: dict[str, frozenset[str]] = {
    "stopped": frozenset({"wake", "undrain"} | _TO_SLEEP),
    "starting": frozenset({"wake", "undrain"} | _TO_SLEEP | _ADOPT),
    "ready": frozenset(_ADOPT),
    **dict.fromkeys(
        ("draining>sleep", "draining>stop", "draining*>sleep", "draining*>stop"), frozenset({"start", "wake"} | _ADOPT)
    ),
    **dict.fromkeys(("suspending", "suspending*"), frozenset({"start", "wake", "undrain"} | _ADOPT)),
    "suspending*>stop": frozenset({"start", "wake"} | _ADOPT),
    **dict.fromkeys(("sleeping", "sleeping*"), frozenset({"start", "undrain"} | _ADOPT)),
    "sleeping*>stop": frozenset({"start"} | _ADOPT),
    **dict.fromkeys(("waking", "waking*"), frozenset({"undrain"} | _TO_SLEEP | _ADOPT)),
    "waking*>stop": frozenset(_TO_SLEEP | _ADOPT),
    **dict.fromkeys(
        ("stopping>stopped", "stopping>backoff", "stopping>failed", "stopping>cold", "backoff", "failed"), _NOT_NOW
    ),
}
"""Commands that contradict the place: answered with Refuse, nothing changes."""


def reach(place: str, now: float = 0.0) -> lc.Instance:
    """A fresh instance taken to `place` by its prefix, without time passing but for deadlines that have to come."""
    instance = fresh()
    for name in PREFIXES[place]:
        if name == "deadline":
            assert instance.deadline is not None
            instance, _ = lc.step(instance, lc.Tick(), instance.deadline)
        else:
            instance, _ = lc.step(instance, inputs(instance.generation)[name], max(now, instance.since))
    return instance
