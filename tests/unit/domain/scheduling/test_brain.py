"""One round of decisions at a time. The behaviour over time is in tests/stateful, and what it is worth in `scripts/bench policies`."""

from dataclasses import replace
from typing import Any

import pytest

from vllm_mm.domain.lifecycle import State
from vllm_mm.domain.reasons import Reason, split
from vllm_mm.domain.residency import Device, Ledger, Resident
from vllm_mm.domain.scheduling import (
    Decision,
    Expected,
    Grant,
    Hold,
    Lane,
    Load,
    Refuse,
    Rules,
    SwapTimes,
    Ticket,
    View,
    decide,
)
from vllm_mm.domain.specs import DeviceWish

RULES = Rules(max_wait=20.0, min_dwell=5.0, quantum=10.0)
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


def run(
    lanes: list[Lane],
    book: Ledger,
    residents: list[Resident] | None = None,
    now: float = NOW,
    rules: Rules = RULES,
    **expected: Expected,
) -> list[Decision]:
    return list(decide(View(lanes, residents or [], book, expected), rules, now))


def told(decision: Decision) -> tuple[type[Decision], str, Reason | None]:
    return type(decision), decision.model, split(decision.reason)[0]


def load(model: str, device_bytes: dict[str, int], code: Reason, *victims: str) -> Load:
    """As `run` gives it, but for the sentence."""
    return Load(model, device_bytes, victims, code)


def short(decisions: list[Decision]) -> list[Decision]:
    """Reasons cut down to their codes."""
    return [d if isinstance(d, Grant) else replace(d, reason=str(split(d.reason)[0])) for d in decisions]


def test_a_ready_lane_is_granted_in_order_of_priority_then_arrival() -> None:
    """As many as there are slots; the rest stay in the lane."""
    low, mid, high = (replace(t, priority=p) for t, p in zip(tickets("a", 1.0, 2.0, 3.0), (0, 0, 1), strict=True))
    a = lane("a", State.READY, free_slots=2)
    assert short(run([replace(a, tickets=(low, mid, high))], ledger(100))) == [Grant("a", (high, low))]


def test_a_full_ready_lane_waits_for_a_slot() -> None:
    """Time alone changes nothing, so there is no `until`."""
    assert short(run([lane("a", State.READY, 1.0, free_slots=0)], ledger(100))) == [Hold("a", Reason.SLOTS)]


def test_lanes_without_need_get_no_decision() -> None:
    """Nobody waits, or what was wanted is there."""
    assert short(run([lane("a"), lane("b", State.READY, wanted_since=1.0)], ledger(100))) == []


def test_grants_come_first_whatever_the_others_wait_for() -> None:
    """A READY lane is served although an older lane takes its room in the same round."""
    lanes = [lane("b", State.STOPPED, 1.0), lane("a", State.READY, 99.0)]
    decisions = short(run(lanes, ledger(100, a={"d0": 60}), [resident("a")]))
    assert decisions == [
        Grant("a", lanes[1].tickets),
        load("b", {"d0": 60}, Reason.MAX_WAIT, "a"),
    ]


def test_who_is_granted_in_this_round_is_busy() -> None:
    """An idle instance that gets a lease now is no victim for a lane that is not overdue."""
    lanes = [lane("b", State.STOPPED, 95.0), lane("a", State.READY, 99.0)]
    granted, held = short(run(lanes, ledger(100, a={"d0": 60}), [resident("a")]))
    assert isinstance(granted, Grant)
    assert isinstance(held, Hold)
    assert (held.reason, held.until) == (Reason.BUSY, 115.0)


def test_loads_that_fit_together_are_decided_together() -> None:
    """Each against the ledger as the earlier ones leave it, the oldest waiter first."""
    lanes = [lane("c", State.STOPPED, 99.0), lane("a", State.STOPPED, 97.0, need=40), lane("b", State.STOPPED, 98.0)]
    a, b, c = short(run(lanes, ledger(100)))
    assert a == load("a", {"d0": 40}, Reason.FITS)
    assert b == load("b", {"d0": 60}, Reason.FITS)
    assert isinstance(c, Hold)
    assert (c.model, c.until) == ("c", 119.0)


def test_idle_victims_go_at_once_and_serve_one_load_only() -> None:
    """The second lane finds the victim leaving for somebody else."""
    lanes = [lane("b", State.STOPPED, 98.0), lane("c", State.STOPPED, 99.0)]
    b, c = short(run(lanes, ledger(100, a={"d0": 60}), [resident("a")]))
    assert b == load("b", {"d0": 60}, Reason.IDLE, "a")
    assert isinstance(c, Hold)


def test_dwell_holds_until_it_is_over() -> None:
    """`until` is the end of the dwell time, or the aging bound if that comes first."""
    young = resident("a", ready_since=98.0)
    (held,) = short(run([lane("b", State.STOPPED, 99.0)], ledger(100, a={"d0": 60}), [young]))
    assert isinstance(held, Hold)
    assert held.until == 103.0
    (held,) = short(run([lane("b", State.STOPPED, 81.0)], ledger(100, a={"d0": 60}), [young]))
    assert isinstance(held, Hold)
    assert held.until == 101.0
    (loaded,) = short(run([lane("b", State.STOPPED, 99.0)], ledger(100, a={"d0": 60}), [young], now=103.0))
    assert isinstance(loaded, Load)


