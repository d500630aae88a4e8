"""Energy of devices goes to the models that have memory on them."""

from collections.abc import Mapping

import pytest

from fakes import FakeClock
from vllm_mm.control.energy import EVERY, HOUR, EnergyMeter
from vllm_mm.domain.ledger import Ledger, Reservation
from vllm_mm.domain.residency import Device
from vllm_mm.store.failures import DatabaseUnavailable


class Rig:
    """Counters that the test moves, and what was added."""

    def __init__(self, *reservations: Reservation) -> None:
        self.clock = FakeClock()
        self.counters: dict[str, float] = {"0": 1000.0, "1": 5.0}
        self.added: dict[tuple[int, str], float] = {}
        self.away = False
        ledger = Ledger({d: Device(d, 100) for d in "01"}, {r.model: r for r in reservations})
        self.meter = EnergyMeter(lambda: self.counters, lambda: ledger, self.add, self.clock)

    async def add(self, joules: Mapping[tuple[int, str], float]) -> None:
        if self.away:
            raise DatabaseUnavailable("away")
        for name, more in joules.items():
            self.added[name] = self.added.get(name, 0.0) + more

    def by_model(self) -> dict[str, float]:
        return {model: joules for (_, model), joules in self.added.items()}


async def test_it_is_shared_by_memory() -> None:
    """Of each device by what is reserved on it; the share of a lease for others is nobody's, and so is a device without models."""
    rig = Rig(
        Reservation("a", {"0": 30}), Reservation("b", {"0": 10, "1": 50}), Reservation("lease:x", {"0": 40}, let={"0": 0})
    )  # fmt: skip
    rig.meter.look()
    rig.counters = {"0": 1800.0, "1": 25.0}
    rig.meter.look()
    await rig.meter.write()
    assert rig.by_model() == {"a": pytest.approx(300.0), "b": pytest.approx(100.0 + 20.0)}
    assert {hour for hour, _ in rig.added} == {int(rig.clock.wall() // HOUR)}
    await rig.meter.write()
    assert rig.by_model()["a"] == pytest.approx(300.0), "written twice"


async def test_a_counter_that_begins_again_is_no_energy() -> None:
    """The first look, a driver that was loaded anew, a device that was away."""
    rig = Rig(Reservation("a", {"0": 30}))
    for counter in (1000.0, 3.0):
        rig.counters = {"0": counter}
        rig.meter.look()
    rig.counters = {}
    rig.meter.look()
    rig.counters = {"0": 9000.0}
    rig.meter.look()
    await rig.meter.write()
    assert rig.added == {}


async def test_what_cannot_be_written_is_written_later(caplog: pytest.LogCaptureFixture) -> None:
    """A database that is away loses nothing of it."""
    import asyncio

    rig = Rig(Reservation("a", {"0": 30}))
    rig.away = True
    task = asyncio.create_task(rig.meter.run())
    await rig.clock.advance(1)
    rig.counters = {"0": 1500.0}
    await rig.clock.advance(EVERY)
    assert (rig.added, "energy cannot be written down now" in caplog.text) == ({}, True)
    rig.away = False
    rig.counters = {"0": 1600.0}
    await rig.clock.advance(EVERY)
    assert rig.by_model() == {"a": pytest.approx(600.0)}
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
