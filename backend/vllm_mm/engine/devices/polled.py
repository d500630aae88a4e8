"""What all inventories share: readings made in a thread and kept, and the wait for memory to come back."""

import asyncio
import contextlib
import logging
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias, TypeVar

from vllm_mm.clock import Clock
from vllm_mm.domain.residency import Device
from vllm_mm.engine import procfs
from vllm_mm.engine.devices.health import Health
from vllm_mm.engine.ports import ForeignProcess

_LOG = logging.getLogger(__name__)
T = TypeVar("T")

Ours: TypeAlias = Callable[[int], bool]
"""Whether a pid is of an engine of this installation."""

_TOLERANCE = 64 * 1024**2
_TOLERANCE_SHARE = 0.05
"""What may be missing of a stopped engine's memory: drivers round, and neighbours breathe."""


REMEMBERED = 10_000
"""Processes of ours that are known again while they end."""
READ_DEADLINE = 5.0
"""Seconds that a reading may take. NVML answers in milliseconds, or hangs with the GPU."""
MISSING = "it is not there any more (unplugged, or fallen off the bus)"
NAMED = 3
"""Strangers that are named; the others are counted."""


def _strangers(device: str, processes: Sequence[ForeignProcess]) -> tuple[str, ...]:
    """Who else uses a device, for people: the largest first."""
    there = sorted((p for p in processes if p.device == device), key=lambda p: -(p.size or 0))
    more = (f"{len(there) - NAMED} more",) if len(there) > NAMED else ()
    return (*map(str, there[:NAMED]), *more)


async def _in_a_thread(work: Callable[[], T]) -> T:
    """The result of `work`, done in a thread of its own that nobody has to wait for: one that hangs in a driver must not
    keep the server from ending, as a thread of the pool would."""
    loop = asyncio.get_running_loop()
    result: asyncio.Future[T] = loop.create_future()

    def settle(value: T | None, error: BaseException | None) -> None:
        if result.done():
            return
        if error is not None:
            result.set_exception(error)
        else:
            result.set_result(value)  # type: ignore[arg-type]  # there is a value where there is no error

    def run() -> None:
        value, error = None, None
        try:
            value = work()
        except BaseException as e:  # all of it is for the one who waits
            error = e
        with contextlib.suppress(RuntimeError):  # the loop was closed meanwhile
            loop.call_soon_threadsafe(settle, value, error)

    threading.Thread(target=run, name="devices", daemon=True).start()
    return await result


def owned_by(owner: str) -> Ours:
    """By the owner mark in the environment: true for engines of an earlier controller of this installation too.

    A process that is ending loses its environment before its memory is accounted for; if it was ours before, it still is.
    """
    known: dict[int, procfs.ProcessId] = {}

    def ours(pid: int) -> bool:
        marks = procfs.read_marks(pid)
        if marks is not None and marks.owner != owner:
            known.pop(pid, None)
            return False
        stat = procfs.read_stat(pid)
        if stat is None:
            known.pop(pid, None)
            return False
        if marks is None:
            return known.get(pid) == stat.id
        known[pid] = stat.id
        if len(known) > REMEMBERED:
            del known[next(iter(known))]
        return True

    return ours


@dataclass(frozen=True, slots=True)
class Reading:
    """What one look at the devices showed."""

    devices: Sequence[Device]
    """Those that could be read. Their `problem` and `strangers` are filled in later."""
    processes: Sequence[ForeignProcess] = ()
    faults: Mapping[str, str] = field(default_factory=dict[str, str])
    """Why a device is not fit for use, where the reading says so; its figures may be missing then."""
    missed: Mapping[str, str] = field(default_factory=dict[str, str])
    """Why a device could not be read, though it should be there."""
    held: Mapping[str, Mapping[int, int]] = field(default_factory=dict[str, Mapping[int, int]])
    """Bytes of engines of ours by device and pid; only of devices and pids where that is told."""
    energy: Mapping[str, float] = field(default_factory=dict[str, float])
    """Joules that a device took since some moment; only of devices that count them."""


def launched_as(token: str) -> Ours:
    """By the mark of one launch."""

    def ours(pid: int) -> bool:
        marks = procfs.read_marks(pid)
        return marks is not None and marks.launch == token

    return ours


