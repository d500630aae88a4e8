"""Sleep of an engine: who can, what stays on its devices, what it costs the host, and what earlier sleeps taught. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from vllm_mm.domain.ledger import Device
from vllm_mm.domain.specs import GIB, EngineKind, ModelSpec, SleepMode, SleepSpec
from vllm_mm.domain.states import Outcome
from vllm_mm.vocabulary.profile import size_of

RANK_KEEPS = GIB
"""What a rank of vLLM keeps on a GPU during sleep, until it was measured: CUDA's context, graphs, communication buffers."""
LEAST_GIVEN_BACK = 0.25
"""Of what an engine held on a device: a sleep that gives back less is none. vLLM answers /sleep with 200 and keeps everything
when it was started without `--enable-sleep-mode`, and for some models with it (issue 47654)."""
FAILURES = 2
"""Sleeps or wakes in a row that go wrong until a model is stopped instead of put to sleep."""

_ANYWAY = "`sleep.mode: always` puts it to sleep all the same"


def why_no_sleep(spec: ModelSpec, devices: Sequence[Device]) -> str:
    """Why the engine of `spec` is never put to sleep on `devices` (those it could run on, or all), for people; empty when it
    can be. vLLM has sleep mode on GPUs, and its CPU build refuses to start with it; a simulated engine has it everywhere.
    """
    if spec.sleep.mode is SleepMode.NEVER:
        return "`sleep.mode` is `never`"
    if spec.sleep.mode is SleepMode.ALWAYS:
        return ""
    if spec.engine is EngineKind.COMMAND:
        return f"a `command` engine is not known to have vLLM's sleep mode; {_ANYWAY}"
    if spec.arguments.get("enable-sleep-mode", True) is not True:
        return "`enable-sleep-mode` is switched off in its args"
    if spec.engine is EngineKind.SIM:
        return ""
    candidates = [d for d in devices if not spec.devices.ids or d.id in spec.devices.ids]
    if not candidates:
        return "there is no device that it could run on"
    if others := [d.id for d in candidates if d.kind != "gpu"]:
        return f"vLLM has sleep mode on GPUs, and this model may run on {', '.join(others)}; {_ANYWAY}"
    return _defect(spec)


def _defect(spec: ModelSpec) -> str:
    """Known to go wrong in vLLM (as of 0.32): an issue of vllm-project/vllm for each, and whether it is about level 2 only."""
    arguments, deep = spec.arguments, spec.sleep.level == 2
    lora = bool(spec.lora) or arguments.get("enable-lora") is True
    drafts = any(name.partition(".")[0] == "speculative-config" for name in arguments)
    offloads = any(name.startswith("kv-offloading-") for name in arguments)
    found = (
        (offloads, "with `kv-offloading-*` the engine dies at the first request after a wake (vLLM issue 45268)"),
        (
            arguments.get("mm-encoder-tp-mode") == "data",
            "with `mm-encoder-tp-mode: data` it keeps its memory on the device (vLLM issue 47654)",
        ),
        (
            "expandable_segments:True" in spec.env.get("PYTORCH_CUDA_ALLOC_CONF", ""),
            "with `expandable_segments:True` it keeps its memory on the device (vLLM pull request 11743)",
        ),
        (deep and lora, "LoRA does not survive level 2 (vLLM pull request 48337); level 1 can be used"),
        (
            deep and drafts,
            "a draft model's weights are not read again after level 2 (vLLM issue 52479); level 1 can be used",
        ),
    )
    return next((f"{reason}; {_ANYWAY}" for known, reason in found if known), "")


# What stays on the devices.


def residue(
    spec: ModelSpec, held: Mapping[str, int], kinds: Mapping[str, str], measured: Mapping[str, int]
) -> dict[str, int]:
    """Bytes that the engine of `spec` will keep on each device that it holds when it sleeps: declared, else `measured`
    after an earlier sleep, else estimated. `kinds`: of the devices. What cannot be known counts as all of it."""
    kept: dict[str, int] = {}
    for device, size in held.items():
        if spec.sleep.keeps is not None:
            guess = spec.sleep.keeps
        elif device in measured:
            guess = measured[device]
        elif spec.engine is EngineKind.SIM:
            guess = size_of(spec.sim, "sleep_residual")
        else:
            guess = RANK_KEEPS if kinds.get(device) == "gpu" else size
        kept[device] = min(guess, size)
    return kept


def gave_back(before: Mapping[str, int], after: Mapping[str, int]) -> bool:
    """Whether a sleep was one, by the bytes that the engine was seen to hold on its devices. Devices of which one of the two
    is not known do not count; where nothing is known it has to be believed."""
    both = [(size, after[device]) for device, size in before.items() if device in after]
    return all(size - left >= LEAST_GIVEN_BACK * size for size, left in both)


# What it costs the host.


def level(spec: ModelSpec, *, frozen: bool) -> int:
    """At which it sleeps: with requests that it keeps at 1, for they need the weights as they were."""
    return 1 if frozen else spec.sleep.level


def host_bytes(
    spec: ModelSpec, held: Mapping[str, int], kinds: Mapping[str, str], weights: int, *, frozen: bool = False
) -> int:
    """Host memory that the engine takes asleep: about its weights at level 1, nothing to speak of at level 2. `frozen`: it keeps,
    or may keep, requests. `weights`: what is known of them, 0 when nothing is: then all that it holds on its devices. What it holds on a device that is the host's
    memory is counted there."""
    if level(spec, frozen=frozen) == 2:
        return 0
    elsewhere = {d: size for d, size in held.items() if kinds.get(d) != "cpu"}
    if not elsewhere:
        return 0
    if spec.engine is EngineKind.SIM:
        weights = size_of(spec.sim, "weights")
    return weights or sum(elsewhere.values())


# What sleeps taught.


@dataclass(frozen=True, slots=True)
class Trial:
    """What came of putting one spec to sleep, so far."""

    failures: int = 0
    """In a row."""
    reason: str = ""
    """Of the last failure."""

    def after(self, outcome: Outcome, *, waking: bool, reason: str) -> "Trial":
        """Only a wake that was verified proves that it can sleep. One sleep that gave no memory back is enough: it would be
        the same again."""
        if outcome is Outcome.OK:
            return Trial() if waking else self
        lies = outcome is Outcome.LIED and not waking
        return Trial(FAILURES if lies else self.failures + 1, reason)

    @property
    def why_no_sleep(self) -> str:
        """Why it is not tried again; empty while it is."""
        if self.failures < FAILURES:
            return ""
        return (
            f"sleep went wrong before ({self.reason}); it is tried again when its declaration changes, or after `reset`"
        )


@dataclass(frozen=True, slots=True)
class Experience:
    """What the sleeps of one fingerprint at one level taught; kept over restarts."""

    terms: SleepSpec
    """As it was declared then: failures under other terms prove nothing."""
    trial: Trial = Trial()
    kept: Mapping[str, int] = field(default_factory=dict[str, int])
    """Bytes that stayed on each device, as last seen."""

    def under(self, terms: SleepSpec) -> "Experience":
        """What of it counts for an engine that is declared with `terms`: what stays does not depend on them."""
        return self if self.terms == terms else Experience(terms, kept=self.kept)

    def after(self, outcome: Outcome, *, waking: bool, reason: str, kept: Mapping[str, int]) -> "Experience":
        """With one more sleep or wake, after which `kept` bytes were seen on some devices."""
        trial = self.trial.after(outcome, waking=waking, reason=reason)
        return replace(self, trial=trial, kept={**self.kept, **kept})
