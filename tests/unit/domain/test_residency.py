"""The device ledger and the choice of victims. One unit of memory is a byte here; devices are small numbers."""

from collections.abc import Callable, Iterable
from dataclasses import replace

import pytest

from vllm_mm.domain.lifecycle import State
from vllm_mm.domain.residency import Device, Ledger, NoPlacement, Placement, Reservation, Resident, gib, lent, place
from vllm_mm.domain.specs import GIB, DeviceWish


def ledger(*capacities: int, **held: dict[str, int]) -> Ledger:
    """Devices d0, d1, ... and running instances with what they hold."""
    book = Ledger({f"d{i}": Device(f"d{i}", c) for i, c in enumerate(capacities)})
    for model, device_bytes in held.items():
        book = book.adopt(model, device_bytes)
    return book


def resident(model: str, **changes: object) -> Resident:
    """Ready since 0, idle, not pinned."""
    return replace(Resident(model, State.READY, 0, False, last_used=0.0, ready_since=0.0), **changes)


def seek(
    book: Ledger,
    need: int,
    residents: Iterable[Resident] = (),
    *,
    wish: DeviceWish | None = None,
    now: float = 100.0,
    busy: bool = False,
    closed: frozenset[str] = frozenset(),
) -> Placement | NoPlacement:
    return place(
        book, wish or DeviceWish(), need, list(residents), now, min_dwell=5.0, drain_busy=busy, closed=closed
    )  # fmt: skip


# The ledger.


def test_usable_leaves_headroom_and_foreign_use_alone() -> None:
    """What others use and the headroom are not given out; a reading beyond the capacity means nothing is left."""
    assert Device("d", 100, headroom=10, foreign=30).usable == 60
    assert Device("d", 100, foreign=300).usable == 0


def test_a_leaver_is_shown_with_what_it_holds() -> None:
    """A sleeper of 5 that was promised 90 to wake, and goes for another one before that: what is shown is no more than there is.
    One that used it all is shown with all, until it is gone; one that never began with nothing."""
    book = ledger(100, a={"d0": 90}).leave("a", {"d0": 5}).asleep("a", {"d0": 5}).grow("a", {"d0": 90})
    assert book.reservations["a"].shown("d0") == 90
    book = book.leave("a").reserve("b", {"d0": 95})
    assert [r.shown("d0") for r in book.reservations.values()] == [5, 95]
    assert ledger(100, a={"d0": 90}).leave("a").reservations["a"].shown("d0") == 90
    assert ledger(100).reserve("a", {"d0": 90}).leave("a").reservations["a"].shown("d0") == 0


def test_a_load_reserves_from_the_decision_and_begins_when_the_leaver_is_gone() -> None:
    """The hard case: A (100 of 105) is still there when B is decided: B is promised the room and begins only later."""
    book = ledger(105, a={"d0": 100}).leave("a").reserve("b", {"d0": 100})
    assert not book.fits_now("b")
    with pytest.raises(ValueError, match="still in use"):
        book.begin("b")
    with pytest.raises(ValueError, match="can be had"):
        book.reserve("c", {"d0": 10})
    book = book.release("a")
    assert book.fits_now("b")
    book = book.begin("b")
    assert book.reservations["b"].begun
    assert (book.in_use("d0"), book.free("d0")) == (100, 5)


def test_a_load_that_is_starting_counts_like_one_that_runs() -> None:
    """Two loads that do not fit together are never both given room, however early the second one comes."""
    book = ledger(100).reserve("a", {"d0": 60})
    with pytest.raises(ValueError, match=r"b needs 0\.0 GiB on d0"):
        book.reserve("b", {"d0": 60})