class PolledInventory(ABC):
    """Implements `ports.Inventory`. The constructor of a subclass ends with the first reading.

    A device that was there once stays in the list: with a problem while it is missing, faulty, or cannot be read, and
    with the figures of its last good reading.
    """

    observable = True
    """Whether memory that comes back late shows up in the readings."""
    kind = "gpu"
    """Of its devices, as in `Device.kind`."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._devices: tuple[Device, ...] = ()
        self._foreign: tuple[ForeignProcess, ...] = ()
        self._health: dict[str, Health] = {}
        self._flight: asyncio.Task[None] | None = None
        self._taken_at = clock.now()
        self._held: Mapping[str, Mapping[int, int]] = {}
        self._energy: Mapping[str, float] = {}

    @abstractmethod
    def read(self) -> Reading:
        """One reading, blocking. Raises OSError when it cannot be made."""

    def holds(self, mine: Ours) -> dict[str, int]:  # noqa: ARG002
        """Bytes that the processes that are `mine` hold, by device; nothing for a device where that cannot be known.
        Blocking. Raises OSError."""
        return {}

    def refresh_now(self) -> None:
        """Blocking; for start-up. Raises OSError when the reading cannot be made."""
        self._take(self.read())

    def devices(self) -> Sequence[Device]:
        return self._devices

    def energy(self) -> Mapping[str, float]:
        """Joules that devices took since some moment, at the latest reading; those that do not count them are left out."""
        return self._energy

    def use(self, pids: Collection[int]) -> Mapping[str, int]:
        """See `ports.Inventory.use`."""
        shares = {device: [size for pid, size in held.items() if pid in pids] for device, held in self._held.items()}
        return {device: sum(sizes) for device, sizes in shares.items() if sizes}

    def foreign_processes(self) -> Sequence[ForeignProcess]:
        """Who else was seen on the devices at the latest reading."""
        return self._foreign

    def age(self) -> float:
        """Seconds since the latest reading that could be made."""
        return self._clock.now() - self._taken_at

    async def refresh(self, deadline: float = READ_DEADLINE) -> Sequence[Device]:
        """A fresh reading, or after `deadline` seconds the last one: a driver that hangs keeps nobody waiting. Never more
        than one at a time. A reading that cannot be made counts against the devices (see `Health`)."""
        flight = self._flight
        if flight is None:
            flight = self._flight = asyncio.get_running_loop().create_task(self._fly(), name="reading devices")
        done, _ = await asyncio.wait({flight}, timeout=deadline)
        if not done:
            self._miss(f"a reading takes longer than {deadline:g} s")
        elif not flight.cancelled() and (error := flight.exception()) is not None:
            raise error
        return self._devices

    async def held(self, token: str) -> Mapping[str, int]:
        return await asyncio.to_thread(self.holds, launched_as(token))

    async def _fly(self) -> None:
        try:
            reading = await _in_a_thread(self.read)
        except OSError as error:
            self._miss(str(error))
        else:
            self._take(reading)
        finally:
            self._flight = None

    def _miss(self, why: str) -> None:
        """Nothing could be read."""
        now = self._clock.now()
        if not any(h.bad for h in self._health.values()):
            _LOG.warning("%s; the last reading stays", why)
        for device in self._devices:
            self._health[device.id] = self._health[device.id].missed(why, now)
        self._devices = tuple(replace(d, problem=self._health[d.id].problem) for d in self._devices)

    def _take(self, reading: Reading) -> None:
        now = self._taken_at = self._clock.now()
        seen = {d.id: d for d in reading.devices}
        known = {d.id: d for d in self._devices}
        told: list[Device] = []
        for device in dict.fromkeys([*known, *seen, *reading.faults, *reading.missed]):
            health = self._health.get(device, Health())
            if device in reading.faults:
                health = health.saw(reading.faults[device], now)
            elif device in reading.missed:
                health = health.missed(reading.missed[device], now)
            else:
                health = health.saw("" if device in seen else MISSING, now)
            self._health[device] = health
            found = seen.get(device) or known.get(device) or Device(device, 0, kind=self.kind)
            told.append(replace(found, problem=health.problem, strangers=_strangers(device, reading.processes)))
        self._devices, self._foreign = tuple(told), tuple(reading.processes)
        self._held = reading.held
        self._energy = reading.energy

    async def wait_free(self, device_bytes: Mapping[str, int], before: Mapping[str, int], deadline: float) -> bool:
        """`before` is the foreign use of each device while the instance still ran. Once its processes are gone, what the
        driver has not given back yet counts as foreign: it is free when foreign use is back where it was."""
        if not self.observable:
            return True
        until = self._clock.now() + deadline
        pause = 0.05
        while True:
            now = {d.id: d.foreign for d in await self.refresh() if not d.problem}
            if all(
                now[device] <= before.get(device, 0) + max(_TOLERANCE, int(size * _TOLERANCE_SHARE))
                for device, size in device_bytes.items()
                if device in now  # one that is out of use will not tell
            ):
                return True
            left = until - self._clock.now()
            if left <= 0:
                return False
            await self._clock.sleep(min(pause, left))
            pause = min(pause * 1.5, 0.5)


class CompositeInventory:
    """Several inventories as one; each device belongs to one of them. `notes`: what people should know about it."""

    def __init__(self, parts: Sequence[PolledInventory], notes: tuple[str, ...] = ()) -> None:
        self._parts = tuple(parts)
        self.notes = notes

    def devices(self) -> Sequence[Device]:
        return tuple(device for part in self._parts for device in part.devices())

    def energy(self) -> Mapping[str, float]:
        """As `PolledInventory.energy`."""
        return {device: joules for part in self._parts for device, joules in part.energy().items()}

    def use(self, pids: Collection[int]) -> Mapping[str, int]:
        return {device: size for part in self._parts for device, size in part.use(pids).items()}

    def foreign_processes(self) -> Sequence[ForeignProcess]:
        return tuple(process for part in self._parts for process in part.foreign_processes())

    def age(self) -> float:
        return max(part.age() for part in self._parts)

    async def refresh(self, deadline: float = READ_DEADLINE) -> Sequence[Device]:
        await asyncio.gather(*(part.refresh(deadline) for part in self._parts))
        return self.devices()

    async def wait_free(self, device_bytes: Mapping[str, int], before: Mapping[str, int], deadline: float) -> bool:
        waits: list[asyncio.Future[bool] | asyncio.Task[bool]] = []
        for part in self._parts:
            mine = {d.id for d in part.devices()}
            held = {device: size for device, size in device_bytes.items() if device in mine}
            if held:
                waits.append(asyncio.ensure_future(part.wait_free(held, before, deadline)))
        return all(await asyncio.gather(*waits))

    async def held(self, token: str) -> Mapping[str, int]:
        found: dict[str, int] = {}
        for part in await asyncio.gather(*(part.held(token) for part in self._parts)):
            found |= part
        return found
