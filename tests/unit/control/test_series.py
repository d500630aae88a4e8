"""Samples: what is counted anyway, at the time to which it belongs, and nothing where nothing is known."""

import asyncio
import contextlib
from collections.abc import Mapping

import pytest

from fakes_engine import World, model, world
from vllm_mm.control.series import EVERY, LATE, Sampler
from vllm_mm.domain.series import HELD, Kind, Metric, Row, Totals, read
from vllm_mm.domain.specs import GIB
from vllm_mm.engine.manager import ProcessManager


class Kit:
    """A sampler over a whole engine layer, and what it handed over."""

    def __init__(self, w: World) -> None:
        w.clock.time += 10 - w.clock.wall() % 10  # the looks below are at whole steps
        self.world = w
        self.rows: list[Row] = []
        self.totals: Mapping[str, Totals] = {}
        self.sampler = Sampler(w.manager, w.queue, lambda: self.totals, self.rows.append, w.clock)

    async def looks(self, count: int) -> None:
        for _ in range(count):
            await self.world.clock.advance(EVERY)
            await self.sampler.look()

    def values(self, subject: str, kind: Kind = Kind.MODEL) -> list[Mapping[str, float]]:
        self.sampler.hand_over()
        return [r.values for r in self.rows if (r.kind, r.subject) == (kind, subject)]


async def test_ten_seconds_become_a_row_of_each_model_and_device() -> None:
    """Requests and their times by what changed in between; memory by model; a model without an engine for which nobody waits is
    not told of."""
    async with world(model("a", 8), model("b", 8)) as w:
        kit = Kit(w)
        await w.ready("a")
        kit.totals = {"a": Totals(5, 100)}
        w.clock.time += 10 - w.clock.wall() % 10
        await kit.sampler.look()
        kit.totals = {"a": Totals(7, 150)}
        await kit.looks(1)
        kit.totals = {"a": Totals(8, 160)}
        await kit.looks(1)
        assert kit.rows == []
        await kit.looks(1)
        assert {(r.step, r.kind, r.subject, r.at % 10) for r in kit.rows} == {
            (10, Kind.MODEL, "a", 0),
            (10, Kind.DEVICE, "gpu0", 0),
        }
        [first, _] = kit.values("a")
        assert (first["s"], first["requests"], first["tokens"]) == (10.0, 3.0, 60.0)
        device = kit.values("gpu0", Kind.DEVICE)[0]
        assert device[f"{HELD}a"] / device["s"] == 8 * GIB
        assert device["free"] / device["s"] == 16 * GIB


async def test_what_waits_is_told_with_its_age_also_without_an_engine() -> None:
    async with world(model("a", 8), model("b", 100)) as w:
        kit = Kit(w)
        w.healthy_at_once = False
        asked = asyncio.get_running_loop().create_task(w.queue.admit(w.ticket("a", wait=1000)))
        await kit.looks(1)
        await kit.looks(2)
        values = kit.values("a")[0]
        assert values["queued"] / values["s"] == 1
        assert EVERY <= values["max.oldest"] <= 3 * EVERY
        assert kit.values("b") == []
        asked.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await asked


async def test_tokens_are_those_that_the_engine_counts_where_it_does() -> None:
    """When they are made, and not when their requests end; what an engine made before the server looked is not of this time; a new
    launch begins at nothing."""
    async with world(model("a", 8)) as w:
        kit = Kit(w)
        await w.ready("a")
        telling = w.processes["a"].metrics

        def tells(tokens: float, share: float = 0.5) -> None:
            telling[:] = [
                f'#\nvllm:kv_cache_usage_perc{{a="b"}} {share}\nvllm:generation_tokens_total{{a="b"}} {tokens}\n'
            ]

        tells(1000)
        await kit.sampler.look()
        tells(1040)
        kit.totals = {"a": Totals(1, 5000)}
        await kit.looks(1)
        assert (kit.values("a")[0]["tokens"], kit.values("a")[0]["kv"]) == (40.0, 0.5 * EVERY)
        telling[:] = []  # it is slow just now: nothing is lost, and nothing counts twice
        kit.totals = {"a": Totals(2, 6000)}
        await kit.looks(1)
        tells(1100)
        await kit.looks(1)
        assert sum(v["tokens"] for v in kit.values("a")) == 100.0
        await w.manager.stop("a", "test")
        await w.clock.advance(0.1)
        await w.ready("a")
        telling = w.processes["a"].metrics
        tells(7)
        before = sum(v["tokens"] for v in kit.values("a"))
        await kit.looks(1)
        assert sum(v["tokens"] for v in kit.values("a")) - before == 7.0


async def test_a_time_in_which_the_machine_stood_still_is_a_gap() -> None:
    async with world(model("a", 8)) as w:
        kit = Kit(w)
        await w.ready("a")
        await kit.sampler.look()
        await kit.looks(1)
        before = len(kit.values("a"))
        w.clock.time += LATE + 1
        kit.totals = {"a": Totals(100, 100)}
        await kit.sampler.look()
        assert len(kit.values("a")) == before
        await kit.looks(1)
        assert read(Metric.REQUESTS, kit.values("a")[-1]) == {"": 0.0}


async def test_a_look_that_fails_does_not_end_it(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """And at the end what was seen last is handed over."""
    async with world(model("a", 8)) as w:
        kit = Kit(w)
        await w.ready("a")
        good = kit.world.manager.instances

        def broken(_: ProcessManager) -> None:
            raise OSError("no")

        running = asyncio.get_running_loop().create_task(kit.sampler.run())
        with monkeypatch.context() as patched:
            patched.setattr(ProcessManager, "instances", broken)
            await w.clock.settle()
        assert "could not be taken" in caplog.text
        assert good()
        await w.clock.advance(3 * EVERY)
        running.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await running
        assert [r for r in kit.rows if r.subject == "a"]