def test_planned_loads_begin_in_any_order() -> None:
    """Two loads wait for two leavers; whichever fits begins, and neither can take the other's room."""
    book = ledger(100, x={"d0": 50}, y={"d0": 50}).leave("x").leave("y")
    book = book.reserve("a", {"d0": 60}).reserve("b", {"d0": 40})
    assert (book.fits_now("a"), book.fits_now("b")) == (False, False)
    book = book.release("x")
    assert (book.fits_now("a"), book.fits_now("b")) == (False, True)
    book = book.begin("b")
    assert not book.fits_now("a")
    book = book.release("y").begin("a")
    assert book.in_use("d0") == 100


def test_every_device_of_a_load_must_be_there() -> None:
    """A tensor-parallel load begins when the last of its devices is free."""
    book = ledger(100, 100, x={"d0": 80}, y={"d1": 80}).leave("x").leave("y").reserve("a", {"d0": 50, "d1": 50})
    book = book.release("x")
    assert not book.fits_now("a")
    assert book.release("y").fits_now("a")


def test_free_counts_leavers_and_promises() -> None:
    """`free` can be used without waiting; `free_after_leaving` is what a plan may count on."""
    book = ledger(100, x={"d0": 60}).leave("x")
    assert (book.free("d0"), book.free_after_leaving("d0")) == (40, 100)
    book = book.reserve("a", {"d0": 70})
    assert (book.free("d0"), book.free_after_leaving("d0")) == (0, 30)


def test_reserve_refuses_what_cannot_be() -> None:
    """A second reservation, an unknown device and a negative size are errors of the caller."""
    book = ledger(100, a={"d0": 10})
    with pytest.raises(ValueError, match="already has"):
        book.reserve("a", {"d0": 1})
    with pytest.raises(ValueError, match="already has"):
        book.adopt("a", {"d0": 1})
    with pytest.raises(ValueError, match="no device d9"):
        book.reserve("b", {"d9": 1})
    with pytest.raises(ValueError, match="-1 bytes"):
        book.reserve("b", {"d0": -1})


def test_unknown_models_change_nothing_where_that_is_harmless() -> None:
    """Leaving, staying and releasing may be said twice; sizes and beginnings need a reservation."""
    book = ledger(100)
    assert book.leave("x") == book.release("x") == book.stay("x") == book
    assert not book.fits_now("x")
    acts: list[Callable[[], Ledger]] = [
        lambda: book.begin("x"),
        lambda: book.resize("x", {}),
        lambda: book.grow("x", {}),
    ]
    for act in acts:
        with pytest.raises(ValueError, match="x has no reservation"):
            act()


def test_a_leaver_may_stay_unless_its_memory_was_promised() -> None:
    """Undrain is refused exactly when a planned load would no longer fit."""
    book = ledger(100, a={"d0": 60})
    assert book.stay("a") == book
    book = book.leave("a")
    assert not book.stay("a").reservations["a"].leaving
    assert not book.reserve("b", {"d0": 40}).stay("a").reservations["a"].leaving
    with pytest.raises(ValueError, match="the memory of a on d0 is promised to b"):
        book.reserve("b", {"d0": 41}).stay("a")


def test_a_leaver_may_stay_on_a_device_that_facts_overcommitted() -> None:
    """Foreign use took room, but nobody was promised any: the running instance goes on running."""
    book = ledger(100, a={"d0": 60}).leave("a").with_devices([Device("d0", 100, foreign=90)])
    assert not book.stay("a").reservations["a"].leaving


def test_facts_may_exceed() -> None:
    """A measured footprint and an adopted engine are entered as they are; what is free then is negative or nothing."""
    book = ledger(100, a={"d0": 60}).resize("a", {"d0": 130})
    assert (book.free("d0"), book.free_after_leaving("d0"), book.in_use("d0")) == (0, -30, 130)
    assert book.adopt("b", {"d0": 50}).in_use("d0") == 180
    planned = ledger(100).reserve("a", {"d0": 10}).resize("a", {"d0": 20})
    assert (planned.reservations["a"].begun, planned.in_use("d0")) == (False, 0)


