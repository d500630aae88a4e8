"""One round of decisions at a time. The behaviour over time is in tests/stateful."""

from dataclasses import replace

import pytest

from vllm_mm.domain.lifecycle import State
from vllm_mm.domain.residency import Device, Ledger, Resident
from vllm_mm.domain.scheduling import Decision, Grant, Hold, Lane, Load, Refuse, Rules, Ticket, View, decide
from vllm_mm.domain.specs import DeviceWish

RULES = Rules(max_wait=20.0, min_dwell=5.0)
NOW = 100.0


def tickets(model: str, *arrived: float) -> tuple[Ticket, ...]:
    return tuple(Ticket(f"{model}{i}", model, t, deadline=1e9) for i, t in enumerate(arrived))


def lane(model: str, state: State = State.STOPPED, *arrived: float, need: int = 60, **changes: object) -> Lane:
    blank = Lane(model, state, tickets(model, *arrived), None, DeviceWish(), need, 8 if state is State.READY else 0)
    return replace(blank, **changes)


def resident(model: str, **changes: object) -> Resident:
    return replace(Resident(model, State.READY, 0, False, last_used=0.0, ready_since=0.0), **changes)


def ledger(*capacities: int, **held: dict[str, int]) -> Ledger:
    book = Ledger({f"d{i}": Device(f"d{i}", c) for i, c in enumerate(capacities)})
    for model, device_bytes in held.items():
        book = book.adopt(model, device_bytes)
    return book


def run(lanes: list[Lane], book: Ledger, residents: list[Resident] | None = None, now: float = NOW) -> list[Decision]:
    return list(decide(View(lanes, residents or [], book), RULES, now))


def test_a_ready_lane_is_granted_in_order_of_priority_then_arrival() -> None:
    """As many as there are slots; the rest stay in the lane."""
    low, mid, high = (replace(t, priority=p) for t, p in zip(tickets("a", 1.0, 2.0, 3.0), (0, 0, 1), strict=True))
    a = lane("a", State.READY, free_slots=2)
    assert run([replace(a, tickets=(low, mid, high))], ledger(100)) == [Grant("a", (high, low))]


def test_a_full_ready_lane_waits_for_a_slot() -> None:
    """Time alone changes nothing, so there is no `until`."""
    assert run([lane("a", State.READY, 1.0, free_slots=0)], ledger(100)) == [
        Hold("a", "slots: all leases that it may give are out")
    ]


def test_lanes_without_need_get_no_decision() -> None:
    """Nobody waits, or what was wanted is there."""
    assert run([lane("a"), lane("b", State.READY, wanted_since=1.0)], ledger(100)) == []


def test_grants_come_first_whatever_the_others_wait_for() -> None:
    """A READY lane is served although an older lane takes its room in the same round."""
    lanes = [lane("b", State.STOPPED, 1.0), lane("a", State.READY, 99.0)]
    decisions = run(lanes, ledger(100, a={"d0": 60}), [resident("a")])
    assert decisions == [
        Grant("a", lanes[1].tickets),
        Load("b", {"d0": 60}, ("a",), "max_wait: evicts a"),
    ]


def test_who_is_granted_in_this_round_is_busy() -> None:
    """An idle instance that gets a lease now is no victim for a lane that is not overdue."""
    lanes = [lane("b", State.STOPPED, 95.0), lane("a", State.READY, 99.0)]
    granted, held = run(lanes, ledger(100, a={"d0": 60}), [resident("a")])
    assert isinstance(granted, Grant)
    assert isinstance(held, Hold)
    assert held.reason.startswith("room: needs")
    assert held.until == 115.0


def test_loads_that_fit_together_are_decided_together() -> None:
    """Each against the ledger as the earlier ones leave it, the oldest waiter first."""
    lanes = [lane("c", State.STOPPED, 99.0), lane("a", State.STOPPED, 97.0, need=40), lane("b", State.STOPPED, 98.0)]
    a, b, c = run(lanes, ledger(100))
    assert a == Load("a", {"d0": 40}, (), "fits")
    assert b == Load("b", {"d0": 60}, (), "fits")
    assert isinstance(c, Hold)
    assert (c.model, c.until) == ("c", 119.0)


