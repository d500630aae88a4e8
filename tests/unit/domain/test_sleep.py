"""Who can sleep, what stays on the devices, what it costs the host, and what earlier sleeps taught."""

from typing import Any

import pytest

from vllm_mm.domain.residency import Device
from vllm_mm.domain.sleep import FAILURES, Experience, Trial, gave_back, host_bytes, level, residue, why_no_sleep
from vllm_mm.domain.specs import GIB, DeviceWish, EngineKind, ModelSpec, SleepMode, SleepSpec
from vllm_mm.domain.states import Outcome

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


KINDS = {"0": "gpu", "1": "gpu", "sim0": "sim", "cpu": "cpu"}
SIM = {"weights": "6GiB", "sleep_residual": "512MiB"}


@pytest.mark.parametrize(
    ("changes", "held", "measured", "kept"),
    [
        ({}, {"0": 20 * GIB, "1": 20 * GIB}, {}, {"0": GIB, "1": GIB}),
        ({}, {"0": 20 * GIB, "1": 20 * GIB}, {"1": 3 * GIB}, {"0": GIB, "1": 3 * GIB}),
        ({"sleep": SleepSpec(keeps=2 * GIB)}, {"0": 20 * GIB}, {"0": 3 * GIB}, {"0": 2 * GIB}),
        ({}, {"0": GIB // 2}, {}, {"0": GIB // 2}),
        ({"sleep": ALWAYS}, {"cpu": 5 * GIB}, {}, {"cpu": 5 * GIB}),
        ({"engine": EngineKind.SIM, "sim": SIM}, {"sim0": 8 * GIB}, {}, {"sim0": GIB // 2}),
        ({"engine": EngineKind.SIM}, {"sim0": 8 * GIB}, {}, {"sim0": 0}),
        ({"engine": EngineKind.SIM, "sim": {"sleep_residual": "lots"}}, {"sim0": 8 * GIB}, {}, {"sim0": 0}),
    ],
)  # fmt: skip
def test_what_stays_on_the_devices(
    changes: dict[str, Any], held: dict[str, int], measured: dict[str, int], kept: dict[str, int]
) -> None:
    """Declared before measured before estimated, never more than it had; all of it where nothing can be known."""
    assert residue(ModelSpec("m", **changes), held, KINDS, measured) == kept


@pytest.mark.parametrize(
    ("before", "after", "yes"),
    [
        ({"0": 100}, {"0": 10}, True),
        ({"0": 100}, {"0": 75}, True),
        ({"0": 100}, {"0": 76}, False),
        ({"0": 100, "1": 100}, {"0": 1, "1": 100}, False),
        ({"0": 100, "1": 100}, {"0": 1}, True),
        ({}, {"0": 100}, True),
        ({"0": 0}, {"0": 0}, True),
    ],
)
def test_a_sleep_that_gives_nothing_back_is_none(before: dict[str, int], after: dict[str, int], yes: bool) -> None:
    """On each device of which both sides are known; where nothing is, the engine has to be believed."""
    assert gave_back(before, after) is yes


@pytest.mark.parametrize(
    ("changes", "held", "weights", "needed"),
    [
        ({}, {"0": 20 * GIB}, 15 * GIB, 15 * GIB),
        ({}, {"0": 20 * GIB, "1": 20 * GIB}, 0, 40 * GIB),
        ({"sleep": DEEP}, {"0": 20 * GIB}, 15 * GIB, 0),
        ({"sleep": ALWAYS}, {"cpu": 5 * GIB}, 3 * GIB, 0),
        ({"engine": EngineKind.SIM, "sim": SIM}, {"sim0": 8 * GIB}, 0, 6 * GIB),
        ({"engine": EngineKind.SIM, "sim": {}}, {"sim0": 8 * GIB}, 0, GIB),
    ],
)  # fmt: skip
def test_what_a_sleeper_takes_of_the_host(
    changes: dict[str, Any], held: dict[str, int], weights: int, needed: int
) -> None:
    """Its weights where they are known, else all that it holds; nothing at level 2, nor where its device is the host's memory."""
    assert host_bytes(ModelSpec("m", **changes), held, KINDS, weights) == needed


def test_two_failures_in_a_row_end_the_trial() -> None:
    """A wake that was verified in between proves the engine; an answered sleep by itself proves nothing."""
    once = Trial().after(Outcome.REFUSED, waking=True, reason="no")
    assert (once.failures, once.why_no_sleep) == (1, "")
    assert once.after(Outcome.OK, waking=True, reason="") == Trial()
    assert once.after(Outcome.OK, waking=False, reason="") == once
    twice = once.after(Outcome.DIED, waking=False, reason="gone")
    assert twice.failures == FAILURES
    assert "gone" in twice.why_no_sleep


def test_one_lying_sleep_is_enough_and_one_lying_wake_is_not() -> None:
    """An engine that keeps its memory would keep it again; one that answered differently once may have had a bad day."""
    assert Trial().after(Outcome.LIED, waking=False, reason="kept all").why_no_sleep
    assert not Trial().after(Outcome.LIED, waking=True, reason="other words").why_no_sleep


def test_what_sleeps_taught_counts_as_long_as_the_terms_are_the_same() -> None:
    """Failures do; what stays on the devices does in any case, as last seen on each of them."""
    terms = SleepSpec()
    known = Experience(terms).after(Outcome.OK, waking=False, reason="", kept={"0": 5, "1": 6})
    known = known.after(Outcome.LIED, waking=False, reason="kept all", kept={"0": 7})
    assert known.kept == {"0": 7, "1": 6}
    assert known.under(SleepSpec()) == known
    assert known.trial.why_no_sleep
    other = known.under(SleepSpec(SleepMode.ALWAYS))
    assert (other.trial, other.kept) == (Trial(), known.kept)


def test_with_requests_it_sleeps_at_level_1_and_costs_the_host_its_weights() -> None:
    """Whatever level is declared: they need the weights as they were."""
    spec = ModelSpec("m", engine=EngineKind.SIM, sim={"weights": "8GiB"}, sleep=SleepSpec(level=2))
    held, kinds = {"d0": 10 * GIB}, {"d0": "sim"}
    assert (level(spec, frozen=False), level(spec, frozen=True)) == (2, 1)
    assert host_bytes(spec, held, kinds, 0) == 0
    assert host_bytes(spec, held, kinds, 0, frozen=True) == 8 * GIB
