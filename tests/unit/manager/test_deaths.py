"""How an engine's end is understood: the leader's, and that of a process below it without which it cannot serve."""

import asyncio

import pytest

from fakes_engine import World, get, model, world
from vllm_mm.domain.errors import StartFailed, UpstreamDied, UpstreamTimeout
from vllm_mm.domain.lifecycle import State
from vllm_mm.domain.reasons import Reason
from vllm_mm.domain.specs import RetryPolicy
from vllm_mm.engine.policy import Timeouts
from vllm_mm.engine.ports import ExitStatus
from vllm_mm.engine.watch import LEADER_EXPLAINS, LEADER_FOLLOWS
from vllm_mm.engine.wire import UpstreamRequest

KILLED = ExitStatus(None, 9)


async def request(w: World, name: str) -> None:
    async with w.manager.lease(w.ticket(name)) as lease:
        await lease.exchange(UpstreamRequest(b"POST", b"/"), None)  # type: ignore[arg-type] - the fake wants no sink


def reason(w: World, name: str) -> str:
    return w.manager.require(name).snapshot.reason


async def test_loss_of_a_core_is_a_crash_although_the_leader_lives() -> None:
    """Requests under way end with UpstreamDied, the tree is stopped, and the reason names process and signal, once."""
    async with world(model("a")) as w:
        await w.ready("a")
        running = asyncio.create_task(request(w, "a"))
        await w.clock.settle()
        w.processes["a"].lose_part(KILLED)
        await w.clock.advance(LEADER_FOLLOWS)
        assert isinstance(running.exception(), UpstreamDied)
        await w.clock.advance(0.5)
        assert w.manager.require("a").state is State.BACKOFF
        assert "VLLM::EngineCore (pid 4321, killed by signal 9)" in reason(w, "a")
        assert w.processes["a"].stopped == 1
        assert w.journal.kinds("a").count("instance.stopping") == 1
        assert w.manager.ledger.reservations == {}


@pytest.mark.parametrize("stream", [False, True])
async def test_who_comes_after_a_crash_waits_for_the_next_launch(*, stream: bool) -> None:
    """While what is left of it is reaped and through the pause after it, streams too; and who does not wait so long is told at once when
    it will be tried again."""
    async with world(model("a", retry=RetryPolicy(backoff=8.0))) as w:
        await w.ready("a")
        w.processes["a"].release_stop.clear()
        w.processes["a"].die(0)
        await w.clock.settle()
        assert w.manager.require("a").state is State.STOPPING
        early = asyncio.create_task(get(w, w.ticket("a", stream=stream)))
        shorter = asyncio.create_task(get(w, w.ticket("a", stream=stream, wait=9.0)))
        with pytest.raises(StartFailed, match="exited with code 0"):
            await get(w, w.ticket("a", stream=stream, wait=7.0))
        await w.clock.advance(3.0)
        w.processes["a"].release_stop.set()
        await w.clock.advance(0.1)
        assert w.manager.require("a").state is State.BACKOFF
        assert isinstance(shorter.exception(), StartFailed), "its pause began later than it might have"
        late = asyncio.create_task(get(w, w.ticket("a", stream=stream)))
        with pytest.raises(StartFailed, match="tried again in 8 s") as told:
            await get(w, w.ticket("a", stream=stream, wait=0.0))
        assert told.value.retry_after == pytest.approx(8.0, abs=1.0)
        await w.clock.advance(7.0)
        assert not early.done()
        assert w.queue.entries()[0].reason is Reason.BACKOFF
        await w.clock.advance(2.0)
        assert (early.result(), late.result(), w.starts) == ("a", "a", ["a", "a"])


async def test_nobody_waits_for_one_that_crashes_for_the_last_time() -> None:
    """Left alone after too many failures: those who waited for a slot are told why, with its last words."""
    async with world(model("a", retry=RetryPolicy(max_failures=1), concurrency=1)) as w:
        await w.ready("a")
        async with w.manager.lease(w.ticket("a")):
            waits = asyncio.create_task(get(w, w.ticket("a")))
            await w.clock.settle()
            w.processes["a"].die(3)
            await w.clock.advance(0.5)
        assert w.manager.require("a").state is State.FAILED
        assert isinstance(waits.exception(), StartFailed)
        assert "exited with code 3" in str(waits.exception())


