"""The device ledger at work: promises, waiting until promised memory is really there, and one profile at a time."""

import asyncio
from collections.abc import Mapping, Sequence

from vllm_mm.domain.ledger import PROFILES_MEMORY
from vllm_mm.domain.residency import Device, Ledger

BREATH = 64 * 1024**2
"""Bytes by which the use of the host's RAM comes and goes from one reading to the next."""


class Room:
    """Holds the current `Ledger`; every change wakes those who wait for memory."""

    def __init__(self, ledger: Ledger) -> None:
        self.ledger = ledger
        self._profiling: dict[str, str] = {}
        self._wakers: set[asyncio.Future[None]] = set()

    def promise(self, model: str, device_bytes: Mapping[str, int], victims: Sequence[str]) -> bool:
        """Reserve for `model`, counting on `victims` to go. False, and nothing changed, when it does not fit."""
        try:
            self._set(self.ledger.promise(model, device_bytes, victims))
        except ValueError:
            return False
        return True

    async def take(self, model: str) -> None:
        """Wait until the memory promised to `model` is there and nobody else profiles on its devices; then hold both.

        The caller puts a deadline around it. Raises ValueError with the reason when it will never be there (`Ledger.broken`).
        """
        while not self._try_take(model):
            waker: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._wakers.add(waker)
            try:
                await waker
            finally:
                self._wakers.discard(waker)

    def _try_take(self, model: str) -> bool:
        reservation = self.ledger.reservations.get(model)
        if reservation is None:
            raise ValueError(f"{model} has no reservation")
        known = self.ledger.devices
        if reason := self.ledger.broken(model):
            raise ValueError(reason)
        devices = [d for d in reservation.device_bytes if d in known and known[d].kind in PROFILES_MEMORY]
        if any(self._profiling.get(d, model) != model for d in devices) or not self.ledger.fits_now(model):
            return False
        self._profiling.update(dict.fromkeys(devices, model))
        self._set(self.ledger.begin(model))
        return True

    def confirm(self, model: str) -> None:
        """The last look before a start. Raises ValueError with the reason when a stranger was quicker."""
        devices = [self.ledger.devices.get(d) for d in self.ledger.reservations[model].device_bytes]
        exact = any(d is None or d.kind in PROFILES_MEMORY for d in devices)
        if reason := self.ledger.crowded(model, 0 if exact else BREATH):
            raise ValueError(reason)

    def profiled(self, model: str) -> None:
        """`model` has sized its memory, or will not: its devices are open to the next load. Harmless when repeated."""
        self._profiling = {d: m for d, m in self._profiling.items() if m != model}
        self._wake()

    def profilers(self, model: str) -> frozenset[str]:
        """Who sizes its memory now on a device that `model` was promised."""
        reservation = self.ledger.reservations.get(model)
        devices = reservation.device_bytes if reservation is not None else ()
        return frozenset(m for d, m in self._profiling.items() if d in devices and m != model)

    def let(self, name: str, device_bytes: Mapping[str, int], victims: Sequence[str]) -> bool:
        """As `promise`, for something that is not a model."""
        ledger = self.ledger
        for victim in victims:
            ledger = ledger.leave(victim)
        try:
            ledger = ledger.let(name, device_bytes)
        except ValueError:
            return False
        self._set(ledger)
        return True

    def take_up(self, name: str) -> int | None:
        """Hold what was let, if it is there: the foreign use (bytes) that is not its holder's; None while it is not there."""
        if not self.ledger.fits_now(name):
            return None
        self._set(self.ledger.begin(name))
        return sum((self.ledger.reservations[name].let or {}).values())

    def relet(self, name: str, device_bytes: Mapping[str, int], foreign: Mapping[str, int]) -> None:
        """It was held before this controller began; a fact, whether or not it fits."""
        self._set(self.ledger.relet(name, device_bytes, foreign))

    def leave(self, model: str) -> None:
        self._set(self.ledger.leave(model))

    def leave_asleep(self, model: str, stays: Mapping[str, int]) -> None:
        """It was told to sleep and will keep this. Raises ValueError when that was promised to somebody else."""
        self._set(self.ledger.leave(model, stays))

    def asleep(self, model: str, kept: Mapping[str, int]) -> bool:
        """It sleeps and holds this. False when that is more than it was to keep, and a load that was promised room has it not."""
        own = self.ledger.reservations.get(model)
        if own is None:
            return True
        more = [d for d, size in kept.items() if size > own.lasting(d)]
        self._set(self.ledger.asleep(model, kept))
        return all(self.ledger.free_after_leaving(device) >= 0 for device in more)

    def stay(self, model: str) -> bool:
        """False when its memory was promised to somebody else."""
        try:
            self._set(self.ledger.stay(model))
        except ValueError:
            return False
        return True

    def release(self, model: str) -> None:
        self._set(self.ledger.release(model))

    def forgo(self, model: str, held: Mapping[str, int]) -> None:
        """A load comes to nothing; its model has what it held before."""
        self._set(self.ledger.forgo(model, held))

    def hold(self, model: str, device_bytes: Mapping[str, int]) -> None:
        """An adopted engine has its memory already; a fact, whether or not it fits."""
        self._set(self.ledger.adopt(model, device_bytes))

    def resize(self, model: str, device_bytes: Mapping[str, int]) -> None:
        """It was seen to use that much; a fact, whether or not it fits. Raises ValueError without a reservation."""
        self._set(self.ledger.resize(model, device_bytes))

    def observe(self, devices: Sequence[Device]) -> None:
        """Fresh readings."""
        self._set(self.ledger.with_devices(devices))

    def _set(self, ledger: Ledger) -> None:
        self.ledger = ledger
        self._wake()

    def _wake(self) -> None:
        for waker in self._wakers:
            if not waker.done():
                waker.set_result(None)