def test_busy_victims_go_at_the_aging_bound_and_not_before() -> None:
    """Exactly at `max_wait`."""
    book, busy = ledger(100, a={"d0": 60}), [resident("a", leases=3)]
    (held,) = short(run([lane("b", State.STOPPED, 80.1)], book, busy))
    assert isinstance(held, Hold)
    assert held.until == pytest.approx(100.1)
    (loaded,) = short(run([lane("b", State.STOPPED, 80.0)], book, busy))
    assert loaded == load("b", {"d0": 60}, Reason.MAX_WAIT, "a")


def test_an_operator_does_not_wait_for_the_aging_bound() -> None:
    """An explicit start drains busy victims at once; a preload ages like a ticket."""
    book, busy = ledger(100, a={"d0": 60}), [resident("a", leases=3)]
    (loaded,) = short(run([lane("b", wanted_since=NOW, urgent=True)], book, busy))
    assert loaded == load("b", {"d0": 60}, Reason.OPERATOR, "a")
    (held,) = short(run([lane("b", wanted_since=NOW)], book, busy))
    assert isinstance(held, Hold)
    assert held.until == 120.0


def test_what_is_only_kept_ready_evicts_nobody_who_is_missed_before_it_is_overdue() -> None:
    """Whoever asks for the victim would have it back at once: that were two swaps for each request."""
    book, idle = ledger(100, a={"d0": 60}), [resident("a")]
    used, unused = Expected(rate=0.01), Expected()
    (held,) = short(run([lane("b", wanted_since=90.0)], book, idle, a=used))
    assert isinstance(held, Hold)
    assert held.until == 110.0
    (loaded,) = short(run([lane("b", wanted_since=90.0)], book, idle, a=unused))
    assert loaded == load("b", {"d0": 60}, Reason.IDLE, "a")
    (loaded,) = short(run([lane("b", wanted_since=80.0)], book, idle, a=used))
    assert loaded == load("b", {"d0": 60}, Reason.MAX_WAIT, "a")
    (loaded,) = short(run([lane("b", State.STOPPED, 99.0, wanted_since=90.0)], book, idle, a=used))
    assert loaded == load("b", {"d0": 60}, Reason.PAYS, "a"), "a request waits"


def test_what_is_only_kept_ready_is_not_counted_among_those_who_wait() -> None:
    """One request waits where it takes two for the swap to pay; a wish beside it is not the second."""
    book, idle, busy = ledger(100, a={"d0": 60}), [resident("a")], Expected(rate=1.0, wait=1.5)
    asks, wish = lane("b", State.STOPPED, 99.0), lane("c", wanted_since=99.0)
    assert all(isinstance(d, Hold) for d in run([asks, wish], book, idle, a=busy))
    first, second = short(run([asks, lane("c", State.STOPPED, 99.0)], book, idle, a=busy))
    assert isinstance(first, Load)
    assert isinstance(second, Hold)


def test_requests_have_room_before_what_is_only_kept_ready() -> None:
    """Whatever their priorities are, and until it is overdue."""
    asks = lane("b", State.STOPPED, 99.0)
    decisions = run([lane("a", wanted_since=90.0, priority=9), asks], ledger(100))
    assert [(type(d), d.model) for d in decisions] == [(Load, "b"), (Hold, "a")]
    decisions = run([lane("a", wanted_since=80.0), asks], ledger(100))
    assert [(type(d), d.model) for d in decisions] == [(Load, "a"), (Hold, "b")]


def test_a_sleeper_that_is_only_to_be_kept_ready_is_no_more_in_use_than_another() -> None:
    """It goes for a request that needs its room, and does not hold that up until it is overdue."""
    book, asleep = ledger(100, a={"d0": 60}), [resident("a", state=State.SLEEPING, kept=True)]
    wish = lane("a", State.SLEEPING, wanted_since=99.0, need=100)
    first, _ = short(run([lane("b", State.STOPPED, 99.5), wish], book, asleep))
    assert first == load("b", {"d0": 60}, Reason.IDLE, "a")


def test_who_is_in_a_time_of_the_week_goes_last() -> None:
    """It would come back; also where the other one is awake, or asked for now and then."""
    book = ledger(120, a={"d0": 60}, b={"d0": 60})
    residents = [resident("a", state=State.SLEEPING, kept=True), resident("b")]
    (loaded,) = short(run([lane("c", State.STOPPED, 99.0)], book, residents, b=Expected(rate=0.01)))
    assert loaded == load("c", {"d0": 60}, Reason.PAYS, "b")


