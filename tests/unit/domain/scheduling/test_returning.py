"""Clients that wait a little, are told to come again, and come: their model's turn comes as if they had waited."""

from math import inf

from hypothesis import given, settings
from hypothesis import strategies as st

from vllm_mm.domain.lifecycle import State
from vllm_mm.domain.residency import Device, Ledger, Reservation, Resident
from vllm_mm.domain.scheduling import (
    Expected,
    Hold,
    Lane,
    Load,
    Returning,
    Rules,
    Ticket,
    View,
    bound,
    decide,
    sent_away,
)
from vllm_mm.domain.scheduling.order import claims_at
from vllm_mm.domain.specs import DeviceWish

KEEP = 80.0
RULES = Rules(max_wait=20.0, min_dwell=0.0, quantum=0.0)


def lane(*arrived: float, returning: float | None = None, wanted: float | None = None) -> Lane:
    tickets = tuple(Ticket(f"t{at}", "b", at, inf) for at in arrived)
    return Lane("b", State.STOPPED, tickets, wanted, DeviceWish(), 10, 0, returning_since=returning)


def busy() -> tuple[list[Resident], Ledger]:
    """`a` serves, and always will; there is room for one."""
    reservation = Reservation("a", {"d": 10}, held={"d": 10})
    return [Resident("a", State.READY, 3, False, 0.0, 0.0)], Ledger({"d": Device("d", 10)}, {"a": reservation})


def decision(at: float, asked: Lane) -> Load | Hold:
    residents, ledger = busy()
    (found,) = decide(View([asked], residents, ledger, {"a": Expected(rate=9.0, wait=1.0)}), RULES, at)
    assert isinstance(found, Load | Hold)
    return found


def test_who_comes_again_has_waited_since_the_first_time() -> None:
    """Its lane is overdue then, and has the room of a busy model; the first time alone is not enough."""
    assert isinstance(decision(30.0, lane(29.0)), Hold)
    found = decision(30.0, lane(29.0, returning=9.0))
    assert isinstance(found, Load)
    assert (found.victims, found.overdue) == (("a",), True)
    held = decision(28.0, lane(27.0, returning=9.0))
    assert isinstance(held, Hold)
    assert held.until == 29.0


def test_while_nobody_is_there_nothing_is_loaded_for_who_may_come() -> None:
    """Nor does a pin or a time of the week become older by it."""
    assert lane(returning=5.0).oldest is None
    assert lane(returning=5.0).overdue_at(20.0) is None
    assert lane(returning=5.0, wanted=9.0).oldest == 9.0
    assert lane(returning=5.0, wanted=9.0).overdue_at(20.0) == 29.0
    assert claims_at(lane(7.0, returning=5.0), RULES) == 25.0


def test_who_does_not_come_in_time_begins_anew() -> None:
    """The one who was sent away last is expected for so long, and with it the wait of the first."""
    first = sent_away(None, 1.0, 4.0, KEEP)
    assert first == Returning(1.0, 84.0)
    assert (first.at(84.0), first.at(84.1)) == (1.0, None)
    assert sent_away(first.at(50.0), 50.0, 53.0, KEEP) == Returning(1.0, 133.0)
    assert sent_away(first.at(90.0), 90.0, 93.0, KEEP) == Returning(90.0, 173.0)
    assert sent_away(7.0, 5.0, 9.0, KEEP).since == 5.0


@settings(deadline=None)
@given(
    st.lists(st.tuples(st.floats(0.1, 15.0), st.floats(0.1, KEEP)), min_size=1, max_size=40),
    st.floats(0.0, 5.0),
)
def test_however_little_patience_a_client_has_the_bound_holds(visits: list[tuple[float, float]], start: float) -> None:
    """It stays for less than `max_wait` each time and comes again in time, while another model is busy without pause: it is
    loaded at the latest at the first visit that is over after the bound, and not one decision later."""
    known: Returning | None = None
    at, first = start, start
    for patience, away in visits:
        since = known.at(at) if known is not None else None
        asked = lane(at, returning=since)
        due = first + bound(RULES, 1, 0.0)
        assert isinstance(decision(at, asked), Load if at >= due else Hold)
        left = at + patience
        if isinstance(decision(left, asked), Load):
            assert left >= due
            return
        assert left < due
        known = sent_away(since, at, left, KEEP)
        at = left + away


def test_what_was_loaded_for_those_who_come_again_waits_for_them() -> None:
    """For its quantum, idle as it is, although others wait; not longer, and not once somebody was served."""
    rules = Rules(max_wait=20.0, min_dwell=0.0, quantum=10.0)
    ledger = Ledger({"d": Device("d", 10)}, {"a": Reservation("a", {"d": 10}, held={"d": 10})})

    def decided(at: float, asked: Lane, *, expected: bool) -> Load | Hold:
        there = Resident("a", State.READY, 0, False, 5.0, 5.0, expected=expected)
        (found,) = decide(View([asked], [there], ledger), rules, at)
        assert isinstance(found, Load | Hold)
        return found

    assert isinstance(decided(6.0, lane(6.0), expected=False), Load)
    held = decided(6.0, lane(6.0), expected=True)
    assert isinstance(held, Hold)
    assert (held.reason.partition(":")[0], held.until) == ("dwell", 15.0)
    assert isinstance(decided(15.0, lane(6.0), expected=True), Load)
    urgent = Lane("b", State.STOPPED, (), 6.0, DeviceWish(), 10, 0, urgent=True)
    assert isinstance(decided(6.0, urgent, expected=True), Load), "operators do not wait for that"
