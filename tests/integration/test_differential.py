"""The same requests to a simulated engine directly and through the product: where real vLLM cannot be had, the same promise."""

import asyncio
import zlib
from pathlib import Path

from differential import compare, streamed, unexplained
from generated import STREAMING, asks
from hard_cases import running, sim

FAST = {"tokens_per_second": 5000}


async def test_answers_are_the_engines_own() -> None:
    """Status, headers and body of the plain requests and every fourth of all, but for what docs/differences.md lists."""
    models = {"chat": sim(**FAST), "vectors": sim(task="embed", **FAST)}
    async with running(models, own_devices=True) as case:
        await case.ready(*models)
        pairs = []
        for model in models:
            instance = await case.instance(model)
            words = Path(f"/proc/{instance['pid']}/cmdline").read_bytes().decode().replace("\0", " ").split()
            engine, ours = words[words.index("--uds") + 1], f"127.0.0.1:{case.serving.port}"
            found = asks(model, embeds=model == "vectors")
            sent = [a for a in found if ": plain" in a.name or zlib.crc32(a.name.encode()) % 4 == 0]
            pairs += await asyncio.to_thread(compare, sent, engine, ours)
        wrong = [str(pair) for pair in unexplained(pairs)]
        assert not wrong, f"{len(wrong)} answers differ:\n" + "\n".join(wrong[:20])
        assert sum(not pair.same for pair in pairs) > 20
        assert streamed(pairs) >= STREAMING
        await case.quiet()
