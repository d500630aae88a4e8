"""What is known of sleep: the host's memory for it, what stays on the devices, and what earlier sleeps
taught. Decides by `domain.tiers` and `domain.sleep`; tells nobody to do anything."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from vllm_mm.clock import Clock
from vllm_mm.domain import sleep
from vllm_mm.domain.estimates import Span
from vllm_mm.domain.ledger import Device, Ledger
from vllm_mm.domain.lifecycle import Goal, Judge, State
from vllm_mm.domain.partings import Goer, has_bed
from vllm_mm.domain.sleep import Experience
from vllm_mm.domain.specs import GIB, ModelSpec
from vllm_mm.domain.tiers import Fate, HostMemory, Sleeper, fate
from vllm_mm.engine.instance import ModelInstance


@dataclass(frozen=True, slots=True)
class Departure:
    """What it would mean for a model to go now, for whoever weighs that against something."""

    goal: Goal
    leaves: Span
    """Until its memory is free, its requests' end included."""
    back: Span
    """From the decision to have it back until it is READY, in free room."""


class Tiers:
    """Written to by the manager alone."""

    def __init__(self, budget: int | None) -> None:
        """`budget`: bytes of host memory for all sleepers together; None means without a bound."""
        self.host = HostMemory(budget)
        self._released: set[asyncio.Future[None]] = set()
        """Those who wait for host memory."""
        self._known: dict[tuple[str, int], Experience] = {}
        """By fingerprint and level."""

    def remember(self, known: Mapping[tuple[str, int], Experience]) -> None:
        """What earlier runs learned, by fingerprint and level."""
        self._known = dict(known)

    def known(self, spec: ModelSpec) -> Experience:
        """What counts for `spec`."""
        found = self._known.get((spec.fingerprint, spec.sleep.level))
        return Experience(spec.sleep) if found is None else found.under(spec.sleep)

    def why_no_sleep(self, spec: ModelSpec, devices: Sequence[Device]) -> str:
        """Why `spec` is not put to sleep, for people; empty when it can be."""
        return sleep.why_no_sleep(spec, devices) or self.known(spec).trial.why_no_sleep

    def judged(self, spec: ModelSpec, verdict: Judge) -> bool:
        """A sleep or a wake ended. Whether this was the failure after which it is not put to sleep any more."""
        before = self.known(spec)
        after = before.after(verdict.outcome, waking=verdict.waking, reason=verdict.reason, kept=verdict.kept)
        self._known[spec.fingerprint, spec.sleep.level] = after
        return not before.trial.why_no_sleep and bool(after.trial.why_no_sleep)

    def forgive(self, spec: ModelSpec) -> bool:
        """Somebody says that it may be tried again. Whether there were failures to forget."""
        failed = bool(self.known(spec).trial.failures)
        if failed:
            self._known[spec.fingerprint, spec.sleep.level] = Experience(spec.sleep, kept=self.known(spec).kept)
        return failed

    def residue(self, spec: ModelSpec, ledger: Ledger) -> dict[str, int]:
        """Bytes that it keeps, or will keep, on each device of its reservation when it sleeps."""
        own = ledger.reservations.get(spec.id)
        if own is None:
            return {}
        return sleep.residue(spec, own.device_bytes, _kinds(ledger), self.known(spec).kept)

    def host_bytes(self, instance: ModelInstance, ledger: Ledger, *, frozen: bool = False) -> int:
        """Host memory that it takes asleep; `frozen`: if it keeps requests."""
        own = ledger.reservations.get(instance.spec.id)
        held: Mapping[str, int] = own.device_bytes if own is not None else {}
        weights = instance.facts.get("weights_gib")
        known = int(weights * GIB) * len(held) if isinstance(weights, int | float) else 0
        return sleep.host_bytes(instance.spec, held, _kinds(ledger), known, frozen=frozen)

    def fate(self, instance: ModelInstance, ledger: Ledger, sleepers: Sequence[Sleeper]) -> Fate:
        """What becomes of it if it is told to sleep, for its own sake."""
        goer = self.goer(instance, ledger)
        return fate(
            self.host, goer.takes, [s for s in sleepers if s.model != goer.model], why_not=goer.why_no_sleep,
            device_room=has_bed(ledger, goer.model, goer.stays or {}),
        )  # fmt: skip

    def goer(self, instance: ModelInstance, ledger: Ledger) -> Goer:
        """As one that has to go, for `domain.partings`."""
        spec = instance.spec
        return Goer(
            spec.id, instance.state is not State.READY, instance.gate.count,
            takes=self.host_bytes(instance, ledger), takes_frozen=self.host_bytes(instance, ledger, frozen=True),
            stays=self.residue(spec, ledger), why_no_sleep=self.why_no_sleep(spec, tuple(ledger.devices.values())),
        )  # fmt: skip

    def take(self, instance: ModelInstance, ledger: Ledger, *, frozen: bool = False) -> None:
        """It holds host memory from now on; `frozen`: as much as it takes with requests that it keeps."""
        self.host = self.host.take(instance.spec.id, self.host_bytes(instance, ledger, frozen=frozen))

    def leave(self, model: str) -> None:
        """Told to stop while it holds host memory."""
        self.host = self.host.leave(model)

    def release(self, model: str) -> None:
        """Awake, or gone, or told to stop before it took any."""
        self.host = self.host.release(model)
        for waker in self._released:
            if not waker.done():
                waker.set_result(None)

    async def room(self, clock: Clock, seconds: float) -> str:
        """Wait, at most so long, until those who were stopped for a sleep have given the host's memory back. Returns who has not,
        for people; empty when it is there."""
        until = clock.now() + seconds
        while (names := self.host.waits_for) and clock.now() < until:
            waker: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._released.add(waker)
            timer = clock.call_at(until, lambda waker=waker: waker.done() or waker.set_result(None))
            try:
                await waker
            finally:
                timer.cancel()
                self._released.discard(waker)
        return f"{', '.join(names)} did not give the host's memory back in {seconds:.0f} s" if names else ""


def _kinds(ledger: Ledger) -> Mapping[str, str]:
    return {device.id: device.kind for device in ledger.devices.values()}
