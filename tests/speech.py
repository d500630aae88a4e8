"""What a client of `/v1/realtime` says: made-up speech, and the events that carry it."""

import asyncio
import base64
import json
from typing import Any

STEP = 2560
"""Bytes of 80 ms: 16 kHz, 16 bits, one channel."""
COMMIT = {"type": "input_audio_buffer.commit"}
FINAL = {"type": "input_audio_buffer.commit", "final": True}

WRONG = (
    ("{", "Invalid JSON", "invalid_json"),
    ("[]", "'list' object has no attribute 'get'", "processing_error"),
    ('{"type":"response.create"}', "Unknown event type: response.create", "unknown_event"),
    ('{"type":"session.update"}', "Missing required field: model", "invalid_event"),
    ('{"type":"session.update","model":"x"}', "The model `x` does not exist.", "model_not_found"),
    ('{"type":"input_audio_buffer.append","audio":""}', "Invalid audio data", "invalid_audio"),
    ('{"type":"input_audio_buffer.append","audio":"AAAA"}', "Invalid audio data", "invalid_audio"),
    (
        '{"type":"input_audio_buffer.commit"}',
        "Model not validated. Make sure to validate the model by sending a session.update event.", "model_not_validated",
    ),
)  # fmt: skip
"""What is said, and the error and its code that vLLM answers with; the session goes on."""


def audio(steps: int, seed: int = 1) -> bytes:
    """So many times 80 ms; each differs."""
    return b"".join(bytes([seed, step % 256]) * (STEP // 2) for step in range(steps))


def append(data: bytes) -> dict[str, Any]:
    return {"type": "input_audio_buffer.append", "audio": base64.b64encode(data).decode()}


def update(model: str) -> dict[str, Any]:
    return {"type": "session.update", "model": model}


async def say(ws: Any, *events: Any) -> None:
    """Over a connection of the library `websockets`."""
    for event in events:
        await ws.send(event if isinstance(event, str | bytes) else json.dumps(event))


async def hear(ws: Any, seconds: float = 10.0) -> Any:
    """The next event, which comes in a moment, or within `seconds` where a model has to be loaded first."""
    async with asyncio.timeout(seconds):
        return json.loads(await ws.recv())


async def until_done(ws: Any, seconds: float = 10.0) -> list[Any]:
    """Up to the end of an utterance, or an error."""
    heard = [await hear(ws, seconds)]
    while heard[-1]["type"] not in {"transcription.done", "error"}:
        heard.append(await hear(ws, seconds))
    return heard