def test_frozen_requests_wait_like_tickets() -> None:
    """A sleeper with frozen requests is woken without a ticket, and takes its room at the aging bound."""
    asleep = lane("b", State.SLEEPING, frozen=2, frozen_since=80.1)
    assert (asleep.oldest, asleep.overdue_at(20.0)) == (80.1, 100.1)
    assert short(run([asleep], ledger(100, b={"d0": 60})))[0] == load("b", {"d0": 60}, Reason.THAW)
    book, busy = ledger(100, a={"d0": 60}), [resident("a", leases=1)]
    (held,) = short(run([asleep], book, busy))
    assert isinstance(held, Hold)
    (loaded,) = short(run([asleep], book, busy, now=100.1))
    assert loaded == load("b", {"d0": 60}, Reason.MAX_WAIT, "a")


def test_an_overdue_lane_keeps_younger_ones_from_its_room() -> None:
    """B waits for the dwell of A; C is small enough for what is free, but B needs that too."""
    lanes = [lane("c", State.STOPPED, 99.0, need=30), lane("b", State.STOPPED, 70.0, need=80)]
    book, young = ledger(100, a={"d0": 60}), [resident("a", ready_since=98.0)]
    b, c = short(run(lanes, book, young))
    assert isinstance(b, Hold)
    assert (b.model, b.until) == ("b", 103.0)
    assert c == Hold("c", Reason.ORDER, 103.0)
    # Before the bound there is no such claim.
    lanes[1] = lane("b", State.STOPPED, 90.0, need=80)
    assert short(run(lanes, book, young))[1] == load("c", {"d0": 30}, Reason.FITS)


def test_an_overdue_lane_keeps_only_the_devices_where_it_goes_first() -> None:
    """The other device stays open to younger lanes."""
    lanes = [lane("b", State.STOPPED, 70.0, need=80), lane("c", State.STOPPED, 99.0, need=30)]
    book = ledger(100, 100, x={"d0": 60}, y={"d1": 60})
    young = [resident("x", ready_since=99.0), resident("y", ready_since=97.0)]
    b, c = short(run(lanes, book, young))
    assert isinstance(b, Hold)
    assert b.until == 102.0
    assert c == load("c", {"d0": 30}, Reason.FITS)


def test_an_overdue_lane_keeps_its_devices_until_enough_may_go() -> None:
    """Y may go at 102 and X at 104; B needs the room of both."""
    lanes = [lane("b", State.STOPPED, 70.0, need=80), lane("c", State.STOPPED, 99.0, need=30)]
    young = [resident("x", ready_since=99.0), resident("y", ready_since=97.0)]
    b, c = short(run(lanes, ledger(100, x={"d0": 30}, y={"d0": 30}), young))
    assert (b, c) == (Hold("b", Reason.DWELL, 102.0), Hold("c", Reason.ORDER, 104.0))


def test_an_overdue_lane_behind_loads_keeps_its_devices() -> None:
    """While it is not known when the loads are done, it still holds its place in the order."""
    lanes = [lane("b", State.STOPPED, 70.0, need=80), lane("c", State.STOPPED, 99.0, need=30)]
    loading = [resident("a", state=State.STARTING, ready_since=None), resident("p", pinned=True)]
    b, c = short(run(lanes, ledger(100, a={"d0": 60}, p={"d0": 10}), loading))
    assert isinstance(b, Hold)
    assert b.until is None
    assert c == Hold("c", Reason.ORDER, 119.0)


def test_an_overdue_lane_that_foreign_use_keeps_out_blocks_nobody() -> None:
    """It would keep everybody waiting for something that nobody here can bring about."""
    book = Ledger({"d0": Device("d0", 100, foreign=50)})
    lanes = [lane("b", State.STOPPED, 70.0, need=80), lane("c", State.STOPPED, 99.0, need=30)]
    b, c = short(run(lanes, book))
    assert isinstance(b, Hold)
    assert b.until is None
    assert c == load("c", {"d0": 30}, Reason.FITS)


def test_the_second_overdue_lane_is_behind_the_first() -> None:
    """Also while there is no room for either."""
    lanes = [lane("b", State.STOPPED, 70.0, need=80), lane("c", State.STOPPED, 71.0, need=50)]
    b, c = short(run(lanes, ledger(100, a={"d0": 60}), [resident("a", ready_since=98.0)]))
    assert isinstance(b, Hold)
    assert isinstance(c, Hold)
    assert c.reason == Reason.ORDER


def test_lanes_that_were_served_lately_come_after_those_that_were_not() -> None:
    """A backlog with older tickets does not keep a third model out."""
    lanes = [lane("a", State.STOPPED, 10.0, served_until=95.0), lane("c", State.STOPPED, 50.0)]
    c, a = short(run(lanes, ledger(100, b={"d0": 60}), [resident("b", leases=1)]))
    assert c == load("c", {"d0": 60}, Reason.MAX_WAIT, "b")
    assert isinstance(a, Hold)
    lanes[0] = replace(lanes[0], served_until=5.0)
    assert short(run(lanes, ledger(100)))[0] == load("a", {"d0": 60}, Reason.FITS)


