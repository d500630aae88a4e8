"""Footprints from real files, from arguments, and from what launches taught."""

import json
import struct
from pathlib import Path
from typing import Any

import pytest

import model_configs as known
from vllm_mm.domain.footprint import Learned
from vllm_mm.domain.ledger import Device
from vllm_mm.domain.model_config import Setup
from vllm_mm.domain.specs import GIB, DeviceWish, EngineKind, ModelSpec, Task
from vllm_mm.domain.weights import Checkpoint, Tensor
from vllm_mm.engine.footprints import Footprints
from vllm_mm.engine.footprints.files import read, read_head, read_weights
from vllm_mm.engine.footprints.sample import Sample, profiled, sample
from vllm_mm.engine.footprints.setup import setup

GPU = Device("0", 80 * GIB, kind="gpu")
CPU = Device("cpu", 32 * GIB, kind="cpu")


def head(tensors: dict[str, Any], padding: bytes = b"") -> bytes:
    text = json.dumps(tensors).encode() + padding
    return struct.pack("<Q", len(text)) + text


def safetensors(path: Path, *names: str, size: int = 1024) -> Path:
    """A file with BF16 tensors of `size` values each; its data is left out, for nothing reads it."""
    tensors = {n: {"dtype": "BF16", "shape": [size], "data_offsets": [0, 2 * size]} for n in names}
    path.write_bytes(head({"__metadata__": {"format": "pt"}, **tensors}))
    return path


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "config.json").write_text(json.dumps(known.SMOLLM))
    safetensors(tmp_path / "model.safetensors", "a", "b")
    return tmp_path


def vllm(model: Path | str, **changes: Any) -> ModelSpec:
    return ModelSpec(**{"id": "m", "model": str(model), **changes})


def test_a_folder_tells_its_tensors_and_its_config(folder: Path) -> None:
    found = read(vllm(folder), {})
    assert found.config == known.SMOLLM
    assert found.checkpoint == Checkpoint((Tensor("a", "BF16", (1024,)), Tensor("b", "BF16", (1024,))))
    assert found.notes == ()


def test_the_cache_of_hugging_face_is_looked_into(tmp_path: Path) -> None:
    """At the commit that `main`, or the revision that was asked for, names."""
    repository = tmp_path / "hub" / "models--org--name"
    for commit, ref in (("c0ffee", "main"), ("beef", "v2")):
        (repository / "snapshots" / commit).mkdir(parents=True)
        safetensors(repository / "snapshots" / commit / "model.safetensors", ref)
        (repository / "refs").mkdir(exist_ok=True)
        (repository / "refs" / ref).write_text(commit)
    environment = {"HF_HOME": str(tmp_path)}
    for args, name in (({}, "main"), ({"revision": "v2"}, "v2"), ({"revision": "c0ffee"}, "main")):
        found = read(vllm("org/name", args=args), environment)
        assert found.checkpoint is not None
        assert [t.name for t in found.checkpoint.tensors] == [name]


def test_what_is_not_here_is_said(tmp_path: Path) -> None:
    missing = read(vllm("org/name"), {"HF_HOME": str(tmp_path)})
    assert (missing.config, missing.checkpoint) == (None, None)
    assert f"neither a folder nor in {tmp_path}/hub" in missing.notes[0]
    (tmp_path / "config.json").write_text("{}")
    assert "no weights in" in read(vllm(tmp_path), {}).notes[0]
    assert read(ModelSpec("m", engine=EngineKind.COMMAND, command=("x",)), {}).notes == ()


