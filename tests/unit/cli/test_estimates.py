"""`plan --estimate`: the memory of a model as a sum, from a folder alone or as a server tells it."""

import json
import struct
from pathlib import Path
from typing import Any

import pytest

import model_configs as known
from cli_rig import Cli
from vllm_mm.cli.estimates import line, of_model
from vllm_mm.cli.output import clock
from vllm_mm.cli.server import Server

FOOTPRINT: dict[str, Any] = {
    "per_device": 12 * 2**30, "source": "learned", "spread": 2**28, "weights": 8 * 2**30, "kv_cache": 3 * 2**30,
    "overhead": 2**30, "kv_tokens": 1000, "kv_token_bytes": 100, "samples": 2, "learned_at": 1.0, "notes": [],
}  # fmt: skip


@pytest.fixture
def cli(tmp_path: Path) -> Cli:
    return Cli(tmp_path)


@pytest.fixture
def folder(tmp_path: Path) -> str:
    made = tmp_path / "smollm"
    made.mkdir()
    (made / "config.json").write_text(json.dumps(known.SMOLLM))
    tensors = {
        t.name: {"dtype": t.dtype, "shape": list(t.shape), "data_offsets": [0, 0]}
        for t in known.llama_tensors(known.SMOLLM)
    }
    head = json.dumps(tensors).encode()
    (made / "model.safetensors").write_bytes(struct.pack("<Q", len(head)) + head)
    return str(made)


def test_a_folder_without_a_server(cli: Cli, folder: str) -> None:
    """Line by line; the parts make up the sum; on the CPU in whole GiB; settings as in a declaration."""
    result = cli.now("plan", "--estimate", "--model", folder)
    assert result.exit_code == 0, result.stderr
    assert result.output.splitlines()[:3] == [
        "smollm, on its device:",
        "  weights       0.3 GiB  272 tensors of BF16, loaded as bfloat16",
        "  KV cache      0.7 GiB  32,784 tokens of 23,040 bytes (1 GiB holds 46,592)",
    ]
    more = ("--set", "devices.count=3", "--set", "args.dtype=float32", "--cpu", "--json")
    found = json.loads(cli.now("plan", "--estimate", "--model", folder, *more).output)
    assert (found["devices"], found["loaded"], found["kv_cache"], found["kv_token_bytes"]) == (
        3,
        "float32",
        2**30,
        15_360,
    )
    assert found["weights"] + found["kv_cache"] + found["overhead"] == found["per_device"]
    assert "on each of 3 devices" in cli.now("plan", "--estimate", "--model", folder, *more[:-1]).output


def test_what_is_not_known_is_said(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "model.gguf").write_bytes(b"x" * 2**20)
    result = cli.now("plan", "--estimate", "--model", str(tmp_path / "model.gguf"))
    assert "note: its KV cache per token is not known" in result.output
    missing = cli.now("plan", "--estimate", "--model", "org/none")
    assert (missing.exit_code, "is neither a folder nor in" in missing.stderr) == (5, True)


@pytest.mark.parametrize(
    "args",
    [
        (), ("--estimate",), ("--model", "x"), ("demo", "--model", "x", "--estimate"), ("demo", "--cpu"), ("demo", "--set", "a=1"),
        ("--estimate", "--model", "x", "--set", "nonsense=1"), ("--estimate", "--model", "x", "--set", "nonsense"),
    ],
)  # fmt: skip
def test_wrong_usage_is_2(cli: Cli, args: tuple[str, ...]) -> None:
    result = cli.now("plan", *args)
    assert result.exit_code == 2, result.output
    assert result.stderr


def test_a_footprint_in_one_line() -> None:
    told = "12.0 GiB on each device, learned from 2 launches, give or take 0.2 GiB: weights 8.0 GiB, KV cache 3.0 GiB, overhead 1.0 GiB"
    assert line(FOOTPRINT) == told
    assert "learned from 1 launch:" in line({**FOOTPRINT, "samples": 1, "spread": 0})
    assert "a start that failed" in line({**FOOTPRINT, "samples": 0, "spread": 0})
    assert line({**FOOTPRINT, "source": "declared", "weights": 0, "kv_cache": 0, "overhead": 0}).endswith("declared")


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({}, ["  sum          12.0 GiB  learned", f"  learned from 2 launches, the latest at {clock(1.0)}; spread 0.2 GiB (standard deviation)"]),
        (
            {"source": "declared", "samples": 1, "spread": 0},
            ["  sum          12.0 GiB  declared", f"  learned from 1 launch, the latest at {clock(1.0)}; spread not known before the second"],
        ),
        (
            {"samples": 0, "spread": 0},
            ["  sum          12.0 GiB  learned", f"  learned from a start that failed, the latest at {clock(1.0)}; spread not known before the second"],
        ),
        ({"source": "estimated", "samples": 0, "spread": 0, "learned_at": None}, ["  sum          12.0 GiB  estimated"]),
    ],
    ids=["learned", "declared, and learned", "a failed start", "estimated"],
)  # fmt: skip
def test_what_was_learned_is_told_as_text_too(
    changes: dict[str, Any], told: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Source, launches, the latest of them and the spread, as in the JSON; also where `memory` is declared."""
    found = {"id": "demo", "devices": {"count": 1}, "footprint": {**FOOTPRINT, **changes}}
    server = Server("http://127.0.0.1:1", None)
    monkeypatch.setattr(server, "get", lambda *_: found)
    of_model(server, "demo", json=False)
    lines = capsys.readouterr().out.splitlines()
    assert lines[4:] == told
