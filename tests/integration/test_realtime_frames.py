"""WS /v1/realtime between a real client and a real WebSocket server in the engine's place: who may, what is held, and that frames
pass as they are."""

import asyncio
import contextlib
import json
import socket
import struct
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from websockets.asyncio.client import connect
from websockets.asyncio.server import ServerConnection, unix_serve
from websockets.client import ClientProtocol
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.frames import Frame as WireFrame
from websockets.frames import Opcode
from websockets.server import ServerProtocol
from websockets.uri import parse_uri

from plane import AUTH, MODEL, SECRET, Plane, get, plane, read_answer
from speech import append, hear, say, update
from vllm_mm.domain.errors import StillLoading
from vllm_mm.domain.keys import ALL_RIGHTS, Key, Right, Scope, digest
from vllm_mm.domain.specs import EngineKind, ModelSpec, Task
from vllm_mm.domain.usage import Outcome, Usage
from vllm_mm.engine.ports import Address
from vllm_mm.gateway.ports import Rules

NAME = MODEL.id
FOREIGN = ModelSpec(id=NAME, engine=EngineKind.COMMAND, command=("x",))
"""Of which nothing is known: all messages pass."""
Handler = Callable[[ServerConnection], Awaitable[None]]


@dataclass
class Engine:
    """What the engine's end saw."""

    address: Address
    sessions: list[ServerConnection] = field(default_factory=list)
    gone: asyncio.Event = field(default_factory=asyncio.Event)
    """A session's end was seen."""


async def echo(ws: ServerConnection) -> None:
    async for message in ws:
        await ws.send(message)


@contextlib.asynccontextmanager
async def engine(handler: Handler, where: Path, **options: Any) -> AsyncIterator[Engine]:
    made = Engine(Address(socket=str(where / "engine.sock")))

    async def on_session(ws: ServerConnection) -> None:
        made.sessions.append(ws)
        try:
            with contextlib.suppress(ConnectionClosed):
                await handler(ws)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(ws.wait_closed(), 10)
        finally:
            made.gone.set()

    async with unix_serve(on_session, made.address.socket, compression=None, close_timeout=2, **options):
        yield made


@contextlib.asynccontextmanager
async def both(
    where: Path,
    handler: Handler = echo,
    *,
    rules: Rules | None = None,
    specs: Sequence[ModelSpec] | None = None,
    **options: Any,
) -> AsyncIterator[tuple[Plane, Engine]]:
    async with engine(handler, where, **options) as upstream:
        given = {} if specs is None else {"specs": specs}
        async with plane("protocol", upstream.address, rules=rules, **given) as front:
            yield front, upstream


def session(front: Plane, query: str = f"?model={NAME}", **options: Any) -> connect:
    headers = options.pop("headers", AUTH)
    return connect(
        f"ws://127.0.0.1:{front.port}/v1/realtime{query}", additional_headers=headers, open_timeout=20, close_timeout=20,
        **{"compression": None, **options},
    )  # fmt: skip


async def closes(ws: Any) -> tuple[int | None, str]:
    """How it ends; what still comes before is read."""
    with contextlib.suppress(ConnectionClosed):
        async with asyncio.timeout(20):
            while True:
                await ws.recv()
    return ws.close_code, ws.close_reason


def reset(ws: Any) -> None:
    """Leave so that the other side is told although it does not read: an end would wait behind what is not read."""
    sock = ws.transport.get_extra_info("socket")
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    ws.transport.abort()


async def fill(ws: Any, piece: str | bytes, sent: list[int]) -> None:
    """Send until the connection is gone; `sent` has one entry for each message."""
    with contextlib.suppress(ConnectionClosed):
        while True:
            await ws.send(piece)
            sent.append(len(piece))


# Who may