def test_which_files_count(tmp_path: Path) -> None:
    """Safetensors before PyTorch's and GGUF; of them those that the index names; without the consolidated twin."""
    assert read_weights(tmp_path) is None
    (tmp_path / "model.gguf").write_bytes(b"x" * 300)
    assert read_weights(tmp_path) == Checkpoint(opaque=300, form="gguf")
    (tmp_path / "pytorch_model.bin").write_bytes(b"x" * 200)
    (tmp_path / "training_args.bin").write_bytes(b"x" * 50)
    assert read_weights(tmp_path) == Checkpoint(opaque=200, form="bin")
    safetensors(tmp_path / "consolidated.safetensors", "twin")
    safetensors(tmp_path / "model-1.safetensors", "a")
    safetensors(tmp_path / "model-2.safetensors", "b")
    found = read_weights(tmp_path)
    assert found is not None
    assert [t.name for t in found.tensors] == ["a", "b"]
    index = {"metadata": {"total_size": 10_000}, "weight_map": {"a": "model-1.safetensors"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    found = read_weights(tmp_path)
    assert found is not None
    assert ([t.name for t in found.tensors], found.opaque) == (["a"], 0)


def test_a_download_that_is_not_complete_counts_whole(tmp_path: Path) -> None:
    """The index tells the sum; what is here of it is not counted twice."""
    safetensors(tmp_path / "model-1.safetensors", "a")
    index = {"metadata": {"total_size": 10_000}, "weight_map": {"a": "model-1.safetensors", "b": "model-2.safetensors"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    found = read_weights(tmp_path)
    assert found is not None
    assert (len(found.tensors), found.opaque) == (1, 10_000 - 2048)


@pytest.mark.parametrize(
    "content",
    [
        b"", b"short", b"\xff" * 20, struct.pack("<Q", 5) + b"[1,2]", head({}), struct.pack("<Q", 100) + b"{",
        head({"a": 1, "b": {"dtype": "F32"}, "c": {"dtype": "F32", "shape": ["x"]}}),
    ],
)  # fmt: skip
def test_a_weight_file_that_is_none_counts_by_its_size(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "model.safetensors"
    file.write_bytes(content)
    assert read_head(file) == []
    assert read_weights(tmp_path) == Checkpoint(opaque=len(content))
    assert read_head(tmp_path / "gone") == []


def test_a_single_file(tmp_path: Path) -> None:
    (tmp_path / "m.gguf").write_bytes(b"x" * 77)
    assert read(vllm(tmp_path / "m.gguf"), {}).checkpoint == Checkpoint(opaque=77, form="gguf")
    (tmp_path / "m.pt").write_bytes(b"x")
    assert read(vllm(tmp_path / "m.pt"), {}).checkpoint == Checkpoint(opaque=1, form="bin")


def test_a_config_that_is_none(tmp_path: Path) -> None:
    safetensors(tmp_path / "model.safetensors", "a")
    for text in ("", "[]", "{"):
        (tmp_path / "config.json").write_text(text)
        assert read(vllm(tmp_path), {}).config is None


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ({}, {}),
        ({"devices": DeviceWish(count=4), "args": {"pp": 2, "tp": 2}}, {"tensor_parallel": 2, "pipeline_parallel": 2}),
        ({"devices": DeviceWish(count=4)}, {"tensor_parallel": 4}),
        ({"args": {"max_model_len": "8k"}}, {"max_model_len": 8000}),
        ({"args": {"max-model-len": "8K"}}, {"max_model_len": 8192}),
        ({"args": {"max-model-len": "auto", "block-size": True}}, {}),
        ({"args": {"max-model-len": -1, "max-num-seqs": "1e999"}}, {}),
        (
            {"args": {"dtype": "Half", "kv-cache-dtype": "fp8", "quantization": "fp8", "enforce-eager": True, "max-num-seqs": 8}},
            {"dtype": "half", "kv_dtype": "fp8", "quantization": "fp8", "eager": True, "max_num_seqs": 8},
        ),
        ({"args": {"cpu-offload-gb": 1.5, "disable-hybrid-kv-cache-manager": True}}, {"offload": 3 * GIB // 2, "windows": False}),
        ({"args": {"max-num-batched-tokens": 4096, "block-size": 32}}, {"max_batched_tokens": 4096, "block": 32}),
        ({"task": Task.EMBED}, {"pooling": True}),
        ({"kv_cache": GIB, "env": {"VLLM_CPU_KVCACHE_SPACE": "7"}}, {"kv_cache": GIB}),
        ({"args": {"kv-cache-memory-bytes": "2G"}, "kv_cache": GIB}, {"kv_cache": 2 * GIB}),
        ({"args": {"kv-cache-memory-bytes": 5}}, {"kv_cache": 5}),
        ({"args": {"kv-cache-memory-bytes": "lots"}}, {}),
        ({"args": {"kv-cache-memory-bytes": "xG"}}, {}),
    ],
)  # fmt: skip
def test_how_an_engine_is_started(spec: dict[str, Any], expected: dict[str, Any]) -> None:
    assert setup(vllm("x", **spec), {}, gpu=True) == Setup(**expected)


def test_the_kv_cache_on_the_cpu_is_what_the_engine_will_read() -> None:
    name = "VLLM_CPU_KVCACHE_SPACE"
    assert setup(vllm("x", env={name: "3"}), {name: "2"}, gpu=False).kv_cache == 3 * GIB
    assert setup(vllm("x"), {name: "2"}, gpu=False).kv_cache == 2 * GIB
    assert setup(vllm("x"), {name: "2"}, gpu=True).kv_cache is None
    assert setup(vllm("x"), {name: "much"}, gpu=False).kv_cache is None
    assert setup(ModelSpec("m", engine=EngineKind.COMMAND, command=("x",)), {name: "2"}, gpu=False).kv_cache == 0


def test_what_a_launch_teaches() -> None:
    """Everything but the KV cache; weights are the least. A failed profile tells what was missing."""
    facts = {"weights_gib": 2.5, "kv_cache_gib": 4.0, "kv_tokens": 1000, "version": "0.32.0"}
    assert sample({"kv_cache_gib": 1.0}, 2 * GIB) == Sample(2 * GIB, 0, 0), "an encoder, which has no cache after all"
    assert sample(facts, 8 * GIB) == Sample(4 * GIB, int(2.5 * GIB), 4 * GIB)
    assert sample(facts, 5 * GIB) == Sample(int(2.5 * GIB), int(2.5 * GIB), 4 * GIB)
    assert sample({}, 8 * GIB) == Sample(8 * GIB, 0, 0)
    assert profiled({}, GIB) is None
    assert profiled(facts, 8 * GIB) == Sample(4 * GIB, int(2.5 * GIB), 4 * GIB)
    assert profiled({"kv_cache_gib": -1.0}, 3 * GIB) == Sample(4 * GIB, 0, 0)


class TestFootprints:
    def test_the_files_are_read_once(self, folder: Path) -> None:
        """And again only when nothing was found the first time."""
        book, spec = Footprints({}), vllm(folder)
        first = book.of(spec, [GPU])
        (folder / "model.safetensors").unlink()
        assert book.of(spec, [GPU]) == first
        assert first.source == "estimated"
        unknown = vllm("org/name")
        environment = {"HF_HOME": str(folder)}
        book = Footprints(environment)
        book.prepare([unknown], [GPU])
        assert book.of(unknown, [GPU]).parts.total == 0
        snapshot = folder / "hub" / "models--org--name" / "snapshots" / "main"
        snapshot.mkdir(parents=True)
        safetensors(snapshot / "model.safetensors", "a")
        assert book.of(unknown, [GPU]).parts.total == 0
        book.look_again(unknown)
        assert book.of(unknown, [GPU]).parts.weights == 2048
        book.look_again(unknown)
        (snapshot / "model.safetensors").unlink()
        assert book.of(unknown, [GPU]).parts.weights == 2048

    def test_several_models_share_a_gpu_and_one_has_it_all(self, folder: Path) -> None:
        book, spec = Footprints({}), vllm(folder)
        other = vllm(folder, id="other")
        whole, shared = book.of(spec, [GPU], [spec]), book.of(spec, [GPU], [spec, other])
        assert whole.per_device == int(80 * GIB * 0.92)
        assert shared.per_device < 4 * GIB
        assert book.of(spec, [GPU, Device("1", 80 * GIB)], [spec, other]) == whole
        assert book.of(vllm(folder, args={"gpu-memory-utilization": 0.5}), [GPU], [spec, other]).per_device == 40 * GIB
        assert book.of(vllm(folder, args={"gpu-memory-utilization": "x"}), [GPU], [spec, other]) == shared

    def test_on_the_cpu(self, folder: Path) -> None:
        found = Footprints({}).of(vllm(folder), [CPU])
        assert found.parts.kv_cache == GIB
        assert Footprints({}).of(vllm(folder), []).parts.total > 0

    def test_what_was_learned_counts_by_fingerprint(self, folder: Path) -> None:
        book, spec = Footprints({}), vllm(folder)
        assert book.learned(spec.fingerprint, ["1", "0"]) == Learned()
        once = Learned().launched(7 * GIB, 1.0)
        book.learn(spec.fingerprint, ["1", "0"], once)
        assert book.learned(spec.fingerprint, ("0", "1")) == once
        assert book.of(spec, [GPU], [spec, vllm(folder, id="b")]).parts.fixed == 7 * GIB
        again = Footprints({}, {(spec.fingerprint, "0,1"): once})
        assert again.of(spec, [GPU], [spec, vllm(folder, id="b")]).source == "learned"
        assert book.of(vllm(folder, args={"dtype": "float32"}), [GPU]).source == "estimated"

    def test_a_command_takes_its_weights_and_a_little_more(self, folder: Path) -> None:
        spec = ModelSpec("m", engine=EngineKind.COMMAND, command=("serve", "{port}"), model=str(folder))
        assert Footprints({}).of(spec, [GPU]).per_device == 4096 + GIB

    def test_a_simulated_engine_takes_what_its_profile_says(self) -> None:
        """Weights and cache over all ranks, the overhead on each; nonsense is for the engine to refuse."""
        sim = ModelSpec("m", engine=EngineKind.SIM, sim={"weights": "8GiB", "kv_cache": "2GiB", "overhead": "1GiB"})
        book = Footprints({})

        def of(**changes: Any) -> int:
            return book.of(ModelSpec(**{"id": "m", "engine": EngineKind.SIM, "sim": sim.sim, **changes}), []).per_device

        assert (of(), of(devices=DeviceWish(count=2)), of(sim={})) == (11 * GIB, 6 * GIB, 2 * GIB)
        assert of(sim={"weights": "lots", "kv_cache": "1GiB"}) == GIB
        assert (of(kv_cache=5 * GIB), of(memory=3 * GIB)) == (14 * GIB, 3 * GIB)
        book.learn(sim.fingerprint, ["sim0"], Learned().launched(9 * GIB + 1000, 1.0))
        assert book.of(sim, []).source == "declared", "a log's rounding is no news"
        book.learn(sim.fingerprint, ["sim0"], Learned().launched(12 * GIB, 1.0))
        assert (book.of(sim, []).per_device, book.of(sim, []).source) == (14 * GIB, "learned")
