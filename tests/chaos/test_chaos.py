"""Random faults against the product as it runs: nothing may be left, nothing lost, and nothing cut may look complete.

`MM_CHAOS_ROUNDS` (on simulated engines, default 500), `MM_CHAOS_REAL_ROUNDS` (on real vLLM, forked; default 12, which CI has time
for) and `MM_CHAOS_SEED` (default: random, printed) are in the environment.
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
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import pytest

import real_vllm
from chaos.kinds import TOKENS, Kind, real, simulated
from serving import Serving

ROUNDS = int(os.environ.get("MM_CHAOS_ROUNDS", "500"))
REAL_ROUNDS = int(os.environ.get("MM_CHAOS_REAL_ROUNDS", "12"))
SEED = int(os.environ.get("MM_CHAOS_SEED", str(random.SystemRandom().randrange(2**31))))

MANY = 100
"""From so many rounds on, a tenth of the requests will have been served."""


WRITTEN = 2.0
"""Seconds after which the row of a request that is over is in the database, on a machine with much else to do: what is younger
when the controller is killed may be missing."""
READ = 0.3
"""Seconds after which a request has been read there: who leaves earlier may have asked nobody."""


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

    kind: Kind
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
        wait = self.rng.choice(self.kind.waits)
        task = asyncio.create_task(self._request(sent, wait, leave_after))
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    async def _request(self, sent: Sent, wait: int, leave_after: float | None) -> None:
        try:
            async with asyncio.timeout(leave_after if leave_after is not None else self.kind.patience):
                sent.result, sent.detail = await self._exchange(sent, wait)
        except TimeoutError:
            sent.result = "left" if leave_after is not None else "HUNG"
        except (httpx.ConnectError, httpx.ConnectTimeout):
            sent.result = "lost"
        except (httpx.RemoteProtocolError, httpx.ReadError, httpx.WriteError) as error:
            sent.result, sent.detail = "cut", repr(error)
        sent.ended = time.time()

    async def _exchange(self, sent: Sent, wait: int) -> tuple[str, str]:
        body = {**self.kind.body, "model": sent.model, "stream": sent.stream}
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

    async def rounds(self) -> None:
        """Each act once, in random order, so that a few rounds have them all; then whatever comes."""
        acts = (self.burst, self.leavers, self.kill_something, self.operate, self.crash_soon, self.kill_controller)
        opening = self.rng.sample(acts, len(acts))
        for number in range(self.kind.rounds):
            drawn = self.rng.choices(acts, weights=(30, 20, 22, 18, 7, 3))[0]
            await self.round(opening[number] if number < len(opening) else drawn)

    async def round(self, act: Callable[[], Awaitable[None]]) -> None:
        self.done[act.__name__] += 1
        await act()
        await asyncio.sleep(self.rng.random() * self.kind.pause)

    async def burst(self) -> None:
        model = self.rng.choice(self.kind.models)
        for _ in range(self.rng.randint(1, 6)):
            self.ask(model if self.rng.random() < 0.7 else self.rng.choice(self.kind.models))

    async def leavers(self) -> None:
        for _ in range(self.rng.randint(1, 4)):
            self.ask(self.rng.choice(self.kind.healthy), leave_after=self.rng.random() * 3 * self.kind.pause)

    async def kill_something(self) -> None:
        """A leader, an engine core or a worker: whichever is picked."""
        victims = [pid for pid in self.serving.left() if pid != self.serving.pid]
        if victims:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.rng.choice(victims), signal.SIGKILL)

    async def operate(self) -> None:
        act = self.rng.choice(["start", "stop", "stop", "restart", "sleep", "wake", "drain", "undrain", "reset"])
        with contextlib.suppress(httpx.HTTPError):
            answer = await self.client.post(f"{self.serving.url}/api/models/{self.rng.choice(self.kind.healthy)}/{act}")
            assert answer.status_code in {200, 202, 409, 503}, (act, answer.status_code, answer.text)

    async def crash_soon(self) -> None:
        """The engine dies after some more tokens: in the middle of streams."""
        model = self.rng.choice(self.kind.healthy)
        if self.kind.name != "sim":  # vLLM takes no orders of that kind
            self.ask(model)
            await asyncio.sleep(self.rng.random() * self.kind.pause)
            cores = [pid for pid, title in self.serving.titles().items() if title.startswith("VLLM::EngineCore")]
            if cores:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(self.rng.choice(cores), signal.SIGKILL)
            return
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
        """No more faults, those that wait for their tokens included: everything asked comes to its end."""
        for socket in (self.serving.data / "run").glob("*/s") if self.kind.name == "sim" else ():
            transport = httpx.AsyncHTTPTransport(uds=str(socket))
            with contextlib.suppress(httpx.HTTPError):
                async with httpx.AsyncClient(transport=transport, timeout=5) as direct:
                    await direct.delete("http://engine/sim/fault")
        if self.tasks:
            await asyncio.wait(self.tasks, timeout=self.kind.patience + 10)
        assert not self.tasks, f"{len(self.tasks)} requests did not end"

    def accounted(self, rows: dict[str, tuple[str, int]]) -> list[str]:
        """What is wrong with the ledger. Requests that touch an outage of the controller may be missing in it."""
        wrong: list[str] = []
        for sent in self.sent:
            near = any(
                sent.at <= end + 0.5 and (sent.ended or time.time()) >= begin - WRITTEN for begin, end in self.outages
            )
            row = rows.get(sent.id)
            if row is None:
                if not near and sent.result != "lost" and not (sent.result == "left" and sent.ended - sent.at < READ):
                    wrong.append(f"no row for {sent}")
            elif (
                (sent.result == "ok" and row[0] != "ok")
                or (sent.result.startswith("refused") and row[1] != int(sent.result.split()[1]))
                or (sent.result == "cut" and row[0] == "ok" and not near)
            ):
                wrong.append(f"{sent} is recorded as {row}")
        return wrong


@pytest.fixture(params=["sim", pytest.param("vllm", marks=pytest.mark.real)])
def kind(request: pytest.FixtureRequest) -> Kind:
    if request.param == "sim":
        return simulated(ROUNDS)
    found = real_vllm.find(os.environ)
    if isinstance(found, str):
        pytest.skip(found)
    return real(REAL_ROUNDS, found)


@pytest.fixture
async def chaos(kind: Kind) -> AsyncIterator[Chaos]:
    # A short path, so that the sockets are inside the data directory.
    with tempfile.TemporaryDirectory(prefix="mm-") as folder:
        async for made in _chaos(kind, Path(folder)):
            yield made


async def _chaos(kind: Kind, tmp_path: Path) -> AsyncIterator[Chaos]:
    knob = "MM_CHAOS_ROUNDS" if kind.name == "sim" else "MM_CHAOS_REAL_ROUNDS"
    print(f"chaos: seed {SEED}, {kind.rounds} rounds (MM_CHAOS_SEED={SEED} {knob}={kind.rounds})")
    serving = Serving(tmp_path, kind.config)
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=20)
    async with httpx.AsyncClient(limits=limits, timeout=httpx.Timeout(kind.patience + 5)) as client:
        try:
            await serving.start()
            yield Chaos(kind, serving, client, random.Random(SEED))
        finally:
            serving.end()


async def said(chaos: Chaos) -> dict[str, str]:
    """What every model says, undisturbed: it is a function of model and prompt, also in a batch (real vLLM in float32)."""
    found: dict[str, str] = {}
    for model in chaos.kind.healthy:
        body = {**chaos.kind.body, "model": model}
        headers = {"X-VLLM-MM-Wait": f"{chaos.kind.start:.0f}"}
        answer = await chaos.client.post(f"{chaos.serving.url}/v1/completions", json=body, headers=headers)
        assert answer.status_code == 200, answer.text
        found[model] = answer.json()["choices"][0]["text"]
    return found


async def freeze(chaos: Chaos) -> int:
    """Whatever was done to it, a stream can still be frozen for another model and lose nothing. How many had been before."""
    slow, other = chaos.kind.freezes
    url = f"{chaos.serving.url}/v1/completions"
    headers = {"X-VLLM-MM-Wait": f"{chaos.kind.start:.0f}"}
    for model in chaos.kind.models:
        await chaos.client.post(f"{chaos.serving.url}/api/models/{model}/stop?wait=30")
    before = len(chaos.serving.rows("select 1 from events where kind = 'lease.frozen'"))
    body = {**chaos.kind.body, "model": slow, "stream": True, "max_tokens": 2 * TOKENS}
    text, asked, lines = "", None, list[str]()
    async with chaos.client.stream("POST", url, json=body, headers=headers) as answer:
        assert answer.status_code == 200
        async for line in answer.aiter_lines():
            lines.append(line)
            if line.startswith("data: {"):
                text += json.loads(line[6:])["choices"][0]["text"]
                asked = asked or asyncio.create_task(
                    chaos.client.post(url, json={**chaos.kind.body, "model": other}, headers=headers)
                )
    assert lines[-2:] == ["data: [DONE]", ""]
    assert text.startswith(chaos.expected[slow])
    assert len(text) > len(chaos.expected[slow])
    assert asked is not None
    assert (await asked).status_code == 200, "it was frozen for nobody"
    return before


@pytest.mark.chaos
@pytest.mark.timeout(1800)
async def test_chaos(chaos: Chaos) -> None:
    """After hundreds of rounds: no process, no lease and no reservation left, every request accounted for once, and no
    stream that ended cleanly though it was cut."""
    kind, serving, client = chaos.kind, chaos.serving, chaos.client
    chaos.expected = await said(chaos)
    await chaos.rounds()
    await chaos.settle()
    print("chaos: acts", dict(chaos.done))
    print("chaos: results", dict(Counter(s.result for s in chaos.sent)))
    violations = [s for s in chaos.sent if s.result[0].isupper() or s.result == "unfinished"]
    assert not violations, violations[:5]
    served = sum(s.result == "ok" for s in chaos.sent)
    assert served > len(chaos.sent) / 10 or kind.rounds < MANY, "hardly anything was served"
    for model in kind.healthy:
        for act in ("undrain", "reset"):
            await client.post(f"{serving.url}/api/models/{model}/{act}")
    assert await said(chaos) == chaos.expected, "afterwards every model says what it said before"
    frozen = await freeze(chaos) if kind.freezes else 0

    for model in kind.models:
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
    events = Counter(name for (name,) in serving.rows("select kind from events"))
    print("chaos: freezing", {name: n for name, n in events.items() if name.startswith(("lease.", "sleep.", "wake."))})
    if kind.freezes:
        assert events["lease.frozen"] > frozen, "nothing was frozen"
    print("chaos: zygotes", {name: n for name, n in events.items() if name.startswith(("zygote.", "launcher."))})
    ready = Counter(how for (how,) in serving.rows("select launcher from starts where outcome = 'ready'"))
    print("chaos: engines that became ready", dict(ready))
    assert ready["warm"], "no engine was forked"
    rows = serving.rows("select request_id, outcome, status from requests where request_id like 'chaos-%'")
    assert len({r[0] for r in rows}) == len(rows), "a request has two rows"
    wrong = chaos.accounted({r[0]: (r[1], r[2]) for r in rows})
    assert not wrong, wrong[:5]
    run = serving.data / "run"
    assert not run.exists() or not list(run.iterdir()), "directories of launches are left"
