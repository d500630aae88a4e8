"""Leases on device memory: asked for, held, ended, and what went for them brought back, one after the other."""

import asyncio
import logging
import secrets
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from vllm_mm.clock import Clock
from vllm_mm.domain.device_leases import LONGEST, MEMORY, DeviceLease, Stage
from vllm_mm.domain.errors import BadRequest, Conflict, MMError, NotFound
from vllm_mm.domain.lifecycle import LOADING, State
from vllm_mm.domain.reasons import Reason
from vllm_mm.domain.residency import NoPlacement, gib
from vllm_mm.engine.manager import ProcessManager
from vllm_mm.engine.ports import Journal
from vllm_mm.store.failures import DatabaseUnavailable

log = logging.getLogger(__name__)

LOOK_EVERY = 0.2
"""Seconds between two looks while one waits for its room, or a model comes back."""
IDLE_EVERY = 1.0
"""Seconds between two looks otherwise: no lease ends later than that."""
RESTORE_PATIENCE = 60.0
"""Seconds that a model waits for its room after a lease: the holder may end a little later."""
RESTORE_BEGINS = 5.0
"""Seconds within which its load has to begin, once there is room; then the room went to another one."""
REMEMBERED = 100
"""Leases that are done with."""


class LeaseStore(Protocol):
    """Remembers them over restarts."""

    async def all(self) -> Sequence[DeviceLease]: ...

    async def save(self, leases: Sequence[DeviceLease]) -> None: ...


@dataclass(slots=True)
class _Comeback:
    """A model on its way back."""

    lease: str
    model: str
    until: float
    """Monotonic: when it is given up."""
    asked: bool = False

    @property
    def cause(self) -> str:
        """Of its wish."""
        return Reason.LENT.because(f"the lease {self.lease} has ended")