def test_ties_go_by_priority_then_name() -> None:
    """Equal ages: the more important model first."""
    lanes = [lane("a", State.STOPPED, 99.0), lane("b", State.STOPPED, 99.0, priority=1)]
    assert short(run(lanes, ledger(100)))[0] == load("b", {"d0": 60}, Reason.FITS)


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
    assert short(run([lane("a", state, 1.0)], ledger(100, a={"d0": 60}))) == [Hold("a", reason)]


@pytest.mark.parametrize("state", [State.BACKOFF, State.FAILED])
def test_a_failed_lane_is_refused_for_the_instances_own_reason(state: State) -> None:
    """Waiters are answered at once."""
    assert short(run([lane("a", state, 1.0)], ledger(100))) == [Refuse("a", Reason.FAILED)]


def test_who_waits_for_one_that_failed_while_it_served_waits_through_its_pause() -> None:
    """A wish alone does not: whoever keeps it says so again."""
    back = lane("a", State.BACKOFF, 1.0, back_at=104.0)
    (held,) = run([back], ledger(100))
    assert isinstance(held, Hold)
    assert (split(held.reason)[0], held.until) == (Reason.BACKOFF, 104.0)
    wish = replace(back, tickets=(), wanted_since=1.0)
    assert short(run([wish], ledger(100))) == [Refuse("a", Reason.FAILED)]


def test_what_can_never_fit_is_refused_with_the_sums() -> None:
    """The reason is for the caller."""
    (refused,) = run([lane("a", State.STOPPED, 1.0, need=101)], ledger(100))
    assert isinstance(refused, Refuse)
    assert refused.reason.startswith("never: needs ")


def test_what_can_never_fit_is_refused_behind_an_overdue_lane_too() -> None:
    """It does not wait for its turn first. (Found by the simulated fleet of tests/stateful.)"""
    lanes = [lane("b", State.STOPPED, 70.0, need=80), lane("c", State.STOPPED, 99.0, need=95)]
    held = [resident("a", state=State.STARTING, ready_since=None), resident("p", pinned=True)]
    b, c = run(lanes, ledger(100, a={"d0": 60}, p={"d0": 10}), held)
    assert isinstance(b, Hold)
    assert isinstance(c, Refuse)
    assert c.reason.startswith("never: needs ")


def test_a_planned_load_is_not_decided_again() -> None:
    """Its instance is still STOPPED while its victims go; the reservation tells."""
    book = ledger(100, x={"d0": 60}).leave("x").reserve("a", {"d0": 60})
    assert short(run([lane("a", State.STOPPED, 1.0)], book)) == [Hold("a", Reason.LOADING)]
    begun = book.release("x").begin("a")
    assert short(run([lane("a", State.STOPPED, 1.0)], begun)) == [Hold("a", Reason.LOADING)]
    assert short(run([lane("a", State.STOPPED, 1.0)], book.leave("a"))) == [Hold("a", Reason.STOPPING)]


def test_a_sleeper_with_its_full_memory_is_woken_at_once() -> None:
    """It needs no room, and is nobody's victim in the same round."""
    lanes = [lane("s", State.SLEEPING, 99.5), lane("b", State.STOPPED, 99.0)]
    asleep = resident("s", state=State.SLEEPING, ready_since=None)
    s, b = short(run(lanes, ledger(100, s={"d0": 60}), [asleep]))
    assert isinstance(b, Hold)
    assert s == load("s", {"d0": 60}, Reason.WAKE)
    lanes = [lane("s", State.SLEEPING, 50.0), lane("b", State.STOPPED, 60.0)]
    s, b = short(run(lanes, ledger(100, s={"d0": 60}), [asleep]))
    assert s == load("s", {"d0": 60}, Reason.WAKE)
    assert isinstance(b, Hold)


def test_a_sleeper_is_a_victim_of_an_overdue_lane() -> None:
    """Then it is leaving, and its own lane waits for that."""
    lanes = [lane("s", State.SLEEPING, 99.0), lane("b", State.STOPPED, 1.0)]
    asleep = resident("s", state=State.SLEEPING, ready_since=None)
    assert short(run(lanes, ledger(100, s={"d0": 60}), [asleep])) == [
        load("b", {"d0": 60}, Reason.MAX_WAIT, "s"),
        Hold("s", Reason.STOPPING),
    ]


def test_a_sleeper_that_holds_less_grows_where_it_is() -> None:
    """On its own devices, evicting if need be; while it waits for the memory it is loading."""
    book = ledger(100, 100, s={"d0": 10}, a={"d0": 80})
    lanes = [lane("s", State.SLEEPING, 99.0)]
    residents = [resident("s", state=State.SLEEPING, ready_since=None), resident("a")]
    assert short(run(lanes, book, residents)) == [load("s", {"d0": 60}, Reason.IDLE, "a")]
    book = book.leave("a").grow("s", {"d0": 60})
    assert short(run(lanes, book, residents)) == [Hold("s", Reason.LOADING)]
    assert short(run(lanes, ledger(100, s={"d0": 10}), residents)) == [load("s", {"d0": 60}, Reason.WAKE)]