def test_idle_victims_go_at_once_and_serve_one_load_only() -> None:
    """The second lane finds the victim leaving for somebody else."""
    lanes = [lane("b", State.STOPPED, 98.0), lane("c", State.STOPPED, 99.0)]
    b, c = run(lanes, ledger(100, a={"d0": 60}), [resident("a")])
    assert b == Load("b", {"d0": 60}, ("a",), "idle: evicts a")
    assert isinstance(c, Hold)


def test_dwell_holds_until_it_is_over() -> None:
    """`until` is the end of the dwell time, or the aging bound if that comes first."""
    young = resident("a", ready_since=98.0)
    (held,) = run([lane("b", State.STOPPED, 99.0)], ledger(100, a={"d0": 60}), [young])
    assert isinstance(held, Hold)
    assert held.until == 103.0
    (held,) = run([lane("b", State.STOPPED, 81.0)], ledger(100, a={"d0": 60}), [young])
    assert isinstance(held, Hold)
    assert held.until == 101.0
    (load,) = run([lane("b", State.STOPPED, 99.0)], ledger(100, a={"d0": 60}), [young], now=103.0)
    assert isinstance(load, Load)


def test_busy_victims_go_at_the_aging_bound_and_not_before() -> None:
    """Exactly at `max_wait`."""
    book, busy = ledger(100, a={"d0": 60}), [resident("a", leases=3)]
    (held,) = run([lane("b", State.STOPPED, 80.1)], book, busy)
    assert isinstance(held, Hold)
    assert held.until == pytest.approx(100.1)
    (load,) = run([lane("b", State.STOPPED, 80.0)], book, busy)
    assert load == Load("b", {"d0": 60}, ("a",), "max_wait: evicts a")


def test_an_operator_does_not_wait_for_the_aging_bound() -> None:
    """An explicit start drains busy victims at once; a preload ages like a ticket."""
    book, busy = ledger(100, a={"d0": 60}), [resident("a", leases=3)]
    (load,) = run([lane("b", wanted_since=NOW, urgent=True)], book, busy)
    assert load == Load("b", {"d0": 60}, ("a",), "operator: evicts a")
    (held,) = run([lane("b", wanted_since=NOW)], book, busy)
    assert isinstance(held, Hold)
    assert held.until == 120.0


def test_frozen_requests_wait_like_tickets() -> None:
    """A sleeper with frozen requests is woken without a ticket, and takes its room at the aging bound."""
    asleep = lane("b", State.SLEEPING, frozen=2, frozen_since=80.1)
    assert (asleep.oldest, asleep.overdue_at(20.0)) == (80.1, 100.1)
    assert run([asleep], ledger(100, b={"d0": 60}))[0] == Load("b", {"d0": 60}, (), "wake")
    book, busy = ledger(100, a={"d0": 60}), [resident("a", leases=1)]
    (held,) = run([asleep], book, busy)
    assert isinstance(held, Hold)
    (load,) = run([asleep], book, busy, now=100.1)
    assert load == Load("b", {"d0": 60}, ("a",), "max_wait: evicts a")


def test_an_overdue_lane_keeps_younger_ones_from_its_room() -> None:
    """B waits for the dwell of A; C is small enough for what is free, but B needs that too."""
    lanes = [lane("c", State.STOPPED, 99.0, need=30), lane("b", State.STOPPED, 70.0, need=80)]
    book, young = ledger(100, a={"d0": 60}), [resident("a", ready_since=98.0)]
    b, c = run(lanes, book, young)
    assert isinstance(b, Hold)
    assert (b.model, b.until) == ("b", 103.0)
    assert c == Hold("c", "order: b waits longer and needs the room", 103.0)
    # Before the bound there is no such claim.
    lanes[1] = lane("b", State.STOPPED, 90.0, need=80)
    assert run(lanes, book, young)[1] == Load("c", {"d0": 30}, (), "fits")


