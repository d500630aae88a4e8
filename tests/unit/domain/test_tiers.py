"""Who can sleep, and what becomes of a model that has to go."""

from typing import Any

import pytest

from vllm_mm.domain.residency import Device
from vllm_mm.domain.specs import GIB, DeviceWish, EngineKind, ModelSpec, SleepMode, SleepSpec
from vllm_mm.domain.tiers import why_no_sleep

CPU = Device("cpu", 32 * GIB, kind="cpu")
GPU = Device("0", 24 * GIB)
ALWAYS, NEVER, DEEP = SleepSpec(SleepMode.ALWAYS), SleepSpec(SleepMode.NEVER), SleepSpec(level=2)
DRAFT = {"speculative-config.method": "mtp"}
EXPANDABLE = {"PYTORCH_CUDA_ALLOC_CONF": "max_split_size_mb:512,expandable_segments:True"}


@pytest.mark.parametrize(
    ("changes", "devices", "told"),
    [
        ({}, (GPU,), ""),
        ({"devices": DeviceWish(ids=("0",))}, (CPU, GPU), ""),
        ({}, (CPU, GPU), "may run on cpu"),
        ({}, (), "no device"),
        ({"devices": DeviceWish(ids=("7",))}, (GPU,), "no device"),
        ({"sleep": ALWAYS}, (CPU,), ""),
        ({"sleep": NEVER}, (GPU,), "never"),
        ({"args": {"enable_sleep_mode": False}}, (GPU,), "switched off"),
        ({"engine": EngineKind.SIM}, (CPU,), ""),
        ({"engine": EngineKind.SIM, "sleep": DEEP}, (CPU,), ""),
        ({"engine": EngineKind.COMMAND}, (GPU,), "sleep.mode: always"),
        ({"engine": EngineKind.COMMAND, "sleep": ALWAYS}, (GPU,), ""),
        ({"args": {"--kv_offloading_backend": "native"}}, (GPU,), "45268"),
        ({"args": {"kv-offloading-backend": "native"}, "sleep": ALWAYS}, (GPU,), ""),
        ({"args": {"mm-encoder-tp-mode": "data"}}, (GPU,), "47654"),
        ({"args": {"mm-encoder-tp-mode": "weights"}}, (GPU,), ""),
        ({"env": EXPANDABLE}, (GPU,), "11743"),
        ({"lora": {"l": "/l"}}, (GPU,), ""),
        ({"lora": {"l": "/l"}, "sleep": DEEP}, (GPU,), "48337"),
        ({"args": {"enable-lora": True}, "sleep": DEEP}, (GPU,), "48337"),
        ({"args": DRAFT}, (GPU,), ""),
        ({"args": DRAFT, "sleep": DEEP}, (GPU,), "52479"),
        ({"sleep": DEEP}, (GPU,), ""),
    ],
)  # fmt: skip
def test_why_a_model_does_not_sleep(changes: dict[str, Any], devices: tuple[Device, ...], told: str) -> None:
    """Known before it is tried: no sleep mode on the CPU, none asked for, or a combination that is known to go wrong."""
    reason = why_no_sleep(ModelSpec("m", **changes), devices)
    assert told in reason
    assert bool(reason) == bool(told)
