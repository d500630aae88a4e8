"""Audio forms through the data plane, and on the product with the official client."""

import asyncio
import io
import json
from pathlib import Path
from typing import Any

import openai
import pytest

from hard_cases import running
from plane import AUTH, FORMS, Plane, ask, plane, read_answer
from upstreams import Peer, Script, answers, upstream
from vllm_mm.domain.specs import EngineKind, ModelSpec, Task
from vllm_mm.domain.usage import Outcome
from vllm_mm.gateway.ports import Rules

PATH = "/v1/audio/transcriptions"
ANSWER = b'{"text":"hello","usage":{"type":"duration","seconds":1}}'
PLAIN = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(ANSWER) + ANSWER
TYPE = "multipart/form-data; boundary=b"
WHISPER = ModelSpec(id="whisper", task=Task.TRANSCRIBE, aliases=("ears",))
OTHERS = ModelSpec(id="foreign", engine=EngineKind.COMMAND, command=("x",), task=Task.TRANSCRIBE, aliases=("far",))


@pytest.fixture(params=FORMS)
def form(request: pytest.FixtureRequest) -> str:
    return request.param


def part(name: str, value: bytes, filename: str = "") -> bytes:
    file = f'; filename="{filename}"' if filename else ""
    return f'--b\r\ncontent-disposition: form-data; name="{name}"{file}\r\n\r\n'.encode() + value + b"\r\n"


def body(*parts: bytes) -> bytes:
    return b"".join(parts) + b"--b--\r\n"


def head(*, path: str = PATH, **fields: str) -> bytes:
    named = {"host": "test", "content-type": TYPE, **AUTH, **{k.replace("_", "-"): v for k, v in fields.items()}}
    lines = "".join(f"{k}: {v}\r\n" for k, v in named.items() if v)
    return f"POST {path} HTTP/1.1\r\n{lines}\r\n".encode()


def whole(data: bytes, **fields: str) -> bytes:
    return head(content_length=str(len(data)), **fields) + data


def declare(server: Plane) -> None:
    server.leases.catalog = server.leases.catalog.with_spec(WHISPER).with_spec(OTHERS)


def error(answer: Any) -> tuple[int, str, str]:
    found = json.loads(answer.body)["error"]
    return answer.status, found["code"], found["message"]


AUDIO = bytes(range(256)) * 4000


async def test_a_form_reaches_the_engine_as_it_was_sent(form: str, tmp_path: Path) -> None:
    """Each byte of it, in the order of its parts, with its type and length and without the key; the row says so."""
    for at, data in enumerate(
        (
            body(part("model", b"whisper"), part("file", AUDIO, "a")),
            body(part("file", AUDIO, "a"), part("model", b"whisper")),
        )
    ):
        where = tmp_path / str(at)
        where.mkdir()
        async with upstream(answers(PLAIN), where) as engine, plane(form, engine.address) as server:
            declare(server)
            answer = await ask(server, whole(data))
            assert (answer.status, answer.body) == (200, ANSWER)
            heard = engine.heard[0]
            assert (heard.method, heard.target, heard.body == data) == ("POST", PATH, True)
            assert heard.header("content-type") == TYPE
            assert b"secret" not in heard.raw_head
            await server.settled(1)
            row = server.rows[0]
            assert (row.route, row.model, row.outcome, row.bytes_in) == (PATH, "whisper", Outcome.OK, len(data))


async def test_the_engines_own_name_is_put_in(form: str, tmp_path: Path) -> None:
    """For an engine that knows one name only; vLLM is started with all of them."""
    async with upstream(answers(PLAIN), tmp_path) as engine, plane(form, engine.address) as server:
        declare(server)
        for name, there in (("far", "foreign"), ("ears", "ears")):
            data = body(part("file", AUDIO, "a"), part("model", name.encode()), part("language", b"en"))
            assert (await ask(server, whole(data))).status == 200
            assert engine.heard[-1].body == data.replace(
                b"\r\n" + name.encode() + b"\r\n", b"\r\n" + there.encode() + b"\r\n"
            )


def in_chunks(seen: list[bytes], until: asyncio.Event | None = None) -> Script:
    """Reads a chunked request; answers at its end."""

    async def script(peer: Peer) -> None:
        asked = await peer.reader.readuntil(b"\r\n\r\n")
        assert b"transfer-encoding: chunked" in asked
        while size := int(await peer.reader.readline(), 16):
            seen.append((await peer.reader.readexactly(size + 2))[:-2])
            if until is not None:
                until.set()
        await peer.reader.readline()
        await peer.send(PLAIN)

    return script


