"""`server.workers: 2`: two processes move the bytes, one controller owns engines, leases and the ledger."""

import asyncio
import contextlib
import json
import os
import re
import signal
import socket
from collections.abc import AsyncGenerator  # noqa: TC003  # beside the others
from pathlib import Path
from typing import Any

import httpx
import pytest
from websockets.asyncio.client import connect

from freezing import Stream, frozen, put_aside
from hard_cases import Case, kill, running, sim, until
from speech import COMMIT, FINAL, append, audio, hear, say, until_done

TWO = {"server": {"workers": 2}}
STORES = {"env": {"VLLM_ENABLE_RESPONSES_API_STORE": "1"}}


def workers(case: Case) -> dict[int, int]:
    """The worker processes that live: pid by number, from 0."""
    found: dict[int, int] = {}
    for pid in case.serving.left():
        with contextlib.suppress(OSError):
            words = Path(f"/proc/{pid}/cmdline").read_bytes().decode().split("\0")
            if "vllm_mm.main.worker" in words:
                found[int(words[words.index("--number") + 1])] = pid
    return found


def inodes(pid: int) -> set[int]:
    """Sockets that a process has open."""
    found: set[int] = set()
    for fd in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(OSError):
            named = re.fullmatch(r"socket:\[(\d+)\]", str(fd.readlink()))
            if named is not None:
                found.add(int(named[1]))
    return found


def holder(case: Case, local: int) -> int | None:
    """The process that has the server's end of the connection from our port `local`."""
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        words = line.split()
        here, there, inode = words[1], words[2], int(words[9])
        if int(here.split(":")[1], 16) == case.serving.port and int(there.split(":")[1], 16) == local:
            return next((pid for pid in (case.serving.pid, *workers(case).values()) if inode in inodes(pid)), None)
    return None