@pytest.mark.parametrize(
    ("headers", "status", "code"),
    [
        ({}, 401, "invalid_api_key"),
        ({"authorization": "Bearer mm-wrong"}, 401, "invalid_api_key"),
        ({"x-api-key": "mm-gone"}, 401, "invalid_api_key"),
        ({"authorization": "Bearer mm-reader"}, 403, "permission_denied"),
        ({**AUTH, "origin": "https://evil.example"}, 403, "permission_denied"),
        ({**AUTH, "x-vllm-mm-wait": "soon"}, 400, "invalid_request"),
        ({"sec-websocket-protocol": "realtime, openai-insecure-api-key.mm-wrong"}, 401, "invalid_api_key"),
    ],
)
async def test_a_handshake_is_refused_as_any_request(
    tmp_path: Path, headers: dict[str, str], status: int, code: str
) -> None:
    """With an answer in OpenAI's shape; no lease, one row."""
    async with both(tmp_path) as (front, _):
        with pytest.raises(InvalidStatus) as refused:
            await session(front, headers=headers).__aenter__()
        answer = refused.value.response
        assert answer.status_code == status
        assert json.loads(answer.body)["error"]["code"] == code
        assert answer.headers["x-request-id"]
        await front.settled(1)
        assert front.rows[0].status == status
        assert front.leases.taken == 0


async def test_who_may_by_scope_and_kind_of_key(tmp_path: Path) -> None:
    """The line of docs/security.md: `infer` and what implies it, whatever the rights; no key that has ended, or is none."""
    keys = [
        Key(f"{scope}-{number}", "k", digest(f"mm-{scope}-{number}"), frozenset({scope}), acts=acts)
        for scope in Scope
        for number, acts in enumerate((frozenset[Right](), *(ALL_RIGHTS - {act} for act in Right), ALL_RIGHTS))
    ]
    one = replace(keys[0], scopes=frozenset({Scope.INFER}))
    ended = [
        replace(one, id="expired", digest=digest("mm-expired"), expires_at=1.0),
        replace(one, id="rotated", digest=digest("mm-now"), old_digest=digest("mm-before"), old_until=1.0),
    ]
    async with both(tmp_path) as (front, _):
        front.gateway.keys.replace([*keys, *ended])
        for key in keys:
            headers = {"authorization": f"Bearer mm-{key.id}"}
            if key.allows(Scope.INFER):
                async with session(front, headers=headers):
                    continue
            with pytest.raises(InvalidStatus) as refused:
                await session(front, headers=headers).__aenter__()
            assert refused.value.response.status_code == 403, key
        bad = (
            "Bearer mm-expired",
            "Bearer mm-before",
            "Bearer ",
            "mm-infer-0",
            "Basic mm-infer-0",
            "Bearer mm-infer-0 x",
        )
        for text in bad:
            with pytest.raises(InvalidStatus) as refused:
                await session(front, headers={"authorization": text}).__aenter__()
            assert refused.value.response.status_code == 401, text


async def test_a_page_sends_its_key_as_a_subprotocol_and_from_an_origin_that_may(tmp_path: Path) -> None:
    """`realtime` is chosen; the engine sees neither the key nor the origin. A page of this server itself may always."""
    rules = Rules(origins=frozenset({b"https://app.example"}))
    async with both(tmp_path, rules=rules) as (front, upstream):
        for origin in ("https://app.example", f"http://127.0.0.1:{front.port}"):
            key: Any = ["realtime", f"openai-insecure-api-key.{SECRET}", "openai-beta.realtime-v1"]
            async with session(front, headers={}, subprotocols=key, origin=origin) as ws:
                assert ws.subprotocol == "realtime"
                await say(ws, "hello")
                assert [await ws.recv(), await ws.recv()][1] == "hello"
        seen = str(upstream.sessions[0].request.headers)
        assert "insecure" not in seen
        assert "origin" not in seen.lower()
        await front.settled(2)


async def test_keys_in_subprotocols_can_be_switched_off(tmp_path: Path) -> None:
    async with both(tmp_path, rules=Rules(subprotocol_keys=False)) as (front, _):
        key: Any = ["realtime", f"openai-insecure-api-key.{SECRET}"]
        with pytest.raises(InvalidStatus) as refused:
            await session(front, headers={}, subprotocols=key).__aenter__()
        assert refused.value.response.status_code == 401


