"""Random faults against the product as it runs: nothing may be left, nothing lost, and nothing cut may look complete.

`MM_CHAOS_ROUNDS` (default 500) and `MM_CHAOS_SEED` (default: random, printed) are in the environment.
"""

import asyncio
import contextlib
import json
import os
import random
import signal
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest

from serving import Serving

ROUNDS = int(os.environ.get("MM_CHAOS_ROUNDS", "500"))
SEED = int(os.environ.get("MM_CHAOS_SEED", str(random.SystemRandom().randrange(2**31))))
PATIENCE = 40.0
"""Seconds after which a request counts as hanging: its wait (at most 12 s), a drain and a generation are less."""

WARM = {"launcher": "warm"}
LOCAL = {"launcher": "local"}
FAST = {"load_bandwidth": "100GiB/s", "startup": "50ms", "tokens_per_second": 400, "kv_cache": "1GiB"}
CONFIG: dict[str, Any] = {
    "devices": [{"id": "sim0", "memory": "24GiB", "simulated": True}, {"id": "sim1", "memory": "24GiB", "simulated": True}],
    "queue": {"max_size": 60},
    "swap": {"max_wait": "1s", "min_dwell": "200ms", "drain_timeout": "2s"},
    "server": {"shutdown_grace": "2s"},
    "timeouts": {"stop": "5s", "stop_grace": "2s"},
    "defaults": {
        "idle": {"sleep_after": "3s", "stop_after": "20s"},
        "retry": {"backoff": "200ms", "backoff_max": "1s", "max_failures": 1000},
        "start": {"stall": "5s", "deadline": "15s", "probe": "2s"},
        "env": {"VLLM_SERVER_DEV_MODE": "1"},
    },
    "models": {
        "small": {**WARM, "engine": "sim", "sim": {**FAST, "weights": "4GiB"}},
        "org/medium": {**WARM, "engine": "sim", "sim": {**FAST, "weights": "12GiB"}, "aliases": ["medium"]},
        "large": {**LOCAL, "engine": "sim", "sim": {**FAST, "weights": "20GiB"}},
        "pair": {**LOCAL, "engine": "sim", "sim": {**FAST, "weights": "24GiB"}, "devices": {"count": 2}},
        "stubborn": {**WARM, "engine": "sim", "sim": {**FAST, "weights": "10GiB", "fault": "ignore_term,leave_session"}},
        "broken": {**LOCAL, "engine": "sim", "sim": {**FAST, "weights": "2GiB", "fault": "die_at:weights"}},
    },
}  # fmt: skip
MODELS = tuple(CONFIG["models"])
HEALTHY = tuple(m for m in MODELS if m != "broken")


@dataclass
class Sent:
    """One request of the client's and what became of it."""

    id: str
    model: str
    stream: bool
    at: float
    ended: float = 0.0
    result: str = "unfinished"
    """`ok`, `refused STATUS`, `cut`, `left` (we went away), `lost` (no connection), or a violation."""
    detail: str = ""