class Line:
    """One connection to the server."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer
        self.port: int = writer.get_extra_info("sockname")[1]

    @classmethod
    @contextlib.asynccontextmanager
    async def to(cls, case: Case) -> "AsyncGenerator[Line]":
        reader, writer = await asyncio.open_connection("127.0.0.1", case.serving.port)
        try:
            yield cls(reader, writer)
        finally:
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()

    def request(self, model: str, **body: Any) -> bytes:
        content = json.dumps({"model": model, "prompt": "hi", "max_tokens": 3, "ignore_eos": True, **body}).encode()
        head = f"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: {len(content)}\r\n\r\n"
        return head.encode() + content

    def ask(self, model: str, **body: Any) -> None:
        self.writer.write(self.request(model, **body))

    def get(self, path: str) -> None:
        self.writer.write(f"GET {path} HTTP/1.1\r\nhost: localhost\r\n\r\n".encode())

    async def head(self) -> tuple[int, dict[str, str]]:
        async with asyncio.timeout(30):
            lines = (await self.reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        fields = dict(line.lower().split(": ", 1) for line in lines[1:] if line)
        return int(lines[0].split()[1]), fields

    async def answer(self) -> tuple[int, bytes]:
        """Of a known length."""
        status, fields = await self.head()
        async with asyncio.timeout(30):
            return status, await self.reader.readexactly(int(fields["content-length"]))


async def on_both(case: Case, stack: contextlib.AsyncExitStack) -> tuple[list[Line], list[int | None]]:
    """Connections, at least two on each worker, and whose they are: on a busy machine one may be too late for its share."""
    lines: list[Line] = []
    by: list[int | None] = []
    while min(by.count(pid) for pid in workers(case).values()) < 2:
        assert len(lines) < 100, "all connections are one worker's"
        line = await stack.enter_async_context(Line.to(case))
        line.get("/v1/models")
        assert (await line.answer())[0] == 200
        lines.append(line)
        by.append(holder(case, line.port))
    return lines, by


async def lent(case: Case) -> int:
    """Leases that the workers hold."""
    text = (await case.client.get(f"{case.url}/metrics")).text
    return sum(int(float(n)) for n in re.findall(r"^vllm_mm_worker_lent\{.*\} (\S+)$", text, re.MULTILINE))


async def leases(case: Case) -> dict[str, int]:
    """By how requests of workers got them."""
    text = (await case.client.get(f"{case.url}/metrics")).text
    return {
        how: int(float(n))
        for how, n in re.findall(r'^vllm_mm_worker_leases_total\{how="(.*)"\} (\S+)$', text, re.MULTILINE)
    }


async def test_requests_are_spread_and_their_sum_is_exact() -> None:
    """Both workers serve; answers, ledger and metrics are as with one process; a keep-alive connection asks the controller once
    and uses credits then, which are all back a moment later; everything else is the controller's, also in the middle of a connection."""
    async with (
        running({"a": sim(model=STORES), "b": sim()}, memory="48GiB", **TWO) as case,
        contextlib.AsyncExitStack() as stack,
    ):
        await case.ready("a", "b")
        lines, by = await on_both(case, stack)
        many = 5 * len(lines)
        for _ in range(5):
            for number, line in enumerate(lines):
                line.ask("ab"[number % 2])
            for line in lines:
                status, body = await line.answer()
                assert (status, json.loads(body)["usage"]["completion_tokens"]) == (200, 3)
        assert [holder(case, line.port) for line in lines] == by
        assert await case.outcomes(many) == {"ok": many}
        while not (told := await leases(case))["credit"]:  # one after the other: each but the first finds what is kept
            assert many < 500, told
            for _ in range(10):
                lines[0].ask("a")
                assert (await lines[0].answer())[0] == 200
            many += 10
            assert await case.outcomes(many) == {"ok": many}
        assert told["asked"] + told["credit"] == many
        text = (await case.client.get(f"{case.url}/metrics")).text
        assert sum(float(n) for n in re.findall(r"^vllm_mm_requests_total\{.*\} (\S+)$", text, re.MULTILINE)) == many

        async def back() -> bool:
            return await lent(case) == 0

        await until(back, "credits that nobody uses to come back")
        await case.quiet()
        # The list of models is a worker's too; the admin API is not, and the connection is the controller's from then on.
        lines[0].get("/v1/models")
        status, body = await lines[0].answer()
        assert (status, {m["status"] for m in json.loads(body)["data"]}) == (200, {"ready"})
        assert holder(case, lines[0].port) in workers(case).values()
        lines[0].get("/api/status")
        status, body = await lines[0].answer()
        assert (status, json.loads(body)["in_flight"]) == (200, 0)
        assert holder(case, lines[0].port) == case.serving.pid
        lines[0].ask("a")
        assert (await lines[0].answer())[0] == 200
        # Written in pieces, and behind a request that is still being answered.
        lines[1].ask("a", max_tokens=60, stream=True)
        assert (await lines[1].head())[0] == 200
        lines[1].writer.write(b"GET /hea")
        assert b"[DONE]" in await lines[1].reader.readuntil(b"\r\n0\r\n\r\n")
        lines[1].writer.write(b"lth HTTP/1.1\r\nhost: localhost\r\n\r\n")
        assert await lines[1].answer() == (200, b'{"status":"ok"}')
        # In the same packet: a worker cannot take that apart, and says so.
        lines[2].writer.write(lines[2].request("a") + b"GET /health HTTP/1.1\r\nhost: localhost\r\n\r\n")
        assert (await lines[2].answer())[0] == 200
        assert (await lines[2].answer())[0] == 421
        assert await lines[2].reader.read() == b""
        # Stored responses are in one place, whoever accepts.
        made = await case.client.post(f"{case.url}/v1/responses", json={"model": "a", "input": "hi"})
        for _ in range(3):
            async with httpx.AsyncClient(timeout=30) as other:
                kept = await other.get(f"{case.url}/v1/responses/{made.json()['id']}")
            assert (kept.status_code, kept.json()["id"]) == (200, made.json()["id"])
        # So is the operator who ends a stream: the worker that has it is found.
        mine = next(line for line in lines[3:] if holder(case, line.port) in workers(case).values())
        mine.ask("a", max_tokens=2000, stream=True)
        status, fields = await mine.head()
        listed = (await case.client.get(f"{case.url}/api/requests/running")).json()
        assert (listed["total"], [(r["request_id"], r["model"]) for r in listed["requests"]]) == (
            1,
            [(fields["x-request-id"], "a")],
        )
        done = await case.client.post(f"{case.url}/api/requests/{fields['x-request-id']}/cancel")
        assert (status, done.status_code) == (200, 200), done.text
        told = await mine.reader.read()
        assert b"cancelled by an operator" in told
        assert b"[DONE]" not in told
        over = await case.client.post(f"{case.url}/api/requests/{fields['x-request-id']}/cancel")
        assert (over.status_code, "over already: cut" in over.text) == (409, True)
        assert await case.outcomes(many + 8) == {"ok": many + 7, "cut": 1}


