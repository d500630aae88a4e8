"""Where a model would fit: what a person is told before it is declared is what a start would find."""

import pytest

from vllm_mm.domain.fits import Fits, fits
from vllm_mm.domain.ledger import Device, Ledger
from vllm_mm.domain.lifecycle import State
from vllm_mm.domain.residency import Resident
from vllm_mm.domain.specs import DeviceWish


def resident(model: str, *, leases: int = 0, pinned: bool = False) -> Resident:
    return Resident(model, State.READY, leases, pinned, last_used=0.0, ready_since=0.0)


LEDGER = (
    Ledger(
        {
            "a": Device("a", 100, headroom=10),
            "b": Device("b", 40, foreign=15),
            "c": Device("c", 100, problem="it is lost"),
        }
    )
    .adopt("x", {"a": 40})
    .adopt("y", {"a": 20})
)
BOTH = (resident("x"), resident("y", leases=1))


@pytest.mark.parametrize(
    ("need", "residents", "expected"),
    [
        (20, BOTH, [("a", Fits.NOW, ()), ("b", Fits.NOW, ()), ("c", Fits.OUT, ())]),
        (30, BOTH, [("a", Fits.NOW, ()), ("b", Fits.NEVER, ()), ("c", Fits.OUT, ())]),
        (60, BOTH, [("a", Fits.ROOM, ("x",)), ("b", Fits.NEVER, ()), ("c", Fits.OUT, ())]),
        (90, BOTH, [("a", Fits.ROOM, ("x", "y")), ("b", Fits.NEVER, ()), ("c", Fits.OUT, ())]),
        (60, (resident("x", pinned=True), BOTH[1]), [("a", Fits.HELD, ()), ("b", Fits.NEVER, ()), ("c", Fits.OUT, ())]),
        (91, BOTH, [("a", Fits.NEVER, ()), ("b", Fits.NEVER, ()), ("c", Fits.OUT, ())]),
    ],
)
def test_each_device_says_whether_and_who_would_go(
    need: int, residents: tuple[Resident, ...], expected: list[tuple[str, Fits, tuple[str, ...]]]
) -> None:
    found = fits(LEDGER, "new", DeviceWish(), need, residents, 100.0, 5.0)
    assert [(f.device, f.fits) for f in found] == [(d, f) for d, f, _ in expected]
    assert [set(f.victims) for f in found] == [set(v) for _, _, v in expected]
    assert all(bool(f.reason) == (f.fits in {Fits.HELD, Fits.NEVER, Fits.OUT}) for f in found)


def test_only_devices_that_it_may_use_and_its_own_memory_is_free() -> None:
    found = fits(LEDGER, "x", DeviceWish(ids=("a",)), 70, BOTH, 100.0, 5.0)
    assert [(f.device, f.fits, f.free, f.capacity) for f in found] == [("a", Fits.NOW, 70, 100)]
