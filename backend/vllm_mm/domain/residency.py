"""Who holds how much memory on which device, and who would have to go for somebody else to fit. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from vllm_mm.domain.lifecycle import State
from vllm_mm.domain.specs import DeviceWish


@dataclass(frozen=True, slots=True)
class Device:
    """One GPU, the host's RAM pool (CPU builds), or a simulated device. Sizes in bytes."""

    id: str
    capacity: int
    headroom: int = 0
    """Never given out."""
    foreign: int = 0
    """Seen in use by processes that are not ours."""
    kind: str = "gpu"
    """`gpu`, `cpu` or `sim`."""
    name: str = ""

    @property
    def usable(self) -> int:
        return max(0, self.capacity - self.headroom - self.foreign)


@dataclass(frozen=True, slots=True)
class Reservation:
    """Memory that one instance may use, from the decision to start it until it is seen to be free again."""

    model: str
    device_bytes: Mapping[str, int]
    leaving: bool = False
    """Its instance is on the way out: it still holds the memory, but a plan may count on it."""


@dataclass(frozen=True, slots=True)
class Resident:
    """What victim choice needs to know of an instance that holds memory."""

    model: str
    state: State
    leases: int
    pinned: bool
    last_used: float
    """When its last lease ended, or when it became ready."""
    ready_since: float | None
    priority: int = 0


@dataclass(frozen=True, slots=True)
class Placement:
    """Where a load would go and who would go for it; `victims` in the order of eviction."""

    device_bytes: Mapping[str, int]
    victims: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class NoPlacement:
    """Why not. `permanent`: not even with every victim gone. `until`: when a look could change the answer."""

    reason: str
    permanent: bool = False
    until: float | None = None


@dataclass(frozen=True, slots=True)
class Ledger:
    """All devices and all reservations; every change returns a new ledger.

    Invariant: per device, the sum of reservations that are not `leaving` never exceeds `usable` by our own doing.
    """

    devices: Mapping[str, Device]
    reservations: Mapping[str, Reservation] = field(default_factory=dict[str, Reservation])

    def reserve(self, model: str, device_bytes: Mapping[str, int]) -> "Ledger":
        """From the decision to start. Raises ValueError when it would exceed what is free once the leavers are gone,
        or when `model` already has a reservation."""
        raise NotImplementedError

    def leave(self, model: str) -> "Ledger":
        """The instance was told to go. Unknown models change nothing."""
        raise NotImplementedError

    def stay(self, model: str) -> "Ledger":
        """Undrained: it does not go after all. Raises ValueError when its memory was promised to somebody else."""
        raise NotImplementedError

    def release(self, model: str) -> "Ledger":
        """The tree is reaped and the memory was seen free. Unknown models change nothing."""
        raise NotImplementedError

    def resize(self, model: str, device_bytes: Mapping[str, int]) -> "Ledger":
        """The footprint was measured. May exceed: a fact is a fact."""
        raise NotImplementedError

    def with_devices(self, devices: Sequence[Device]) -> "Ledger":
        """Fresh readings (capacity, foreign use)."""
        raise NotImplementedError

    def free(self, device: str) -> int:
        """Bytes that nobody holds at this moment, leavers included among the holders."""
        raise NotImplementedError

    def free_after_leaving(self, device: str) -> int:
        """Bytes that are free once every leaver is gone."""
        raise NotImplementedError

    def fits_now(self, model: str) -> bool:
        """Whether `model`'s own reservation is physically there: no leaver stands in its way."""
        raise NotImplementedError


def place(
    ledger: Ledger,
    wish: DeviceWish,
    per_device: int,
    residents: Sequence[Resident],
    now: float,
    *,
    min_dwell: float,
    drain_busy: bool,
) -> Placement | NoPlacement:
    """Find devices for `wish.count` x `per_device` bytes, evicting as few as possible, least recently used first.

    Pinned instances are never victims; instances with leases only when `drain_busy` (the aging bound was reached, or an
    operator asked); nobody within `min_dwell` seconds of becoming ready. Loading, draining and stopping instances are
    not victims (a leaver's memory is already counted on).
    """
    raise NotImplementedError