async def test_sessions_that_arrive_at_a_worker_are_served_by_the_controller() -> None:
    """Whichever process accepts: it hands the connection over with the head of the handshake, and frames and rows are as with one process.
    That a worker accepted some of them is seen by who it was that answered on the same connection before."""
    ears = sim(model={"task": "realtime"}, tokens_per_second=2000)
    async with running({"ears": ears}, **TWO) as case, contextlib.AsyncExitStack() as stack:
        await case.ready("ears")
        address = case.url.replace("http://", "ws://") + "/v1/realtime?model=ears"
        lines, _ = await on_both(case, stack)
        texts: list[str] = []
        for line in lines[:4]:  # of both workers, which have answered on them
            sock = line.writer.get_extra_info("socket").dup()
            line.writer.transport.pause_reading()
            async with connect(address, sock=sock, compression=None) as ws:
                assert holder(case, line.port) == case.serving.pid
                assert (await hear(ws, 30))["type"] == "session.created"
                await say(ws, COMMIT, append(audio(3)), FINAL)
                texts.append((await until_done(ws, 30))[-1]["text"])
        assert len(texts) == 4
        assert len(set(texts)) == 1
        assert await case.outcomes(4) == {"ok": 4}
        await case.quiet()


async def test_a_killed_worker_costs_its_own_streams_and_nothing_else() -> None:
    """Its clients see a cut, never a clean end; its leases are back; the streams of the other go on; another takes its place and serves;
    connections that wait in the socket's queue are not lost."""
    async with running({"a": sim(tokens_per_second=20)}, **TWO) as case, contextlib.AsyncExitStack() as stack:
        await case.ready("a")
        lines, by = await on_both(case, stack)
        for line in lines:
            line.ask("a", max_tokens=100, stream=True)
        for line in lines:
            assert (await line.head())[0] == 200
        before = workers(case)
        victims = [line for line, pid in zip(lines, by, strict=True) if pid == before[0]]
        kill(before[0])
        for line in lines:
            if line in victims:
                assert not (await line.reader.read()).endswith(b"\r\n0\r\n\r\n")
            else:
                assert b"[DONE]" in await line.reader.readuntil(b"\r\n0\r\n\r\n")
        await until(lambda: 0 in workers(case) and workers(case)[0] != before[0], "another worker")

        async def both() -> bool:
            return (await case.client.get(f"{case.url}/ready")).status_code == 200

        await until(both, "both to serve", 30)
        for _ in range(4):
            assert (await case.complete("a")).status_code == 200
        await case.quiet()
        await case.written()
        ended = [json.loads(d) for (d,) in case.serving.rows("select data from events where kind = 'worker.ended'")]
        assert [(e["worker"], e["exit"]) for e in ended] == [(1, -9)]
        assert ended[0]["leases"] >= len(victims)


async def test_swaps_under_load_lose_no_request() -> None:
    """Two workers, memory for one of two models: drains wait for the leases of both, and each request is answered once."""
    async with running({"a": sim(), "b": sim()}, memory="12GiB", **TWO) as case:
        answers = await asyncio.gather(*(case.complete("ab"[i % 2], wait=60, tokens=8) for i in range(24)))
        assert [a.status_code for a in answers] == [200] * 24
        assert {a.json()["usage"]["completion_tokens"] for a in answers} == {8}
        assert await case.outcomes(24) == {"ok": 24}
        assert await case.starts() >= 2
        await case.quiet()