@dataclass
class Chaos:
    """The server under test and everything that was done to it."""

    serving: Serving
    client: httpx.AsyncClient
    rng: random.Random
    expected: dict[str, str] = field(default_factory=dict)
    sent: list[Sent] = field(default_factory=list)
    tasks: set[asyncio.Task[None]] = field(default_factory=set)
    done: Counter[str] = field(default_factory=Counter)
    outages: list[tuple[float, float]] = field(default_factory=list)
    """From just before the controller was killed until it served again."""

    def ask(self, model: str, *, leave_after: float | None = None) -> None:
        stream = self.rng.random() < 0.6
        sent = Sent(f"chaos-{len(self.sent)}", model, stream, time.time())
        self.sent.append(sent)
        wait = self.rng.choice([0, 2, 12, 12])
        task = asyncio.create_task(self._request(sent, wait, leave_after))
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    async def _request(self, sent: Sent, wait: int, leave_after: float | None) -> None:
        try:
            async with asyncio.timeout(leave_after if leave_after is not None else PATIENCE):
                sent.result, sent.detail = await self._exchange(sent, wait)
        except TimeoutError:
            sent.result = "left" if leave_after is not None else "HUNG"
        except (httpx.ConnectError, httpx.ConnectTimeout):
            sent.result = "lost"
        except (httpx.RemoteProtocolError, httpx.ReadError, httpx.WriteError) as error:
            sent.result, sent.detail = "cut", repr(error)
        sent.ended = time.time()

    async def _exchange(self, sent: Sent, wait: int) -> tuple[str, str]:
        body = {"model": sent.model, "prompt": "Tell me", "max_tokens": 40, "stream": sent.stream}
        headers = {"X-Request-Id": sent.id, "X-VLLM-MM-Wait": str(wait)}
        text, finished, error = "", False, ""
        url = f"{self.serving.url}/v1/completions"
        async with self.client.stream("POST", url, json=body, headers=headers) as answer:
            if answer.status_code != 200:
                return self._refusal(answer, (await answer.aread()).decode())
            if not sent.stream:
                text = json.loads(await answer.aread())["choices"][0]["text"]
                return self._judge(sent, text, finished=True, error="")
            async for line in answer.aiter_lines():
                if line == "data: [DONE]":
                    finished = True
                elif line.startswith("data: "):
                    event = json.loads(line[6:])
                    error = error or str(event.get("error", ""))
                    text += event["choices"][0]["text"] if "choices" in event else ""
        return self._judge(sent, text, finished=finished, error=error)

    def _refusal(self, answer: httpx.Response, body: str) -> tuple[str, str]:
        if answer.status_code == 500 and "EngineCore encountered an issue" in body:
            return "engine error", body  # the engine's own answer while it dies, relayed as it is
        if answer.status_code not in {429, 502, 503}:
            return f"UNEXPECTED {answer.status_code}", body
        if answer.status_code == 503 and not 1 <= int(answer.headers.get("retry-after", "0")) <= 60:
            return "BAD RETRY-AFTER", str(answer.headers)
        if not json.loads(body)["error"]["message"]:
            return "NO REASON", body
        return f"refused {answer.status_code}", body

    def _judge(self, sent: Sent, text: str, *, finished: bool, error: str) -> tuple[str, str]:
        """The connection was closed properly; then everything has to be there."""
        if finished and not error and text == self.expected[sent.model]:
            return "ok", ""
        if finished and "EngineCore encountered an issue" in error:
            return "engine error", error  # so does vLLM: an error event, and then [DONE]
        return "CUT BUT CLEAN", f"finished={finished} error={error!r} text={text!r}"

    # What is done to the server.

    async def round(self) -> None:
        act = self.rng.choices(
            (self.burst, self.leavers, self.kill_something, self.operate, self.crash_soon, self.kill_controller),
            weights=(30, 20, 22, 18, 7, 3),
        )[0]
        self.done[act.__name__] += 1
        await act()
        await asyncio.sleep(self.rng.random() * 0.25)

    async def burst(self) -> None:
        model = self.rng.choice(MODELS)
        for _ in range(self.rng.randint(1, 6)):
            self.ask(model if self.rng.random() < 0.7 else self.rng.choice(MODELS))

    async def leavers(self) -> None:
        for _ in range(self.rng.randint(1, 4)):
            self.ask(self.rng.choice(HEALTHY), leave_after=self.rng.random() * 0.8)

    async def kill_something(self) -> None:
        """A leader, an engine core or a worker: whichever is picked."""
        victims = [pid for pid in self.serving.left() if pid != self.serving.pid]
        if victims:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.rng.choice(victims), signal.SIGKILL)

    async def operate(self) -> None:
        act = self.rng.choice(["start", "stop", "stop", "restart", "sleep", "wake", "drain", "undrain", "reset"])
        with contextlib.suppress(httpx.HTTPError):
            answer = await self.client.post(f"{self.serving.url}/api/models/{self.rng.choice(HEALTHY)}/{act}")
            assert answer.status_code in {200, 202, 409, 503}, (act, answer.status_code, answer.text)

    async def crash_soon(self) -> None:
        """The engine dies after some more tokens: in the middle of streams."""
        model = self.rng.choice(HEALTHY)
        for socket in (self.serving.data / "run").glob("*/s"):
            transport = httpx.AsyncHTTPTransport(uds=str(socket))
            with contextlib.suppress(httpx.HTTPError):
                async with httpx.AsyncClient(transport=transport, timeout=1) as direct:
                    fault = f"crash_after_tokens:{self.rng.randint(1, 60)}"
                    await direct.post("http://engine/sim/fault", json={"fault": fault})
            break
        self.ask(model)

    async def kill_controller(self) -> None:
        began = time.time()
        self.serving.kill()
        await self.serving.start()
        self.outages.append((began, time.time()))

    async def settle(self) -> None:
        """No more faults: everything asked comes to its end."""
        if self.tasks:
            await asyncio.wait(self.tasks, timeout=PATIENCE + 10)
        assert not self.tasks, f"{len(self.tasks)} requests did not end"

    def accounted(self, rows: dict[str, tuple[str, int]]) -> list[str]:
        """What is wrong with the ledger. Requests that touch an outage of the controller may be missing in it."""
        wrong: list[str] = []
        for sent in self.sent:
            near = any(
                sent.at <= end + 0.5 and (sent.ended or time.time()) >= begin - 1.0 for begin, end in self.outages
            )
            row = rows.get(sent.id)
            if row is None:
                if not near and sent.result != "lost" and not (sent.result == "left" and sent.ended - sent.at < 0.1):
                    wrong.append(f"no row for {sent}")
            elif (
                (sent.result == "ok" and row[0] != "ok")
                or (sent.result.startswith("refused") and row[1] != int(sent.result.split()[1]))
                or (sent.result == "cut" and row[0] == "ok" and not near)
            ):
                wrong.append(f"{sent} is recorded as {row}")
        return wrong