def test_a_sleeper_shrinks_and_grows_again() -> None:
    """Asleep it holds little; to wake it is promised more, which it uses only when that is there."""
    book = ledger(100, a={"d0": 80}).resize("a", {"d0": 10}).adopt("b", {"d0": 90})
    with pytest.raises(ValueError, match="a needs"):
        book.grow("a", {"d0": 80})
    book = book.leave("b").grow("a", {"d0": 80})
    assert (book.in_use("d0"), book.fits_now("a"), book.reservations["a"].begun) == (100, False, False)
    with pytest.raises(ValueError, match="promised to a"):
        book.stay("b")
    book = book.release("b").begin("a")
    assert book.in_use("d0") == 80
    with pytest.raises(ValueError, match="a is leaving"):
        book.leave("a").grow("a", {"d0": 90})


def test_who_leaves_for_a_sleep_keeps_what_stays() -> None:
    """The rest can be promised from the decision on; what stays cannot, before the sleep or after it."""
    book = ledger(10, a={"d0": 8}).leave("a", {"d0": 3})
    assert book.free_after_leaving("d0") == 7
    with pytest.raises(ValueError, match="can be had"):
        book.reserve("b", {"d0": 8})
    book = book.reserve("b", {"d0": 7})
    assert not book.fits_now("b")
    slept = book.asleep("a", {"d0": 3})
    assert slept.fits_now("b")
    assert slept.reservations["a"] == Reservation("a", {"d0": 3}, held={"d0": 3})
    assert slept.free_after_leaving("d0") == 0


def test_a_leaver_cannot_keep_more_than_it_has_or_what_was_promised() -> None:
    book = ledger(10, a={"d0": 8})
    with pytest.raises(ValueError, match="it has less"):
        book.leave("a", {"d0": 9})
    assert book.leave("a", {"d0": 0}).reservations["a"].stays == {}
    promised = book.leave("a").reserve("b", {"d0": 9})
    with pytest.raises(ValueError, match="promised to others"):
        promised.leave("a", {"d0": 2})
    assert promised.leave("a", {"d0": 1}).free_after_leaving("d0") == 0
    assert book.leave("a", {"d0": 3}).leave("a", {"d0": 3}).reservations["a"].stays == {"d0": 3}


def test_what_a_sleeper_holds_is_a_fact() -> None:
    """More than was to stay may have stayed."""
    book = ledger(10, a={"d0": 8}).leave("a", {"d0": 1}).asleep("a", {"d0": 4})
    assert (book.in_use("d0"), book.free("d0")) == (4, 6)
    with pytest.raises(ValueError, match="no reservation"):
        book.asleep("b", {"d0": 1})


def test_a_leaver_counts_whole_and_does_not_begin() -> None:
    """A load that was called off before it began still counts until it is released: safe rather than clever."""
    book = ledger(100).reserve("a", {"d0": 60}).leave("a")
    assert (book.in_use("d0"), book.fits_now("a")) == (60, False)


def test_a_device_that_vanished_keeps_its_reservations() -> None:
    """They are released one by one, as always; nothing new begins there."""
    book = ledger(100, a={"d0": 60}).reserve("b", {"d0": 20}).with_devices([])
    assert (book.free("d0"), book.free_after_leaving("d0"), book.fits_now("b")) == (0, -80, False)
    assert book.fits_now("a")
    assert book.release("a").release("b").reservations == {}


def test_nothing_new_is_promised_on_a_device_that_is_out_of_use() -> None:
    """What is there stays, begins and ends as always: the device may have failed for newcomers only."""
    book = ledger(100, a={"d0": 60}).reserve("b", {"d0": 20})
    book = book.with_devices([Device("d0", 100, problem="fell off the bus")])
    with pytest.raises(ValueError, match="c: d0 is out of use: fell off the bus"):
        book.reserve("c", {"d0": 1})
    with pytest.raises(ValueError, match="a: d0 is out of use: fell off the bus"):
        book.asleep("a", {"d0": 10}).grow("a", {"d0": 60})
    assert book.begin("b").in_use("d0") == 80
    assert book.release("a").free("d0") == 80


