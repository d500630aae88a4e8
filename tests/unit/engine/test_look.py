"""Leases for what only looks at an engine's work; and how launches ended."""

from typing import Any, cast

from vllm_mm.domain.scheduling import Ticket
from vllm_mm.engine.endings import KEPT, Ending, Endings
from vllm_mm.engine.lease import LeaseGate

TICKET = Ticket("t", "m", 0.0, 0.0)


def gate(limit: int = 1) -> LeaseGate:
    made = LeaseGate("m", "m", limit, lambda: None)
    made.open(cast("Any", object()), 1, 0.0)
    return made


def test_a_look_is_beyond_the_limit() -> None:
    """It needs no slot, counts as long as it is out, and leaves the slots as they were."""
    it = gate()
    work = it.try_acquire(TICKET, 0.0)
    assert work is not None
    assert it.try_acquire(TICKET, 0.0) is None
    look = it.try_look(TICKET, 0.0)
    assert look is not None
    assert (it.count, it.free) == (2, 0)
    it.release(look, 1.0)
    it.release(work, 1.0)
    assert (it.count, it.free) == (0, 1)


def test_a_look_while_it_drains() -> None:
    """As long as others are out, and then it is waited for as they are; not when the last one is back."""
    it, gone = gate(), list[int]()
    assert LeaseGate("m", "m", 1, lambda: None).try_look(TICKET, 0.0) is None  # never opened
    work = it.try_acquire(TICKET, 0.0)
    assert work is not None
    it.close(lambda: gone.append(1), 1.0)
    assert it.try_acquire(TICKET, 1.0) is None
    look = it.try_look(TICKET, 1.0)
    assert look is not None
    it.release(work, 2.0)
    assert gone == []
    it.release(look, 2.0)
    assert gone == [1]
    assert it.try_look(TICKET, 2.0) is None


def test_no_look_at_a_frozen_engine() -> None:
    """It sleeps with its requests; a lease that is taken away says so."""
    it = gate()
    work = it.try_acquire(TICKET, 0.0)
    assert work is not None
    it.close(lambda: None, 1.0)
    it.freeze(1.0)
    assert it.try_look(TICKET, 1.0) is None
    assert work.revoked is None
    it.revoke(died=False, reason="gone")
    assert work.revoked is not None
    assert it.try_look(TICKET, 1.0) is None


def test_endings() -> None:
    """The first word about each launch, for the latest launches of a model."""
    it = Endings()
    it.note("m", Ending(1, 10.0, "evicted: room for b"))
    it.note("m", Ending(1, 11.0, "killed"))
    assert it.of("m", 1) == Ending(1, 10.0, "evicted: room for b")
    assert it.of("m", 2) is None
    assert it.of("other", 1) is None
    for generation in range(2, KEPT + 2):
        it.note("m", Ending(generation, 0.0, "x"))
    assert it.of("m", 1) is None
    assert it.of("m", KEPT + 1) is not None