async def test_the_end_waits_for_streams_of_all_workers_and_keys_are_revoked_at_once() -> None:
    """A key that is made or revoked counts in both workers, and what runs for one that is revoked is cut in both; SIGTERM lets the streams of both finish, refuses new connections, and
    leaves no process; the ledger has all rows."""
    keys = {**TWO, "auth": {"mode": "keys"}}
    async with running({"a": sim(tokens_per_second=40)}, **keys) as case, contextlib.AsyncExitStack() as stack:
        secret = re.search(r"shown this once: (\S+)", case.serving.log)
        assert secret is not None
        case.client.headers["authorization"] = f"Bearer {secret[1]}"
        await case.ready("a")
        made = (await case.client.post(f"{case.url}/api/keys", json={"name": "k", "scopes": ["infer"]})).json()
        mine = {"authorization": f"Bearer {made['secret']}"}
        clients = [await stack.enter_async_context(httpx.AsyncClient(timeout=30)) for _ in range(4)]
        body = {"model": "a", "prompt": "hi", "max_tokens": 1}

        async def all_say(status: int) -> bool:
            got = [await c.post(f"{case.url}/v1/completions", json=body, headers=mine) for c in clients]
            return {g.status_code for g in got} == {status}

        await until(lambda: all_say(200), "the new key to count everywhere")

        begun = asyncio.Semaphore(0)

        async def cut(client: httpx.AsyncClient) -> bytes:
            got = bytearray()
            asked = {**body, "max_tokens": 2000, "stream": True, "ignore_eos": True}
            async with client.stream("POST", f"{case.url}/v1/completions", json=asked, headers=mine) as answer:
                begun.release()
                with contextlib.suppress(httpx.RemoteProtocolError):
                    async for piece in answer.aiter_bytes():
                        got += piece
                    got += b"the stream ended as if it were whole"
            return bytes(got)

        async def all_begun() -> None:
            """The leases that are out do not say it: some may be lent and not in use."""
            async with asyncio.timeout(30):
                for _ in clients:
                    await begun.acquire()

        ends = [asyncio.create_task(cut(c)) for c in clients]
        await all_begun()
        await case.client.delete(f"{case.url}/api/keys/{made['id']}")
        async with asyncio.timeout(20):
            for got in await asyncio.gather(*ends):
                assert b"was revoked" in got
                assert b"[DONE]" not in got
                assert b"as if it were whole" not in got
        await until(lambda: all_say(401), "the revoked key to count nowhere", 5)

        async def stream(client: httpx.AsyncClient) -> bytes:
            asked = {"model": "a", "prompt": "hi", "max_tokens": 40, "stream": True, "ignore_eos": True}
            headers = {"authorization": case.client.headers["authorization"]}
            async with client.stream("POST", f"{case.url}/v1/completions", json=asked, headers=headers) as answer:
                begun.release()
                return await answer.aread()

        streams = [asyncio.create_task(stream(c)) for c in clients]
        await all_begun()
        case.serving.signal(signal.SIGTERM)
        assert all(b"[DONE]" in text for text in await asyncio.gather(*streams))
        assert await case.serving.wait() == 0
        assert case.serving.left() == {}
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", case.serving.port), 5)
        ended = sorted(case.serving.rows("select outcome from requests where stream = 1"))
        assert ended == [("cut",)] * 4 + [("ok",)] * 4


async def test_without_its_controller_no_worker_stays() -> None:
    """They end, and with them the streams; the next controller has the port, adopts the engine and serves."""
    async with running({"a": sim(tokens_per_second=40)}, **TWO) as case:
        [pid] = await case.ready("a")
        async with Line.to(case) as line, Line.to(case) as older:
            line.ask("a", max_tokens=400, stream=True)
            older.writer.write(older.request("a", max_tokens=400, stream=True).replace(b"HTTP/1.1", b"HTTP/1.0"))
            assert (await line.head())[0] == (await older.head())[0] == 200
            case.serving.kill()
            with contextlib.suppress(ConnectionResetError):
                assert b"[DONE]" not in await line.reader.read()
            with pytest.raises(ConnectionResetError):  # its answer ends with its connection: a plain end would be a lie
                await older.reader.read()
        await until(lambda: not workers(case), "the workers to end")
        await case.serving.start()
        assert (await case.complete("a")).status_code == 200
        assert (await case.instance("a"))["pid"] == pid


