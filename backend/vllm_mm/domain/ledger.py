"""The device ledger: who holds how much memory on which device, and to whom more is promised. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from vllm_mm.domain.specs import GIB


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
    held: Mapping[str, int] = field(default_factory=dict[str, int])
    """What a process may physically use by now: nothing until `Ledger.begin`, then `device_bytes`. In between the two
    for a sleeping instance that is promised more than it holds, so that it can wake."""

    @property
    def begun(self) -> bool:
        """Whether all that is promised may be in use already."""
        return all(self.held.get(device, 0) >= size for device, size in self.device_bytes.items())

    def physical(self, device: str) -> int:
        """Bytes to count as in use. A leaver counts whole, whether it ever began or not."""
        return (self.device_bytes if self.leaving else self.held).get(device, 0)


@dataclass(frozen=True, slots=True)
class Ledger:
    """All devices and all reservations; every change returns a new ledger.

    A load goes `reserve` -> (`leave` and `release` of its victims) -> `begin` as soon as `fits_now` -> ... -> `release`.

    Invariants, per device and by our own doing (a measured footprint or foreign use may break both):
    the sum of reservations that are not `leaving` never exceeds `usable`, so that every planned load fits once the
    leavers are gone, in whatever order loads begin (no deadlock); and what is physically in use never exceeds `usable`,
    because `begin` counts everything that began before or has not left yet (no overcommitment).
    """

    devices: Mapping[str, Device]
    reservations: Mapping[str, Reservation] = field(default_factory=dict[str, Reservation])

    def reserve(self, model: str, device_bytes: Mapping[str, int]) -> "Ledger":
        """From the decision to start. Raises ValueError when it would exceed what is free once the leavers are gone,
        or when `model` already has a reservation."""
        if model in self.reservations:
            raise ValueError(f"{model} already has a reservation; use grow or resize")
        _check_room(self, model, device_bytes)
        return self._with(Reservation(model, dict(device_bytes)))

    def adopt(self, model: str, device_bytes: Mapping[str, int]) -> "Ledger":
        """An engine of an earlier controller runs already: reserved and begun at once. May exceed: a fact is a fact.
        Raises ValueError when `model` already has a reservation."""
        if model in self.reservations:
            raise ValueError(f"{model} already has a reservation")
        return self._with(Reservation(model, dict(device_bytes), held=dict(device_bytes)))

    def grow(self, model: str, device_bytes: Mapping[str, int]) -> "Ledger":
        """A sleeping instance is promised what it needs to be awake; it may use it after `begin`. Raises ValueError
        when that exceeds what is free once the leavers are gone, or when `model` has no reservation or is leaving."""
        own = self._get(model)
        if own.leaving:
            raise ValueError(f"{model} is leaving")
        _check_room(self.release(model), model, device_bytes)
        return self._with(replace(own, device_bytes=dict(device_bytes)))

    def begin(self, model: str) -> "Ledger":
        """From now on a process may use the memory. Changes nothing when it began before. Raises ValueError when the
        memory is not there yet (see `fits_now`)."""
        own = self._get(model)
        if not self.fits_now(model):
            raise ValueError(f"the memory reserved for {model} is still in use")
        return self._with(replace(own, held=dict(own.device_bytes)))

    def leave(self, model: str) -> "Ledger":
        """The instance was told to go. Unknown models change nothing."""
        own = self.reservations.get(model)
        return self if own is None else self._with(replace(own, leaving=True))

    def stay(self, model: str) -> "Ledger":
        """Undrained: it does not go after all. Unknown models change nothing. Raises ValueError when its memory was
        promised to somebody else, that is when a load that has not begun would no longer fit beside it."""
        own = self.reservations.get(model)
        if own is None or not own.leaving:
            return self
        for device, size in own.device_bytes.items():
            planned = [
                r.model
                for r in self.reservations.values()
                if not r.leaving and r.physical(device) < r.device_bytes.get(device, 0)
            ]
            if planned and size > self.free_after_leaving(device):
                raise ValueError(f"the memory of {model} on {device} is promised to {', '.join(planned)}")
        return self._with(replace(own, leaving=False))

    def release(self, model: str) -> "Ledger":
        """The tree is reaped and the memory was seen free. Unknown models change nothing."""
        if model not in self.reservations:
            return self
        return replace(self, reservations={m: r for m, r in self.reservations.items() if m != model})

    def resize(self, model: str, device_bytes: Mapping[str, int]) -> "Ledger":
        """The footprint was measured. May exceed: a fact is a fact. Raises ValueError without a reservation."""
        own = self._get(model)
        held = dict(device_bytes) if own.begun else own.held
        return self._with(replace(own, device_bytes=dict(device_bytes), held=held))

    def with_devices(self, devices: Sequence[Device]) -> "Ledger":
        """Fresh readings (capacity, foreign use). A reservation on a device that is gone stays until it is released."""
        return replace(self, devices={d.id: d for d in devices})

    def free(self, device: str) -> int:
        """Bytes that could be used at this moment without waiting for anybody: leavers count among the holders, and so
        do planned loads. Never negative."""
        taken = sum(max(r.device_bytes.get(device, 0), r.physical(device)) for r in self.reservations.values())
        return max(0, self._usable(device) - taken)

    def free_after_leaving(self, device: str) -> int:
        """Bytes that are free once every leaver is gone. Negative when facts overcommitted the device."""
        stay = (r for r in self.reservations.values() if not r.leaving)
        return self._usable(device) - sum(r.device_bytes.get(device, 0) for r in stay)

    def in_use(self, device: str) -> int:
        """Bytes that processes of ours may physically use now: what began, and what has not left yet."""
        return sum(r.physical(device) for r in self.reservations.values())

    def fits_now(self, model: str) -> bool:
        """Whether `model`'s own reservation is physically there: no leaver stands in its way. True also after it began;
        False without a reservation, or for a leaver."""
        own = self.reservations.get(model)
        if own is None or own.leaving:
            return False
        return own.begun or all(
            self.in_use(device) - own.physical(device) + size <= self._usable(device)
            for device, size in own.device_bytes.items()
        )

    def _usable(self, device: str) -> int:
        return self.devices[device].usable if device in self.devices else 0

    def _get(self, model: str) -> Reservation:
        if model not in self.reservations:
            raise ValueError(f"{model} has no reservation")
        return self.reservations[model]

    def _with(self, reservation: Reservation) -> "Ledger":
        return replace(self, reservations={**self.reservations, reservation.model: reservation})


def _check_room(ledger: Ledger, model: str, device_bytes: Mapping[str, int]) -> None:
    for device, size in device_bytes.items():
        if device not in ledger.devices:
            raise ValueError(f"{model}: there is no device {device}")
        if size < 0:
            raise ValueError(f"{model}: {size} bytes on {device}")
        room = ledger.free_after_leaving(device)
        if size > room:
            raise ValueError(f"{model} needs {gib(size)} on {device}, where {gib(room)} can be had")


def gib(size: int) -> str:
    """For people: `15.5 GiB`."""
    return f"{size / GIB:.1f} GiB"
