"""What becomes of all who go for a load, and of sleepers for them."""

from collections.abc import Sequence
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from vllm_mm.domain.ledger import Device, Ledger, Reservation
from vllm_mm.domain.partings import Goer, Memory, Parting, has_bed, part
from vllm_mm.domain.states import Goal, OnTimeout
from vllm_mm.domain.tiers import Fate, HostMemory, Sleeper, fate


def memory(budget: int | None, capacity: int = 1000, load: int = 0, leavers: Sequence[str] = (), **held: int) -> Memory:
    """Sleepers with 1 on the device each, and `leavers` with 100 each, which a load of `load` was promised."""
    asleep = {m: Reservation(m, {"d": 1}, held={"d": 1}) for m in held}
    awake = {m: Reservation(m, {"d": 100}, leaving=True, held={"d": 100}) for m in leavers}
    new = {"new": Reservation("new", {"d": load})} if load else {}
    return Memory(HostMemory(budget, held), Ledger({"d": Device("d", capacity)}, {**asleep, **awake, **new}))


def sleepers(*names: str) -> list[Sleeper]:
    """In the order in which they fell asleep."""
    return [Sleeper(name, float(since), spare=True) for since, name in enumerate(names)]


def goals(partings: Sequence[Parting]) -> dict[str, Goal]:
    return {p.model: p.fate.goal for p in partings}


def test_each_victim_leaves_less_for_the_next() -> None:
    """Two of 6 with a budget of 10: alone each of them would sleep, together only the first does."""
    goers = [Goer("a", asleep=False, takes=6), Goer("b", asleep=False, takes=6)]
    there = memory(10, leavers=("a", "b"))
    assert goals(part(there, goers, (), OnTimeout.CUT)[0]) == {"a": Goal.SLEEP, "b": Goal.STOP}
    for goer in goers:
        assert goals(part(there, [goer], (), OnTimeout.CUT)[0]) == {goer.model: Goal.SLEEP}


def test_a_sleeper_is_stopped_once() -> None:
    """The second victim needs another one than the first."""
    goers = [Goer("a", asleep=False, takes=4), Goer("b", asleep=False, takes=4)]
    there = memory(8, leavers=("a", "b"), s=4, t=4)
    partings, after = part(there, goers, sleepers("s", "t"), OnTimeout.CUT)
    assert [p.fate.stops for p in partings] == [("s",), ("t",)]
    assert after.host == HostMemory(8, {"a": 4, "b": 4}, {"s": 4, "t": 4})


def test_what_a_victim_that_sleeps_gives_back_counts_first() -> None:
    """Nobody else is stopped for host memory that is given back anyway; and who goes to sleep is no sleeper to be stopped."""
    goers = [Goer("a", asleep=False, takes=4), Goer("v", asleep=True)]
    partings, _ = part(memory(8, leavers=("a", "v"), s=4, v=4), goers, sleepers("s", "v"), OnTimeout.CUT)
    assert [(p.model, p.fate.goal, p.fate.stops) for p in partings] == [("v", Goal.STOP, ()), ("a", Goal.SLEEP, ())]


def test_what_would_stay_has_to_fit_beside_the_load_and_the_others() -> None:
    """5 are left beside the load: the first keeps 3 of them, the second cannot keep 3 as well."""
    goers = [Goer(m, asleep=False, stays={"d": 3}) for m in "ab"]
    partings, _ = part(memory(None, capacity=105, load=100, leavers=("a", "b")), goers, (), OnTimeout.CUT)
    assert goals(partings) == {"a": Goal.SLEEP, "b": Goal.STOP}
    assert "promised to others" in partings[1].fate.reason


