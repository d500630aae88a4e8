"""Lanes, rules and views."""

from dataclasses import replace

from vllm_mm.domain.lifecycle import State
from vllm_mm.domain.residency import Ledger
from vllm_mm.domain.scheduling import Lane, Rules, Ticket, View
from vllm_mm.domain.scheduling.expectations import NOTHING_KNOWN, Backlog, Expected
from vllm_mm.domain.specs import DeviceWish


def lane(**changes: object) -> Lane:
    return replace(Lane("m", State.STOPPED, (), None, DeviceWish(), 1, 0), **changes)


def test_everybody_who_waits_counts() -> None:
    """Tickets, or the number of all of them where they are many; a wish as one; frozen requests since they froze."""
    tickets = (Ticket("a", "m", 3.0, 9e9), Ticket("b", "m", 5.0, 9e9))
    assert lane().waiting == Backlog()
    assert lane(tickets=tickets).waiting == Backlog(2, 8.0)
    assert lane(tickets=tickets, backlog=Backlog(70, 350.0)).waiting == Backlog(70, 350.0)
    assert lane(tickets=tickets, wanted_since=1.0).waiting == Backlog(3, 9.0)
    assert lane(tickets=tickets, frozen=2, frozen_since=10.0).waiting == Backlog(4, 28.0)


def test_the_stay_is_a_quantum_that_no_bound_forbids() -> None:
    """Never longer than `max_wait`, unless the dwell time says so."""
    assert Rules(max_wait=20.0, min_dwell=5.0, quantum=10.0).stay == 10.0
    assert Rules(max_wait=4.0, min_dwell=0.0, quantum=10.0).stay == 4.0
    assert Rules(max_wait=4.0, min_dwell=7.0, quantum=0.0).stay == 7.0


def test_a_view_expects_something_of_every_model() -> None:
    """Guesses where nothing is known."""
    view = View((), (), Ledger({}), expected={"a": Expected(rate=1.0)})
    assert (view.of("a").rate, view.of("b")) == (1.0, NOTHING_KNOWN)
