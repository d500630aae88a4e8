"""An estimate from the files of a model against what real vLLM says and takes."""

import asyncio
from pathlib import Path

import pytest

from real_vllm import EMBED, TINY, A, Direct, Installation
from serving import marked
from vllm_mm.domain.estimate import Estimate
from vllm_mm.domain.specs import GIB, ModelSpec, Task
from vllm_mm.engine import procfs
from vllm_mm.engine.footprints import Footprints
from vllm_mm.engine.progress import Fact, parse


def estimate(vllm: Installation, model: str) -> Estimate:
    declared = vllm.declare(model)
    task = Task.EMBED if model == EMBED else Task.GENERATE
    spec = ModelSpec(model, model=declared["model"], args=declared["args"], env=declared["env"], task=task)
    return Footprints({}).estimate(spec, gpu=False)


def facts(log: str) -> dict[str, Fact]:
    found: dict[str, Fact] = {}
    for line in log.splitlines():
        info = parse(line)
        found |= info.facts if info is not None else {}
    return found


@pytest.mark.parametrize("model", [A, TINY, EMBED])
async def test_an_estimate_is_what_vllm_takes(vllm: Installation, full: bool, model: str) -> None:
    """Tokens in its KV cache to the token, and the sum within 15 % of what the whole tree takes. (What the weights take alone is
    logged by vLLM on GPUs only; here they are compared with their files, in the type that they are loaded in.)"""
    if model != A and not full:
        pytest.skip("only with --real-full (a real start for each model)")
    guess = estimate(vllm, model)
    assert guess.weights is not None
    assert guess.cache is not None
    engine = Direct(vllm, model)
    engine.begin()
    try:
        while engine.starting():
            await asyncio.sleep(0.2)
        told = facts(engine.log)
        used = sum(procfs.memory(pid) for pid in marked(engine._mark))
    finally:
        engine.end()
    size = guess.footprint(guess.wanted_kv() if guess.cache.layers else 0).per_device
    files = sum(f.stat().st_size for f in Path(vllm.models / model).glob("*.safetensors"))
    print(
        f"{model}: estimated {size / GIB:.2f} GiB, takes {used / GIB:.2f} GiB; {told}; weights {guess.weights.size} of {files} in files"
    )
    assert guess.weights.size == pytest.approx(files * (1 if model == EMBED else 2), rel=0.01)
    assert told.get("kv_tokens", 0) == guess.cache.tokens(GIB)
    assert abs(size - used) <= 0.15 * used
