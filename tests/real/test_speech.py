"""Speech on real vLLM: a Whisper and a model for /v1/realtime, both tiny and with random weights, asked directly and through the product.

What they say means nothing, but it depends on the sound, and is the same each time.
"""

import asyncio
import io
import itertools
import json
import math
import wave
from array import array
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from typing import Any

import httpx
import openai
import pytest
from websockets.asyncio.client import connect, unix_connect

from contract.engines import Sim
from real_vllm import EAGER, EARS, START, WHISPER, Installation, engine_socket
from serving import Serving
from speech import COMMIT, FINAL, WRONG, append, hear, say, until_done, update

HELD = 64 << 10
"""Bytes of a form that may be held (`limits.upload_held`): larger ones come through only because they are passed on."""
BOUNDARY = "the-end-of-a-part"
TRANSCRIPTIONS, TRANSLATIONS = "/v1/audio/transcriptions", "/v1/audio/translations"


def tone(hertz: float, seconds: float = 1.0) -> bytes:
    """16 kHz, 16 bits, one channel."""
    return array(
        "h", [int(9000 * math.sin(math.tau * hertz * n / 16000)) for n in range(int(16000 * seconds))]
    ).tobytes()


def wav(sound: bytes, junk: int = 0) -> bytes:
    """A file with that sound, and so many bytes behind it that belong to nobody."""
    out = io.BytesIO()
    with wave.open(out, "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(16000)
        file.writeframes(sound)
    whole = out.getvalue()
    if junk:
        whole += b"junk" + junk.to_bytes(4, "little") + bytes(junk)
        whole = whole[:4] + (len(whole) - 8).to_bytes(4, "little") + whole[8:]
    return whole


def form(model: str, file: bytes, **fields: str) -> bytes:
    parts = [
        f'--{BOUNDARY}\r\ncontent-disposition: form-data; name="{name}"\r\n\r\n{value}\r\n'.encode()
        for name, value in {"model": model, "max_completion_tokens": "24", **fields}.items()
    ]
    head = 'content-disposition: form-data; name="file"; filename="a.wav"\r\ncontent-type: audio/wav'
    return b"".join(parts) + f"--{BOUNDARY}\r\n{head}\r\n\r\n".encode() + file + f"\r\n--{BOUNDARY}--\r\n".encode()


@dataclass
class Speech:
    """The product with both models ready, and what reaches their engines directly."""

    server: Serving
    whisper: str
    ears: str

    async def send(self, directly: bool, path: str, body: bytes | AsyncIterator[bytes]) -> tuple[int, str, bytes]:
        """Status, content type and body."""
        transport = httpx.AsyncHTTPTransport(uds=self.whisper) if directly else None
        url = "http://engine" if directly else self.server.url
        headers = {"content-type": f"multipart/form-data; boundary={BOUNDARY}"}
        async with httpx.AsyncClient(transport=transport, base_url=url, timeout=START) as client:
            answer = await client.post(path, content=body, headers=headers)
        return answer.status_code, answer.headers["content-type"], answer.content


@pytest.fixture(scope="module")
def speech(vllm: Installation, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Speech]:
    env = {**vllm.declare(WHISPER)["env"], **EAGER}
    tasks = {WHISPER: "transcribe", EARS: "realtime"}
    models = {name: vllm.declare(name, task=task, preload=True, env=env) for name, task in tasks.items()}
    serving = Serving(
        tmp_path_factory.mktemp("speech"),
        {
            "devices": [{"id": "cpu", "memory": "6GiB", "headroom": 0}],
            "limits": {"upload_held": HELD},
            "models": models,
        },
    )

    async def ready() -> Speech:
        await serving.start()
        async with httpx.AsyncClient(timeout=30) as client:
            for name in tasks:
                await serving.until(client, name, "ready", START)
        return Speech(serving, await engine_socket(serving, WHISPER), await engine_socket(serving, EARS))

    try:
        yield asyncio.run(ready())
        assert asyncio.run(serving.stop()) == 0
        assert not serving.left()
    finally:
        serving.end()


def events(body: bytes) -> list[Any]:
    """Those of a stream; `[DONE]` is one of them."""
    told = [line.removeprefix(b"data: ") for line in body.splitlines() if line]
    assert all(line.startswith(b"data: ") for line in body.splitlines() if line)
    return [piece.decode() if piece == b"[DONE]" else json.loads(piece) for piece in told]


def spoken(heard: list[Any]) -> str:
    return "".join(
        choice["delta"].get("content") or "" for event in heard if event != "[DONE]" for choice in event["choices"]
    )


def shown(body: bytes, kind: str) -> Any:
    """An answer for comparison: as it is, and of a stream its text and what else its events say, but for times and random ids. How many tokens
    are in an event depends on how fast they are taken, so equal neighbours are one."""
    if not kind.startswith("text/event-stream"):
        return body
    heard = events(body)
    text = spoken(heard)
    for event in heard[:-1]:
        assert event["id"].startswith(("transcribe-", "translate-"))
        event |= {"id": "", "created": 0}
        for choice in event["choices"]:
            choice["delta"].pop("content", None)
    return text, [event for event, _ in itertools.groupby(heard)]


async def test_forms_are_answered_as_by_the_engine(speech: Speech) -> None:
    """Both routes, each format, whole and streamed, in the language that is named or heard; and what is refused: the same status, type and
    body as from vLLM asked directly. The text depends on the sound."""
    low, high = wav(tone(220)), wav(tone(1760))
    for path in (TRANSCRIPTIONS, TRANSLATIONS):
        asks = [
            form(WHISPER, low, language="en"),
            form(WHISPER, high, language="de"),
            form(WHISPER, low),
            form(WHISPER, low, language="en", response_format="text"),
            form(WHISPER, low, language="en", stream="true"),
            form(WHISPER, low, language="en", stream="true", stream_include_usage="true"),
            form(WHISPER, low, language="en", response_format="srt"),
            form(WHISPER, low, language="xx"),
            form(WHISPER, b"no sound at all", language="en"),
            form(WHISPER, low, language="en", temperature="hot"),
        ]
        said: list[tuple[int, str, bytes]] = []
        for body in asks:
            directly, through = await speech.send(True, path, body), await speech.send(False, path, body)
            assert through[:2] == directly[:2], (path, body[:400])
            assert shown(through[2], through[1]) == shown(directly[2], directly[1]), (path, body[:400])
            said.append(through)
        assert [status for status, *_ in said[:6]] == [200] * 6
        assert {status for status, *_ in said[6:]} <= {400, 422}
        texts = [json.loads(body)["text"] for _, _, body in said[:4]]
        assert all(texts), texts
        assert texts[0] != texts[1]
        for _, kind, body in said[4:6]:
            assert kind.startswith("text/event-stream")
            heard = events(body)
            assert heard[-1] == "[DONE]"
            assert spoken(heard).strip() == texts[0].strip()


async def test_the_official_client_transcribes(speech: Speech) -> None:
    """Whole and as events, and the ledger has a row for each. Asked for something else, the model says that it cannot."""
    file = ("a.wav", wav(tone(440)), "audio/wav")

    def more(name: str) -> Any:
        return {"extra_body": {"max_completion_tokens": 24}, "extra_headers": {"X-Request-Id": name}}

    async with openai.AsyncOpenAI(
        base_url=f"{speech.server.url}/v1", api_key="x", timeout=START, max_retries=0
    ) as client:
        create = client.audio.transcriptions.create
        whole = await create(file=file, model=WHISPER, language="en", **more("speech-1"))
        assert whole.text
        stream = await create(file=file, model=WHISPER, language="en", stream=True, **more("speech-2"))
        assert spoken([event.model_dump() async for event in stream]).strip() == whole.text.strip()
        with pytest.raises(openai.BadRequestError, match="it transcribes speech"):
            await client.chat.completions.create(
                model=WHISPER, messages=[{"role": "user", "content": "Hello"}], **more("speech-3")
            )
    rows = await speech.server.rows_when(
        "select request_id, model, outcome, stream from requests where request_id like 'speech-%' order by request_id",
        lambda found: len(found) == 3,
    )
    assert [tuple(row) for row in rows[:2]] == [("speech-1", WHISPER, "ok", False), ("speech-2", WHISPER, "ok", True)]
    assert rows[2][2] != "ok"


async def test_a_form_is_passed_on_as_it_comes(speech: Speech) -> None:
    """A form far larger than what may be held, sent in pieces of unknown number, reaches vLLM: its text is that of the sound in it."""
    sound = tone(330)
    small, large = form(WHISPER, wav(sound), language="en"), form(WHISPER, wav(sound, junk=8 << 20), language="en")
    assert len(large) > 100 * HELD

    async def pieces() -> AsyncIterator[bytes]:
        for at in range(0, len(large), 50_000):
            yield large[at : at + 50_000]

    expected = await speech.send(True, TRANSCRIPTIONS, small)
    assert expected[0] == 200
    assert await speech.send(False, TRANSCRIPTIONS, pieces()) == expected


async def utterance(ws: Any, sound: bytes) -> list[Any]:
    """All of it, in pieces, and what was heard to its end."""
    await say(ws, COMMIT, *(append(sound[at : at + 6400]) for at in range(0, len(sound), 6400)), FINAL)
    return await until_done(ws, START)


async def test_sessions_are_those_of_the_engine(speech: Speech) -> None:
    """Two utterances, and an event that vLLM does not know: the same events as from vLLM asked directly, and a row with the tokens."""
    sounds = (tone(220, 0.8), tone(1760, 0.8))

    async def session(ws: Any) -> list[list[Any]]:
        assert (await hear(ws, START))["type"] == "session.created"
        await say(ws, update(EARS))
        heard = [await utterance(ws, sound) for sound in sounds]
        await say(ws, {"type": "nonsense"})
        return [*heard, [await hear(ws, START)]]

    async with unix_connect(speech.ears, "ws://engine/v1/realtime") as ws:
        directly = await session(ws)
    async with connect(f"{speech.server.url.replace('http', 'ws')}/v1/realtime") as ws:
        assert await session(ws) == directly
    first, second, (unknown,) = directly
    for heard in (first, second):
        assert [event["type"] for event in heard[:-1]] == ["transcription.delta"] * (len(heard) - 1)
        assert heard[-1]["type"] == "transcription.done"
        assert heard[-1]["text"] == "".join(event["delta"] for event in heard[:-1])
    assert first[-1]["text"] != second[-1]["text"]
    assert unknown["code"] == "unknown_event"
    used = [
        sum(heard[-1]["usage"][kind] for heard in (first, second)) for kind in ("prompt_tokens", "completion_tokens")
    ]
    rows = await speech.server.rows_when(
        "select status, outcome, prompt_tokens, completion_tokens from requests where route = '/v1/realtime'", bool
    )
    assert rows == [(101, "ok", *used)]


async def test_the_simulated_engine_refuses_in_the_words_of_this_one(speech: Speech) -> None:
    """What test_realtime_surface.py holds it to; after all of that a session still transcribes."""
    async with unix_connect(speech.ears, "ws://engine/v1/realtime") as ws:
        created = await hear(ws, START)
        assert list(created) == ["type", "id", "created"]
        for said, error, code in WRONG:
            await say(ws, said)
            assert await hear(ws, START) == {"type": "error", "error": error, "code": code}, said
        await say(ws, update(EARS))
        *deltas, done = await utterance(ws, tone(220, 0.4))
        assert {tuple(delta) for delta in deltas} == {("type", "delta")}
        assert list(done) == ["type", "text", "usage"]


def shape(value: Any) -> Any:
    """Names and types: of a list those of its first, if that has names, and of a number that it is one."""
    if isinstance(value, dict):
        return {name: shape(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [shape(value[0])] if value and isinstance(value[0], dict) else []
    return "number" if isinstance(value, int | float) else type(value).__name__


async def test_the_simulated_engine_answers_forms_as_this_one(speech: Speech) -> None:
    """The same status, type, fields, and order of events; what it refuses, in the same words."""
    sound = wav(tone(220))
    fine = [
        form(WHISPER, sound, language="en"),
        form(WHISPER, sound, language="en", response_format="text"),
        form(WHISPER, sound, language="en", response_format="verbose_json"),
        form(WHISPER, sound, language="en", stream="true"),
        form(WHISPER, sound, language="en", stream="true", stream_include_usage="true"),
    ]
    refused = [
        form(WHISPER, sound, language="en", response_format="srt"),
        form(WHISPER, sound, language="en", response_format="verbose_json", stream="true"),
        form("another", sound, language="en"),
    ]
    headers = {"content-type": f"multipart/form-data; boundary={BOUNDARY}"}
    with Sim(args=("--served-model-name", WHISPER, "--sim", "task=transcribe")) as engine:
        for path, body in itertools.product((TRANSCRIPTIONS, TRANSLATIONS), (*fine, *refused)):
            status, kind, answer = await speech.send(True, path, body)
            simulated = await asyncio.to_thread(engine.http.post, path, content=body, headers=headers)
            assert (simulated.status_code, simulated.headers["content-type"]) == (status, kind), (path, body[:400])
            if body in refused:
                assert simulated.json() == json.loads(answer), (path, body[:400])
            elif kind.startswith("text/event-stream"):
                shapes = [[e for e, _ in itertools.groupby(map(shape, events(b)))] for b in (simulated.content, answer)]
                assert shapes[0] == shapes[1], (path, body[:400])
            else:
                assert shape(simulated.json()) == shape(json.loads(answer)), (path, body[:400])