def test_a_sleeper_does_not_wake_into_the_room_of_an_overdue_lane() -> None:
    """Awake it would be safe for its dwell time, and the overdue lane would wait that much longer."""
    lanes = [lane("b", State.STOPPED, 1.0, need=90), lane("s", State.SLEEPING, 99.0, need=10)]
    residents = [resident("s", state=State.SLEEPING, ready_since=None), resident("a", ready_since=98.0)]
    b, s = short(run(lanes, ledger(100, s={"d0": 10}, a={"d0": 60}), residents))
    assert isinstance(b, Hold)
    assert s == Hold("s", Reason.ORDER, 103.0)


def test_oldest_and_overdue() -> None:
    """Age counts from the first arrival or from when it was wanted; an operator's wish is overdue at once."""
    assert lane("a").oldest is None
    assert lane("a").overdue_at(20.0) is None
    assert lane("a", State.STOPPED, 7.0, 3.0, wanted_since=5.0).oldest == 3.0
    assert lane("a", State.STOPPED, 3.0, wanted_since=1.0).overdue_at(20.0) == 21.0
    assert lane("a", State.STOPPED, 3.0, wanted_since=5.0, urgent=True).overdue_at(20.0) == 5.0


def times(start: float, wake: float = 2.0) -> SwapTimes:
    """Stop and sleep take nothing."""
    return SwapTimes(start, wake, 0.0, 0.0)


def test_the_model_with_the_most_waiting_per_second_of_its_swap_is_first() -> None:
    """Three that have just come for a quick load go before one that has waited 15 s for a slow one, which gains with time."""
    lanes = [lane("slow", State.STOPPED, 85.0), lane("quick", State.STOPPED, 99.0, 99.0, 99.0)]
    known = {"slow": Expected(times(20.0)), "quick": Expected(times(5.0))}
    assert [d.model for d in run(lanes, ledger(60), **known)] == ["quick", "slow"]
    lanes[0] = lane("slow", State.STOPPED, 5.0)
    assert [d.model for d in run(lanes, ledger(60), rules=replace(RULES, max_wait=300.0), **known)] == ["slow", "quick"]


def test_before_an_overdue_model_goes_only_who_waited_then() -> None:
    """B is overdue since 90. C waited already and has more to gain; D came since, whatever it has."""
    lanes = [
        lane("b", State.STOPPED, 70.0),
        lane("c", State.STOPPED, *[89.0] * 50),
        lane("d", State.STOPPED, *[91.0] * 500),
    ]
    assert [d.model for d in run(lanes, ledger(60))] == ["c", "b", "d"]
    lanes[1] = lane("c", State.STOPPED, *[89.0] * 50, served_until=95.0)
    assert [d.model for d in run(lanes, ledger(60))] == ["b", "d", "c"]


def test_each_overdue_model_goes_before_who_came_since() -> None:
    """F, which wants the other device, has been overdue for longest and cannot be loaded; that is no reason for D, which came when B was
    overdue, to go before B on this one, whatever its priority."""
    there, here = DeviceWish(ids=("d1",)), DeviceWish(ids=("d0",))
    lanes = [
        lane("f", State.STOPPED, 10.0, wish=there),
        lane("b", State.STOPPED, 70.0, wish=here),
        lane("d", State.STOPPED, 95.0, priority=9, wish=here),
    ]
    book = ledger(60, 60, a={"d0": 60}, x={"d1": 60})
    residents = [resident("a"), resident("x", state=State.STARTING, ready_since=None)]
    f, b, d = run(lanes, book, residents)
    assert (told(f), told(b), told(d)) == (
        (Hold, "f", Reason.ROOM), (Load, "b", Reason.MAX_WAIT), (Hold, "d", Reason.ROOM),
    )  # fmt: skip


def test_priority_is_above_what_is_gained() -> None:
    """Among those who may go before one another."""
    lanes = [lane("b", State.STOPPED, 90.0, 90.0), lane("c", State.STOPPED, 99.0, priority=1)]
    assert [d.model for d in run(lanes, ledger(60))] == ["c", "b"]


def test_a_priority_counts_also_where_the_lower_one_is_overdue_first() -> None:
    """C came 50 ms after B and is more important: when B's claim makes the busy A go, it goes for C, and B is next."""
    book, busy = ledger(100, a={"d0": 60}), [resident("a", leases=3)]
    lanes = [lane("b", State.STOPPED, 80.0), lane("c", State.STOPPED, 80.05, priority=1)]
    c, b = run(lanes, book, busy)
    assert told(c) == (Load, "c", Reason.MAX_WAIT)
    assert c.reason.endswith("evicts a, before b, which has waited too long and has a lower priority")
    assert isinstance(c, Load)
    assert c.overdue
    assert isinstance(b, Hold)
    lanes[0] = lane("b", State.STOPPED, 80.1)
    assert [type(d) for d in run(lanes, book, busy)] == [Hold, Hold], "nobody is overdue, so nobody lends"


