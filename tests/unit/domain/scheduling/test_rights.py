"""Those whose keys may not have others go for them: they wait for free room, and nobody goes on their account."""

from dataclasses import replace

import pytest

from vllm_mm.domain.lifecycle import State
from vllm_mm.domain.reasons import Reason, split
from vllm_mm.domain.residency import Device, Ledger, Resident
from vllm_mm.domain.scheduling import Expected, Hold, Lane, Load, Rules, Ticket, View, decide
from vllm_mm.domain.specs import DeviceWish

RULES = Rules(max_wait=20.0, min_dwell=0.0, quantum=10.0)
NOW = 1000.0


def waits(model: str, *tickets: tuple[float, bool], need: int = 60, **changes: object) -> Lane:
    """`tickets`: when each came, and whether others may go for it."""
    asked = tuple(Ticket(f"{model}{i}", model, at, 9e9, evicts=may) for i, (at, may) in enumerate(tickets))
    return replace(Lane(model, State.STOPPED, asked, None, DeviceWish(), need, 0), **changes)


def decided(*lanes: Lane, leases: int = 0, capacity: int = 100, **expected: Expected) -> dict[str, Load | Hold]:
    """Beside `a`, which holds 60 of the only device."""
    book = Ledger({"d0": Device("d0", capacity)}).adopt("a", {"d0": 60})
    a = Resident("a", State.READY, leases, False, last_used=0.0, ready_since=0.0)
    return {d.model: d for d in decide(View(lanes, [a], book, expected), RULES, NOW) if isinstance(d, Load | Hold)}


@pytest.mark.parametrize("leases", [0, 1])
def test_nobody_goes_for_them(leases: int) -> None:
    """Idle or busy, and however long they have waited: they are told why, and that time alone will not help."""
    held = decided(waits("b", (0.0, False)), leases=leases)["b"]
    assert isinstance(held, Hold)
    assert split(held.reason)[0] is Reason.RIGHTS
    assert held.until is None


def test_free_room_is_theirs() -> None:
    """And a load for them is like any other."""
    loaded = decided(waits("b", (999.0, False)), capacity=120)["b"]
    assert isinstance(loaded, Load)
    assert (loaded.victims, split(loaded.reason)[0]) == ((), Reason.FITS)


def test_one_who_may_is_enough_and_counts_from_its_own_coming() -> None:
    """The others share its load; but what they waited is not its claim."""
    loaded = decided(waits("b", (0.0, False), (999.0, True)))["b"]
    assert isinstance(loaded, Load)
    assert loaded.victims == ("a",)
    held = decided(waits("b", (0.0, False), (990.0, True)), leases=1)["b"]
    assert isinstance(held, Hold)
    assert (split(held.reason)[0], held.until) == (Reason.BUSY, 1010.0)


def test_who_comes_again_claims_by_right_only() -> None:
    """That others were told to come again before makes nobody overdue who may not have others go."""
    again = waits("b", (999.0, False), returning_since=0.0)
    assert isinstance(decided(again, leases=1)["b"], Hold)
    assert isinstance(decided(waits("b", (999.0, True), returning_since=0.0), leases=1)["b"], Load)


def test_they_do_not_count_among_those_for_whom_it_pays() -> None:
    """Five who may not have `a` go do not outweigh the two whom it serves; with two more who may, it goes."""
    loved = Expected(rate=0.1, wait=20.0)
    crowd = waits("b", *((999.0, False) for _ in range(5)))
    assert isinstance(decided(crowd, waits("c", (999.0, True)), a=loved)["c"], Hold)
    assert isinstance(decided(crowd, waits("c", (999.0, True), (999.0, True)), a=loved)["c"], Load)


def test_they_keep_no_device_for_themselves() -> None:
    """They are never overdue: whoever fits beside `a` is loaded, however long they wait."""
    loaded = decided(waits("b", (0.0, False)), waits("c", (999.0, True), need=30))
    assert isinstance(loaded["b"], Hold)
    assert isinstance(loaded["c"], Load)


def test_a_device_out_of_use_is_the_reason_where_it_is() -> None:
    """What somebody has to mend comes before what nobody may do."""
    book = Ledger({"d0": Device("d0", 100, problem="it is lost")})
    (held,) = decide(View([waits("b", (0.0, False))], [], book), RULES, NOW)
    assert split(held.reason)[0] is Reason.DEVICE