async def test_what_is_no_handshake_is_told_so(tmp_path: Path) -> None:
    """426 without an upgrade; 400 where the handshake lacks what it needs."""
    async with both(tmp_path) as (front, _):
        for head, status in (
            (get("/v1/realtime"), 426),
            (get("/v1/realtime", {"connection": "upgrade", "upgrade": "h2c"}), 426),
            (get("/v1/realtime", {"connection": "upgrade", "upgrade": "websocket"}), 400),
        ):
            reader, writer = await front.open()
            writer.write(head)
            async with asyncio.timeout(20):
                answer = await read_answer(reader)
            writer.close()
            assert answer.status == status, answer
            assert json.loads(answer.body)["error"]["message"]


# Which model


async def test_the_session_event_names_the_model(tmp_path: Path) -> None:
    """The client is greeted at once; what it says before is held and comes in its order; the engine's own greeting is not passed."""

    async def script(ws: ServerConnection) -> None:
        await say(ws, {"type": "session.created", "id": "sess-engine", "created": 1})
        await echo(ws)

    async with both(tmp_path, script) as (front, upstream), session(front, "") as ws:
        greeting = await hear(ws)
        assert greeting["type"] == "session.created"
        assert greeting["id"] != "sess-engine"
        early, late = append(b"\1\0"), append(b"\2\0")
        await say(ws, early, update(NAME), late)
        assert [await hear(ws) for _ in range(3)] == [early, update(NAME), late]
        assert upstream.sessions[0].request.path == "/v1/realtime"


async def test_the_address_names_the_model_and_the_engine_is_told(tmp_path: Path) -> None:
    """vLLM wants an event. Its greeting is passed; what is ours in the address is not, what is not ours is."""

    async def script(ws: ServerConnection) -> None:
        await say(ws, {"type": "session.created", "id": "sess-engine", "created": 1})
        await echo(ws)

    async with both(tmp_path, script) as (front, upstream):
        async with session(front, f"?model={NAME.replace('/', '%2F')}&x=1&x-vllm-mm-wait=5") as ws:
            assert (await hear(ws))["id"] == "sess-engine"
            assert await hear(ws) == update(NAME)
        assert upstream.sessions[0].request.path == "/v1/realtime?x=1"
        assert front.leases.tickets[0].live
        assert front.leases.tickets[0].deadline - front.leases.tickets[0].arrived == pytest.approx(5)


async def test_openai_s_form_of_the_event_names_it_too(tmp_path: Path) -> None:
    async with both(tmp_path) as (front, _), session(front, "") as ws:
        await hear(ws)
        event = {"type": "session.update", "session": {"model": NAME, "voice": "x"}}
        await say(ws, event)
        assert await hear(ws) == event


@pytest.mark.parametrize(
    ("said", "code"),
    [("{", "invalid_json"), ("[1]", "invalid_event"), ('{"type":1}', "invalid_event"), ('{"type":"session.update"}', "missing_model")],
)  # fmt: skip
async def test_nonsense_before_the_model_is_known_is_answered_at_once(tmp_path: Path, said: str, code: str) -> None:
    """And the session goes on; the engine never sees it."""
    async with both(tmp_path) as (front, _), session(front, "") as ws:
        await hear(ws)
        await say(ws, said)
        told = await hear(ws)
        assert told["type"] == "error"
        assert told["error"]["code"] == code
        await say(ws, update(NAME))
        assert await hear(ws) == update(NAME)


@pytest.mark.parametrize(
    ("name", "code", "close"), [("nobody", "model_not_found", 1008), ("other", "model_cannot", 1008)]
)
async def test_a_model_that_is_not_or_cannot_is_told_with_those_that_can(
    tmp_path: Path, name: str, code: str, close: int
) -> None:
    specs = (replace(MODEL, task=Task.REALTIME), ModelSpec(id="other", task=Task.TRANSCRIBE))
    async with both(tmp_path, specs=specs) as (front, _):
        async with session(front, f"?model={name}") as ws:
            told = (await hear(ws))["error"]
            assert told["code"] == code
            assert told["type"] == "invalid_request_error"
            if code == "model_cannot":
                assert f"Models that can: `{NAME}`." in told["message"]
            assert (await closes(ws))[0] == close
        await front.settled(1)
        assert front.leases.taken == 0
        assert (front.rows[0].asked, front.rows[0].status) == (name, 101)


