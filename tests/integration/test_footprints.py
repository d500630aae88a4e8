"""Footprints with real processes: what an engine takes is what is reserved, now and at its next start."""

from typing import Any

from hard_cases import Case, running, until
from vllm_mm.sim.ledger import usage

GIB = 2**30
FAST = {"tokens_per_second": 1000, "worker_linger": "10ms"}


async def reserved(case: Case, model: str) -> int:
    instance = await case.instance(model)
    return sum(instance["memory"]["reserved"].values())


def claimed(case: Case) -> int:
    """Bytes that living engines hold on the simulated devices."""
    return sum(claim.size for claims in usage(case.serving.data / "sim").values() for claim in claims)


async def footprint(case: Case, model: str) -> dict[str, Any]:
    return (await case.get(f"/api/models/{model}"))["footprint"]


async def test_an_engine_that_takes_more_than_declared_is_believed() -> None:
    """Its reservation grows while it runs, with an event; the next start reserves what was seen, and says why."""
    greedy = {
        "engine": "sim",
        "memory": "8GiB",
        "sim": {**FAST, "weights": "8GiB", "kv_cache": "3GiB", "overhead": "1GiB"},
    }
    async with running({"a": greedy}) as it:
        assert (await footprint(it, "a"))["per_device"] == 8 * GIB
        await it.ready("a")

        async def grown() -> bool:
            return await reserved(it, "a") == 12 * GIB

        await until(grown, "the reservation to follow", 20)

        async def learned() -> bool:
            return (await footprint(it, "a"))["source"] == "learned"

        await until(learned, "the footprint to be learned", 60)
        found = await footprint(it, "a")
        assert abs(found["per_device"] - 12 * GIB) < 2**24
        assert found["samples"] == 1
        assert "`memory` says 8.0 GiB" in found["notes"][0]
        await it.written()
        assert it.events("a").count("footprint.exceeded") == 1
        await it.act("a", "stop", wait=20)
        await it.ready("a")
        assert abs(await reserved(it, "a") - 12 * GIB) < 2**24


async def test_a_start_that_had_too_little_is_given_what_its_log_asked_for() -> None:
    """4 GiB for weights of 4 and an overhead of 1: the engine says what is missing in vLLM's words, the model is not given up,
    and the next start fits. The engine keeps to what was reserved."""
    starved = {"engine": "sim", "memory": "4GiB", "sim": {**FAST, "weights": "4GiB", "overhead": "1GiB"}}
    async with running({"a": starved}) as it:
        answer = await it.complete("a", wait=20)
        assert answer.status_code == 503
        assert "no memory is left for the KV cache" in answer.text
        assert (await it.until("a", "backoff", "stopped"))["state"] != "failed"
        await it.ready("a")
        assert 5 * GIB < await reserved(it, "a") < 6 * GIB
        assert 5 * GIB < claimed(it) <= await reserved(it, "a")


async def test_a_given_kv_cache_is_reserved_and_passed_on() -> None:
    model = {"engine": "sim", "kv_cache": "6GiB", "sim": {**FAST, "weights": "4GiB"}}
    async with running({"a": model}) as it:
        await it.ready("a")
        assert await reserved(it, "a") == 10 * GIB
        assert claimed(it) == 10 * GIB