def test_requests_are_kept_where_the_host_has_room_for_that() -> None:
    """Else it sleeps without them, and what outlasts its drain is cut; an idle one keeps nothing."""
    busy = Goer("a", asleep=False, in_flight=1, takes=0, takes_frozen=6)
    ((kept,), after) = part(memory(6, leavers=("a",)), [busy], (), OnTimeout.FREEZE)
    assert (kept.fate.goal, kept.keeps, kept.then) == (Goal.SLEEP, True, OnTimeout.FREEZE)
    assert after.host.held == {"a": 6}
    ((cut,), after) = part(memory(5, leavers=("a",)), [busy], (), OnTimeout.FREEZE)
    assert (cut.fate.goal, cut.keeps, cut.then) == (Goal.SLEEP, False, OnTimeout.CUT)
    assert after.host.held == {"a": 0}
    ((idle,), _) = part(memory(5, leavers=("a",)), [replace(busy, in_flight=0)], (), OnTimeout.FREEZE)
    assert (idle.fate.goal, idle.keeps, idle.then) == (Goal.SLEEP, False, OnTimeout.FREEZE)


def test_who_is_loaded_gives_up_its_sleep_before_anybody_is_cut() -> None:
    """`a` is to sleep with its requests where `b`, which is to wake, has the room: it is reckoned as if that came to pass, and `a`
    stops where its requests end in time."""
    busy, there = Goer("a", asleep=False, in_flight=1, takes=6, takes_frozen=6), memory(10, leavers=("a",), b=6)
    ((parting,), after) = part(there, [busy], (), OnTimeout.FREEZE, "b")
    assert (parting.fate.goal, parting.keeps) == (Goal.STOP, False)
    assert (parting.then, parting.gives_up) == (OnTimeout.KEEP, ("b",))
    assert after.host == HostMemory(10, {"a": 6}, {"b": 6})
    assert after.ledger.reservations["b"] == there.ledger.reservations["b"], "what it holds goes on to be its own"


def test_others_give_up_their_sleep_before_who_is_loaded() -> None:
    """And at once, as for any sleep; with the model of the load only as many of them as are needed beside it."""
    busy = Goer("a", asleep=False, in_flight=1, takes=6, takes_frozen=6)
    ((parting,), _) = part(memory(16, leavers=("a",), b=6, s=6), [busy], sleepers("s"), OnTimeout.FREEZE, "b")
    assert (parting.fate.goal, parting.keeps, parting.fate.stops) == (Goal.SLEEP, True, ("s",))
    assert parting.gives_up == ()
    busy = replace(busy, takes=9, takes_frozen=9)
    there = memory(10, leavers=("a",), b=2, s=3, t=3)
    ((parting,), after) = part(there, [busy], sleepers("s", "t"), OnTimeout.FREEZE, "b")
    assert (parting.then, parting.gives_up) == (OnTimeout.KEEP, ("b", "s", "t"))
    assert after.ledger.reservations["s"].leaving


def test_one_that_sleeps_without_requests_may_need_more_with_them() -> None:
    """At level 2 it takes nothing of the host's memory, and the weights with requests: only a late drain takes others' room."""
    busy = Goer("a", asleep=False, in_flight=1, takes=0, takes_frozen=6)
    ((parting,), _) = part(memory(10, leavers=("a",), b=6), [busy], (), OnTimeout.FREEZE, "b")
    assert (parting.fate.goal, parting.then, parting.gives_up) == (Goal.SLEEP, OnTimeout.FREEZE, ("b",))


def test_a_sleep_is_given_up_once() -> None:
    """For the first of two; the second is cut, and so is one whose requests nobody's sleep would save."""
    busy = [Goer(m, asleep=False, in_flight=1, takes=6, takes_frozen=6) for m in "ac"]
    partings, _ = part(memory(10, leavers=("a", "c"), b=6), busy, (), OnTimeout.FREEZE, "b")
    assert [(p.then, p.gives_up) for p in partings] == [(OnTimeout.KEEP, ("b",)), (OnTimeout.CUT, ())]
    ((parting,), _) = part(memory(5, leavers=("a",), b=5), busy[:1], (), OnTimeout.FREEZE, "b")
    assert (parting.then, parting.gives_up) == (OnTimeout.CUT, ())
    ((parting,), _) = part(memory(10, leavers=("a",), b=6), busy[:1], (), OnTimeout.CUT, "b")
    assert (parting.then, parting.gives_up) == (OnTimeout.CUT, ()), "nothing is frozen, so nothing is given up"


