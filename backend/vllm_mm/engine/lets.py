"""Device memory that is let to something else than an engine of ours. A base of the `ProcessManager`, whose public side this
is: it makes room as for a load, and holds it."""

import asyncio
from abc import abstractmethod
from collections.abc import Iterable, Sequence

from vllm_mm.domain.device_leases import Evicted
from vllm_mm.domain.lifecycle import OnTimeout, State
from vllm_mm.domain.reasons import Reason
from vllm_mm.domain.residency import NoPlacement, Placement, place
from vllm_mm.domain.scheduling import Load, View
from vllm_mm.domain.specs import DeviceWish
from vllm_mm.engine.acts import Acts
from vllm_mm.engine.survey import Waiting


class Lets(Acts):
    """`name`: of the reservation in the device ledger, which no model can have."""

    _swap_inflight: asyncio.Lock

    @abstractmethod
    def view(self, lanes: Sequence[Waiting]) -> View: ...

    @abstractmethod
    async def _look_again(self) -> None: ...

    @abstractmethod
    def _evict(self, load: Load, on_timeout: OnTimeout | None = None) -> None: ...

    def could_let(self, device: str, size: int) -> Placement | NoPlacement:
        """Who would go for `size` bytes of `device`, or why that cannot be. An operator asks: the busy go too."""
        view = self.view(())
        return place(
            view.ledger, DeviceWish(ids=(device,)), size, view.residents, self._tools.clock.now(),
            min_dwell=0.0, drain_busy=True,
        )  # fmt: skip

    async def let(self, name: str, device: str, size: int) -> tuple[Evicted, ...] | NoPlacement:
        """Promise `size` bytes of `device`, and tell those in the way to go; or why that cannot be now."""
        await self._look_again()
        async with self._swap_inflight:
            found = self.could_let(device, size)
            if isinstance(found, NoPlacement):
                return found
            if self._closing:
                return NoPlacement("the server is shutting down")
            victims = [self._instances[v] for v in found.victims]
            if any(v.state not in {State.READY, State.SLEEPING} or v.gate.frozen for v in victims):
                return NoPlacement("who would have to go is changing its state")
            if not self._room.let(name, found.device_bytes, found.victims):
                return NoPlacement("the room was promised to another one")
            self._wishes.room_may_differ()
            evicted = tuple(Evicted(v.spec.id, v.state is State.READY or v.spec.preload) for v in victims)
            load = Load(name, dict(found.device_bytes), found.victims, Reason.OPERATOR.because("asked for the room"))
            # Not frozen: nobody knows for how long that would be, and no client waits for a lease's whole time.
            self._evict(load, OnTimeout.WAIT)
            return evicted

    def taken_up(self, name: str) -> int | None:
        """Begin to hold what was promised, if it is there by now: the use of strangers on its device, in bytes, that is not
        that of the holder. None while it is not there. Raises ValueError when it never will be: a stranger took it."""
        if reason := self._room.ledger.broken(name):
            raise ValueError(reason)
        return self._room.take_up(name)

    def still_busy(self, models: Iterable[str]) -> str:
        """Who of those that were told to go still has requests that it lets finish, for people; empty when none has."""
        busy = [
            i
            for m in models
            if (i := self._instances.get(m)) is not None and i.state is State.DRAINING and i.gate.count
        ]
        return ", ".join(f"{i.spec.id} ({i.gate.count} in flight)" for i in busy)

    def let_again(self, name: str, device: str, size: int, foreign: int) -> None:
        """It was held by an earlier controller."""
        self._room.relet(name, {device: size}, {device: foreign})

    def give_back(self, name: str) -> None:
        """The room is everybody's again. Harmless when repeated."""
        self._room.release(name)
        self._wishes.room_may_differ()
        self._decide()

    def fits_beside(self, model: str) -> bool:
        """Whether there is room for `model` now, with nobody going for it."""
        spec = self.catalog.get(model)
        if spec is None:
            return False
        ledger = self._room.ledger.release(model)
        found = place(
            ledger, spec.devices, self.needs(self.require(model)), (), self._tools.clock.now(),
            min_dwell=0.0, drain_busy=False,
        )  # fmt: skip
        return isinstance(found, Placement) and all(
            ledger.free(device) >= size for device, size in found.device_bytes.items()
        )
