"""What there is: the instances, the memory that is promised and held, and what earlier loads taught. Decides nothing."""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Mapping, Sequence

from vllm_mm.domain.catalog import Catalog
from vllm_mm.domain.errors import UnknownModel
from vllm_mm.domain.estimates import Span
from vllm_mm.domain.footprint import Footprint, Learned
from vllm_mm.domain.ledger import PROFILES_MEMORY
from vllm_mm.domain.lifecycle import Instance, State
from vllm_mm.domain.partings import Parting
from vllm_mm.domain.residency import Device, Ledger
from vllm_mm.domain.scheduling import Load
from vllm_mm.domain.specs import ModelSpec
from vllm_mm.domain.tiers import HostMemory
from vllm_mm.engine.devices.alerts import DeviceAlerts
from vllm_mm.engine.endings import Endings
from vllm_mm.engine.estimator import Estimator
from vllm_mm.engine.footprints import Footprints
from vllm_mm.engine.footprints.sample import profiled
from vllm_mm.engine.forecast import Forecast
from vllm_mm.engine.instance import ModelInstance
from vllm_mm.engine.loading import Loading
from vllm_mm.engine.policy import Policy
from vllm_mm.engine.ports import ForeignProcess
from vllm_mm.engine.room import Room
from vllm_mm.engine.tiers import Tiers
from vllm_mm.engine.tools import Tools

TEARDOWN = frozenset({State.DRAINING, State.SUSPENDING, State.STOPPING})
"""On its way out, as far as those who want it are concerned."""


def on_its_way_out(instance: Instance) -> bool:
    """Not when it only goes to sleep with its requests: it will be woken for them."""
    return instance.state in TEARDOWN and not instance.frozen


