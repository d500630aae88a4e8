"""Real vLLM's own parser says which arguments it takes. No engine is started."""

import os
from pathlib import Path

import real_vllm
from vllm_mm.clock import RealClock
from vllm_mm.domain.flags import Takes
from vllm_mm.domain.specs import ModelSpec
from vllm_mm.engine.flags import FlagBook, NotAsked


async def test_vllm_says_which_arguments_it_takes(vllm: real_vllm.Installation, tmp_path: Path) -> None:
    """Options with and without values, choices and negations; a wrong name is told with the nearest."""
    book = FlagBook(tmp_path, {**os.environ, **real_vllm.ENGINE_ENV}, RealClock())
    flags = await book.ask(str(vllm.vllm), {})
    assert not isinstance(flags, NotAsked), flags
    assert len(flags) > 100
    assert flags["max-model-len"].takes is Takes.ONE
    assert "bfloat16" in flags["dtype"].choices
    assert {"no-enable-prefix-caching", "served-model-name", "kv-cache-memory-bytes"} <= set(flags)
    good = {
        "max-model-len": 512,
        "tp": 1,
        "dtype": "bfloat16",
        "enable-prefix-caching": False,
        "compilation-config.level": 0,
    }
    bad = {"max-model-length": 512, "dtype": "bfloat61"}
    specs = [ModelSpec(name, executable=str(vllm.vllm), args=args) for name, args in (("good", good), ("bad", bad))]
    found = await book.check(specs)
    assert found.notes == ()
    assert [(model, name) for model, name, _ in found.wrong] == [("bad", "max-model-length"), ("bad", "dtype")]
    assert "did you mean `max-model-len`?" in found.wrong[0][2]
    assert "did you mean `bfloat16`?" in found.wrong[1][2]
