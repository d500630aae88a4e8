"""What becomes of all who go for a load, and of the sleepers that have to go so that they can sleep. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from vllm_mm.domain.ledger import Ledger
from vllm_mm.domain.states import Goal, OnTimeout
from vllm_mm.domain.tiers import Fate, HostMemory, Sleeper, fate


@dataclass(frozen=True, slots=True)
class Goer:
    """One that has to go for a load. Sizes in bytes."""

    model: str
    asleep: bool
    """It sleeps, or is on its way out already: it is told to stop."""
    in_flight: int = 0
    """Requests that it has now."""
    takes: int = 0
    """Of the host's memory, asleep."""
    takes_frozen: int = 0
    """The same, if its sleep is to keep its requests."""
    stays: Mapping[str, int] | None = None
    """What it keeps on its devices asleep; None: nothing."""
    why_no_sleep: str = ""
    """Why it cannot sleep, whatever room there is; for people."""


@dataclass(frozen=True, slots=True)
class Parting:
    """What becomes of one of them."""

    model: str
    fate: Fate
    then: OnTimeout
    """What its drain does with requests that take too long."""
    keeps: bool
    """Its sleep is to keep the requests that it has."""


@dataclass(frozen=True, slots=True)
class Memory:
    """Of the host, and of the devices."""

    host: HostMemory
    ledger: Ledger


def part(
    memory: Memory, goers: Sequence[Goer], sleepers: Sequence[Sleeper], then: OnTimeout
) -> tuple[tuple[Parting, ...], Memory]:
    """In the order in which they are told to go, and what is promised once they were. `memory`: with the load promised, and all
    of them leaving for it. `then`: what becomes of requests that outlast a drain.

    Those that sleep go first, for what they give back of the host's memory may do for the others; and each leaves to those
    after it what it does not need itself.
    """
    partings: list[Parting] = []
    for goer in sorted(goers, key=lambda g: not g.asleep):
        parting = _parting(memory, goer, sleepers, then)
        memory = _after(memory, goer, parting)
        partings.append(parting)
    return tuple(partings), memory


def _parting(memory: Memory, goer: Goer, sleepers: Sequence[Sleeper], then: OnTimeout) -> Parting:
    if goer.asleep:
        return Parting(goer.model, Fate(Goal.STOP, "it sleeps already, and what it holds is needed"), then, keeps=False)
    if then is OnTimeout.FREEZE and goer.in_flight:
        found = _fate(memory, goer, goer.takes_frozen, sleepers)
        if found.goal is Goal.SLEEP:
            return Parting(goer.model, found, then, keeps=True)
        then = OnTimeout.CUT  # a sleep without them may take less of the host's memory
    return Parting(goer.model, _fate(memory, goer, goer.takes, sleepers), then, keeps=False)


def _fate(memory: Memory, goer: Goer, need: int, sleepers: Sequence[Sleeper]) -> Fate:
    return fate(
        memory.host, need, [s for s in sleepers if s.model != goer.model],
        why_not=goer.why_no_sleep, device_room=has_bed(memory.ledger, goer.model, goer.stays or {}),
    )  # fmt: skip


def has_bed(ledger: Ledger, model: str, stays: Mapping[str, int]) -> bool:
    """Whether what it keeps asleep is still its own on its devices."""
    try:
        ledger.leave(model, stays)
    except ValueError:
        return False
    return True


def _after(memory: Memory, goer: Goer, parting: Parting) -> Memory:
    host, ledger = memory.host, memory.ledger
    for sleeper in (*parting.fate.stops, *((goer.model,) if goer.asleep else ())):
        host, ledger = host.leave(sleeper), ledger.leave(sleeper)
    if parting.fate.goal is Goal.SLEEP:
        host = host.take(goer.model, goer.takes_frozen if parting.keeps else goer.takes)
        ledger = ledger.leave(goer.model, goer.stays)
    return replace(memory, host=host, ledger=ledger)