async def test_a_key_that_may_not_use_the_model(tmp_path: Path) -> None:
    async with both(tmp_path) as (front, _), session(front, headers={"authorization": "Bearer mm-narrow"}) as ws:
        assert (await hear(ws))["error"]["code"] == "permission_denied"
        assert (await closes(ws))[0] == 1008


async def test_an_engine_without_the_route_is_told_and_remembered(tmp_path: Path) -> None:
    """The second session does not reach it: another could not be told from the first by its launch."""

    async def refuse(connection: ServerConnection, request: Any) -> Any:
        return connection.respond(403, "")

    async with both(tmp_path, process_request=refuse) as (front, _):
        front.leases.launched(7)
        for _ in range(2):
            async with session(front) as ws:
                told = (await hear(ws))["error"]
                assert told["code"] == "model_cannot"
                assert "its engine has no such route" in told["message"]
                assert (await closes(ws))[0] == 1008
        assert front.leases.taken == 1


async def test_an_engine_that_refuses_for_another_reason(tmp_path: Path) -> None:
    async def refuse(connection: ServerConnection, request: Any) -> Any:
        return connection.respond(500, "broken")

    async with both(tmp_path, process_request=refuse) as (front, _), session(front) as ws:
        assert "status 500" in (await hear(ws))["error"]["message"]
        assert (await closes(ws))[0] == 1011


async def test_aliases_pass_and_engines_that_know_one_name_are_told_that(tmp_path: Path) -> None:
    """Events of both directions show the names that their readers know, also when they come in several frames."""
    foreign = ModelSpec(id="foreign", engine=EngineKind.COMMAND, command=("x",), aliases=("ours",))

    async def script(ws: ServerConnection) -> None:
        await ws.send(['{"type":"session.cre', 'ated","session":{"model":"for', 'eign"}}'], text=True)
        await echo(ws)

    async with both(tmp_path, script, specs=(foreign,)) as (front, upstream), session(front, "?model=ours") as ws:
        assert await ws.recv() == '{"type":"session.created","session":{"model":"ours"}}'
        assert upstream.sessions[0].request.path == "/v1/realtime?model=foreign"
        await say(ws, '{"type":"session.update","session":{"model":"ours"}}', "no json", b"\0")
        assert [await ws.recv() for _ in range(3)] == [
            '{"type":"session.update","session":{"model":"ours"}}', "no json", b"\0",
        ]  # fmt: skip


# What is held


async def test_too_many_events_before_the_model(tmp_path: Path) -> None:
    async with both(tmp_path) as (front, _), session(front, "") as ws:
        await hear(ws)
        await say(ws, *[append(b"\1\0")] * 65)
        assert "session.update" in (await hear(ws))["error"]["message"]
        assert (await closes(ws))[0] == 1008


async def test_too_many_bytes_before_the_model(tmp_path: Path) -> None:
    async with both(tmp_path) as (front, _), session(front, "") as ws:
        await hear(ws)
        await say(ws, b"\0" * (1 << 20), b"\0")
        assert (await hear(ws))["type"] == "error"
        assert (await closes(ws))[0] == 1008
        await front.settled(1)
        assert front.rows[0].outcome is Outcome.BAD_REQUEST


async def test_too_late_a_model(tmp_path: Path) -> None:
    async with both(tmp_path, rules=Rules(session_unnamed=0.05)) as (front, _), session(front, "") as ws:
        await hear(ws)
        told = (await hear(ws))["error"]
        assert told["code"] == "session_expired"
        assert "realtime.model_timeout" in told["message"]
        assert (await closes(ws))[0] == 1008


