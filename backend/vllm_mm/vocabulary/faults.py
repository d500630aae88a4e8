"""Faults on demand: what a simulated engine can be told to do wrong.

Each is given as `--sim fault=NAME` or `--sim fault=NAME:VALUE`, repeatable or separated by commas, or to a running engine
in development mode as `POST /sim/fault` with `{"fault": "NAME:VALUE"}` (`DELETE /sim/fault` ends them all).

    crash_after_tokens:N   the engine core dies after N more generated tokens (in the middle of a stream)
    hang_at:PHASE          the load stops for ever in PHASE, without a word
    die_at:PHASE[:CODE]    the load fails in PHASE; the server exits with CODE (1)
    exit_0                 the server exits with code 0 in the middle of its load
    slow_health:SECONDS    /health answers after this long
    ignore_term            SIGTERM does nothing, in every process of the engine
    wipe_environment       children lose their environment in /proc when they rename themselves, as vLLM's do unless
                           SPT_NOENV=1 is set for them
    leave_session          the engine core moves to a session of its own
    lie_sleep              /sleep answers 200, /is_sleeping says yes, and all of the memory stays in use
    refuse_wake            /wake_up answers 500 and the engine stays asleep
    lie_wake               /wake_up answers 200, but what is generated afterwards is gibberish
    hang_requests          generation stops answering while /health stays 200
    no_readiness           the same from the first moment: it looks ready and never answers a probe
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace

from vllm_mm.vocabulary.quantities import parse_count, parse_duration

PHASES = ("version", "architecture", "init", "weights", "compile", "kv_cache", "graphs", "warmup")
"""The phases of a load, in order."""
NAMES = (
    "crash_after_tokens", "hang_at", "die_at", "exit_0", "slow_health", "ignore_term", "wipe_environment",
    "leave_session", "lie_sleep", "refuse_wake", "lie_wake", "hang_requests", "no_readiness",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Faults:
    """Which faults are on; everything off by default."""

    crash_after_tokens: int | None = None
    hang_at: str | None = None
    die_at: str | None = None
    die_code: int = 1
    exit_0: bool = False
    slow_health: float = 0.0
    """Seconds."""
    ignore_term: bool = False
    wipe_environment: bool = False
    leave_session: bool = False
    lie_sleep: bool = False
    refuse_wake: bool = False
    lie_wake: bool = False
    hang_requests: bool = False

    def with_fault(self, text: str) -> "Faults":
        """These faults and one more, `NAME` or `NAME:VALUE`. Raises ValueError."""
        name, _, value = text.strip().partition(":")
        match name:
            case "crash_after_tokens":
                return replace(self, crash_after_tokens=parse_count(value))
            case "hang_at":
                return replace(self, hang_at=_phase(value))
            case "die_at":
                phase, _, code = value.partition(":")
                return replace(self, die_at=_phase(phase), die_code=parse_count(code) if code else 1)
            case "slow_health":
                return replace(self, slow_health=parse_duration(value))
            case (
                "exit_0"
                | "ignore_term"
                | "wipe_environment"
                | "leave_session"
                | "lie_sleep"
                | "refuse_wake"
                | "lie_wake"
                | "hang_requests"
            ):
                return replace(self, **{name: _switch(name, value)})
            case "no_readiness":
                return replace(self, hang_requests=_switch(name, value))
            case _:
                raise ValueError(f"no fault is named {name!r}; there are {', '.join(NAMES)}")


def parse_faults(texts: Iterable[str]) -> Faults:
    """The faults of several texts, each a fault or a comma separated list of them. Raises ValueError."""
    faults = Faults()
    for text in texts:
        for item in text.split(","):
            if item.strip():
                faults = faults.with_fault(item)
    return faults


def _phase(text: str) -> str:
    if text not in PHASES:
        raise ValueError(f"no phase is named {text!r}; there are {', '.join(PHASES)}")
    return text


def _switch(name: str, value: str) -> bool:
    if value:
        raise ValueError(f"fault {name} takes no value")
    return True