def test_an_overdue_lane_keeps_only_the_devices_where_it_goes_first() -> None:
    """The other device stays open to younger lanes."""
    lanes = [lane("b", State.STOPPED, 70.0, need=80), lane("c", State.STOPPED, 99.0, need=30)]
    book = ledger(100, 100, x={"d0": 60}, y={"d1": 60})
    young = [resident("x", ready_since=99.0), resident("y", ready_since=97.0)]
    b, c = run(lanes, book, young)
    assert isinstance(b, Hold)
    assert b.until == 102.0
    assert c == Load("c", {"d0": 30}, (), "fits")


def test_an_overdue_lane_behind_loads_keeps_its_devices() -> None:
    """While it is not known when the loads are done, it still holds its place in the order."""
    lanes = [lane("b", State.STOPPED, 70.0, need=80), lane("c", State.STOPPED, 99.0, need=30)]
    loading = [resident("a", state=State.STARTING, ready_since=None), resident("p", pinned=True)]
    b, c = run(lanes, ledger(100, a={"d0": 60}, p={"d0": 10}), loading)
    assert isinstance(b, Hold)
    assert b.until is None
    assert c == Hold("c", "order: b waits longer and needs the room", 119.0)


def test_an_overdue_lane_that_foreign_use_keeps_out_blocks_nobody() -> None:
    """It would keep everybody waiting for something that nobody here can bring about."""
    book = Ledger({"d0": Device("d0", 100, foreign=50)})
    lanes = [lane("b", State.STOPPED, 70.0, need=80), lane("c", State.STOPPED, 99.0, need=30)]
    b, c = run(lanes, book)
    assert isinstance(b, Hold)
    assert b.until is None
    assert c == Load("c", {"d0": 30}, (), "fits")


def test_the_second_overdue_lane_holds_too_when_there_is_no_room_at_all() -> None:
    """Its hold tells its own reason, not the order, when the room would not be there either way."""
    lanes = [lane("b", State.STOPPED, 70.0, need=80), lane("c", State.STOPPED, 71.0, need=50)]
    b, c = run(lanes, ledger(100, a={"d0": 60}), [resident("a", ready_since=98.0)])
    assert isinstance(b, Hold)
    assert isinstance(c, Hold)
    assert c.reason.startswith("room: ")
    assert "kept for a model that waits longer" in c.reason


def test_lanes_that_were_served_lately_come_after_those_that_were_not() -> None:
    """A backlog with older tickets does not keep a third model out."""
    lanes = [lane("a", State.STOPPED, 10.0, served_until=95.0), lane("c", State.STOPPED, 50.0)]
    c, a = run(lanes, ledger(100, b={"d0": 60}), [resident("b", leases=1)])
    assert c == Load("c", {"d0": 60}, ("b",), "max_wait: evicts b")
    assert isinstance(a, Hold)
    lanes[0] = replace(lanes[0], served_until=5.0)
    assert run(lanes, ledger(100))[0] == Load("a", {"d0": 60}, (), "fits")


def test_ties_go_by_priority_then_name() -> None:
    """Equal ages: the more important model first."""
    lanes = [lane("a", State.STOPPED, 99.0), lane("b", State.STOPPED, 99.0, priority=1)]
    assert run(lanes, ledger(100))[0] == Load("b", {"d0": 60}, (), "fits")


@pytest.mark.parametrize(
    ("state", "reason"),
    [
        (State.STARTING, "loading"),
        (State.WAKING, "loading"),
        (State.DRAINING, "stopping"),
        (State.SUSPENDING, "stopping"),
        (State.STOPPING, "stopping"),
    ],
)
def test_lanes_in_transition_wait_for_the_event(state: State, reason: str) -> None:
    """Time alone changes nothing."""
    assert run([lane("a", state, 1.0)], ledger(100, a={"d0": 60})) == [Hold("a", reason)]


@pytest.mark.parametrize("state", [State.BACKOFF, State.FAILED])
def test_a_failed_lane_is_refused_for_the_instances_own_reason(state: State) -> None:
    """Waiters are answered at once; the empty reason stands for the instance's."""
    assert run([lane("a", state, 1.0)], ledger(100)) == [Refuse("a", "")]


def test_what_can_never_fit_is_refused_with_the_sums() -> None:
    """The reason is for the caller."""
    (refused,) = run([lane("a", State.STOPPED, 1.0, need=101)], ledger(100))
    assert isinstance(refused, Refuse)
    assert "needs" in refused.reason