class DeviceLeases:
    """The only writer of the leases. `by`: who wants it, as events name them."""

    def __init__(self, manager: ProcessManager, store: LeaseStore, journal: Journal, clock: Clock) -> None:
        self._manager = manager
        self._store = store
        self._journal = journal
        self._clock = clock
        self._leases: dict[str, DeviceLease] = {}
        self._comebacks: deque[_Comeback] = deque()
        self._left: dict[str, dict[str, str]] = {}
        """By lease: which models did not come back, and why."""
        self._over: dict[str, DeviceLease] = {}
        """The latest that are done with, for those who still wait for them."""
        self._turning = asyncio.Lock()
        self._changed: set[asyncio.Future[None]] = set()

    async def recover(self) -> None:
        """Take up what an earlier controller left; before the first load."""
        now = self._clock.wall()
        for lease in await self._store.all():
            self._leases[lease.id] = lease
            if lease.stage is Stage.HELD and not lease.due(now) and self._has(lease.device):
                self._manager.let_again(lease.name, lease.device, lease.size, lease.foreign)
            elif lease.stage is Stage.HELD and not self._has(lease.device):
                self._end(lease, "there is no such device any more")
            elif lease.stage is Stage.ENDED:
                self._bring_back(lease)

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            try:
                await self._turn()
            except DatabaseUnavailable as error:  # the next turn may be luckier
                log.warning("leases on device memory cannot be written down: %s", error.message)
            except Exception:
                log.exception("looking after the leases on device memory failed")
            busy = self._comebacks or any(lease.stage is Stage.ASKED for lease in self._leases.values())
            await self._clock.sleep(LOOK_EVERY if busy else IDLE_EVERY)

    # What operators do.

    def all(self) -> Sequence[DeviceLease]:
        """Those that wait, that are held, and that ended but whose models are still coming back; the oldest first."""
        return tuple(self._leases.values())

    def get(self, lease: str) -> DeviceLease:
        """Raises NotFound."""
        found = self._leases.get(lease.removeprefix("lease:"))
        if found is None:
            raise NotFound(f"There is no lease {lease!r}. `vllm-mm devices` lists them.")
        return found

    async def ask(self, device: str, size: int, seconds: float, note: str, by: str) -> DeviceLease:
        """Ask for room. Raises NotFound, BadRequest, and Conflict with the reason where it can never be had."""
        if not self._has(device):
            known = ", ".join(d.id for d in self._manager.devices())
            raise NotFound(f"There is no device {device!r}; there are: {known}.")
        if size <= 0:
            raise BadRequest("Ask for more than nothing, such as 10GiB.", param="free")
        if not 0 < seconds <= LONGEST:
            raise BadRequest("Ask for more than nothing and for at most 7 days, such as 2h.", param="for")
        found = self._manager.could_let(device, size)
        if isinstance(found, NoPlacement) and (found.permanent or found.out):
            raise Conflict(f"{gib(size)} of {device} cannot be let: {found.reason}")
        lease = DeviceLease(secrets.token_hex(4), device, size, seconds, note, by, self._clock.wall())
        await self._store.save([*self._leases.values(), lease])
        self._leases[lease.id] = lease
        self._emit("asked", lease, by, note=note, seconds=seconds)
        await self._turn()
        return self._latest(lease)

    async def end(self, lease: str, by: str) -> DeviceLease:
        """Give it back early. Harmless when it has ended. Raises NotFound."""
        async with self._turning:
            found = self.get(lease)
            if found.stage is not Stage.ENDED:
                found = self._end(found, f"ended by {by}")
                await self._save()
        return found

    async def settled(self, lease: DeviceLease, wait: float) -> DeviceLease:
        """Wait up to `wait` seconds until it is held or has ended."""
        until = self._clock.now() + wait
        found = self._latest(lease)
        while found.stage is Stage.ASKED and (left := until - self._clock.now()) > 0:
            changed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._changed.add(changed)
            timer = self._clock.call_at(self._clock.now() + left, _wake(changed))
            try:
                await changed
            finally:
                timer.cancel()
                self._changed.discard(changed)
            found = self._latest(found)
        return found

    def _latest(self, lease: DeviceLease) -> DeviceLease:
        return self._leases.get(lease.id) or self._over.get(lease.id, lease)

    # Its turns.

    async def _turn(self) -> None:
        """Everything that is to be done now."""
        async with self._turning:
            before = dict(self._leases)
            for lease in tuple(self._leases.values()):
                if why := lease.due(self._clock.wall()):
                    self._end(lease, why)
                elif lease.stage is Stage.ASKED:
                    await self._try(lease)
            await self._next_comeback()
            if self._leases != before:
                await self._save()

    async def _try(self, lease: DeviceLease) -> None:
        ledger = self._manager.ledger
        if lease.name not in ledger.reservations:
            answer = await self._manager.let(lease.name, lease.device, lease.size)
            if isinstance(answer, NoPlacement):
                self._leases[lease.id] = lease.waits(answer.reason)
                return
            lease = self._leases[lease.id] = lease.evicts(answer)
        try:
            foreign = self._manager.taken_up(lease.name)
        except ValueError as error:  # a stranger took what was promised: ask anew
            self._manager.give_back(lease.name)
            self._leases[lease.id] = lease.waits(str(error))
            return
        if foreign is None:
            busy = self._manager.still_busy(e.model for e in lease.evicted)
            self._leases[lease.id] = lease.waits(f"waits until what runs has finished: {busy}" if busy else MEMORY)
        else:
            self._leases[lease.id] = held = lease.holds(self._clock.wall(), foreign)
            self._emit("held", held, held.by, evicted=[e.model for e in held.evicted], ends_at=held.ends_at)
            self._tell()

    def _end(self, lease: DeviceLease, reason: str) -> DeviceLease:
        ended = self._leases[lease.id] = lease.ends(self._clock.wall(), reason)
        self._manager.give_back(lease.name)
        self._emit("ended", ended, reason, held=lease.stage is Stage.HELD, restores=list(ended.to_restore))
        self._bring_back(ended)
        self._tell()
        return ended

    def _emit(self, what: str, lease: DeviceLease, cause: str, **data: Any) -> None:
        facts = {"lease": lease.id, "device": lease.device, "bytes": lease.size, **data}
        self._journal.emit(f"device_lease.{what}", cause=cause, data=facts)

    def _tell(self) -> None:
        for changed in self._changed:
            if not changed.done():
                changed.set_result(None)

    async def _save(self) -> None:
        await self._store.save(self.all())

    def _has(self, device: str) -> bool:
        return any(d.id == device for d in self._manager.devices())

    # Coming back.

    def _bring_back(self, lease: DeviceLease) -> None:
        self._left[lease.id] = {}
        until = self._clock.now() + RESTORE_PATIENCE
        self._comebacks.extend(_Comeback(lease.id, model, until) for model in lease.to_restore)
        if not lease.to_restore:
            self._forget(lease.id)

    def _forget(self, lease: str) -> None:
        """All that was to come back has, or will not."""
        ended, left = self._leases.pop(lease), self._left.pop(lease)
        self._over[lease] = ended
        if len(self._over) > REMEMBERED:
            del self._over[next(iter(self._over))]
        if ended.to_restore:
            back = [m for m in ended.to_restore if m not in left]
            self._emit("restored", ended, ended.reason, models=back, left=left)

    async def _next_comeback(self) -> None:
        """One model at a time: each may need what the one before it took."""
        if not self._comebacks:
            return
        comeback = self._comebacks[0]
        try:
            done, why = await self._come_back(comeback)
        except MMError as error:
            done, why = True, error.message
        if not done:
            return
        self._comebacks.popleft()
        if why:
            self._left[comeback.lease][comeback.model] = why
        if self._comebacks:  # the next one's time begins now
            first = self._comebacks[0]
            first.until = self._clock.now() + RESTORE_PATIENCE
        if not any(c.lease == comeback.lease for c in self._comebacks):
            self._forget(comeback.lease)

    async def _come_back(self, it: _Comeback) -> tuple[bool, str]:
        """Whether that is over, and why it did not come back."""
        manager, now = self._manager, self._clock.now()
        if it.model not in manager.catalog:
            return True, "it is not declared any more"
        instance = manager.require(it.model)
        if instance.state is State.READY:
            return True, ""
        if manager.loading(it.model) is not None or instance.state in LOADING:
            it.asked, it.until = True, now + RESTORE_BEGINS
            return False, ""
        if manager.dismissed(it.model):
            return True, "somebody stopped it"
        if instance.state in {State.BACKOFF, State.FAILED}:
            return True, f"it is {instance.state.value}: {instance.snapshot.reason}"
        if now >= it.until:
            manager.withdraw(it.model, it.cause, "it was to come back after a lease on its device, and has no room")
            return True, "there is no room for it"
        if not it.asked and instance.state in {State.STOPPED, State.SLEEPING} and manager.fits_beside(it.model):
            it.asked, it.until = True, now + RESTORE_BEGINS
            await manager.start(it.model, it.cause, urgent=False)
        return False, ""


def _wake(future: "asyncio.Future[None]") -> Callable[[], None]:
    def wake() -> None:
        if not future.done():
            future.set_result(None)

    return wake