class Registry(ABC):
    """The lowest base of the `ProcessManager`."""

    def __init__(self, catalog: Catalog, tools: Tools, policy: Policy) -> None:
        self.catalog = catalog
        self._tools = tools
        self._policy = policy
        self._instances: dict[str, ModelInstance] = {}
        self._room = Room(Ledger({d.id: d for d in tools.inventory.devices()}))
        self.device_alerts = DeviceAlerts(tools.journal)
        self._endings = Endings()
        self._footprints = Footprints()
        self._sized: dict[str, Footprint] = {}
        self._sized_for: tuple[Mapping[str, Device], Catalog] | None = None
        self._tiers = Tiers(policy.sleep_budget)
        self.estimator = Estimator(tools.store, tools.clock, lambda: self.catalog, policy.drain_timeout)
        self.forecast = Forecast(
            self.estimator, tools.clock, self._instances, self.loading, self.rehearse, self._room.profilers
        )

    @abstractmethod
    def _make(self, spec: ModelSpec) -> ModelInstance: ...

    @abstractmethod
    def loading(self, model: str) -> Loading | None:
        """The load of it that is under way."""

    async def load_memory(self) -> None:
        """Read what earlier runs learned: footprints, what sleeps taught, and how long things take."""
        self._footprints.load(await self._tools.store.footprints())
        await asyncio.to_thread(self._footprints.prepare, tuple(self.catalog), self.devices())
        self._sized.clear()
        self._tiers.remember(await self._tools.store.sleeps())
        self.estimator.remember(await self._tools.store.times())

    async def prepare(self, specs: Iterable[ModelSpec]) -> None:
        """Read the files of `specs` now, in a thread, so that nobody waits for it when they are declared."""
        await asyncio.to_thread(self._footprints.prepare, tuple(specs), self.devices())

    def require(self, model: str) -> ModelInstance:
        """The instance, made if this is the first time. Raises UnknownModel."""
        instance = self._instance(model)
        if instance is None:
            self.catalog.resolve(model)
            raise UnknownModel(f"The model `{model}` does not exist.")
        return instance

    def _instance(self, model: str) -> ModelInstance | None:
        instance = self._instances.get(model)
        if instance is None and (spec := self.catalog.get(model)) is not None:
            instance = self._instances[model] = self._make(spec)
        return instance

    def instances(self) -> Sequence[ModelInstance]:
        """Those that exist, running or not."""
        return tuple(self._instances.values())

    @property
    def ledger(self) -> Ledger:
        return self._room.ledger

    def devices(self) -> Sequence[Device]:
        return tuple(self._room.ledger.devices.values())

    def strangers(self) -> Sequence[ForeignProcess]:
        """Who else was seen on the devices."""
        return self._tools.inventory.foreign_processes()

    def can_sleep(self, spec: ModelSpec) -> bool:
        """Whether its engine is put to sleep on the devices it would use here."""
        return not self.why_no_sleep(spec)

    def why_no_sleep(self, spec: ModelSpec) -> str:
        """Why not, for people; empty when it can be."""
        return self._tiers.why_no_sleep(spec, self.devices())

    @property
    def host_memory(self) -> HostMemory:
        """Who holds how much of the host's memory for sleep."""
        return self._tiers.host

    def can_freeze(self, spec: ModelSpec) -> bool:
        """Whether its engine can keep running requests over a sleep: vLLM and the simulated engine can, wherever they can
        sleep; another engine can if its operator says that it sleeps as vLLM does."""
        return self.can_sleep(spec)

    def learned(self, fingerprint: str, devices: Collection[str]) -> Learned:
        """What the launches of that spec took on that set of devices."""
        return self._footprints.learned(fingerprint, devices)

    def learn(self, fingerprint: str, devices: Collection[str], known: Learned) -> None:
        """From the next start on it counts."""
        self._footprints.learn(fingerprint, devices, known)
        self._sized.clear()

    async def look_again(self, spec: ModelSpec) -> None:
        """It was loaded: files that were not here before are now."""
        self._footprints.look_again(spec)
        await asyncio.to_thread(self._footprints.prepare, (spec,), self.devices())
        self._sized.clear()

    def gives_more(self, instance: ModelInstance) -> bool:
        """A start that failed after the engine had measured its memory has told what it needs: learn that, and tell whether the
        next start is therefore given more than this one had, on a device that has it."""
        spec, reservation = instance.spec, self._room.ledger.reservations.get(instance.spec.id)
        mine = [d for d in self.devices() if reservation is not None and d.id in reservation.device_bytes]
        if reservation is None or spec.kv_cache is not None or not {d.kind for d in mine} <= PROFILES_MEMORY:
            return False
        had = min(reservation.device_bytes.values())
        found = profiled(instance.facts, had)
        if found is None:
            return False
        known = self.learned(spec.fingerprint, reservation.device_bytes)
        if found.fixed > known.largest:
            self.learn(spec.fingerprint, reservation.device_bytes, known.grew(found.fixed, self._tools.clock.wall()))
        return had < self.footprint(spec).per_device <= max((d.usable for d in self.devices()), default=0)

    def exceeded(self, model: str, used: Mapping[str, int]) -> None:
        """Its engine was seen to use more than was reserved on these devices (bytes): the reservation follows."""
        reservation = self._room.ledger.reservations.get(model)
        if reservation is None:
            return
        before = {device: reservation.device_bytes.get(device, 0) for device in used}
        self._room.resize(model, {**reservation.device_bytes, **used})
        self._instances[model].saw(used)
        cause = "its engine uses more than was reserved"
        self._tools.journal.emit(
            "footprint.exceeded", model=model, cause=cause, data={"reserved": before, "used": dict(used)}
        )

    def footprint(self, spec: ModelSpec) -> Footprint:
        """What to reserve for it on each of its devices, as things are now. Asked for in every round of the scheduler: reckoned
        again only when a reading of the devices, the catalog, or something that was learned is new."""
        now = (self._room.ledger.devices, self.catalog)
        if self._sized_for is None or any(a is not b for a, b in zip(now, self._sized_for, strict=True)):
            self._sized.clear()
            self._sized_for = now
        found = self._sized.get(spec.fingerprint)
        if found is None:
            found = self._sized[spec.fingerprint] = self._footprints.of(spec, self.devices(), self.catalog)
        return found

    def needs(self, instance: ModelInstance) -> int:
        """Bytes on each of its devices for it to become READY: a sleeper is the process that was launched, whatever is declared
        or was learned since."""
        size = instance.size if instance.state is State.SLEEPING else None
        return self.footprint(instance.spec).per_device if size is None else size

    @abstractmethod
    def rehearse(self, loads: Sequence[Load]) -> tuple[Parting, ...]:
        """What the last of these loads would do to those who go for it, if all were carried out now in this order."""

    def expected(self, model: str) -> Span | None:
        """From now until `model` could be READY, by what such things took before; None when it will not by itself."""
        instance = self._instance(model)
        return self.forecast.ready(instance) if instance is not None else None

    def eta(self, model: str) -> float | None:
        """`expected`, as one number of seconds: the likely one."""
        span = self.expected(model)
        return None if span is None else span.likely