async def test_what_is_said_while_the_model_loads_waits_and_progress_is_told(tmp_path: Path) -> None:
    """More than is held is not read; nothing of it is lost. Events of progress come to those who asked for them."""
    big = "7" * (1 << 20)
    rules = Rules(progress=0.01)
    async with both(tmp_path, rules=rules, max_size=None) as (front, _):
        front.leases.hold = asyncio.Event()
        async with session(front, f"?model={NAME}&x-vllm-mm-progress=1", max_size=None) as ws:
            sending = asyncio.create_task(say(ws, *[big] * 12, "end"))
            told = await hear(ws)
            assert told["type"] == "vllm_mm.progress"
            assert told["model"] == NAME
            assert told["phase"] == "weights"
            front.leases.hold.set()
            heard = []
            while not heard or heard[-1] != "end":
                message = await ws.recv()
                if not (isinstance(message, str) and "progress" in message):
                    heard.append(message)
            await sending
            assert heard[0] == json.dumps(update(NAME), separators=(",", ":"))
            assert heard[1:-1] == [big] * 12


async def test_a_client_that_is_not_read_and_leaves_is_seen(tmp_path: Path) -> None:
    """It has sent more than is held, and resets its connection while its model loads: its ticket goes."""
    async with both(tmp_path) as (front, _):
        front.leases.hold = asyncio.Event()
        async with session(front, max_size=None) as ws:
            sending = asyncio.create_task(fill(ws, b"\7" * (1 << 20), []))
            async with asyncio.timeout(20):
                while not front.gateway.realtime.running or front.gateway.realtime.running[0].size_in < 4 << 20:
                    await asyncio.sleep(0.01)
            reset(ws)
            await front.settled(1, seconds=20)
            await sending
        assert front.rows[0].outcome is Outcome.CLIENT_GONE


async def test_a_lease_that_cannot_be_had(tmp_path: Path) -> None:
    """The error says when to try again, the close code that it makes sense to."""
    async with both(tmp_path) as (front, _):
        front.leases.fail = [StillLoading("It is not there yet.", retry_after=7.0)]
        async with session(front) as ws:
            told = (await hear(ws))["error"]
            assert (told["code"], told["type"], told["retry_after"]) == ("model_loading", "server_error", 7)
            assert await closes(ws) == (1013, "It is not there yet.")
        await front.settled(1)
        assert front.rows[0].outcome is Outcome.WAIT_EXPIRED


# Frames


async def test_messages_pass_as_they_are(tmp_path: Path) -> None:
    """Texts that are no JSON, bytes, nothing at all, and fragments as fragments."""
    seen: list[Any] = []

    async def script(ws: ServerConnection) -> None:
        seen.append([piece async for piece in ws.recv_streaming()])
        seen.append([piece async for piece in ws.recv_streaming()])
        await echo(ws)

    async with both(tmp_path, script, specs=(FOREIGN,)) as (front, _), session(front) as ws:
        await ws.send(["one ", "two ", "", "three"], text=True)
        await ws.send([b"\0", b"\1\2"])
        await say(ws, "", b"", "é\U0001f600", b"\xff\xfe", "x" * 200_000)
        assert [await ws.recv() for _ in range(5)] == ["", b"", "é\U0001f600", b"\xff\xfe", "x" * 200_000]
        assert [[p for p in pieces if p] for pieces in seen] == [["one ", "two ", "three"], [b"\0", b"\1\2"]]


async def test_bytes_are_refused_where_the_engine_would_end_the_session(tmp_path: Path) -> None:
    """vLLM's route does not survive them. Each message is told once, however many frames it has, also one that came before the engine was
    there; the engine sees none of it, and the session goes on."""
    async with both(tmp_path) as (front, _):
        front.leases.hold = asyncio.Event()
        async with session(front) as ws:
            await ws.send(b"\0\1")
            await ws.send([b"\0", b"\1", b"\2"])
            front.leases.hold.set()
            await ws.send(["still ", "here"], text=True)
            await ws.send(b"\0")
            await say(ws, "and here")
            heard = [await ws.recv() for _ in range(6)]
            told = [json.loads(text)["error"] for text in heard if "base64" in text]
            assert [error["code"] for error in told] == ["invalid_event"] * 3
            assert [text for text in heard if "base64" not in text][1:] == ["still here", "and here"]
        await front.settled(1)
        assert front.rows[0].outcome is Outcome.OK