async def test_a_part_that_dies_with_its_leader_is_not_the_news() -> None:
    """A kill of the whole group is told as the leader's end, in whatever order the two are seen."""
    async with world(model("a")) as w:
        await w.ready("a")
        w.processes["a"].lose_part(KILLED)
        await w.clock.advance(LEADER_FOLLOWS / 2)
        assert w.manager.require("a").state is State.READY
        w.processes["a"].die(7)
        await w.clock.advance(0.5)
        assert "EngineCore" not in reason(w, "a")
        assert "exited with code 7" in reason(w, "a")


async def test_the_leader_of_a_start_may_explain_why_a_part_gave_up() -> None:
    """While it loads, a core that exits by itself is waited for by its leader, whose log names the cause; but not for long."""
    async with world(model("a", retry=RetryPolicy(max_failures=5))) as w:
        w.healthy_at_once = False
        await w.manager.start("a", "test")
        await w.clock.advance(0.1)
        w.processes["a"].lose_part(ExitStatus(1))
        await w.clock.advance(LEADER_EXPLAINS - 0.1)
        assert w.manager.require("a").state is State.STARTING
        w.processes["a"].log("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB")
        await w.clock.advance(0.6)
        assert w.manager.require("a").state is State.BACKOFF
        assert "memory" in reason(w, "a")
        assert "exited with code 1" in reason(w, "a")


async def test_a_part_that_is_killed_while_it_loads_ends_the_start_at_once() -> None:
    """A signal from outside leaves the leader nothing to explain."""
    async with world(model("a")) as w:
        w.healthy_at_once = False
        await w.manager.start("a", "test")
        await w.clock.advance(0.1)
        w.processes["a"].lose_part(KILLED, "VLLM::Worker_TP1")
        await w.clock.advance(LEADER_FOLLOWS)
        assert w.manager.require("a").state is not State.STARTING
        assert "VLLM::Worker_TP1" in reason(w, "a")


async def test_a_loss_while_it_stops_is_no_crash() -> None:
    """What ends during a stop ends because of it."""
    async with world(model("a")) as w:
        await w.ready("a")
        w.hold_stops = True
        process = w.processes["a"]
        process.release_stop.clear()
        await w.manager.stop("a", "test")
        await w.clock.settle()
        assert w.manager.require("a").state is State.STOPPING
        process.lose_part(KILLED)
        await w.clock.advance(0.5)
        process.release_stop.set()
        await w.clock.advance(0.5)
        assert w.manager.require("a").state is State.STOPPED
        assert reason(w, "a") == "test"


def counted(prompt: int, tokens: int, cache: float, waiting: int = 0) -> str:
    """Of vLLM's metrics."""
    labels = '{engine="0",model_name="a"}'
    return (
        f"# HELP vllm:generation_tokens_total Number of generation tokens processed.\nvllm:num_requests_waiting{labels} {waiting}\n"
        f"vllm:prompt_tokens_total{labels} {prompt}\nvllm:generation_tokens_total{labels} {tokens}\n"
        f"vllm:kv_cache_usage_perc{labels} {cache}\n"
    )


@pytest.mark.parametrize(
    ("texts", "useful"),
    [
        ((counted(9, 5, 0.1), counted(9, 80, 0.1)), True),  # all its sequences are taken by answers that come whole
        ((counted(9, 5, 0.1), counted(9, 5, 0.4)), True),  # a long prompt is being taken in
        ((counted(9, 5, 0.1), counted(700, 5, 0.1)), True),  # many prompts, of which it makes one number each
        ((counted(9, 5, 0.1), counted(9, 5, 0.1, waiting=1)), False),  # only the probe came
        ((counted(9, 5, 0.1), ""), False),  # where it does not tell what it does, the probe decides
        (("", counted(9, 5, 0.1)), False),
        ((), False),
    ],
)
async def test_an_engine_that_works_is_not_taken_for_one_that_hangs(texts: tuple[str, ...], useful: bool) -> None:
    """Nobody gets a byte and a probe fails: it is of use as long as its counters move."""
    async with world(model("a")) as w:
        await w.ready("a")
        running = asyncio.create_task(request(w, "a"))
        await w.clock.settle()
        process = w.processes["a"]
        process.probe_error, process.metrics = UpstreamTimeout("no place"), list(texts)
        await w.clock.advance(Timeouts().stuck + 2 * Timeouts().health)
        assert (w.manager.require("a").state is State.READY) is useful
        running.cancel()