@pytest.mark.parametrize(
    ("changes", "of"),
    [
        ({"priority": 0}, "as important"),
        ({"priority": 1, "served_until": 100.0}, "was served since"),
        ({"priority": 1, "state": State.STOPPING}, "on its way out"),
        ({"priority": 1, "wish": DeviceWish(ids=("d1",))}, "wants another device"),
        ({"priority": 1, "tickets": (), "wanted_since": 90.0}, "only kept ready"),
        ({"priority": 1, "tickets": tuple(replace(t, evicts=False) for t in tickets("c", 90.0))}, "has no right"),
        ({"priority": 1, "tickets": tickets("c", 100.0)}, "came since"),
    ],
)
def test_a_claim_is_lent_to_who_waits_by_right_and_is_more_important(changes: dict[str, Any], of: str) -> None:
    """To nobody else: then B, which is overdue, has the room of A."""
    book, busy = ledger(100, 10, a={"d0": 60}), [resident("a", leases=3)]
    lanes = [
        lane("b", State.STOPPED, 80.0, wish=DeviceWish(ids=("d0",))),
        replace(lane("c", State.STOPPED, 90.0), **changes),
    ]
    found = {d.model: d for d in short(run(lanes, book, busy))}
    assert found["b"] == load("b", {"d0": 60}, Reason.MAX_WAIT, "a"), of
    assert not isinstance(found.get("c"), Load)


def test_an_operators_start_lends_no_claim_and_neither_does_who_is_on_its_way() -> None:
    """What is wanted at once by order is loaded, and nothing else for that."""
    book, busy = ledger(100, a={"d0": 60}), [resident("a", leases=3)]
    more = lane("c", State.STOPPED, 90.0, priority=1)
    c, b = run([lane("b", wanted_since=NOW, urgent=True), more], book, busy)
    assert (told(c), told(b)) == ((Hold, "c", Reason.BUSY), (Load, "b", Reason.OPERATOR))
    found = {d.model: d for d in run([lane("b", State.STARTING, 80.0), more], book, busy)}
    assert told(found["c"]) == (Hold, "c", Reason.BUSY)


def test_who_lends_its_claim_does_not_wait_for_who_cannot_go() -> None:
    """C is larger, and needs the room of X, which became ready just now, as well: B, which is overdue, has that of A meanwhile."""
    book = ledger(100, a={"d0": 50}, x={"d0": 50})
    residents = [resident("a", leases=3), resident("x", leases=1, ready_since=98.0)]
    lanes = [lane("b", State.STOPPED, 80.0, need=50), lane("c", State.STOPPED, 80.05, need=90, priority=1)]
    found = {d.model: d for d in short(run(lanes, book, residents))}
    assert found["b"] == load("b", {"d0": 50}, Reason.MAX_WAIT, "a")
    assert isinstance(found["c"], Hold)


def test_a_swap_that_does_not_pay_waits() -> None:
    """A is idle at this moment, but asked for twice a second, and its requests wait 3 s on average: as long as fewer than six
    wait for B, staying is cheaper. From then on it pays."""
    book, idle = ledger(100, a={"d0": 60}), [resident("a")]
    known = {"a": Expected(times(20.0), rate=2.0, wait=3.0)}
    (held,) = run([lane("b", State.STOPPED, *[95.0] * 5)], book, idle, **known)
    assert told(held) == (Hold, "b", Reason.COST)
    assert isinstance(held, Hold)
    assert held.until == 115.0
    (loaded,) = short(run([lane("b", State.STOPPED, *[95.0] * 6)], book, idle, **known))
    assert loaded == load("b", {"d0": 60}, Reason.PAYS, "a")


def test_who_is_missed_least_goes() -> None:
    """A is asked for often, C seldom though it was used last: C goes. Where nobody is missed, the least recently used."""
    book = ledger(120, a={"d0": 60}, c={"d0": 60})
    idle = [resident("a", last_used=10.0), resident("c", last_used=90.0)]
    known = {"a": Expected(times(20.0), rate=0.01), "c": Expected(times(20.0), rate=0.001)}
    (loaded,) = short(run([lane("b", State.STOPPED, 99.0)], book, idle, **known))
    assert loaded == load("b", {"d0": 60}, Reason.PAYS, "c")
    (loaded,) = short(run([lane("b", State.STOPPED, 99.0)], book, idle))
    assert loaded == load("b", {"d0": 60}, Reason.IDLE, "a")
    # What comes back quickly is missed less.
    known = {"a": Expected(times(200.0), rate=0.001), "c": Expected(times(20.0), rate=0.002)}
    (loaded,) = short(run([lane("b", State.STOPPED, 99.0)], book, idle, **known))
    assert loaded == load("b", {"d0": 60}, Reason.PAYS, "c")