async def test_pings_are_answered_on_each_side_and_not_passed(tmp_path: Path) -> None:
    async with both(tmp_path, ping_interval=None) as (front, upstream), session(front, ping_interval=None) as ws:
        await ws.recv()
        async with asyncio.timeout(20):
            await (await ws.ping(b"client"))
            await (await upstream.sessions[0].ping(b"engine"))
        assert not upstream.sessions[0].pending_pings


async def test_a_message_that_is_too_large(tmp_path: Path) -> None:
    """1009, which is told although the client is still sending; one as large as may be passes."""
    async with both(tmp_path, rules=Rules(session_message=1000)) as (front, upstream):
        async with session(front) as ws:
            await ws.recv()
            await ws.send("x" * 1000)
            assert len(await ws.recv()) == 1000
            with contextlib.suppress(ConnectionClosed):
                await ws.send(["y" * 900, "z" * 3_000_000], text=True)
            assert (await closes(ws))[0] == 1009
        await front.settled(1)
        assert front.rows[0].outcome is Outcome.BAD_REQUEST
        async with asyncio.timeout(20):
            await upstream.gone.wait()


@pytest.mark.parametrize("code", [1000, 1001, 1008, 1011, 3000, 4321])
async def test_close_codes_pass_in_both_directions(tmp_path: Path, code: int) -> None:
    async def script(ws: ServerConnection) -> None:
        await ws.send(await ws.recv())
        if await ws.recv() == "go":
            await ws.close(code, "the engine's words")

    async with both(tmp_path, script) as (front, upstream):
        async with session(front) as ws:
            await say(ws, "go")
            await ws.recv()
            assert await closes(ws) == (code, "the engine's words")
        upstream.gone.clear()
        async with session(front) as ws:
            await ws.recv()  # the engine is there: else it would never hear of it
            await ws.close(code, "the client's words")
        async with asyncio.timeout(20):
            await upstream.gone.wait()
        ended = upstream.sessions[1]
        assert (ended.close_code, ended.close_reason) == (code, "the client's words")
        await front.settled(2)
        assert front.rows[1].outcome is Outcome.OK
        assert front.rows[0].outcome is (Outcome.OK if code < 1008 else Outcome.UPSTREAM_ERROR)


async def test_an_engine_that_hangs_up(tmp_path: Path) -> None:
    """Without a goodbye: an error event and 1011, never a clean end."""

    async def script(ws: ServerConnection) -> None:
        await ws.recv()
        ws.transport.abort()

    async with both(tmp_path, script) as (front, _):
        async with session(front) as ws:
            told = (await hear(ws))["error"]
            assert told["code"] == "upstream_died"
            assert (await closes(ws))[0] == 1011
        await front.settled(1)
        assert front.rows[0].outcome is Outcome.UPSTREAM_DIED


async def test_a_client_that_leaves_without_a_goodbye(tmp_path: Path) -> None:
    """The engine's session ends too, and the row says what was."""
    async with both(tmp_path) as (front, upstream):
        async with session(front) as ws:
            await ws.recv()
            ws.transport.abort()
            async with asyncio.timeout(10):
                await upstream.gone.wait()
        await front.settled(1)
        assert front.rows[0].outcome is Outcome.CLIENT_GONE


async def test_a_silent_session_ends(tmp_path: Path) -> None:
    async with both(tmp_path, rules=Rules(session_idle=0.1)) as (front, upstream), session(front) as ws:
        await ws.recv()
        told = (await hear(ws))["error"]
        assert (told["code"], told["type"]) == ("session_expired", "timeout_error")
        assert "realtime.idle_timeout" in told["message"]
        assert (await closes(ws))[0] == 1008
        async with asyncio.timeout(20):
            await upstream.gone.wait()
        await front.settled(1)
        assert front.rows[0].outcome is Outcome.TIMEOUT


