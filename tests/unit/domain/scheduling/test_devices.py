"""What decisions make of devices that are out of use, that are let, and of several that would do."""

from dataclasses import replace

from vllm_mm.domain.lifecycle import State
from vllm_mm.domain.residency import Device, Ledger, Resident
from vllm_mm.domain.scheduling import Decision, Hold, Lane, Load, Rules, Ticket, View, decide
from vllm_mm.domain.specs import DeviceWish

NOW = 100.0
SICK = Device("d0", 100, problem="it is lost")


def lane(model: str, state: State = State.STOPPED, since: float = 99.0, **changes: object) -> Lane:
    ticket = Ticket(f"{model}0", model, since, deadline=1e9)
    return replace(Lane(model, state, (ticket,), None, DeviceWish(), 60, 0), **changes)


def run(lanes: list[Lane], book: Ledger, *residents: Resident, rules: Rules | None = None) -> list[Decision]:
    return list(decide(View(lanes, residents, book), rules or Rules(), NOW))


def sleeper(model: str, **changes: object) -> Resident:
    return replace(Resident(model, State.SLEEPING, 0, False, last_used=0.0, ready_since=None), **changes)


def test_who_waits_for_a_device_that_is_out_of_use_is_told_so() -> None:
    """It may be well again: nobody is refused."""
    (held,) = run([lane("a")], Ledger({"d0": SICK}))
    assert isinstance(held, Hold)
    assert held.reason == "device: needs 0.0 GiB; d0 is out of use: it is lost"


def test_a_sleeper_is_not_woken_on_a_device_that_is_out_of_use() -> None:
    """Its engine would fail there. Frozen requests have no other place to go on: they wait for the device, and nobody goes for
    a wake that cannot be."""
    book = Ledger({"d0": SICK}).adopt("s", {"d0": 60})
    (held,) = run([lane("s", State.SLEEPING)], book, sleeper("s"))
    assert held == Hold("s", "device: d0 is out of use: it is lost, and it sleeps there; it has to go first")
    (held,) = run([lane("s", State.SLEEPING, frozen=2, frozen_since=9.0)], book, sleeper("s", frozen=2))
    assert isinstance(held, Hold)
    assert held.reason.endswith("it sleeps there; its frozen requests go on when that is over")


def test_of_several_devices_the_fullest_is_taken_or_with_spread_the_emptiest() -> None:
    """The setting `swap.placement`."""
    book = Ledger({"d0": Device("d0", 100), "d1": Device("d1", 70)})
    (packed,) = run([lane("a")], book)
    (spread,) = run([lane("a")], book, rules=Rules(spread=True))
    assert isinstance(packed, Load)
    assert isinstance(spread, Load)
    assert (packed.device_bytes, spread.device_bytes) == ({"d1": 60}, {"d0": 60})


def test_an_overdue_lane_keeps_no_device_that_is_let() -> None:
    """It cannot have that before the lease ends, and others must not wait for nothing."""
    book = Ledger({"d0": Device("d0", 100)}).let("lease:1", {"d0": 50}).begin("lease:1")
    lanes = [lane("a", since=1.0), lane("b", per_device=40)]
    first, second = run(lanes, book)
    assert isinstance(first, Hold)
    assert second == Load("b", {"d0": 40}, (), "fits: there is room for it on d0")
