"""What the acceptance tests of docs/hard-cases.md share: servers with quick simulated engines, and ways to look at them."""

import asyncio
import contextlib
import json
import os
import signal
import sqlite3
import tempfile
import time
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

import httpx
import yaml

from serving import Serving
from vllm_mm.domain.reasons import Reason
from vllm_mm.engine import procfs
from vllm_mm.engine.launchers.pool import ZYGOTE_TOKEN

QUICK: Mapping[str, Any] = {
    "weights": "8GiB",
    "kv_cache": "2GiB",
    "load_bandwidth": "1000GiB/s",
    "startup": "50ms",
    "tokens_per_second": 400,
    "watchdog": "200ms",
    "worker_linger": "100ms",
}
"""10 GiB, and up in a third of a second, most of which is Python."""


def sim(*faults: str, model: Mapping[str, Any] | None = None, **profile: Any) -> dict[str, Any]:
    """A model of the configuration on the simulated engine; `model` are keys of the model itself."""
    fault = {"fault": list(faults)} if faults else {}
    return {"engine": "sim", "sim": {**QUICK, **profile, **fault}, **(model or {})}


def on_own_devices(models: Mapping[str, Any]) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Each model on a device of its own, so that none waits for another's memory profile."""
    placed = {name: {**spec, "devices": {"ids": [f"dev-{name}"]}} for name, spec in models.items()}
    return placed, [{"id": f"dev-{name}", "memory": "24GiB", "simulated": True} for name in models]


@contextlib.asynccontextmanager
async def running(
    models: Mapping[str, Any],
    *,
    memory: str = "24GiB",
    own_devices: bool = False,
    before: Callable[[Serving], None] = lambda _: None,
    **config: Any,
) -> AsyncGenerator["Case"]:
    """The product on one simulated device of `memory`, or on one for each model, without sleep unless a budget says so; `before` its start. Nothing of it may be left at the end."""
    devices = [{"id": "sim0", "memory": memory, "simulated": True}]
    if own_devices:
        models, devices = on_own_devices(models)
    settings = {
        "timeouts": {"stop_grace": "400ms", "health": "100ms"},
        "swap": {"min_dwell": "0s"},
        "host_memory": {"sleep_budget": "1TiB" if own_devices else 0},  # nobody makes room for another then
        "devices": devices,
        "models": dict(models),
        **config,
    }
    with tempfile.TemporaryDirectory(prefix="mm-") as folder:
        serving = Serving(Path(folder), settings, forked=True)
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=20)
        async with httpx.AsyncClient(timeout=60, limits=limits) as client:
            case = Case(serving, client, settings)
            try:
                before(serving)
                await serving.start()
                yield case
                if serving.pid in serving.left():
                    assert await serving.stop() == 0, serving.log[-3000:]
                assert serving.left() == {}
                assert not (left := unexplained(serving)), f"events without a code of domain.reasons: {left}"
                assert "Traceback" not in serving.log, serving.log[-5000:]
            finally:
                serving.end()


DECIDED = ("instance.", "swap.", "lease.", "alert.", "device.", "sleep.", "wake.")
"""Events of these kinds have a decision or a fault behind them, and so a code."""


def unexplained(serving: Serving) -> list[tuple[str, str, str]]:
    """Events without a code that `domain.reasons` knows."""
    known = {reason.value for reason in Reason}
    return [
        (kind, cause, data)
        for kind, cause, data in serving.rows("select kind, cause, data from events")
        if kind.startswith(DECIDED) and json.loads(data).get("code") not in known
    ]