def test_a_promise_is_broken_when_a_stranger_takes_the_room_or_the_device_fails() -> None:
    """Whoever leaves, it is not to be had: better said at once than waited for. What was begun stands."""
    book = ledger(100, 100, a={"d0": 60}).leave("a").reserve("b", {"d0": 80, "d1": 10})
    assert book.broken("b") == ""
    d0, d1 = book.devices.values()
    taken = book.with_devices([replace(d0, foreign=30, strangers=("game (pid 7)",)), d1])
    assert taken.broken("b") == ("0.0 GiB on d0 are missing: others use 0.0 GiB there now (game (pid 7))")
    assert taken.broken("a") == taken.broken("nobody") == ""
    assert book.with_devices([d0, replace(d1, problem="lost")]).broken("b") == "d1 is out of use: lost"
    assert book.with_devices([d0]).broken("b") == "d1 is gone"


def test_what_was_just_begun_is_crowded_when_a_stranger_was_quicker() -> None:
    """By more than the slack that its kind of memory has."""
    book = ledger(100).reserve("b", {"d0": 80}).begin("b")
    assert book.crowded("b") == book.crowded("nobody") == ""
    taken = book.with_devices([Device("d0", 100, foreign=25)])
    assert "are missing: others use" in taken.crowded("b")
    assert taken.crowded("b", slack=5) == ""
    assert book.with_devices([]).crowded("b") == "d0 is gone"


def test_a_load_that_comes_to_nothing_leaves_what_was_held_before() -> None:
    """A sleeper goes on holding what it held asleep; a model that had nothing has nothing."""
    book = ledger(100, a={"d0": 10})
    assert book.grow("a", {"d0": 90}).begin("a").forgo("a", {"d0": 10}) == book
    assert book.reserve("b", {"d0": 5}).forgo("b", {}) == book
    assert book.forgo("nobody", {"d0": 1}) == book


def test_memory_that_was_let_is_not_taken_away_twice() -> None:
    """What strangers use once the room is let counts as use of that room, until it is full; what they used before does
    not, and what they used before and gave back does again."""

    def seen(foreign: int) -> Ledger:
        return book.with_devices([Device("d0", 100, foreign=foreign)])

    book = ledger(100).with_devices([Device("d0", 100, foreign=10)])
    book = book.let("lease:1", {"d0": 30}).begin("lease:1")
    assert [(seen(n).foreign("d0"), seen(n).free("d0")) for n in (10, 30, 40, 45)] == [
        (10, 60), (10, 60), (10, 60), (15, 55)
    ]  # fmt: skip
    book = seen(4)
    assert [(seen(n).foreign("d0"), seen(n).free("d0")) for n in (4, 34, 40)] == [(4, 66), (4, 66), (10, 60)]
    assert seen(34).release("lease:1").foreign("d0") == 34
    assert book.foreign("d9") == 0


def test_what_an_earlier_controller_let_is_held_again() -> None:
    """With what was known then of the others' use, so that its holder's is told apart; a fact, whether or not it fits."""
    book = ledger(100).with_devices([Device("d0", 100, foreign=40)])
    assert book.relet("lease:1", {"d0": 30}, {"d0": 10}).free("d0") == 60
    assert book.relet("lease:1", {"d0": 30}, {"d0": 10}).foreign("d0") == 10
    assert book.relet("lease:2", {"d0": 200}, {"d0": 0}).in_use("d0") == 200


def test_two_leases_on_one_device_share_what_strangers_use() -> None:
    """Each byte is counted for one of them; a device that is gone keeps what was known."""
    book = ledger(100).let("lease:1", {"d0": 30}).begin("lease:1")
    book = book.with_devices([Device("d0", 100, foreign=20)]).let("lease:2", {"d0": 10})
    assert [book.with_devices([Device("d0", 100, foreign=n)]).foreign("d0") for n in (20, 40, 50)] == [0, 0, 10]
    assert book.with_devices([]).reservations["lease:2"].let == {"d0": 0}