sizes = st.integers(0, 9)
goer = st.builds(
    Goer, st.just(""), st.booleans(), st.integers(0, 2), sizes, sizes,
    st.one_of(st.none(), st.builds(lambda n: {"d": n}, st.integers(0, 30))), st.sampled_from(["", "", "it cannot"]),
)  # fmt: skip
fleets = st.fixed_dictionaries(
    {
        "goers": st.lists(goer, min_size=1, max_size=5),
        "sleeping": st.lists(st.tuples(sizes, st.booleans(), st.integers(0, 3)), max_size=5),
        "budget": st.one_of(st.none(), st.integers(0, 30)),
        "free": st.integers(0, 60),
        "then": st.sampled_from(list(OnTimeout)),
    }
)


@given(fleets)
def test_what_is_told_in_one_go_is_what_one_after_the_other_would_come_to(fleet: dict[str, object]) -> None:
    """Over random fleets: each fate is the one that it would have alone, once those before it were told to go; the host's memory
    is promised to nobody beyond its budget, and no sleeper is stopped that is pinned, wanted, or needed by nobody."""
    goers = [replace(g, model=f"g{i}") for i, g in enumerate(fleet["goers"])]  # type: ignore[arg-type]
    asleep = {f"s{i}": size for i, (size, *_) in enumerate(fleet["sleeping"])}  # type: ignore[arg-type]
    spare = [Sleeper(f"s{i}", float(at), ok) for i, (_, ok, at) in enumerate(fleet["sleeping"])]  # type: ignore[arg-type]
    goes = {g.model: g.takes for g in goers if g.asleep}
    load = 100 * len(goers) + len(asleep)
    there = memory(
        fleet["budget"], load + int(fleet["free"]), load - len(asleep), [g.model for g in goers], **asleep  # type: ignore[arg-type,call-overload]
    )  # fmt: skip
    there = replace(there, host=replace(there.host, held={**asleep, **goes}))
    spare += [Sleeper(m, 9.0, spare=True) for m in goes]
    then: OnTimeout = fleet["then"]  # type: ignore[assignment]
    partings, after = part(there, goers, spare, then)
    assert sorted(p.model for p in partings) == sorted(g.model for g in goers)

    known, host, ledger, stopped = {g.model: g for g in goers}, there.host, there.ledger, set[str]()
    for g in (g for g in goers if g.asleep):
        host, ledger = host.leave(g.model), ledger.leave(g.model)
    for parting in (p for p in partings if not known[p.model].asleep):
        g = known[parting.model]
        need = g.takes_frozen if parting.keeps else g.takes
        rest = [s for s in spare if s.model not in stopped]
        room = has_bed(ledger, g.model, g.stays or {})
        assert parting.fate == fate(host, need, rest, why_not=g.why_no_sleep, device_room=room)
        for name in parting.fate.stops:
            assert name not in stopped
            assert next(s for s in spare if s.model == name).spare
            fewer = [n for n in parting.fate.stops if n != parting.fate.stops[-1]]
            assert host.lacks(need, fewer), "the last of them is stopped for nothing"
            stopped.add(name)
        for name in parting.fate.stops:
            host, ledger = host.leave(name), ledger.leave(name)
        if parting.fate.goal is Goal.SLEEP:
            if host.budget is not None:
                assert sum(host.held.values()) + need <= host.budget
            host, ledger = host.take(g.model, need), ledger.leave(g.model, g.stays)
    assert after == Memory(host, ledger)
    assert ledger.free_after_leaving("d") >= 0


def test_who_sleeps_already_is_told_to_stop() -> None:
    """Whatever the budget."""
    ((parting,), _) = part(memory(None, leavers=("v",), v=4), [Goer("v", asleep=True)], (), OnTimeout.WAIT)
    assert parting == Parting(
        "v", Fate(Goal.STOP, "it sleeps already, and what it holds is needed"), OnTimeout.WAIT, keeps=False
    )