def test_a_planned_load_is_not_decided_again() -> None:
    """Its instance is still STOPPED while its victims go; the reservation tells."""
    book = ledger(100, x={"d0": 60}).leave("x").reserve("a", {"d0": 60})
    assert run([lane("a", State.STOPPED, 1.0)], book) == [Hold("a", "loading: waits for its memory")]
    begun = book.release("x").begin("a")
    assert run([lane("a", State.STOPPED, 1.0)], begun) == [Hold("a", "loading: waits for its memory")]
    assert run([lane("a", State.STOPPED, 1.0)], book.leave("a")) == [Hold("a", "stopping")]


def test_a_sleeper_with_its_full_memory_is_woken_at_once() -> None:
    """It needs no room, and is nobody's victim in the same round."""
    lanes = [lane("s", State.SLEEPING, 99.5), lane("b", State.STOPPED, 99.0)]
    asleep = resident("s", state=State.SLEEPING, ready_since=None)
    b, s = run(lanes, ledger(100, s={"d0": 60}), [asleep])
    assert isinstance(b, Hold)
    assert s == Load("s", {"d0": 60}, (), "wake")
    lanes = [lane("s", State.SLEEPING, 50.0), lane("b", State.STOPPED, 60.0)]
    s, b = run(lanes, ledger(100, s={"d0": 60}), [asleep])
    assert s == Load("s", {"d0": 60}, (), "wake")
    assert isinstance(b, Hold)


def test_a_sleeper_is_a_victim_of_an_overdue_lane() -> None:
    """Then it is leaving, and its own lane waits for that."""
    lanes = [lane("s", State.SLEEPING, 99.0), lane("b", State.STOPPED, 1.0)]
    asleep = resident("s", state=State.SLEEPING, ready_since=None)
    assert run(lanes, ledger(100, s={"d0": 60}), [asleep]) == [
        Load("b", {"d0": 60}, ("s",), "max_wait: evicts s"),
        Hold("s", "stopping"),
    ]


def test_a_sleeper_that_holds_less_grows_where_it_is() -> None:
    """On its own devices, evicting if need be; while it waits for the memory it is loading."""
    book = ledger(100, 100, s={"d0": 10}, a={"d0": 80})
    lanes = [lane("s", State.SLEEPING, 99.0)]
    residents = [resident("s", state=State.SLEEPING, ready_since=None), resident("a")]
    assert run(lanes, book, residents) == [Load("s", {"d0": 60}, ("a",), "idle: evicts a")]
    book = book.leave("a").grow("s", {"d0": 60})
    assert run(lanes, book, residents) == [Hold("s", "loading: waits for its memory")]
    assert run(lanes, ledger(100, s={"d0": 10}), residents) == [Load("s", {"d0": 60}, (), "fits")]


def test_a_sleeper_does_not_wake_into_the_room_of_an_overdue_lane() -> None:
    """Awake it would be safe for its dwell time, and the overdue lane would wait that much longer."""
    lanes = [lane("b", State.STOPPED, 1.0, need=90), lane("s", State.SLEEPING, 99.0, need=10)]
    residents = [resident("s", state=State.SLEEPING, ready_since=None), resident("a", ready_since=98.0)]
    b, s = run(lanes, ledger(100, s={"d0": 10}, a={"d0": 60}), residents)
    assert isinstance(b, Hold)
    assert s == Hold("s", "order: b waits longer and needs the room", 103.0)


def test_oldest_and_overdue() -> None:
    """Age counts from the first arrival or from when it was wanted; an operator's wish is overdue at once."""
    assert lane("a").oldest is None
    assert lane("a").overdue_at(20.0) is None
    assert lane("a", State.STOPPED, 7.0, 3.0, wanted_since=5.0).oldest == 3.0
    assert lane("a", State.STOPPED, 3.0, wanted_since=1.0).overdue_at(20.0) == 21.0
    assert lane("a", State.STOPPED, 3.0, wanted_since=5.0, urgent=True).overdue_at(20.0) == 5.0