def test_a_wait_for_room_names_the_strangers_and_what_is_let() -> None:
    """So that one knows whom to ask."""
    book = ledger(100).with_devices([Device("d0", 100, foreign=10, strangers=("game (pid 7)", "2 more"))])
    book = book.let("lease:1", {"d0": 60}).begin("lease:1")
    found = seek(book, 50)
    assert isinstance(found, NoPlacement)
    assert (
        "on it: lease:1 (kept for something else until it ends); others use 0.0 GiB (game (pid 7), 2 more)"
        in found.reason
    )


# Placement without victims.


def sick(book: Ledger, *devices: str) -> Ledger:
    """These are out of use."""
    return book.with_devices(
        [replace(d, problem="it is lost") if d.id in devices else d for d in book.devices.values()]
    )  # fmt: skip


def test_a_device_with_a_problem_is_left_alone() -> None:
    """Another one is used instead, even if somebody has to go there; its own residents are no victims for nothing."""
    book = sick(ledger(100, 100, a={"d0": 90}, b={"d1": 90}), "d0")
    residents = [resident("a"), resident("b", last_used=9.0)]
    assert seek(book, 50, residents) == Placement({"d1": 50}, ("b",))
    assert seek(sick(ledger(100, 100), "d0"), 50) == Placement({"d1": 50})


def test_where_no_other_device_would_do_the_problem_is_the_reason() -> None:
    """Not for ever: it may be well again. A model that would not fit there either is still refused for good."""
    book = sick(ledger(100, 40), "d0")
    found = seek(book, 50)
    assert isinstance(found, NoPlacement)
    assert (found.out, found.permanent) == (("d0",), False)
    assert found.reason == "needs 0.0 GiB on 1 device(s); d0 is out of use: it is lost"
    asked = seek(sick(ledger(100, 100), "d1"), 50, wish=DeviceWish(ids=("d0", "d1")))
    assert isinstance(asked, NoPlacement)
    assert asked.out == ("d1",)
    never = seek(book, 150)
    assert isinstance(never, NoPlacement)
    assert (never.out, never.permanent) == ((), True)


def test_a_wait_for_room_tells_of_the_devices_that_are_out_of_use() -> None:
    """Of those that were asked for, or of all."""
    book = sick(ledger(100, 100, 100, a={"d0": 90}), "d1", "d2")
    found = seek(book, 50, [resident("a", pinned=False, leases=1)])
    assert isinstance(found, NoPlacement)
    assert "d1 is out of use: it is lost; d2 is out of use: it is lost" in found.reason
    assert found.out == ()
    asked = seek(book, 50, [resident("a", leases=1)], wish=DeviceWish(ids=("d0",)))
    assert isinstance(asked, NoPlacement)
    assert "out of use" not in asked.reason


# Which of several fits is taken.


def test_the_tightest_fit_wins() -> None:
    """Small models fill the small gaps, so that the large ones find room."""
    assert seek(ledger(100, 40, 60), 30) == Placement({"d1": 30})


def test_a_fit_without_waiting_wins_over_a_tighter_one() -> None:
    """Room that is there now is better than room that a leaver still holds."""
    book = ledger(100, 40, x={"d1": 40}).leave("x")
    assert seek(book, 30) == Placement({"d0": 30})
    assert seek(book.reserve("y", {"d0": 90}), 30) == Placement({"d1": 30})


def test_explicit_devices_are_honoured() -> None:
    """All the named devices are used, once each, also where others would fit better."""
    book = ledger(100, 40, 60)
    assert seek(book, 30, wish=DeviceWish(ids=("d2", "d0", "d2"))) == Placement({"d2": 30, "d0": 30})


def test_unknown_devices_are_refused_by_name() -> None:
    """The message names the unknown ones and those that there are."""
    for book, known in ((ledger(10, 10), "d0, d1"), (ledger(), "none")):
        found = seek(book, 1, wish=DeviceWish(ids=("d7",)))
        assert found == NoPlacement(f"there is no device d7; the devices are: {known}", permanent=True)