def test_a_prefix_cache_is_worth_the_time_to_fill_it_where_it_is_asked_for_again() -> None:
    """A and C are asked for alike; C was used last, and has nothing in its cache: it goes. What nobody comes back for is lost to nobody."""
    book = ledger(120, a={"d0": 60}, c={"d0": 60})
    idle = [resident("a", last_used=10.0), resident("c", last_used=90.0)]
    known = {"a": Expected(times(20.0), rate=0.001, cache=30.0), "c": Expected(times(20.0), rate=0.001)}
    (loaded,) = short(run([lane("b", State.STOPPED, 99.0)], book, idle, **known))
    assert loaded == load("b", {"d0": 60}, Reason.PAYS, "c")
    known = {"a": Expected(times(20.0), cache=30.0), "c": Expected(times(20.0))}
    (loaded,) = short(run([lane("b", State.STOPPED, 99.0)], book, idle, **known))
    assert loaded == load("b", {"d0": 60}, Reason.IDLE, "a")
    # Who is asked for ten times as often is missed more than a cache that takes a second to fill.
    known = {"a": Expected(times(20.0), rate=0.001, cache=1.0), "c": Expected(times(20.0), rate=0.01)}
    (loaded,) = short(run([lane("b", State.STOPPED, 99.0)], book, idle, **known))
    assert loaded == load("b", {"d0": 60}, Reason.PAYS, "a")


def test_those_who_wait_for_a_slot_would_miss_it_too() -> None:
    """Of two busy models that are asked for alike, the one without a queue of its own goes."""
    book = ledger(120, a={"d0": 60}, c={"d0": 60})
    busy = [resident("a", leases=1), resident("c", leases=1)]
    lanes = [lane("b", State.STOPPED, 70.0), lane("a", State.READY, 98.0, 99.0, free_slots=1)]
    found = {d.model: d for d in short(run(lanes, book, busy))}
    assert found["b"] == load("b", {"d0": 60}, Reason.MAX_WAIT, "c")
    lanes[1] = lane("c", State.READY, 98.0, 99.0, free_slots=1)
    assert {d.model: d for d in short(run(lanes, book, busy))}["b"] == load("b", {"d0": 60}, Reason.MAX_WAIT, "a")


def test_a_busy_model_has_its_quantum() -> None:
    """Somebody overdue does not end it before it could do anything; an idle one that pays goes after its dwell."""
    book, busy = ledger(100, a={"d0": 60}), resident("a", leases=3, ready_since=93.0)
    (held,) = run([lane("b", State.STOPPED, 70.0)], book, [busy])
    assert told(held) == (Hold, "b", Reason.DWELL)
    assert isinstance(held, Hold)
    assert held.until == 103.0
    (loaded,) = short(run([lane("b", State.STOPPED, 70.0)], book, [busy], now=103.0))
    assert loaded == load("b", {"d0": 60}, Reason.MAX_WAIT, "a")
    (loaded,) = short(run([lane("b", State.STOPPED, 70.0)], book, [replace(busy, leases=0)]))
    assert loaded == load("b", {"d0": 60}, Reason.MAX_WAIT, "a")


def test_those_who_wait_for_other_devices_do_not_count() -> None:
    """C's backlog on the other device is no reason to evict A from its own."""
    book, idle = ledger(60, 60, a={"d0": 60}, x={"d1": 60}), [resident("a"), resident("x", leases=1)]
    known = {"a": Expected(times(20.0), rate=2.0, wait=3.0)}
    lanes = [
        lane("b", State.STOPPED, 95.0, wish=DeviceWish(ids=("d0",))),
        lane("c", State.STOPPED, *[95.0] * 9, wish=DeviceWish(ids=("d1",))),
    ]
    assert [told(d) for d in run(lanes, book, idle, **known)] == [(Hold, "c", Reason.BUSY), (Hold, "b", Reason.COST)]
    lanes[1] = replace(lanes[1], wish=DeviceWish(ids=("d0", "d1")))
    assert (Hold, "b", Reason.COST) not in [told(d) for d in run(lanes, book, idle, **known)]


def test_those_whose_load_was_decided_do_not_count_for_the_next() -> None:
    """Six wait for B, which fits; the one that waits for C alone is no reason to evict A."""
    book, idle = ledger(160, a={"d0": 60}), [resident("a")]
    known = {"a": Expected(times(20.0), rate=1.0, wait=3.0)}
    lanes = [lane("b", State.STOPPED, *[95.0] * 6), lane("c", State.STOPPED, 99.0)]
    assert [told(d) for d in run(lanes, book, idle, **known)] == [(Load, "b", Reason.FITS), (Hold, "c", Reason.COST)]


def test_a_pinned_model_that_fills_the_device_is_told() -> None:
    """For ever, if nothing else could make room; as a hindrance, where others may."""
    (refused,) = run([lane("b", State.STOPPED, 1.0)], ledger(100, p={"d0": 60}), [resident("p", pinned=True)])
    assert told(refused) == (Refuse, "b", Reason.NEVER)
    book = ledger(100, p={"d0": 30}, a={"d0": 60})
    (held,) = run([lane("b", State.STOPPED, 99.0)], book, [resident("p", pinned=True), resident("a", leases=1)])
    assert held.reason == "busy: needs 0.0 GiB; p is pinned; a serves 1"


