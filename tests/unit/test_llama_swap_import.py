"""A configuration of llama-swap becomes one of ours, and what could not be said is told."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from vllm_mm.settings import load
from vllm_mm.settings.llama_swap import convert

DOCS = Path(__file__).parents[2] / "docs" / "from-llama-swap.md"

WHOLE = r"""
healthCheckTimeout: 300
logLevel: info
startPort: 10001
globalTTL: 60
macros:
  server: llama-server --port ${PORT}
  big: "--ctx-size 32768"
models:
  coder:
    cmd: |
      # the usual
      ${server} ${big} \
        -m "/models/my coder.gguf" --json '{"a": {"b": 1}}'
    ttl: 600
    env: ["CUDA_VISIBLE_DEVICES=0", "HF_TOKEN=${env.HF_TOKEN:-none}"]
    aliases: [gpt-4o-mini]
    concurrencyLimit: 4
    filters:
      stripParams: "top_k, repeat_penalty, model"
      setParams: {temperature: 0.2}
      setParamsByID:
        "${MODEL_ID}:brief": {max_tokens: 3}
        coder: {top_p: 0.9}
  old:
    cmd: /opt/server --listen 127.0.0.1:9005
    proxy: http://127.0.0.1:9005
    checkEndpoint: /status
    unlisted: true
    ttl: 0
  boxed:
    cmd: docker run --rm -p 9009:8000 image
    proxy: http://127.0.0.1:9009
    cmdStop: docker stop boxed
  qwen:
    cmd: /opt/vllm/bin/vllm serve Qwen/Qwen2.5-7B --host 127.0.0.1 --port ${PORT} --max-model-len 8192 -tp 2 --enforce-eager
groups:
  always: {persistent: true, swap: false, members: [qwen]}
  one: {swap: true, members: [coder, old]}
hooks:
  on_startup: {preload: [qwen, nobody]}