async def test_a_form_is_passed_on_while_it_comes(form: str, tmp_path: Path) -> None:
    """The engine has the first part before the client has sent the last; one without a length goes in chunks."""
    seen: list[bytes] = []
    begun = asyncio.Event()
    async with upstream(in_chunks(seen, begun), tmp_path) as engine, plane(form, engine.address) as server:
        declare(server)
        reader, writer = await server.open()
        data = body(part("model", b"whisper"), part("file", AUDIO, "a"))
        writer.write(head(transfer_encoding="chunked") + b"400\r\n" + data[:1024] + b"\r\n")
        async with asyncio.timeout(30):
            await begun.wait()
        writer.write(b"%x\r\n%b\r\n0\r\n\r\n" % (len(data) - 1024, data[1024:]))
        answer = await read_answer(reader)
        assert answer.status == 200
        assert b"".join(seen) == data
        writer.close()


async def test_a_stream_that_the_form_asks_for_late_is_one(form: str, tmp_path: Path) -> None:
    """Its model is known before anybody knows that it wants a stream; the row says what it was."""
    event = b'data: {"object":"transcription.chunk","choices":[]}\n\ndata: [DONE]\n\n'
    streamed = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncontent-length: %d\r\n\r\n" % len(event) + event
    data = body(part("model", b"whisper"), part("stream", b"true"), part("file", AUDIO, "a"))
    early = len(part("model", b"whisper")) + len(b"--b\r\n")  # a value is whole when the next part begins
    async with upstream(answers(streamed), tmp_path) as engine, plane(form, engine.address) as server:
        declare(server)
        reader, writer = await server.open()
        writer.write(head(content_length=str(len(data))) + data[:early])
        async with asyncio.timeout(30):
            while not server.leases.tickets:
                await asyncio.sleep(0.005)
        writer.write(data[early:])
        assert (await read_answer(reader)).body == event
        writer.close()
        await server.settled(1)
        assert server.rows[0].stream


async def test_the_client_sends_no_faster_than_the_engine_reads(form: str, tmp_path: Path) -> None:
    """A slow engine holds its client back; what is in between stays small."""
    slow = asyncio.Event()

    async def script(peer: Peer) -> None:
        await peer.reader.readuntil(b"\r\n\r\n")
        peer.writer.transport.pause_reading()  # type: ignore[attr-defined]
        await slow.wait()
        peer.writer.transport.resume_reading()  # type: ignore[attr-defined]
        while len(await peer.reader.read(1 << 20)):
            pass

    async with upstream(script, tmp_path) as engine, plane(form, engine.address) as server:
        declare(server)
        _, writer = await server.open()
        data = body(part("model", b"whisper"), part("file", bytes(96 << 20), "a"))
        writer.transport.set_write_buffer_limits(1 << 16)
        writer.write(head(content_length=str(len(data))))

        async def send() -> None:
            for at in range(0, len(data), 1 << 16):
                writer.write(data[at : at + (1 << 16)])
                await writer.drain()

        sending = asyncio.create_task(send())
        async with asyncio.timeout(30):
            while not server.leases.out:
                await asyncio.sleep(0.01)
        await asyncio.sleep(0.5)
        (relay,) = server.gateway.running
        assert relay.call.upload is not None
        assert relay.call.upload.size < 24 << 20
        assert not sending.done()
        sending.cancel()
        slow.set()
        writer.transport.abort()
        await server.settled(1)


@pytest.mark.parametrize(
    ("data", "status", "told"),
    [
        (b"not a form", 400, "The form is broken at byte 0"),
        (body(part("file", b"x", "a")), 400, "names no model"),
        (part("model", b"whisper"), 400, "without its last boundary"),
        (body(part("model", b"nobody")), 404, "does not exist"),
        (body(part("model", b"org/model-1")), 400, "it generates text. Models that can: `whisper`"),
    ],
)
async def test_what_is_wrong_is_told(form: str, tmp_path: Path, data: bytes, status: int, told: str) -> None:
    """Before anything is asked of an engine, or at the latest before it can answer; nothing stays."""

    async def script(peer: Peer) -> None:
        await peer.until_gone()

    async with upstream(script, tmp_path) as engine, plane(form, engine.address) as server:
        declare(server)
        server.leases.catalog = server.leases.catalog.with_spec(
            ModelSpec(id="org/model-1", args={"runner": "generate"})
        )
        answer = await ask(server, whole(data))
        assert error(answer)[0] == status
        assert told in error(answer)[2]
        await server.settled(1)


