"""The lifecycle as a table, written by hand from the design and independent of the code: what leads from where to where.

A *place* is a state with what tells its sub-states apart: `draining>sleep`, `stopping>backoff`.
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
    return f"{instance.state.value}>{detail.value}" if detail else instance.state.value


def inputs(generation: int) -> dict[str, lc.Input]:
    """One of each input; facts are about launch number `generation`."""
    return {
        "start": lc.Start("t"),
        "wake": lc.Wake("t"),
        "drain to sleep": lc.Drain(lc.Goal.SLEEP, 10.0, "t"),
        "drain to stop": lc.Drain(lc.Goal.STOP, 10.0, "t"),
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
        "no leases": lc.LeasesGone(generation),
        "asleep": lc.FellAsleep(generation),
        "reaped": lc.Reaped(generation),
        "tick": lc.Tick(),
    }


FACTS = frozenset(
    {"progressed", "ready", "exited", "exited for good", "unhealthy", "unhealthy for good", "no leases", "asleep", "reaped"}
)  # fmt: skip

PREFIXES: dict[str, tuple[str, ...]] = {
    "stopped": (),
    "starting": ("start",),
    "ready": ("start", "ready"),
    "draining>sleep": ("start", "ready", "drain to sleep"),
    "draining>stop": ("start", "ready", "drain to stop"),
    "suspending": ("start", "ready", "drain to sleep", "no leases"),
    "sleeping": ("start", "ready", "drain to sleep", "no leases", "asleep"),
    "waking": ("start", "ready", "drain to sleep", "no leases", "asleep", "wake"),
    "stopping>stopped": ("start", "kill"),
    "stopping>backoff": ("start", "exited"),
    "stopping>failed": ("start", "exited for good"),
    "backoff": ("start", "exited", "reaped"),
    "failed": ("start", "exited for good", "reaped"),
}
"""A legal way to each place."""

_CRASH = {
    "exited": "stopping>backoff",
    "exited for good": "stopping>failed",
    "unhealthy": "stopping>backoff",
    "unhealthy for good": "stopping>failed",
}

EDGES: dict[str, dict[str, str]] = {
    "stopped": {"start": "starting", "adopt": "ready", "adopt asleep": "sleeping"},
    "starting": {
        **_CRASH,
        "ready": "ready",
        "kill": "stopping>stopped",
        "drain to stop": "stopping>stopped",
        "deadline": "stopping>backoff",
    },
    "ready": {
        **_CRASH,
        "drain to sleep": "draining>sleep",
        "drain to stop": "draining>stop",
        "kill": "stopping>stopped",
    },
    "draining>sleep": {
        **_CRASH,
        "drain to stop": "draining>stop",
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
    "suspending": {
        **_CRASH,
        "asleep": "sleeping",
        "kill": "stopping>stopped",
        "drain to stop": "stopping>stopped",
        "deadline": "stopping>backoff",
    },
    "sleeping": {
        "wake": "waking",
        "exited": "stopping>stopped",
        "exited for good": "stopping>stopped",
        "kill": "stopping>stopped",
        "drain to stop": "stopping>stopped",
    },
    "waking": {
        **_CRASH,
        "ready": "ready",
        "kill": "stopping>stopped",
        "drain to stop": "stopping>stopped",
        "deadline": "stopping>backoff",
    },
    "stopping>stopped": {"reaped": "stopped"},
    "stopping>backoff": {
        "reaped": "backoff",
        "kill": "stopping>stopped",
        "drain to stop": "stopping>stopped",
        "reset": "stopping>stopped",
    },
    "stopping>failed": {
        "reaped": "failed",
        "kill": "stopping>stopped",
        "drain to stop": "stopping>stopped",
        "reset": "stopping>stopped",
    },
    "backoff": {"kill": "stopped", "drain to stop": "stopped", "reset": "stopped", "deadline": "stopped"},
    "failed": {"reset": "stopped"},
}
"""Every change of place; whatever is not listed changes none. `deadline` is a tick when the deadline has come."""

REFUSED: dict[str, frozenset[str]] = {
    "stopped": frozenset({"wake", "undrain", "drain to sleep"}),
    "starting": frozenset({"wake", "undrain", "drain to sleep", "adopt", "adopt asleep"}),
    "ready": frozenset({"adopt", "adopt asleep"}),
    "draining>sleep": frozenset({"start", "wake", "adopt", "adopt asleep"}),
    "draining>stop": frozenset({"start", "wake", "adopt", "adopt asleep"}),
    "suspending": frozenset({"start", "wake", "undrain", "adopt", "adopt asleep"}),
    "sleeping": frozenset({"start", "undrain", "adopt", "adopt asleep"}),
    "waking": frozenset({"undrain", "drain to sleep", "adopt", "adopt asleep"}),
    "stopping>stopped": frozenset({"start", "wake", "undrain", "drain to sleep", "adopt", "adopt asleep"}),
    "stopping>backoff": frozenset({"start", "wake", "undrain", "drain to sleep", "adopt", "adopt asleep"}),
    "stopping>failed": frozenset({"start", "wake", "undrain", "drain to sleep", "adopt", "adopt asleep"}),
    "backoff": frozenset({"start", "wake", "undrain", "drain to sleep", "adopt", "adopt asleep"}),
    "failed": frozenset({"start", "wake", "undrain", "drain to sleep", "adopt", "adopt asleep"}),
}
"""Commands that contradict the place: answered with Refuse, nothing changes."""


def reach(place: str, now: float = 0.0) -> lc.Instance:
    """A fresh instance taken to `place` by its prefix, without time passing."""
    instance = fresh()
    for name in PREFIXES[place]:
        instance, _ = lc.step(instance, inputs(instance.generation)[name], now)
    return instance