@pytest.mark.parametrize(
    ("holder", "code", "note"),
    [
        (None, Reason.ROOM, "is being loaded"),
        (resident("a", state=State.STARTING, ready_since=None), Reason.ROOM, "is being loaded"),
        (resident("a", state=State.SLEEPING, frozen=2), Reason.ROOM, "has frozen requests"),
        (resident("a", ready_since=99.0), Reason.DWELL, "became ready just now"),
        (resident("a", leases=2), Reason.BUSY, "serves 2"),
    ],
)
def test_a_hold_tells_who_is_in_the_way(holder: Resident | None, code: Reason, note: str) -> None:
    """With the code of what has to change."""
    (held,) = run([lane("b", State.STOPPED, 99.0)], ledger(100, a={"d0": 60}), [holder] if holder is not None else [])
    assert told(held) == (Hold, "b", code)
    assert held.reason.endswith(f"; a {note}")


def test_a_hold_tells_of_sleepers_others_and_strangers() -> None:
    """A sleeper that is wanted, one that could go but is not enough, and memory that other processes use."""
    book = Ledger({"d0": Device("d0", 5 * 2**30, foreign=2**30)})
    book = book.adopt("a", {"d0": 2**30}).adopt("s", {"d0": 2**30}).adopt("z", {"d0": 2**30}).leave("z")
    residents = [resident("a"), resident("s", state=State.SLEEPING, ready_since=None)]
    lanes = [lane("b", State.STOPPED, 99.9, need=4 * 2**30), lane("s", State.SLEEPING, 99.0, need=9 * 2**29)]
    found = {d.model: d for d in run(lanes, book, residents)}
    assert found["b"].reason == (
        "busy: needs 4.0 GiB; a could go, which is not enough; s sleeps, and is wanted; others use 1.0 GiB of d0"
    )


def test_a_hold_tells_of_devices_that_are_out_of_use_or_let() -> None:
    """Out of use it is the device that has to change; what is let is nobody's to give."""
    broken = Ledger({"d0": Device("d0", 100, problem="it fell off the bus", strangers=("x (pid 7)",), foreign=2**30)})
    (held,) = run([lane("b", State.STOPPED, 99.0)], broken)
    assert told(held) == (Hold, "b", Reason.DEVICE)
    assert held.reason.endswith("; others use 1.0 GiB (x (pid 7)) of d0; d0 is out of use: it fell off the bus")
    let = ledger(100, training={"d0": 60})
    let = Ledger(let.devices, {"training": replace(let.reservations["training"], let={"d0": 0})})
    (held,) = run([lane("b", State.STOPPED, 1.0)], let)
    assert told(held) == (Hold, "b", Reason.ROOM)
    assert held.reason.endswith("; training is kept for something else until it ends")


def test_an_operator_waits_for_the_dwell_but_for_no_quantum() -> None:
    """An explicit start means now."""
    book, busy = ledger(100, a={"d0": 60}), [resident("a", leases=1, ready_since=94.0)]
    (loaded,) = short(run([lane("b", wanted_since=NOW, urgent=True)], book, busy))
    assert loaded == load("b", {"d0": 60}, Reason.OPERATOR, "a")
    (held,) = run([lane("b", wanted_since=NOW, urgent=True)], book, [replace(busy[0], ready_since=96.0)])
    assert told(held) == (Hold, "b", Reason.DWELL)
    assert isinstance(held, Hold)
    assert held.until == 101.0


def test_an_overdue_sleeper_keeps_its_devices() -> None:
    """It grows where it is, and a wake that needs no room waits behind it there."""
    lanes = [
        lane("b", State.SLEEPING, 1.0, need=90),
        lane("s", State.SLEEPING, 99.0, need=10),
        lane("t", State.SLEEPING, 99.0, need=10),
    ]
    book = ledger(100, 100, b={"d0": 10}, s={"d0": 10}, t={"d1": 10}, a={"d0": 60})
    asleep = [resident(m, state=State.SLEEPING, ready_since=None) for m in "bst"]
    found = {d.model: d for d in run(lanes, book, [*asleep, resident("a", ready_since=98.0)])}
    assert told(found["s"]) == (Hold, "s", Reason.ORDER)
    assert told(found["t"]) == (Load, "t", Reason.WAKE)
    assert told(found["b"]) == (Hold, "b", Reason.DWELL)


def test_a_sleeper_may_go_at_once_and_a_wanted_one_only_for_the_overdue() -> None:
    """Nobody waits for S: it goes for B, whatever it was ready before."""
    book = ledger(100, s={"d0": 60})
    (loaded,) = short(run([lane("b", State.STOPPED, 99.0)], book, [resident("s", state=State.SLEEPING)]))
    assert loaded == load("b", {"d0": 60}, Reason.IDLE, "s")