async def test_heads_that_are_refused(form: str, tmp_path: Path) -> None:
    """No key, no form, too large, compressed: each with its own answer, and the body is not waited for."""
    async with (
        upstream(answers(PLAIN), tmp_path) as engine,
        plane(form, engine.address, rules=Rules(upload=1 << 20)) as server,
    ):
        declare(server)
        huge = str(1 << 30)
        cases = [
            ({"authorization": "", "content_length": huge}, 401),
            ({"content_type": "application/json", "content_length": "2"}, 400),
            ({"content_length": huge}, 413),
        ]
        for fields, status in cases:
            answer = await ask(server, head(**fields) + b"{}")
            assert answer.status == status, answer.body
        assert "limits.upload" in error(answer)[2]
        compressed = await ask(server, whole(body(part("model", b"whisper")), content_encoding="gzip"))
        assert compressed.status == 415
        assert engine.heard == []
        await server.settled(4)


async def test_a_client_that_leaves_in_the_body(form: str, tmp_path: Path) -> None:
    """The engine's connection is closed at once; the lease is back."""
    gone = asyncio.Event()

    async def script(peer: Peer) -> None:
        await peer.until_gone()
        gone.set()

    async with upstream(script, tmp_path) as engine, plane(form, engine.address) as server:
        declare(server)
        _, writer = await server.open()
        writer.write(head(content_length="1000000") + part("model", b"whisper") + b"--b\r\n")
        while not server.leases.out:
            await asyncio.sleep(0.01)
        writer.transport.abort()
        async with asyncio.timeout(2):
            await gone.wait()
        await server.settled(1)
        assert server.rows[0].outcome is Outcome.CLIENT_GONE


async def test_an_engine_that_answers_before_it_has_read_all(form: str, tmp_path: Path) -> None:
    """Its answer is passed on, and its connection is not used again."""
    refused = b'HTTP/1.1 400 Bad Request\r\ncontent-length: 14\r\n\r\n{"error":"big"}'[:-1]

    async def script(peer: Peer) -> None:
        await peer.reader.readuntil(b"\r\n\r\n")
        await peer.send(refused)
        await peer.until_gone()

    async with upstream(script, tmp_path) as engine, plane(form, engine.address) as server:
        declare(server)
        for _ in range(2):
            reader, writer = await server.open()
            writer.write(head(content_length="1000000") + part("model", b"whisper") + b"--b\r\n")
            answer = await read_answer(reader)
            assert answer.status == 400
            writer.close()
        assert engine.connections == 2
        await server.settled(2)


async def test_the_official_client() -> None:
    """JSON, text, verbose JSON and a stream of both routes; the same audio gives the same text; others are told who can."""
    profile = {"weights": "8GiB", "kv_cache": "2GiB", "load_bandwidth": "100GiB/s", "startup": "100ms"}
    models = {
        "ears": {"engine": "sim", "task": "transcribe", "sim": profile, "aliases": ["whisper-1"]},
        "chat": {"engine": "sim", "sim": profile},
    }
    async with running(models) as case:
        client = openai.AsyncOpenAI(base_url=f"{case.url}/v1", api_key="x", max_retries=0)
        async with client:
            create = client.audio.transcriptions.create
            first = await create(model="whisper-1", file=("a.wav", io.BytesIO(AUDIO)))
            assert first.text
            assert (await create(model="ears", file=("b.wav", io.BytesIO(AUDIO)))).text == first.text
            assert (await create(model="ears", file=("b.wav", io.BytesIO(AUDIO[1:])))).text != first.text
            verbose = await create(model="ears", file=("a.wav", io.BytesIO(AUDIO)), response_format="verbose_json")
            assert verbose.text == first.text
            assert verbose.duration == len(AUDIO) / 32_000
            assert verbose.segments
            url = f"{case.url}{PATH}"
            streamed = await case.client.post(
                url, data={"model": "ears", "stream": "true"}, files={"file": ("a", AUDIO)}
            )
            lines = [line[6:] for line in streamed.text.split("\n\n") if line]
            assert lines[-1] == "[DONE]"
            assert "".join(json.loads(line)["choices"][0]["delta"]["content"] for line in lines[:-1]) == first.text
            asked = {"data": {"model": "ears"}, "files": {"file": ("a.wav", AUDIO)}}
            translated = await case.client.post(f"{case.url}/v1/audio/translations", **asked)
            assert list(translated.json()) == ["text"]
            with pytest.raises(openai.BadRequestError, match="Models that can: `ears`"):
                await create(model="chat", file=("a.wav", io.BytesIO(AUDIO)))
        wrong = await case.complete("ears")
        assert wrong.status_code == 400
        assert "it transcribes speech" in wrong.text
        [listed] = [m for m in (await case.get("/v1/models"))["data"] if m["id"] == "ears"]
        assert listed["task"] == "transcribe"
        await case.quiet()