def test_several_devices_are_distinct_and_of_one_kind() -> None:
    """Tensor parallelism does not mix a GPU with host memory."""
    book = Ledger({
        "cpu": Device("cpu", 1000, kind="cpu"), "g0": Device("g0", 50), "g1": Device("g1", 70), "g2": Device("g2", 60),
    })  # fmt: skip
    assert seek(book, 40, wish=DeviceWish(count=2)) == Placement({"g0": 40, "g2": 40})
    found = seek(book, 65, wish=DeviceWish(count=2))
    assert isinstance(found, NoPlacement)
    assert found.permanent
    assert "each of 2 devices of one kind" in found.reason


def test_what_can_never_fit_is_refused_with_the_sums() -> None:
    """Larger than capacity less headroom: permanent. Foreign use may end: not permanent."""
    book = Ledger({"d0": Device("d0", 24 * GIB, headroom=GIB)})
    found = seek(book, 24 * GIB)
    assert isinstance(found, NoPlacement)
    assert found.permanent
    assert "needs 24.0 GiB" in found.reason
    assert "d0: 24.0 GiB less 1.0 GiB headroom" in found.reason
    busy = Ledger({"d0": Device("d0", 24 * GIB, foreign=20 * GIB)})
    found = seek(busy, 10 * GIB)
    assert isinstance(found, NoPlacement)
    assert (found.permanent, found.until) == (False, None)
    nothing = seek(ledger(), 1)
    assert isinstance(nothing, NoPlacement)
    assert "there is no device" in nothing.reason


def test_what_the_pinned_keep_out_is_refused() -> None:
    """Waiting for a pinned model to go is waiting for nothing, and the message says whom to unpin."""
    book = ledger(100, a={"d0": 60})
    found = seek(book, 50, [resident("a", pinned=True)])
    assert isinstance(found, NoPlacement)
    assert found.permanent
    assert "pinned a holds" in found.reason
    assert "more than there is beside what is pinned" in found.reason
    assert found.reason.endswith("; unpin a, or give it less memory")
    # Unless it is on its way out, or was never there.
    assert seek(book.leave("a"), 50, [resident("a", pinned=True)]) == Placement({"d0": 50})
    assert seek(book.release("a"), 50, [resident("a", pinned=True)]) == Placement({"d0": 50})


def test_what_is_advised_is_what_would_help() -> None:
    """Once; to unpin only where a pin is in the way, and fewer devices only where there are not as many."""
    pinned = [resident("a", pinned=True)]
    for book, size, wish, advice in (
        (ledger(100, a={"d0": 60}), 150, DeviceWish(), "give it less memory, larger devices, or more of them (`devices.count`)"),
        (ledger(100), 50, DeviceWish(2), "give it fewer devices (`devices.count`), or the server more"),
        (ledger(100, 100), 150, DeviceWish(2, ("d0", "d1")), "give it less memory, larger devices, or more of them (`devices.count`)"),
        (ledger(100, 100, a={"d0": 60}), 50, DeviceWish(2), "unpin a, or give it less memory"),
    ):  # fmt: skip
        found = seek(book, size, pinned, wish=wish)
        assert isinstance(found, NoPlacement)
        assert (found.advice, found.reason.count(advice), found.reason.endswith(f"; {advice}")) == (advice, 1, True)
        assert ("unpin" in found.reason) != ("can ever be" in found.reason)


def test_what_is_lent_is_known_to_be_waited_for() -> None:
    """Only where its end would help: not beside a fit, nor where a pin is in the way as well. What its holder uses comes back."""
    book = ledger(100).let("lease:1", {"d0": 60}).begin("lease:1")
    book = book.with_devices([Device("d0", 100, foreign=55)])

    def waited_for(size: int, there: Ledger = book, *who: Resident) -> tuple[str, ...]:
        return lent(there, DeviceWish(), size, who, 0.0)

    assert (waited_for(50), waited_for(40)) == (("lease:1",), ())
    assert waited_for(50, ledger(100)) == ()
    crowded = book.reserve("a", {"d0": 30}).begin("a")
    assert waited_for(80, crowded, resident("a", pinned=True)) == ()
    assert waited_for(80, crowded, resident("a")) == ("lease:1",)