async def test_a_worker_that_hangs_is_ended_when_a_drain_needs_its_word() -> None:
    """A stopped process answers nothing: after its time it is killed, its leases are back, and the model stops. Until then others accept in
    its place."""
    timeouts = {"stop_grace": "400ms", "health": "100ms", "worker": "1s"}
    async with running({"a": sim(tokens_per_second=20)}, timeouts=timeouts, **TWO) as case:
        await case.ready("a")
        async with Line.to(case) as line:
            line.ask("a", max_tokens=200, stream=True)
            assert (await line.head())[0] == 200
            await case.in_flight("a", 1)
            pid = holder(case, line.port)
            assert pid in workers(case).values()
            os.kill(pid, signal.SIGSTOP)
            for _ in range(3):
                assert (await case.complete("a")).status_code == 200
            assert (await case.client.post(f"{case.url}/api/models/a/drain", json={})).status_code < 300
            await until(lambda: pid not in workers(case).values(), "the worker that hangs to be ended", 30)
            await case.until("a", "stopped", "sleeping")
        await case.quiet()


async def test_streams_of_workers_are_frozen_and_go_on() -> None:
    """As with one process: another model has the memory meanwhile, the client is told, no token is lost; the ledger knows how long."""
    async with frozen(workers=2) as (it, stream):
        await put_aside(it)
        await stream.task
        assert stream.clean
        alone = Stream(it, progress=False)
        await alone.task
        assert stream.text == alone.text
        assert b": queued" in stream.body or b": frozen model=a" in stream.body
        assert b": resumed" in stream.body
        assert it.events("a").count("lease.frozen") == it.events("a").count("lease.thawed") >= 1
        (longest,) = (
            await it.serving.rows_when("select max(frozen_s) from requests where model = 'a'", lambda r: r[0][0])
        )[0]
        assert longest > 0.1
        await it.quiet()


async def test_names_of_a_profile_are_known_to_all_workers_and_to_sessions() -> None:
    """For as long as it is active, on the engines that run: none is started for a name. What began under such a name goes on."""
    models = {"m": sim(), "ears": sim(model={"task": "realtime"}, tokens_per_second=2000)}
    profiles = {"night": {"aliases": {"fast": "m", "listener": "ears"}}}
    async with (
        running(models, own_devices=True, profiles=profiles, **TWO) as case,
        contextlib.AsyncExitStack() as stack,
    ):
        await case.ready("m", "ears")
        lines, _ = await on_both(case, stack)
        address = case.url.replace("http://", "ws://") + "/v1/realtime?model=listener"

        async def everywhere(wanted: int) -> bool:
            for line in lines:
                line.ask("fast")
            answers = [await line.answer() for line in lines]
            assert all(json.loads(body)["model"] == "fast" for status, body in answers if status == 200)
            return {status for status, _ in answers} == {wanted}

        assert await everywhere(404)
        assert (await case.client.post(f"{case.url}/api/profiles/night/activate")).status_code == 200
        await until(lambda: everywhere(200), "both workers to know the name")
        async with connect(address, compression=None) as ws:
            assert (await hear(ws, 30))["type"] == "session.created"
            await say(ws, COMMIT, append(audio(2)))
            assert (heard := await hear(ws, 30))["type"] == "transcription.delta", heard
            assert (await case.client.post(f"{case.url}/api/profiles/deactivate")).status_code == 200
            await until(lambda: everywhere(404), "both workers to have forgotten the name")
            await ws.send(b"no text")  # refused here: its engine would end the session for it
            while (heard := await hear(ws, 30))["type"] != "error":
                assert heard["type"] == "transcription.delta", heard
            await say(ws, FINAL)
            assert (await until_done(ws, 30))[-1]["type"] == "transcription.done"
        async with connect(address, compression=None) as ws:
            error = await hear(ws, 30)
            assert (error["type"], error["error"]["code"]) == ("error", "model_not_found")
        assert await case.starts() == 2
        await case.quiet()
