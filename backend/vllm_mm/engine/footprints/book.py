"""What each model takes, kept: estimates, read once from the files of a model, and what launches taught."""

import os
from collections.abc import Iterable, Mapping, Sequence

from vllm_mm.domain import sizing
from vllm_mm.domain.estimate import Estimate, estimate
from vllm_mm.domain.footprint import Footprint, Learned, Parts
from vllm_mm.domain.kv_cache import KvCache, Layers
from vllm_mm.domain.ledger import Device
from vllm_mm.domain.model_config import Setup
from vllm_mm.domain.specs import GIB, EngineKind, ModelSpec
from vllm_mm.domain.weights import Weights
from vllm_mm.engine.footprints.files import read
from vllm_mm.engine.footprints.setup import setup
from vllm_mm.vocabulary.profile import size_of

COMMAND_OVERHEAD = GIB
"""Of an engine about which nothing is known but its weights."""


def device_set(devices: Iterable[str]) -> str:
    """The key of a set of devices in the database: `0,1`."""
    return ",".join(sorted(devices))


class Footprints:
    """`environment`: what engines inherit; `learned`: by (fingerprint, device set)."""

    def __init__(
        self,
        environment: Mapping[str, str] | None = None,
        learned: Mapping[tuple[str, str], Learned] | None = None,
    ) -> None:
        self._environment = os.environ if environment is None else environment
        self._estimates: dict[tuple[str, bool], Estimate] = {}
        self._learned: dict[str, dict[str, Learned]] = {}
        self.load(learned or {})

    def load(self, learned: Mapping[tuple[str, str], Learned]) -> None:
        """What earlier runs learned."""
        for (fingerprint, devices), known in learned.items():
            self._learned.setdefault(fingerprint, {})[devices] = known

    def learned(self, fingerprint: str, devices: Iterable[str]) -> Learned:
        """Of that device set; with nothing in it before the first launch there."""
        return self._learned.get(fingerprint, {}).get(device_set(devices), Learned())

    def learn(self, fingerprint: str, devices: Iterable[str], known: Learned) -> None:
        """From the next start on it counts."""
        self._learned.setdefault(fingerprint, {})[device_set(devices)] = known

    def prepare(self, specs: Iterable[ModelSpec], devices: Sequence[Device]) -> None:
        """Read the files of `specs` now, blocking, so that nobody waits for it later."""
        for spec in specs:
            self.estimate(spec, gpu=_on_gpus(spec, devices))

    def look_again(self, spec: ModelSpec) -> None:
        """Its files may have come: forget an estimate that knew no weights."""
        for gpu in (False, True):
            known = self._estimates.get((spec.fingerprint, gpu))
            if known is not None and not known.known:
                del self._estimates[spec.fingerprint, gpu]

    def estimate(self, spec: ModelSpec, *, gpu: bool) -> Estimate:
        """From its files; read at the first call for a spec."""
        key = (spec.fingerprint, gpu)
        found = self._estimates.get(key)
        if found is None:
            files = read(spec, self._environment)
            how = setup(spec, self._environment, gpu=gpu)
            found = estimate(files.config, files.checkpoint, how, files.notes)
            if spec.engine is EngineKind.COMMAND:
                found = Estimate(found.weights, None, COMMAND_OVERHEAD, how, files.notes)
            self._estimates[key] = found
        return found

    def of(self, spec: ModelSpec, devices: Sequence[Device], others: Iterable[ModelSpec] = ()) -> Footprint:
        """What to reserve for `spec` on each of its devices. `others`: the models that are declared besides."""
        if spec.engine is EngineKind.SIM:
            return self._simulated(spec)
        gpu = _on_gpus(spec, devices)
        known = self.estimate(spec, gpu=gpu)
        device = sizing.place_for(spec.devices, devices, known.fixed + known.least_kv)
        if device is None:
            return sizing.footprint(
                spec.memory, known, self._learned.get(spec.fingerprint, {}), sizing.Place(0, 0, gpu=gpu)
            )
        ids = [d.id for d in devices if d.kind == device.kind]
        place = sizing.Place(
            device.capacity, device.usable, gpu=gpu and spec.engine is EngineKind.VLLM,
            whole=sizing.alone(spec.devices, [o.devices for o in others if o.id != spec.id], ids),
            share=_share(spec) if gpu else None,
        )  # fmt: skip
        return sizing.footprint(spec.memory, known, self._learned.get(spec.fingerprint, {}), place)

    def _simulated(self, spec: ModelSpec) -> Footprint:
        """Its profile says what it takes, and it takes just that."""
        ranks = max(1, spec.devices.count)
        weights, kv_cache, overhead, token = (
            size_of(spec.sim, key) for key in ("weights", "kv_cache", "overhead", "kv_bytes_per_token")
        )
        parts = Parts(weights // ranks, kv_cache // ranks, overhead)
        kv = spec.kv_cache if spec.kv_cache is not None else parts.kv_cache
        left = spec.memory is not None and spec.kv_cache is None and "kv_cache" not in spec.sim  # to the KV cache
        per_token = max(1, token // ranks)
        known = Estimate(
            Weights(parts.weights, 1, "BF16", "bfloat16"),
            KvCache((Layers(1, per_token),), block=16, length=_SIM_LENGTH, in_flight=0),
            parts.overhead, Setup(kv_cache=None if left else kv),
        )  # fmt: skip
        declared = spec.memory if spec.memory is not None else parts.fixed + kv
        return sizing.footprint(declared, known, self._learned.get(spec.fingerprint, {}), sizing.Place(0, 0))


def _on_gpus(spec: ModelSpec, devices: Sequence[Device]) -> bool:
    kinds = {d.kind for d in devices if not spec.devices.ids or d.id in spec.devices.ids}
    return kinds == {"gpu"}


def _share(spec: ModelSpec) -> float | None:
    value = spec.arguments.get("gpu-memory-utilization")
    try:
        return float(str(value)) if value is not None else None
    except ValueError:
        return None


_SIM_LENGTH = 8192
"""Tokens of its longest request, when its cache holds as many."""