class Case:
    """A running product and what one does with it."""

    def __init__(self, serving: Serving, client: httpx.AsyncClient, settings: Mapping[str, Any]) -> None:
        self.serving = serving
        self.client = client
        self.settings = settings

    @property
    def url(self) -> str:
        return self.serving.url

    async def complete(self, model: str, *, wait: float | None = None, tokens: int = 4, **more: Any) -> httpx.Response:
        headers = {} if wait is None else {"x-vllm-mm-wait": str(wait)}
        body = {"model": model, "prompt": "hi", "max_tokens": tokens, "ignore_eos": True, **more}
        return await self.client.post(f"{self.url}/v1/completions", json=body, headers=headers)

    def stream(self, model: str, *, tokens: int = 4, headers: Mapping[str, str] | None = None, **more: Any) -> Any:
        body = {"model": model, "prompt": "hi", "max_tokens": tokens, "stream": True, "ignore_eos": True, **more}
        return self.client.stream("POST", f"{self.url}/v1/completions", json=body, headers=dict(headers or {}))

    async def streamed(self, model: str, *, tokens: int = 4, **more: Any) -> tuple[int, bytes]:
        """Status and whole body. Raises httpx.RemoteProtocolError for one that was cut."""
        async with self.stream(model, tokens=tokens, **more) as answer:
            return answer.status_code, await answer.aread()

    async def act(self, model: str, act: str, **query: Any) -> httpx.Response:
        return await self.client.post(f"{self.url}/api/models/{model}/{act}", params=query)

    async def get(self, path: str) -> Any:
        return (await self.client.get(f"{self.url}{path}")).json()

    async def instance(self, model: str) -> dict[str, Any]:
        return (await self.serving.instances(self.client)).get(model, {"state": "stopped", "pid": None})

    async def state(self, model: str) -> str:
        return (await self.instance(model))["state"]

    async def ready(self, *models: str) -> list[int]:
        """Load them; their leaders' pids."""
        answers = await asyncio.gather(*(self.act(m, "start", wait=30) for m in models))
        for answer in answers:
            assert answer.json()["state"] == "ready", answer.text
        return [answer.json()["pid"] for answer in answers]

    async def until(self, model: str, *states: str, seconds: float = 60.0) -> dict[str, Any]:
        found: dict[str, Any] = {}

        async def there() -> bool:
            nonlocal found
            found = await self.instance(model)
            return found["state"] in states

        await until(there, lambda: f"{model} to be {' or '.join(states)}: {json.dumps(found)}", seconds)
        return found

    async def until_queued(self, count: int, seconds: float = 60.0) -> None:
        async def there() -> bool:
            return (await self.get("/api/queue"))["length"] == count

        await until(there, f"{count} requests in the queue", seconds)

    async def in_flight(self, model: str, count: int, seconds: float = 60.0, *, or_more: bool = False) -> None:
        async def there() -> bool:
            now = (await self.instance(model)).get("in_flight", 0)
            return now >= count if or_more else now == count

        await until(there, f"{count} requests in flight for {model}", seconds)

    async def quiet(self) -> None:
        """No lease, no ticket, and no reservation of a model that is not there."""

        async def there() -> bool:
            instances = await self.serving.instances(self.client)
            live = {m for m, i in instances.items() if i["state"] not in {"stopped", "failed", "backoff"}}
            held = {r["model"] for d in await self.get("/api/devices") for r in d["reservations"]}
            status = await self.get("/api/status")
            return held <= live and status["in_flight"] == 0 and status["queue"]["length"] == 0

        await until(there, "nothing to be held")

    def events(self, model: str | None = None) -> list[str]:
        rows = self.serving.rows("select kind, model from events order by seq")
        return [kind for kind, about in rows if model is None or about == model]

    async def starts(self, model: str | None = None) -> int:
        await self.written()
        return self.events(model).count("instance.starting")

    async def written(self) -> None:
        """Until all events so far are in the database."""
        await self.serving.written(self.client)

    async def outcomes(self, total: int, model: str | None = None) -> Counter[str]:
        """Of all requests, once there are `total` rows of them."""
        found: Counter[str] = Counter()

        async def there() -> bool:
            nonlocal found
            rows = self.serving.rows("select id, outcome, model from requests")
            assert len({i for i, *_ in rows}) == len(rows), "a request has two rows"
            found = Counter(o for _, o, about in rows if model is None or about == model)
            return found.total() >= total

        await until(there, lambda: f"{total} rows: {found}", 10.0)
        assert found.total() == total, found
        return found

    def rewrite(self, **changes: Any) -> None:
        """Another configuration file, for SIGHUP or the next start."""
        self.settings = {**self.settings, **changes}
        self.serving.config.write_text(yaml.safe_dump({"auth": {"mode": "none"}, **self.settings}))

    async def reload(self) -> None:
        before = self.serving.log.count("reloaded: ")
        self.serving.signal(signal.SIGHUP)
        await until(lambda: self.serving.log.count("reloaded: ") > before, "the reload")

    def tree(self, leader: int) -> dict[int, str]:
        """The living processes of an engine below its leader: pid to name."""
        processes = {p: s for p, s in procfs.table().items() if not s.dead}
        found: dict[int, str] = {}
        left = [leader]
        while left:
            parent = left.pop()
            for pid, stat in processes.items():
                if stat.ppid == parent and pid not in found:
                    found[pid] = (Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[0]).decode()
                    left.append(pid)
        return found

    def launches(self) -> set[str]:
        """The tokens of the launches that have living processes: more than one of a model would be a duplicate."""
        marks = (procfs.read_marks(pid) for pid in self.engines())
        return {m.launch for m in marks if m is not None and m.launch is not None} - {ZYGOTE_TOKEN}

    def engines(self) -> dict[int, str]:
        """Living processes of this server but the controller and its zygotes."""
        return self.serving.engines()


async def until(
    condition: Callable[[], object] | Callable[[], Awaitable[object]],
    what: str | Callable[[], str],
    seconds: float = 60.0,
) -> None:
    """Poll for a fact."""
    deadline = time.monotonic() + seconds
    while True:
        fact = condition()
        if await fact if isinstance(fact, Awaitable) else fact:
            return
        if time.monotonic() > deadline:
            raise AssertionError(f"waited {seconds} s in vain for {what if isinstance(what, str) else what()}")
        await asyncio.sleep(0.02)


def kill(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)


@contextlib.contextmanager
def locked_database(path: Path) -> Any:
    """Another process's exclusive transaction: nobody else writes meanwhile."""
    connection = sqlite3.connect(path, timeout=10, isolation_level=None)
    try:
        connection.execute("BEGIN EXCLUSIVE")
        yield
        connection.execute("ROLLBACK")
    finally:
        connection.close()
