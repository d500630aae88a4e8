"""Clients that leave at any moment: in the head, in the body, in the queue, in prefill, in the middle of an answer.

`MM_LEAVERS=1000 MM_SEED=7` for more of them, or others; then each lag is judged by itself, for which the machine has to be idle.
"""

import asyncio
import contextlib
import json
import os
import random
import socket
import struct
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from hard_cases import Case, running, sim, until

LEAVERS = int(os.environ.get("MM_LEAVERS", "300"))
SEED = int(os.environ.get("MM_SEED", "1"))
AT_ONCE = 40
STOPPED = 0.5
"""Seconds within which an engine has stopped what it did for a client that left."""
NARROW, WIDE = "narrow", "wide"
STAGES = ("head", "body", "queue", "prefill", "answer", "stream")
ENDLESS = {"max_tokens": 6000, "ignore_eos": True}
"""More than any engine here makes while the test runs."""
LONG = "word " * 1500


@dataclass
class Leaver:
    """One client: what it does, and when it left."""

    name: str
    stage: str
    random: random.Random
    left: float = field(default=0.0)

    def request(self) -> bytes:
        body: dict[str, Any] = {"model": NARROW if self.stage == "queue" else WIDE, **ENDLESS}
        prompt = LONG if self.stage == "prefill" else "hi"
        stream = self.stage == "stream" or (self.stage != "answer" and self.random.random() < 0.5)
        path, body = self.random.choice(
            (
                ("/v1/chat/completions", {**body, "stream": stream, "messages": [{"role": "user", "content": prompt}]}),
                ("/v1/completions", {**body, "stream": stream, "prompt": prompt}),
                ("/v1/messages", {**body, "stream": stream, "messages": [{"role": "user", "content": prompt}]}),
                ("/v1/responses", {"model": body["model"], "max_output_tokens": 6000, "input": prompt, "stream": stream}),
            )
        )  # fmt: skip
        content = json.dumps(body).encode()
        head = (
            f"POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\nx-request-id: {self.name}\r\n"
            f"content-length: {len(content)}\r\n\r\n"
        ).encode()
        if self.stage == "head":
            return head[: self.random.randrange(1, len(head) - 1)]
        if self.stage == "body":
            return head + content[: self.random.randrange(len(content))]
        return head + content

    async def run(self, port: int) -> None:
        """Send, wait a moment that nobody can know, and leave: with an end, or with a reset."""
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(self.request())
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self.random.uniform(0.0, 0.4)):
                if self.stage == "stream":
                    assert (await reader.readline()).split()[1:2] == [b"200"]
                    for _ in range(self.random.randrange(12)):
                        assert await reader.readline(), "an answer ended"
                else:
                    await asyncio.sleep(1)
        if self.random.random() < 0.5:
            connection: socket.socket = writer.get_extra_info("socket")
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.left = time.monotonic()
        writer.transport.abort()
        with contextlib.suppress(OSError):
            await writer.wait_closed()


async def seen(case: Case, model: str) -> dict[str, dict[str, Any]]:
    """What the engine knows of its requests, by id."""
    pid = (await case.instance(model))["pid"]
    words = Path(f"/proc/{pid}/cmdline").read_bytes().decode().replace("\0", " ").split()
    transport = httpx.AsyncHTTPTransport(uds=words[words.index("--uds") + 1])
    async with httpx.AsyncClient(transport=transport, base_url="http://engine", timeout=30) as client:
        found = (await client.get("/sim/requests")).json()["requests"]
    return {request["id"]: request for request in found}


def descriptors(pid: int) -> int:
    return sum(1 for _ in Path(f"/proc/{pid}/fd").iterdir())


async def gauge(case: Case, name: str) -> float:
    text = (await case.client.get(f"{case.url}/metrics")).text
    return sum(
        float(line.rsplit(" ", 1)[1]) for line in text.splitlines() if line.startswith((f"{name} ", f"{name}{{"))
    )


async def leave(case: Case, leavers: list[Leaver]) -> None:
    slots = asyncio.Semaphore(AT_ONCE)

    async def one(leaver: Leaver) -> None:
        async with slots:
            await leaver.run(case.serving.port)

    await asyncio.gather(*map(one, leavers))


async def test_whoever_leaves_is_forgotten() -> None:
    """The engine stops for each, each of those has exactly one row, and nothing is left of anyone: no lease, no ticket, no task, no
    descriptor, here or in the engine."""
    print(f"MM_LEAVERS={LEAVERS} MM_SEED={SEED}")
    chance = random.Random(SEED)
    models = {
        NARROW: sim(model={"concurrency": 2}, tokens_per_second=20),
        WIDE: sim(tokens_per_second=40, prefill_tokens_per_second=4000),
    }
    async with running(models, own_devices=True, host_memory={"sleep_budget": "64GiB"}) as case:
        pids = [case.serving.pid, *await case.ready(*models)]

        def crowd(prefix: str, count: int) -> list[Leaver]:
            return [
                Leaver(f"{prefix}-{n}", STAGES[n % len(STAGES)], random.Random(chance.random())) for n in range(count)
            ]

        async with contextlib.AsyncExitStack() as stack:
            for _ in range(2):  # nobody else gets a slot
                hog = await stack.enter_async_context(case.stream(NARROW, tokens=6000))
                assert hog.status_code == 200
            await leave(case, crowd("warm", 2 * len(STAGES)))
            await case.in_flight(WIDE, 0)
            await until(lambda: queue_is_empty(case), "the queue to be empty")
            before = [descriptors(pid) for pid in pids]
            tasks = await gauge(case, "vllm_mm_tasks")

            leavers = crowd("leaver", LEAVERS)
            await leave(case, leavers)
            await case.in_flight(WIDE, 0)
            await until(lambda: queue_is_empty(case), "the queue to be empty")

            async def no_more() -> bool:
                now = [descriptors(pid) for pid in pids]
                return (
                    all(a <= b for a, b in zip(now, before, strict=True))
                    and await gauge(case, "vllm_mm_tasks") <= tasks
                )

            await until(
                no_more, lambda: f"what is open to be as before: {before}, {[descriptors(p) for p in pids]}", 20
            )

        worked = await seen(case, WIDE) | await seen(case, NARROW)
        mine = {leaver.name: leaver for leaver in leavers}
        reached = {name: request for name, request in worked.items() if name in mine}
        assert {request["how"] for request in reached.values()} == {"left"}
        assert {mine[name].stage for name in reached} == {"prefill", "answer", "stream"}
        lags = sorted(request["ended"] - mine[name].left for name, request in reached.items())
        print(f"{len(lags)} reached an engine; lags: half {lags[len(lags) // 2]:.4f} s, most {lags[-1]:.4f} s")
        assert lags[len(lags) // 2] < STOPPED
        if "MM_LEAVERS" in os.environ:
            assert lags[-1] < STOPPED
        query = "select request_id, outcome from requests where request_id like 'leaver-%'"
        rows = await case.serving.rows_when(query, lambda found: {name for name, _ in found} >= reached.keys(), 20)
        assert len({name for name, _ in rows}) == len(rows)
        assert {outcome for _, outcome in rows} == {"client_gone"}
        await case.quiet()


async def queue_is_empty(case: Case) -> bool:
    return (await case.get("/api/queue"))["length"] == 0