@pytest.fixture
async def chaos() -> AsyncIterator[Chaos]:
    # A short path, so that the sockets are inside the data directory.
    with tempfile.TemporaryDirectory(prefix="mm-") as folder:
        async for made in _chaos(Path(folder)):
            yield made


async def _chaos(tmp_path: Path) -> AsyncIterator[Chaos]:
    print(f"chaos: seed {SEED}, {ROUNDS} rounds (MM_CHAOS_SEED={SEED} MM_CHAOS_ROUNDS={ROUNDS})")
    serving = Serving(tmp_path, CONFIG)
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=20)
    async with httpx.AsyncClient(limits=limits, timeout=httpx.Timeout(PATIENCE + 5)) as client:
        try:
            await serving.start()
            yield Chaos(serving, client, random.Random(SEED))
        finally:
            serving.end()


async def expectations(chaos: Chaos) -> None:
    """What every model says, undisturbed: the simulated engine's text is a function of model and prompt."""
    for model in HEALTHY:
        body = {"model": model, "prompt": "Tell me", "max_tokens": 40}
        answer = await chaos.client.post(
            f"{chaos.serving.url}/v1/completions", json=body, headers={"X-VLLM-MM-Wait": "30"}
        )
        assert answer.status_code == 200, answer.text
        chaos.expected[model] = answer.json()["choices"][0]["text"]


@pytest.mark.chaos
@pytest.mark.timeout(1800)
async def test_chaos(chaos: Chaos) -> None:
    """After hundreds of rounds: no process, no lease and no reservation left, every request accounted for once, and no
    stream that ended cleanly though it was cut."""
    serving, client = chaos.serving, chaos.client
    await expectations(chaos)
    for _ in range(ROUNDS):
        await chaos.round()
    await chaos.settle()
    print("chaos: acts", dict(chaos.done))
    print("chaos: results", dict(Counter(s.result for s in chaos.sent)))
    violations = [s for s in chaos.sent if s.result[0].isupper() or s.result == "unfinished"]
    assert not violations, violations[:5]
    assert sum(s.result == "ok" for s in chaos.sent) > len(chaos.sent) / 10, "hardly anything was served"

    for model in MODELS:
        await client.post(f"{serving.url}/api/models/{model}/stop?wait=30")
        await client.post(f"{serving.url}/api/models/{model}/reset")
    instances = await serving.instances(client)
    assert {m: i["in_flight"] for m, i in instances.items() if i["in_flight"]} == {}
    assert {m: i["memory"]["reserved"] for m, i in instances.items() if i["memory"]["reserved"]} == {}
    assert {m: i["state"] for m, i in instances.items() if i["state"] != "stopped"} == {}
    assert (await client.get(f"{serving.url}/api/queue")).json()["length"] == 0
    left = serving.engines()
    assert left == {}, "processes are left although everything is stopped"

    assert await serving.stop() == 0, serving.log[-3000:]
    assert serving.left() == {}
    kinds = Counter(kind for (kind,) in serving.rows("select kind from events"))
    print("chaos: zygotes", {kind: n for kind, n in kinds.items() if kind.startswith(("zygote.", "launcher."))})
    forked = [
        phases for (phases,) in serving.rows("select phases from starts where outcome = 'ready'") if '"fork"' in phases
    ]
    assert forked, "no engine was forked"
    rows = serving.rows("select request_id, outcome, status from requests where request_id like 'chaos-%'")
    assert len({r[0] for r in rows}) == len(rows), "a request has two rows"
    wrong = chaos.accounted({r[0]: (r[1], r[2]) for r in rows})
    assert not wrong, wrong[:5]
    run = serving.data / "run"
    assert not run.exists() or not list(run.iterdir()), "directories of launches are left"
