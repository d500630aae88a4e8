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
    gives_up: tuple[str, ...] = ()
    """With `then` KEEP, or a sleep without requests: who is stopped if its drain takes too long, so that it can sleep with those
    that are left. The model of the load itself is among them, and is started anew instead of woken. Until then they sleep on."""


@dataclass(frozen=True, slots=True)
class Memory:
    """Of the host, and of the devices."""

    host: HostMemory
    ledger: Ledger


def part(
    memory: Memory, goers: Sequence[Goer], sleepers: Sequence[Sleeper], then: OnTimeout, own: str = ""
) -> tuple[tuple[Parting, ...], Memory]:
    """In the order in which they are told to go, and what is promised once they were. `memory`: with the load promised, and all
    of them leaving for it. `then`: what becomes of requests that outlast a drain. `own`: the model of the load, where it sleeps
    and could be started anew as well.

    Those that sleep go first, for what they give back of the host's memory may do for the others; and each leaves to those
    after it what it does not need itself. What is given up only if a drain takes too long is reckoned as if it did.
    """
    partings: list[Parting] = []
    for goer in sorted(goers, key=lambda g: not g.asleep):
        parting = _parting(memory, goer, sleepers, then, own)
        memory = _after(memory, goer, parting, own)
        partings.append(parting)
    return tuple(partings), memory


def _parting(memory: Memory, goer: Goer, sleepers: Sequence[Sleeper], then: OnTimeout, own: str) -> Parting:
    if goer.asleep:
        return Parting(goer.model, Fate(Goal.STOP, "it sleeps already, and what it holds is needed"), then, keeps=False)
    if then is OnTimeout.FREEZE and goer.in_flight:
        found = _fate(memory, goer, goer.takes_frozen, sleepers)
        if found.goal is Goal.SLEEP:
            return Parting(goer.model, found, then, keeps=True)
        late = _fate(memory, goer, goer.takes_frozen, sleepers, [own] if own in memory.host.held else [])
        without = _fate(memory, goer, goer.takes, sleepers)  # a sleep without them may take less of the host's memory
        if late.goal is Goal.SLEEP:
            then = OnTimeout.KEEP if without.goal is Goal.STOP else then
            return Parting(goer.model, without, then, keeps=False, gives_up=late.stops)
        return Parting(goer.model, without, OnTimeout.CUT, keeps=False)
    return Parting(goer.model, _fate(memory, goer, goer.takes, sleepers), then, keeps=False)


def _fate(memory: Memory, goer: Goer, need: int, sleepers: Sequence[Sleeper], last: Sequence[str] = ()) -> Fate:
    return fate(
        memory.host, need, [s for s in sleepers if s.model != goer.model],
        why_not=goer.why_no_sleep, device_room=has_bed(memory.ledger, goer.model, goer.stays or {}), last=last,
    )  # fmt: skip


def has_bed(ledger: Ledger, model: str, stays: Mapping[str, int]) -> bool:
    """Whether what it keeps asleep is still its own on its devices."""
    try:
        ledger.leave(model, stays)
    except ValueError:
        return False
    return True


def _after(memory: Memory, goer: Goer, parting: Parting, own: str) -> Memory:
    host, ledger = memory.host, memory.ledger
    for sleeper in (*parting.fate.stops, *parting.gives_up, *((goer.model,) if goer.asleep else ())):
        host = host.leave(sleeper)
        if sleeper != own:  # what it holds on its devices goes on to be promised to it
            ledger = ledger.leave(sleeper)
    if parting.fate.goal is Goal.SLEEP or parting.gives_up:
        frozen = parting.keeps or parting.gives_up
        host = host.take(goer.model, goer.takes_frozen if frozen else goer.takes)
        ledger = ledger.leave(goer.model, goer.stays)
    return replace(memory, host=host, ledger=ledger)
