"""The tiers of a model: READY, SLEEPING, STOPPED. Who can sleep at all, and whether one that has to go sleeps or stops. Pure."""

from collections.abc import Sequence

from vllm_mm.domain.ledger import Device
from vllm_mm.domain.specs import EngineKind, ModelSpec, SleepMode

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
