"""What an engine would refuse of a model's arguments, by its own word."""

from typing import Any

import pytest

from vllm_mm.domain.flags import Flag, Flags, Takes, wrong

FLAGS: Flags = {
    "max-model-len": Flag(), "max-num-seqs": Flag(), "dtype": Flag(choices=("auto", "bfloat16", "float16")),
    "headless": Flag(Takes.NONE), "enforce-eager": Flag(Takes.NONE), "no-enforce-eager": Flag(Takes.NONE),
    "tensor-parallel-size": Flag(), "compilation-config": Flag(), "lora-modules": Flag(Takes.ANY), "O": Flag(),
    "quantization": Flag(), "middleware": Flag(Takes.ANY, ("a", "b")),
}  # fmt: skip


@pytest.mark.parametrize(
    "args",
    [
        {"max-model-len": 8192, "max_num_seqs": 4, "dtype": "auto"},
        {"--max-model-len": "8k", "tp": 2, "q": "awq"},
        {"compilation-config.level": 3, "compilation-config": {"level": 3}, "compilation-config.sizes+": 1},
        {"enforce-eager": True}, {"enforce-eager": False}, {"headless": True}, {"enable-sleep-mode": None},
        {"lora-modules": ["a=b"], "O": 3, "lora_modules": True},
        {"tensor-par": 2},  # argparse takes it
        {"middleware": ["a", "b"]},
        {"nonsense": None},
    ],
)  # fmt: skip
def test_what_the_engine_takes(args: dict[str, Any]) -> None:
    """In every way in which it may be written."""
    assert list(wrong(args, FLAGS)) == []


@pytest.mark.parametrize(
    ("name", "value", "told"),
    [
        ("max-model-length", 1, "unknown argument: this engine has no `--max-model-length`; did you mean `max-model-len`?"),
        ("xyzzy", 1, "unknown argument: this engine has no `--xyzzy`"),
        ("max", 1, "unknown argument: this engine has no `--max`"),
        ("m", 1, "unknown argument: this engine has no `--m`"),
        ("compilation_confg.level", 1, "unknown argument: this engine has no `--compilation-confg`; did you mean `compilation-config`?"),
        ("dtype", "bfloat61", "'bfloat61' is none of auto, bfloat16, float16; did you mean `bfloat16`?"),
        ("dtype", "x", "'x' is none of auto, bfloat16, float16"),
        ("middleware", ["a", "c"], "'c' is none of a, b"),
        ("headless", False, "`--headless` cannot be switched off with `false`: leave it out"),
        ("headless", 1, "`--headless` takes no value: write `true`, or leave it out"),
        ("max-model-len", True, "`--max-model-len` needs a value"),
    ],
)  # fmt: skip
def test_what_it_would_refuse(name: str, value: Any, told: str) -> None:
    """As it is written there, with what is nearest."""
    assert list(wrong({name: value, "dtype ": None}, FLAGS)) == [(name, told)]


def test_sleep_mode_may_be_false_where_it_is_unknown() -> None:
    """It is not passed on then."""
    assert list(wrong({"enable_sleep_mode": False}, FLAGS)) == []
    assert list(wrong({"enable_sleep_mode": True}, FLAGS)) != []
