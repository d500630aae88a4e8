"""The device ledger: who holds how much memory on which device, and to whom more is promised. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from vllm_mm.domain.specs import GIB

PROFILES_MEMORY = frozenset({"gpu", "sim"})
"""Kinds of device on which two engines must not size their KV cache at once: vLLM takes the free memory at start and
what its neighbour allocates meanwhile for its own (vLLM issues 55827 and 56830)."""


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
    problem: str = ""
    """Why it is out of use, for people; empty when it is well. Nothing new is placed on such a device; what runs there
    goes on until it fails by itself."""
    strangers: tuple[str, ...] = ()
    """Who uses what is `foreign`, as far as that is known, for people."""
    total: int = 0
    """What it has, where `capacity` was configured as less; 0: the same."""

    @property
    def why_out(self) -> str:
        """`0 is out of use: ...`, for people."""
        return f"{self.id} is out of use: {self.problem}"

    @property
    def usable(self) -> int:
        return max(0, self.capacity - self.headroom - self.foreign)


@dataclass(frozen=True, slots=True)
class Reservation:
    """Memory that one instance may use, from the decision to start it until it is seen to be free again; or that was let
    to something else."""

    model: str
    """Or the name of a lease on device memory, which no model can have."""
    device_bytes: Mapping[str, int]
    leaving: bool = False
    """Its instance is on the way out: it still holds the memory, but a plan may count on it."""
    held: Mapping[str, int] = field(default_factory=dict[str, int])
    """What a process may physically use by now: nothing until `Ledger.begin`, then `device_bytes`. In between the two
    for a sleeping instance that is promised more than it holds, so that it can wake."""
    let: Mapping[str, int] | None = None
    """For a lease on device memory: the foreign use of each device that is not its holder's. None for a model."""
    stays: Mapping[str, int] = field(default_factory=dict[str, int])
    """Of a leaver that falls asleep: what it keeps. Empty for one that stops."""

    @property
    def begun(self) -> bool:
        """Whether all that is promised may be in use already."""
        return all(self.held.get(device, 0) >= size for device, size in self.device_bytes.items())

    def physical(self, device: str) -> int:
        """Bytes to count as in use. A leaver counts whole, whether it ever began or not."""
        return (self.device_bytes if self.leaving else self.held).get(device, 0)

    def shown(self, device: str) -> int:
        """Bytes for people: what it may use, or was promised; of a leaver no more than a process of it may hold, for what it was
        promised beyond that (a sleeper that was to wake) is promised to others."""
        return (self.held if self.leaving else self.device_bytes).get(device, 0)

    def lasting(self, device: str) -> int:
        """Bytes to count on once every leaver has gone."""
        return (self.stays if self.leaving else self.device_bytes).get(device, 0)


