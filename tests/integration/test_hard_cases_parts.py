"""Hard cases of processes: the death of an engine core or a worker, which vLLM's own API server notices after seconds."""

import asyncio
import time

import httpx
import pytest

from hard_cases import Case, kill, running, sim, until
from vllm_mm.engine import procfs

PATIENT = {"watchdog": "60s", "worker_linger": "60s"}
"""The API server does not notice the death of its core within the test, nor the workers that of theirs."""


def gone(*pids: int) -> bool:
    return all((stat := procfs.read_stat(p)) is None or stat.dead for p in pids)


async def streaming(it: Case, model: str, begun: asyncio.Event) -> bytes:
    """All that a client gets of a stream, cut or not."""
    got = b""
    async with it.stream(model, tokens=4000) as answer:
        assert answer.status_code == 200
        try:
            async for chunk in answer.aiter_raw():
                got += chunk
                begun.set()
        except httpx.RemoteProtocolError:
            pass
    return got


@pytest.mark.parametrize("victim", ["VLLM::EngineCore", "VLLM::Worker_TP1"])
async def test_the_death_of_a_part_is_noticed_at_once(victim: str) -> None:
    """SIGKILL of the core or of one worker: within a second the stream has a bad end, the whole tree is gone,
    and the model waits to be started again; one crash, whose reason names the process. /health would say 200 for a minute."""
    devices = {"devices": {"ids": ["g0", "g1"]}, "retry": {"backoff": "100ms", "max_failures": 50}}
    own = [{"id": d, "memory": "8GiB", "simulated": True} for d in ("g0", "g1")]
    async with running({"a": sim(**PATIENT, model=devices)}, devices=own, timeouts={"health": "60s"}) as it:
        [leader] = await it.ready("a")
        tree = it.tree(leader)
        begun = asyncio.Event()
        stream = asyncio.create_task(streaming(it, "a", begun))
        await begun.wait()
        [pid] = [p for p, name in tree.items() if name == victim]
        killed = time.monotonic()
        kill(pid)
        got = await stream
        cut = time.monotonic() - killed
        await until(lambda: gone(leader, *tree), "the end of the launch", 5)
        swept = time.monotonic() - killed
        assert b'"error":' in got or b"[DONE]" not in got  # the engine's own error event passes, as ever
        assert (cut < 1, swept < 1) == (True, True), (cut, swept)
        await it.quiet()
        await it.written()
        rows = it.serving.rows("select kind, cause, data from events where model = 'a' order by seq")
        crashes = [data for kind, cause, data in rows if (kind, cause) == ("instance.stopping", "crash")]
        assert len(crashes) == 1
        assert f"{victim} (pid {pid}, killed by signal 9)" in crashes[0]
        assert (await it.complete("a")).status_code in {200, 503}