async def test_an_old_session_ends_although_it_is_lively(tmp_path: Path) -> None:
    async def chatter(ws: ServerConnection) -> None:
        while True:
            await ws.send("{}")
            await asyncio.sleep(0.01)

    rules = Rules(session_length=0.2, session_idle=60)
    async with both(tmp_path, chatter, rules=rules) as (front, _), session(front) as ws:
        while (event := await hear(ws)) == {}:
            pass
        assert "realtime.max_session" in event["error"]["message"]
        assert (await closes(ws))[0] == 1008


async def test_what_drains_waits_for_a_session_as_long_as_the_setting_says(tmp_path: Path) -> None:
    """One that stays after all keeps its sessions."""
    async with both(tmp_path, rules=Rules(drain=0.1)) as (front, _), session(front) as ws:
        await ws.recv()
        (lease,) = front.leases.out
        assert lease.on_drain is not None
        lease.on_drain(True)
        lease.on_drain(False)
        await asyncio.sleep(0.2)  # nothing happens, which cannot be waited for
        await say(ws, "still here")
        assert await ws.recv() == "still here"
        lease.on_drain(True)
        told = (await hear(ws))["error"]
        assert told["code"] == "request_cut"
        assert told["reason"] == "cut"
        assert (await closes(ws))[0] == 1012


async def test_an_operator_ends_a_session_by_its_id(tmp_path: Path) -> None:
    async with both(tmp_path) as (front, _), session(front, headers={**AUTH, "x-request-id": "mine"}) as ws:
        await ws.recv()
        assert ws.response.headers["x-request-id"] == "mine"
        assert front.gateway.cancel("mine", "ada")
        told = (await hear(ws))["error"]
        assert (told["code"], "ended by ada" in told["message"]) == ("cancelled", True)
        assert (await closes(ws))[0] == 1008


@pytest.mark.parametrize("running", [True, False])
async def test_a_session_ends_with_its_key(tmp_path: Path, *, running: bool) -> None:
    """The one that waits for its model; and the one that has it, unless what runs may finish."""
    async with both(tmp_path, rules=Rules(revoke_running=running)) as (front, _), session(front) as ws:
        await ws.recv()
        front.leases.hold = asyncio.Event()
        async with session(front) as waits:
            async with asyncio.timeout(20):
                while not front.leases.waiting:
                    await asyncio.sleep(0.005)
            front.gateway.keys.replace([])
            assert "was revoked" in (await hear(waits))["error"]["message"]
            assert (await closes(waits))[0] == 1008
        if running:
            assert "was revoked" in (await hear(ws))["error"]["message"]
            assert (await closes(ws))[0] == 1008
        else:
            await say(ws, "hello")
            assert await ws.recv() == "hello"


async def test_usage_of_all_utterances_is_added_up(tmp_path: Path) -> None:
    async def script(ws: ServerConnection) -> None:
        async for _ in ws:
            usage = {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}
            await say(ws, {"type": "transcription.done", "text": '"usage"', "usage": usage})
            await say(ws, {"type": "response.done", "response": {"usage": {"input_tokens": 10, "output_tokens": 20}}})

    async with both(tmp_path, script) as (front, _):
        async with session(front) as ws:
            await say(ws, "again")
            for _ in range(4):
                await ws.recv()
        await front.settled(1)
        row = front.rows[0]
        assert row.usage == Usage(26, 44)
        assert (row.route, row.model, row.key, row.outcome) == ("/v1/realtime", NAME, "k1", Outcome.OK)
        assert row.bytes_in == 5
        assert row.bytes_out > 200


async def test_a_slow_client_holds_the_engine_back_and_a_slow_engine_the_client(tmp_path: Path) -> None:
    """Neither direction is stored without a bound."""
    down: list[int] = []
    up: list[int] = []
    piece = "x" * 65536
    read_on = asyncio.Event()

    async def flood(ws: ServerConnection) -> None:
        await ws.recv()
        if await ws.recv() == "flood":
            await fill(ws, piece, down)
        await read_on.wait()
        async for _ in ws:
            pass

    async with both(tmp_path, flood) as (front, _):
        async with session(front, max_queue=1) as ws:
            await say(ws, "flood")
            assert await stands_still(down) < 32 << 20
            reset(ws)
        async with session(front) as ws:
            filling = asyncio.create_task(fill(ws, piece, up))
            assert await stands_still(up) < 32 << 20
            reset(ws)
            await filling
            read_on.set()
        await front.settled(2, seconds=20)