# Victims.


def test_nobody_goes_when_there_is_room() -> None:
    """Room anywhere is better than a victim, even an idle one in a tighter place."""
    assert seek(ledger(100, 30, a={"d1": 30}), 30, [resident("a")]) == Placement({"d0": 30})


def test_the_least_recently_used_goes() -> None:
    """Among equal victims the one unused for longest."""
    book = ledger(100, a={"d0": 50}, b={"d0": 50})
    found = seek(book, 40, [resident("a", last_used=9.0), resident("b", last_used=8.0)])
    assert found == Placement({"d0": 40}, ("b",))


def test_lower_priority_goes_before_older_use() -> None:
    """Priority outranks recency."""
    book = ledger(100, a={"d0": 50}, b={"d0": 50})
    found = seek(book, 40, [resident("a", last_used=9.0), resident("b", last_used=8.0, priority=1)])
    assert found == Placement({"d0": 40}, ("a",))


def test_as_few_as_possible_go() -> None:
    """One victim rather than two, though the two were used less recently; none that does not help."""
    book = ledger(100, a={"d0": 20}, b={"d0": 20}, c={"d0": 60})
    residents = [resident("a", last_used=1.0), resident("b", last_used=2.0), resident("c", last_used=9.0)]
    assert seek(book, 40, residents) == Placement({"d0": 40}, ("c",))
    assert seek(book, 80, residents) == Placement({"d0": 80}, ("a", "c"))
    assert seek(book, 100, residents) == Placement({"d0": 100}, ("a", "b", "c"))


def test_sleepers_go_before_the_awake() -> None:
    """Among sets of the same size, the one that hurts less; also when it was used later."""
    book = ledger(100, a={"d0": 50}, b={"d0": 50})
    sleeper = resident("b", state=State.SLEEPING, last_used=50.0, ready_since=None)
    assert seek(book, 40, [resident("a", last_used=1.0), sleeper]) == Placement({"d0": 40}, ("b",))
    assert seek(book, 90, [resident("a", last_used=1.0), sleeper]) == Placement({"d0": 90}, ("b", "a"))


def test_the_busy_go_only_when_told_and_last() -> None:
    """An instance with leases is safe until `drain_busy`, and then two idle ones still go rather than one busy."""
    book = ledger(100, a={"d0": 50}, b={"d0": 25}, c={"d0": 25})
    residents = [resident("a", leases=2), resident("b"), resident("c")]
    assert seek(book, 50, residents, busy=True) == Placement({"d0": 50}, ("b", "c"))
    found = seek(book, 60, residents)
    assert isinstance(found, NoPlacement)
    assert (found.permanent, found.until) == (False, None)
    assert "a (busy with 2), b (ready), c (ready)" in found.reason
    assert seek(book, 60, residents, busy=True) == Placement({"d0": 60}, ("b", "a"))


@pytest.mark.parametrize("state", [s for s in State if s not in {State.READY, State.SLEEPING}])
def test_only_ready_and_sleeping_instances_are_victims(state: State) -> None:
    """What is loading or on its way elsewhere is left alone."""
    found = seek(ledger(100, a={"d0": 60}), 50, [resident("a", state=state)], busy=True)
    assert isinstance(found, NoPlacement)
    assert f"a ({state.value})" in found.reason


