"""Looking at the work of an engine, for what its prefix cache is worth."""

import pytest

from fakes import FakeClock
from fakes_engine import model, world
from vllm_mm.control.plan import plan
from vllm_mm.domain.errors import UpstreamDied
from vllm_mm.domain.prefix_cache import Work
from vllm_mm.domain.scheduling import Rules
from vllm_mm.engine.cached import EVERY, CacheWatch, work_of


def told(asked: float, found: float, made: float, prefill: float) -> str:
    """As vLLM 0.32 says it."""
    labels = 'engine="0",model_name="a"'
    return "\n".join(
        (
            "# HELP vllm:prefix_cache_queries_total Prefix cache queries, in terms of number of queried tokens.",
            "# TYPE vllm:prefix_cache_queries_total counter",
            f"vllm:prefix_cache_queries_total{{{labels}}} {asked}",
            f"vllm:prefix_cache_queries_created{{{labels}}} 1.7e9",
            f"vllm:prefix_cache_hits_total{{{labels}}} {found}",
            f"vllm:generation_tokens_total{{{labels}}} {made}",
            f'vllm:request_prefill_time_seconds_bucket{{le="0.3",{labels}}} 7.0',
            f"vllm:request_prefill_time_seconds_sum{{{labels}}} {prefill}",
            f"vllm:external_prefix_cache_queries_total{{{labels}}} 5.0",
        )
    )


def test_the_counters_are_read_as_vllm_writes_them() -> None:
    """Added up over the engines behind one address; nothing for an engine that has none, and what is no number is left out."""
    assert work_of(told(100.0, 40.0, 9.0, 1.5)) == Work(100, 40, 9, 1.5)
    both = told(100.0, 40.0, 9.0, 1.5) + "\n" + told(1e3, 0.0, 1.0, 0.25).replace('engine="0"', 'engine="1"')
    assert work_of(both) == Work(1100, 40, 10, 1.75)
    assert work_of("http_requests_total 5\n") is None
    assert work_of(told(100.0, 40.0, 9.0, 1.5) + '\nvllm:prefix_cache_hits_total{engine="1"} lots') == Work(
        100, 40, 9, 1.5
    )


async def test_it_looks_only_now_and_then_and_only_at_an_engine_that_serves() -> None:
    """A look costs the engine a page of text. One that fails changes nothing."""
    clock, looks, reads = FakeClock(), list[float](), 1
    fails = False

    async def metrics() -> str:
        looks.append(clock.now())
        if fails:
            raise UpstreamDied("gone", sent=False, started=False)
        return told(2_000.0 * len(looks), 1_000.0 * len(looks), 0.0, len(looks))

    watch, began = CacheWatch(clock, metrics, lambda: reads), clock.now()
    for _ in range(40):
        await clock.advance(5.0)
        reads += clock.now() < began + 100.0
        await watch.look()
    assert [at - began for at in looks] == pytest.approx([EVERY, 2 * EVERY, 3 * EVERY, 4 * EVERY])
    known = watch.loss(None)
    assert known == pytest.approx(4_000 * 0.5 / 1_000)
    fails, reads = True, reads + 1
    await watch.look()
    assert (len(looks), watch.loss(None)) == (5, known)


async def test_after_a_sleep_it_begins_anew() -> None:
    """The first look after it does not wait, and says where its counters stood when the cache was empty."""
    clock = FakeClock()
    texts = [told(4_000.0, 2_000.0, 0.0, 2.0), told(4_200.0, 2_100.0, 50.0, 2.1)]

    async def metrics() -> str:
        return texts.pop(0)

    reads = iter(range(99))
    watch = CacheWatch(clock, metrics, lambda: next(reads))
    watch.slept()
    await watch.look()
    assert watch.loss(None) == 0.0
    await clock.advance(EVERY)
    await watch.look()
    assert watch.loss(None) == pytest.approx(150 * 0.5 / 1_000)


async def test_decisions_and_plans_know_what_a_victim_would_lose() -> None:
    """Of two idle models that are asked for alike, the one goes whose cache is worth nothing, though it was used last."""
    async with world(model("a"), model("b"), model("c", 20)) as w:
        for name in "ab":
            await w.ready(name)
        w.processes["a"].metrics = [told(90_000.0, 60_000.0, 0.0, 30.0)]
        async with w.manager.lease(w.ticket("a")):
            channel = w.manager.require("a")._run.channel()  # type: ignore[union-attr]
            channel.reads += 1  # type: ignore[union-attr]
        await w.clock.advance(EVERY + 6.0)
        loss = 30_000 * (60_000 / 90_000) / 1_000
        assert w.manager.view(()).expected["a"].cache == pytest.approx(loss)
        assert w.manager.view(()).expected["b"].cache == 0.0
        found = plan(w.manager, w.manager.require("c").spec, Rules(), w.clock.now())
        assert {v.model: v.cache_s for v in found.victims} == {"a": pytest.approx(loss), "b": 0.0}