async def stands_still(sent: list[int]) -> int:
    """Bytes, once something was sent and no more is."""
    before = -1
    async with asyncio.timeout(30):
        while before != len(sent) or not sent:
            before = len(sent)
            await asyncio.sleep(0.3)
    return sum(sent)


# Any split

Sent = list[tuple[int, bytes, bool]]


@st.composite
def streams(draw: st.DrawFn) -> tuple[Sent, list[bytes]]:
    """Messages in any fragments with pings between them, and their bytes in any pieces of TCP."""
    frames: Sent = []
    stream = b""
    for text, pieces in draw(st.lists(st.tuples(st.booleans(), st.lists(st.binary(max_size=300), min_size=1, max_size=4)), max_size=4)):  # fmt: skip
        for index, drawn in enumerate(pieces):
            piece = drawn.hex().encode() if text else drawn
            opcode = Opcode.CONT if index else Opcode.TEXT if text else Opcode.BINARY
            frames.append((int(opcode), piece, index == len(pieces) - 1))
            stream += WireFrame(opcode, piece, frames[-1][2]).serialize(mask=True)
            if draw(st.booleans()):
                stream += WireFrame(Opcode.PING, b"p").serialize(mask=True)
    stream += WireFrame(Opcode.CLOSE, b"\x03\xe8").serialize(mask=True)
    cuts = sorted(draw(st.sets(st.integers(1, len(stream) - 1), max_size=6)))
    return frames, [stream[a:b] for a, b in zip([0, *cuts], [*cuts, len(stream)], strict=True)]


class RawEngine:
    """Frames as they come, not put together to messages."""

    def __init__(self) -> None:
        self.got: Sent = []
        self.over = asyncio.Event()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        ws = ServerProtocol()
        while chunk := await reader.read(65536):
            ws.receive_data(chunk)
            for event in ws.events_received():
                if not isinstance(event, WireFrame):
                    ws.send_response(ws.accept(event))
                    ws.send_text(b"ready")
                elif event.opcode in {Opcode.TEXT, Opcode.BINARY, Opcode.CONT}:
                    self.got.append((int(event.opcode), bytes(event.data), event.fin))
            writer.writelines(ws.data_to_send())
        writer.close()
        self.over.set()


async def test_however_the_bytes_are_cut(tmp_path: Path) -> None:
    """The engine sees the frames of the client: the same ones, in their order, with the same bytes."""
    upstream = RawEngine()
    loop = asyncio.get_running_loop()
    listener = await asyncio.start_unix_server(upstream.serve, str(tmp_path / "s"))

    async def send(front: Plane, pieces: list[bytes]) -> Sent:
        upstream.got = []
        upstream.over.clear()
        client = ClientProtocol(parse_uri(f"ws://test/v1/realtime?model={NAME}"))
        request = client.connect()
        request.headers["authorization"] = AUTH["authorization"]
        client.send_request(request)
        reader, writer = await front.open()
        async with asyncio.timeout(20):
            writer.write(b"".join(client.data_to_send()))
            await reader.readuntil(b"ready")
            for piece in pieces:
                writer.write(piece)
                await writer.drain()
                await asyncio.sleep(0)
            await reader.read(-1)
            await upstream.over.wait()
        writer.close()
        return upstream.got

    async with plane("protocol", Address(socket=str(tmp_path / "s")), specs=(FOREIGN,)) as front:

        @settings(max_examples=40, deadline=None)
        @given(streams())
        def check(drawn: tuple[Sent, list[bytes]]) -> None:
            frames, pieces = drawn
            got = asyncio.run_coroutine_threadsafe(send(front, pieces), loop).result(30)
            assert got == frames

        await asyncio.to_thread(check)
    listener.close()