def test_the_pinned_and_the_leaving_and_the_waking_are_no_victims() -> None:
    """Pins hold; a leaver is counted on already; a sleeper that was promised its room keeps the promise."""
    book = ledger(100, 100, p={"d0": 60}, q={"d1": 60}).adopt("s", {"d1": 10}).grow("s", {"d1": 30})
    asleep = resident("s", state=State.SLEEPING, ready_since=None, leases=1)
    found = seek(book, 75, [resident("p"), asleep, resident("q", pinned=True)], wish=DeviceWish(ids=("d0",)))
    assert found == Placement({"d0": 75}, ("p",))
    found = seek(book, 25, [resident("q", pinned=True), asleep], wish=DeviceWish(ids=("d1",)), busy=True)
    assert isinstance(found, NoPlacement)
    assert "q (pinned), s (asleep, but wanted)" in found.reason
    left = book.leave("p").reserve("x", {"d0": 60})
    found = seek(left, 50, [resident("p")], wish=DeviceWish(ids=("d0",)))
    assert isinstance(found, NoPlacement)
    assert "x (loading)" in found.reason


def test_a_sleeper_with_frozen_requests_is_not_stopped_for_room() -> None:
    """They would be lost; awake again it is a victim like any other."""
    book = Ledger({"d0": Device("d0", 100)}).adopt("a", {"d0": 60})
    asleep = resident("a", state=State.SLEEPING, frozen=1)
    found = seek(book, 60, [asleep], busy=True)
    assert isinstance(found, NoPlacement)
    assert not found.permanent
    for other in (replace(asleep, frozen=0), replace(asleep, state=State.READY)):
        assert seek(book, 60, [other], busy=True) == Placement({"d0": 60}, ("a",))


def test_dwell_protects_and_the_answer_says_until_when() -> None:
    """`until` is the first moment at which enough of them may go, not merely the first at which one may."""
    book = ledger(100, a={"d0": 50}, b={"d0": 50})
    residents = [resident("a", ready_since=97.0), resident("b", ready_since=99.0)]
    one, both = seek(book, 50, residents), seek(book, 90, residents)
    assert isinstance(one, NoPlacement)
    assert isinstance(both, NoPlacement)
    assert (one.until, both.until) == (102.0, 104.0)
    assert "a (just loaded)" in one.reason
    assert seek(book, 50, residents, now=102.0) == Placement({"d0": 50}, ("a",))
    never = seek(book, 90, [residents[0], replace(residents[1], leases=1)])
    assert isinstance(never, NoPlacement)
    assert never.until is None


def test_victims_on_several_devices() -> None:
    """For two devices, the smallest set that clears both; the third device is left alone."""
    book = ledger(100, 100, 100, a={"d0": 90}, b={"d1": 90, "d2": 90}, c={"d1": 10})
    found = seek(book, 80, [resident("a"), resident("b", last_used=9.0), resident("c")], wish=DeviceWish(count=2))
    assert found == Placement({"d2": 80, "d1": 80}, ("b",))


def test_closed_devices_are_kept_for_somebody_else() -> None:
    """Neither their free room nor their residents are touched."""
    book = ledger(100, 100, b={"d1": 100})
    assert seek(book, 50, [resident("b")], closed=frozenset({"d0"})) == Placement({"d1": 50}, ("b",))
    found = seek(book, 50, [resident("b")], closed=frozenset({"d0", "d1"}))
    assert isinstance(found, NoPlacement)
    assert "d0 has 0.0 GiB left, kept for a model that waits longer; on it: none of ours" in found.reason


def test_beyond_the_budget_the_answer_is_greedy_but_not_wasteful() -> None:
    """With many small residents the search stops being exact; still no victim could have stayed, cheap ones go first."""
    names = [f"m{i:02}" for i in range(24)]
    book = ledger(240, **{name: {"d0": 10} for name in names})
    residents = [resident(name, last_used=float(i), leases=i % 2) for i, name in enumerate(names)]
    found = seek(book, 115, residents, busy=True)
    assert isinstance(found, Placement)
    assert len(found.victims) == 12
    assert set(found.victims) == set(names[::2])


def test_sizes_for_people() -> None:
    """GiB with one decimal."""
    assert gib(int(15.5 * GIB)) == "15.5 GiB"
    assert Reservation("a", {"d0": 1}).begun is False