@dataclass(frozen=True, slots=True)
class Ledger:
    """All devices and all reservations; every change returns a new ledger.

    A load goes `reserve` -> (`leave` and `release` of its victims) -> `begin` as soon as `fits_now` -> ... -> `release`.
    A victim that falls asleep goes `leave` with what it keeps -> `asleep`; it comes back by `grow` -> `begin`.

    Invariants, per device and by our own doing (a measured footprint or foreign use may break both):
    the sum of reservations, of leavers what stays of them, never exceeds `usable`, so that every planned load fits once
    the leavers are gone, in whatever order loads begin (no deadlock); and what is physically in use never exceeds
    `usable`, because `begin` counts everything that began before or has not left yet (no overcommitment).
    """

    devices: Mapping[str, Device]
    reservations: Mapping[str, Reservation] = field(default_factory=dict[str, Reservation])

    def reserve(self, model: str, device_bytes: Mapping[str, int]) -> "Ledger":
        """From the decision to start. Raises ValueError when it would exceed what is free once the leavers are gone,
        on a device that is out of use, or when `model` already has a reservation."""
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

    def let(self, name: str, device_bytes: Mapping[str, int]) -> "Ledger":
        """Room for something that is not ours to start: as `reserve`. What strangers use from now on counts as use of that
        room, until it is full: it is not taken away twice."""
        ledger = self.reserve(name, device_bytes)
        foreign = {device: self.foreign(device) for device in device_bytes}
        lease = replace(ledger.reservations[name], let=foreign)
        return replace(ledger, reservations={**ledger.reservations, name: lease})

    def relet(self, name: str, device_bytes: Mapping[str, int], foreign: Mapping[str, int]) -> "Ledger":
        """Room that was let before this ledger began, and is held; `foreign` as it was known then. May exceed: a fact is a
        fact. Raises ValueError when `name` has a reservation."""
        ledger = self.adopt(name, device_bytes)
        lease = replace(ledger.reservations[name], let=dict(foreign))
        return replace(ledger, reservations={**ledger.reservations, name: lease})

    def grow(self, model: str, device_bytes: Mapping[str, int]) -> "Ledger":
        """A sleeping instance is promised what it needs to be awake; it may use it after `begin`. Raises ValueError
        when that exceeds what is free once the leavers are gone, on a device that is out of use, or when `model` has no
        reservation or is leaving."""
        own = self._get(model)
        if own.leaving:
            raise ValueError(f"{model} is leaving")
        _check_room(self.release(model), model, device_bytes)
        return self._with(replace(own, device_bytes=dict(device_bytes)))

    def promise(self, model: str, device_bytes: Mapping[str, int], victims: Sequence[str]) -> "Ledger":
        """A load was decided: `victims` leave for it, and it is promised its room, a sleeper by `grow`. Raises ValueError as
        `reserve` and `grow` do."""
        ledger = self
        for victim in victims:
            ledger = ledger.leave(victim)
        return ledger.grow(model, device_bytes) if model in self.reservations else ledger.reserve(model, device_bytes)

    def begin(self, model: str) -> "Ledger":
        """From now on a process may use the memory. Changes nothing when it began before. Raises ValueError when the
        memory is not there yet (see `fits_now`)."""
        own = self._get(model)
        if not self.fits_now(model):
            raise ValueError(f"the memory reserved for {model} is still in use")
        return self._with(replace(own, held=dict(own.device_bytes)))

    def leave(self, model: str, stays: Mapping[str, int] | None = None) -> "Ledger":
        """The instance was told to go, or to sleep: then it keeps what `stays` says. Unknown models change nothing.

        Raises ValueError when a leaver is to keep what was promised to somebody else meanwhile, or more than it has.
        """
        own = self.reservations.get(model)
        if own is None:
            return self
        kept = {d: n for d, n in (stays or {}).items() if n}
        left = self._with(replace(own, leaving=True, stays={}))
        for device, size in kept.items():
            if size > own.device_bytes.get(device, 0):
                raise ValueError(f"{model} cannot keep {gib(size)} on {device}: it has less")
            if own.leaving and size > max(left.free_after_leaving(device), own.lasting(device)):
                raise ValueError(f"{model} cannot keep {gib(size)} on {device}: it is promised to others")
        return self._with(replace(own, leaving=True, stays=kept))

    def asleep(self, model: str, device_bytes: Mapping[str, int]) -> "Ledger":
        """The instance sleeps and holds this and no more: it leaves no further. May exceed what was to stay: a fact is a
        fact. Raises ValueError without a reservation."""
        own = self._get(model)
        kept = {d: device_bytes.get(d, 0) for d in own.device_bytes}
        return self._with(replace(own, device_bytes=kept, held=kept, leaving=False, stays={}))

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
            if planned and size - own.lasting(device) > self.free_after_leaving(device):
                raise ValueError(f"the memory of {model} on {device} is promised to {', '.join(planned)}")
        return self._with(replace(own, leaving=False, stays={}))

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

    def forgo(self, model: str, held: Mapping[str, int]) -> "Ledger":
        """A load comes to nothing: `model` is left with what it `held` before, or without a reservation. Unknown models
        change nothing."""
        own = self.reservations.get(model)
        if own is None or not held:
            return self.release(model)
        return self._with(replace(own, device_bytes=dict(held), held=dict(held)))

    def with_devices(self, devices: Sequence[Device]) -> "Ledger":
        """Fresh readings (capacity, foreign use). A reservation on a device that is gone stays until it is released."""
        fresh = {d.id: d for d in devices}
        lets = {
            r.model: replace(r, let={d: min(n, fresh[d].foreign) if d in fresh else n for d, n in r.let.items()})
            for r in self.reservations.values()
            if r.let is not None
        }
        return replace(self, devices=fresh, reservations={**self.reservations, **lets})

    def foreign(self, device: str) -> int:
        """Bytes that strangers use beyond what was let to them."""
        if device not in self.devices:
            return 0
        seen = self.devices[device].foreign
        lets = [r for r in self.reservations.values() if r.let is not None and device in r.let]
        before = min((r.let[device] for r in lets if r.let is not None), default=seen)
        return seen - min(sum(r.device_bytes[device] for r in lets), seen - before)

    def broken(self, model: str) -> str:
        """Why what was promised to `model`, or what it began to use, is not to be had any more, whoever leaves: its device
        went out of use, or a stranger took the room. Empty when it stands, and where all that it may use was its own before
        the trouble began (see `crowded`)."""
        own = self.reservations.get(model)
        if own is None or own.begun:
            return ""
        for device in own.device_bytes:
            there = self.devices.get(device)
            if there is None:
                return f"{device} is gone"
            if there.problem:
                return there.why_out
            if self.free_after_leaving(device) < 0:
                return self._taken(there, -self.free_after_leaving(device))
        return ""

    def crowded(self, model: str, slack: int = 0) -> str:
        """Why what `model` has just begun to use is not there after all: a stranger was quicker. Empty when it is there, or
        all but `slack` bytes."""
        own = self.reservations.get(model)
        for device in own.device_bytes if own is not None else ():
            over = self.in_use(device) - self._usable(device)
            if over > slack:
                return self._taken(self.devices[device], over) if device in self.devices else f"{device} is gone"
        return ""

    def _taken(self, device: Device, missing: int) -> str:
        who = f" ({', '.join(device.strangers)})" if device.strangers else ""
        return f"{gib(missing)} on {device.id} are missing: others use {gib(self.foreign(device.id))} there now{who}"

    def free(self, device: str) -> int:
        """Bytes that could be used at this moment without waiting for anybody: leavers count among the holders, and so
        do planned loads. Never negative."""
        taken = sum(max(r.device_bytes.get(device, 0), r.physical(device)) for r in self.reservations.values())
        return max(0, self._usable(device) - taken)

    def free_after_leaving(self, device: str) -> int:
        """Bytes that are free once every leaver is gone, or asleep. Negative when facts overcommitted the device."""
        return self._usable(device) - sum(r.lasting(device) for r in self.reservations.values())

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
        if device not in self.devices:
            return 0
        there = self.devices[device]
        return max(0, there.capacity - there.headroom - self.foreign(device))

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
        if ledger.devices[device].problem:
            raise ValueError(f"{model}: {ledger.devices[device].why_out}")
        if size < 0:
            raise ValueError(f"{model}: {size} bytes on {device}")
        room = ledger.free_after_leaving(device)
        if size > room:
            raise ValueError(f"{model} needs {gib(size)} on {device}, where {gib(room)} can be had")


def gib(size: int) -> str:
    """For people: `15.5 GiB`."""
    return f"{size / GIB:.1f} GiB"
