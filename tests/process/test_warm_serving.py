"""The warm launcher in the product as it runs: falling back within one load, being vindicated, and the death of the controller."""

import json
import os
import signal
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from rig import alive, until
from serving import Serving
from vllm_mm.engine import procfs
from vllm_mm.engine.launchers.pool import ZYGOTE_TOKEN

QUICK = {"weights": "1GiB", "kv_cache": "1GiB"}
IN_FORKS = """
import os, sys
zygote, engine = "zygote.py" in " ".join(sys.orig_argv), "vllm_mm.sim" in " ".join(sys.orig_argv)
def crash():
    print("something that nobody knows", flush=True)
    os._exit(9)
if WHERE:
    import importlib.abc, importlib.util
    class Spy(importlib.abc.MetaPathFinder):
        # The entry point is wrapped where it is imported.
        def find_spec(self, name, path, target=None):
            if name != "vllm_mm.sim.launch":
                return None
            sys.meta_path.remove(self)
            spec = importlib.util.find_spec(name)
            load = spec.loader.exec_module
            def exec_module(module):
                load(module)
                module.main = crash
            spec.loader.exec_module = exec_module
            return spec
    sys.meta_path.insert(0, Spy())
"""
"""Makes engines crash as soon as they begin: those that are forked, or all."""


class Bench:
    """A server whose engines start warm."""

    def __init__(self, serving: Serving, client: httpx.AsyncClient) -> None:
        self.serving = serving
        self.client = client

    async def act(self, model: str, what: str) -> None:
        answer = await self.client.post(f"{self.serving.url}/api/models/{model}/{what}")
        assert answer.status_code in {200, 202}, answer.text

    async def reached(self, model: str, state: str) -> dict[str, Any]:
        return await self.serving.until(self.client, model, state)

    def events(self, kind: str) -> list[dict[str, Any]]:
        """Written behind: whoever expects one waits for it."""
        rows = self.serving.rows("select kind, data from events order by seq")
        return [json.loads(data) for found, data in rows if found == kind]

    def starts(self) -> list[tuple[str, str]]:
        """(outcome, reason) of the history."""
        return [(str(o), str(r)) for o, r in self.serving.rows("select outcome, reason from starts order by id")]

    def zygotes(self) -> list[int]:
        marks = {pid: procfs.read_marks(pid) for pid in self.serving.left()}
        return [pid for pid, m in marks.items() if m is not None and m.launch == ZYGOTE_TOKEN]


@pytest.fixture
def make() -> Iterator[Callable[..., Serving]]:
    made: list[Serving] = []
    with tempfile.TemporaryDirectory(prefix="mm-") as folder:

        def serving(models: dict[str, Any], where: str = "") -> Serving:
            env = {}
            if where:
                site = Path(folder) / "site"
                site.mkdir()
                (site / "sitecustomize.py").write_text(IN_FORKS.replace("WHERE", where))
                env["PYTHONPATH"] = f"{site}:{os.environ.get('PYTHONPATH', '')}"
            made.append(
                Serving(
                    Path(folder),
                    {
                        "devices": [{"id": "sim0", "memory": "24GiB", "simulated": True}],
                        "warm": {"preload": False},
                        "defaults": {"launcher": "warm", "retry": {"backoff": "100ms", "max_failures": 2}},
                        "models": {name: {"engine": "sim", **model} for name, model in models.items()},
                    },
                    env,
                )
            )
            return made[-1]

        yield serving
        for server in made:
            server.end()


@pytest.fixture
async def client() -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(timeout=30) as made:
        yield made