peers: {other: {proxy: http://x}}
whatever: 1
"""


def test_everything_that_has_a_counterpart_is_carried_over(tmp_path: Path) -> None:
    """And the result is a configuration that is valid here."""
    done = convert(yaml.safe_load(WHOLE))
    models = done.config["models"]
    assert done.config["auth"] == {"mode": "none"}
    assert done.config["defaults"] == {"start": {"stall": "300s"}, "idle": {"sleep_after": None, "stop_after": "60s"}}
    assert models["coder"] == {
        "engine": "command",
        "command": [
            "llama-server", "--port", "{port}", "--ctx-size", "32768", "-m", "/models/my coder.gguf", "--json",
            '{{"a": {{"b": 1}}}}',
        ],
        "env": {"CUDA_VISIBLE_DEVICES": "0", "HF_TOKEN": "${env.HF_TOKEN:-none}"},
        "request_overrides": {"top_k": None, "repeat_penalty": None, "temperature": 0.2, "top_p": 0.9},
        "aliases": ["gpt-4o-mini", {"name": "coder:brief", "request_overrides": {"max_tokens": 3}}],
        "idle": {"sleep_after": None, "stop_after": "600s"},
        "concurrency": 4,
    }  # fmt: skip
    assert models["old"]["command"] == ["/opt/server", "--listen", "127.0.0.1:{port}"]
    assert models["old"]["idle"]["stop_after"] is None
    assert models["boxed"]["command"][4] == "{port}:8000"
    assert models["qwen"] == {
        "engine": "vllm",
        "executable": "/opt/vllm/bin/vllm",
        "model": "Qwen/Qwen2.5-7B",
        "args": {"max-model-len": 8192, "tp": 2, "enforce-eager": True},
        "pinned": True,
        "preload": True,
    }
    file = tmp_path / "vllm-mm.yaml"
    file.write_text(yaml.safe_dump(done.config))
    settings = load(file, None, {"HF_TOKEN": "x"}, tmp_path)
    assert set(settings.models) == set(models)


def test_what_is_left_out_is_told_with_its_place() -> None:
    """Nothing is lost in silence."""
    notes = "\n".join(convert(yaml.safe_load(WHOLE)).notes)
    for told in (
        "models.coder needs `memory`",
        "models.old.checkEndpoint (/status) was left out",
        "models.old.unlisted was left out",
        "models.boxed.cmdStop was left out",
        "groups.one was left out: coder, old make room",
        "hooks.on_startup.preload names what is no model: nobody",
        "peers was left out",
        "whatever is not known",
    ):
        assert told in notes, told
    assert "logLevel" not in notes


@pytest.mark.parametrize(
    ("model", "told"),
    [
        ({}, "models.m.cmd is empty"),
        ({"cmd": "server --port 80"}, "models.m.cmd does not say where to listen"),
        ({"cmd": "server ${nope} ${PORT}"}, "uses the macro ${nope}"),
        ({"cmd": "vllm serve --port ${PORT}"}, "names no model behind"),
        ({"cmd": "vllm serve x --served-model-name y m"}, "was served as y"),
        ({"cmd": "s ${PORT}", "useModelName": "x"}, "models.m.useModelName was left out"),
        ({"cmd": "s ${PORT}", "description": "x"}, "models.m.description was left out"),
        ({"cmd": "s ${PORT}", "filters": {"x": 1}}, "models.m.filters.x is not known"),
        ({"cmd": "s ${PORT}", "x": 1}, "models.m.x is not known"),
        ({"cmd": "llama-server --port ${PORT} --embedding"}, "models.m got `task: embed` for its --embedding"),
        (None, "models.m.cmd is empty"),
    ],
)
def test_what_is_doubtful_in_a_model_is_told(model: Any, told: str) -> None:
    """With what to do about it."""
    assert told in "\n".join(convert({"models": {"m": model}}).notes)


def test_a_server_of_embeddings_is_asked_for_one() -> None:
    """It could never prove itself by a token."""
    models = {name: {"cmd": f"llama-server --port ${{PORT}} {name}"} for name in ("--embedding", "--embeddings", "-x")}
    made = convert({"models": models}).config["models"]
    assert [made[name].get("task") for name in models] == ["embed", "embed", None]


def test_the_older_spelling_of_what_is_left_out_of_requests() -> None:
    """It is the same rule."""
    model = {"cmd": "s ${PORT}", "filters": {"strip_params": "temperature, top_p"}}
    assert convert({"models": {"m": model}}).config["models"]["m"]["request_overrides"] == {
        "temperature": None, "top_p": None,
    }  # fmt: skip


def test_macros_within_macros_come_to_an_end() -> None:
    """Also those that name each other."""
    done = convert({"macros": {"a": "${b}", "b": "${a}"}, "models": {"m": {"cmd": "s ${a} ${PORT}"}}})
    assert done.config["models"]["m"]["command"][-1] == "{port}"


@pytest.mark.parametrize("document", [{}, {"models": []}, {"models": {}}])
def test_something_else_is_refused(document: Any) -> None:
    """A file that is none of llama-swap's."""
    with pytest.raises(ValueError, match="is it a configuration of llama-swap"):
        convert(document)


def test_keys_and_loading_states() -> None:
    """Keys are made here; the wish to see what loads is carried over."""
    done = convert(
        {"apiKeys": ["x"], "sendLoadingState": True, "models": {"m": {"cmd": "s ${PORT}", "sendLoadingState": False}}}
    )
    assert "auth" not in done.config
    assert "apiKeys were left out" in "\n".join(done.notes)
    assert (done.config["defaults"]["progress"], done.config["models"]["m"]["progress"]) == (True, False)


def test_the_example_of_the_page_is_what_the_command_makes() -> None:
    """docs/from-llama-swap.md shows a configuration; its rules on requests are those that come out."""
    (text,) = re.findall(r"```text\n(.*?)```", DOCS.read_text(), re.DOTALL)
    coder = convert(yaml.safe_load(text)).config["models"]["coder"]
    assert coder["request_overrides"] == {"top_k": None, "repeat_penalty": None, "temperature": 0.2}
    assert {"name": "coder:brief", "request_overrides": {"max_tokens": 3}} in coder["aliases"]
