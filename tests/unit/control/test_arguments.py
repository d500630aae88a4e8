"""What engines say of the arguments of models that were there when the server began."""

import asyncio
from collections.abc import Iterable
from dataclasses import replace

import pytest

from fakes_engine import World, get, model, world
from vllm_mm.control.arguments import AGAIN, EVERY, PATIENCE, Arguments
from vllm_mm.domain.catalog import Catalog
from vllm_mm.domain.errors import Conflict, StartFailed
from vllm_mm.domain.flags import Checked
from vllm_mm.domain.lifecycle import State
from vllm_mm.domain.specs import ModelSpec


class Parser:
    """Knows `good` only."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.knows = {"good"}

    async def check(self, specs: Iterable[ModelSpec]) -> Checked:
        found: list[tuple[str, str, str]] = []
        for spec in specs:
            self.asked.append(spec.id)
            found += ((spec.id, name, "unknown argument") for name in spec.args if name not in self.knows)
        return Checked(tuple(found), ("the arguments of x were not checked: no program",))


def made(w: World, parser: Parser) -> Arguments:
    arguments = Arguments(w.manager, parser.check, w.journal, w.clock)
    w.manager.objection = arguments.objection
    return arguments


async def test_who_would_not_start_is_told_at_once_and_nobody_goes_for_it(caplog: pytest.LogCaptureFixture) -> None:
    """No load is decided: the model whose room it would have is left alone."""
    caplog.set_level("INFO")
    bad = model("b", 20, args={"good": 1, "bad": 2, "worse": 3})
    async with world(model("a", 20, args={"good": 1}), bad) as w:
        arguments = made(w, Parser())
        await arguments.look()
        await w.ready("a")
        told = "args.bad: unknown argument; args.worse: unknown argument"
        assert w.manager.describe("b").reason == told
        assert w.manager.describe("a").reason == ""
        asked = asyncio.create_task(get(w, w.ticket("b")))
        await w.clock.advance(0.01)
        assert isinstance(error := asked.exception(), StartFailed)
        assert told in str(error)
        assert error.retry_after == 60.0
        with pytest.raises(Conflict, match=f"b cannot be started: {told}"):
            await w.manager.start("b", "operator")
        await w.manager.start("b", "pinned", urgent=False)
        await w.clock.advance(30.0)
        assert w.journal.kinds("b") == ["alert.arguments", "swap.refused"]
        assert w.manager.require("a").state is State.READY
        assert caplog.text.count("b cannot be started: args.bad") == 1
        assert caplog.text.count("the arguments of x were not checked") == 1


async def test_it_is_looked_at_again_with_another_version_and_with_other_models() -> None:
    """Nothing that was said of a declaration outlives it, and what is known is not asked for at each look."""
    bad = model("b", args={"bad": 1})
    async with world(bad) as w:
        parser = Parser()
        arguments = made(w, parser)
        running = asyncio.create_task(arguments.run())
        await w.clock.advance(3 * EVERY)
        assert parser.asked == ["b"]
        assert arguments.objection(bad)
        parser.knows = {"good", "bad"}
        await w.clock.advance(AGAIN)
        assert not arguments.objection(bad)
        parser.knows = {"good"}
        other = replace(bad, args={"bad": 2})
        w.manager.set_catalog(Catalog([other]))
        await w.clock.advance(EVERY)
        assert arguments.objection(other)
        assert len(parser.asked) == 3
        w.manager.set_catalog(Catalog([bad]))
        parser.knows = {"good", "bad"}
        await w.clock.advance(EVERY)
        assert not arguments.objection(other)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


async def test_models_that_load_go_first() -> None:
    """For a while."""
    async with world(model("a", args={"good": 1})) as w:
        parser = Parser()
        arguments = made(w, parser)
        w.healthy_at_once = False
        await w.manager.start("a", "operator")
        await w.clock.advance(1.0)
        assert w.manager.require("a").state is State.STARTING
        await arguments.look()
        assert parser.asked == []
        await w.clock.advance(PATIENCE)
        await arguments.look()
        assert parser.asked == ["a"]