async def test_a_crash_that_a_local_start_does_not_have(
    make: Callable[..., Serving], client: httpx.AsyncClient
) -> None:
    """In the same load the model is started locally and serves: one fallback, told with the last lines; not tried warm
    again for that model, until a declaration makes it another one."""
    bench = Bench(make({"a": {"sim": QUICK}}, "zygote"), client)
    await bench.serving.start()
    body = {"model": "a", "prompt": "x", "max_tokens": 2}
    answer = await client.post(f"{bench.serving.url}/v1/completions", json=body)
    assert answer.status_code == 200, answer.text
    assert (await bench.reached("a", "ready"))["launcher"] == "local"
    await until(lambda: bench.events("launcher.fallback"), "the event")
    (fallback,) = bench.events("launcher.fallback")
    assert "something that nobody knows" in fallback["reason"]
    assert "exited with code 9" in fallback["reason"]
    assert bench.events("instance.backoff") == [], "the load itself did not fail"

    await bench.act("a", "stop")
    await bench.reached("a", "stopped")
    await bench.act("a", "start")
    assert (await bench.reached("a", "ready"))["launcher"] == "local"
    assert await bench.serving.stop() == 0, bench.serving.log[-3000:]
    assert len(bench.events("launcher.fallback")) == 1
    assert len(bench.events("zygote.ready")) == 1
    assert not bench.serving.left()


async def test_a_failure_that_is_recognised_is_no_fault_of_the_launcher(
    make: Callable[..., Serving], client: httpx.AsyncClient
) -> None:
    """An engine that does not fit its device: one warm try, no local one, and the reason is vLLM's."""
    bench = Bench(make({"a": {"sim": {**QUICK, "weights": "40GiB"}, "memory": "2GiB"}}), client)
    await bench.serving.start()
    await bench.act("a", "start")
    await until(bench.starts, "the start to fail")
    ((outcome, reason),) = bench.starts()
    assert outcome == "failed"
    assert "memory" in reason
    assert await bench.serving.stop() == 0
    assert bench.events("launcher.fallback") == []
    assert len(bench.events("zygote.ready")) == 1
    assert not bench.serving.left()


async def test_a_launcher_is_vindicated_when_the_local_start_fails_too(
    make: Callable[..., Serving], client: httpx.AsyncClient
) -> None:
    """An engine that crashes either way: each load tries both, and nothing is held against the launcher."""
    bench = Bench(make({"a": {"sim": QUICK}}, "zygote or engine"), client)
    await bench.serving.start()
    for number in (1, 2):
        await bench.act("a", "start")
        await until(lambda n=number: len(bench.starts()) == n, "the start to fail")
        await bench.client.post(f"{bench.serving.url}/api/models/a/reset")
    assert [outcome for outcome, _ in bench.starts()] == ["failed", "failed"]
    assert await bench.serving.stop() == 0
    falls = bench.events("launcher.fallback")
    assert len(falls) == 2, "one for each of the two loads, for the first was forgiven"
    assert all("a warm start exited with code 9" in fall["reason"] for fall in falls)
    assert not bench.serving.left()


@pytest.mark.timeout(120)
async def test_a_killed_controller_leaves_engines_and_no_zygote(
    make: Callable[..., Serving], client: httpx.AsyncClient
) -> None:
    """SIGKILL while one zygote is ready and another imports: both end by themselves, the engine that was ready is adopted by
    the next controller, what was about to start is not left, and the next start is warm again."""
    bench = Bench(make({"a": {"sim": QUICK}, "slow": {"sim": {**QUICK, "imports": "60s"}}}), client)
    await bench.serving.start()
    await bench.act("a", "start")
    before = await bench.reached("a", "ready")
    assert before["launcher"] == "warm"
    await bench.act("slow", "start")
    await until(lambda: len(bench.zygotes()) == 2, "both zygotes")
    zygotes = bench.zygotes()
    bench.serving.kill()
    await until(lambda: not [p for p in zygotes if alive(p)], "the zygotes to end by themselves", 3)
    await bench.serving.start()
    after = await bench.reached("a", "ready")
    assert (after["pid"], after["generation"]) == (before["pid"], before["generation"])
    await bench.act("a", "restart")
    await until(lambda: len(bench.zygotes()) == 1, "a zygote of the new controller")
    assert (await bench.reached("a", "ready"))["launcher"] == "warm"
    bench.serving.signal(signal.SIGTERM)
    assert await bench.serving.wait() == 0
    assert not bench.serving.left()
    assert not list((bench.serving.data / "run").glob("*"))
