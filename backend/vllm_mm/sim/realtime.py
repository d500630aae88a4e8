"""WS /v1/realtime: speech to text while it is spoken, event for event as vLLM 0.32 (entrypoints/speech_to_text/realtime).

Each 80 ms of audio become one word, which is a function of those samples, however they were cut into events.
"""

import asyncio
import base64
import binascii
import contextlib
import hashlib
import json
import time
from typing import Any, Final

from vllm_mm.sim.bodies import as_object
from vllm_mm.sim.client import EngineDeadError
from vllm_mm.sim.service import Service, new_id, usage_of
from vllm_mm.sim.text import Answer
from vllm_mm.sim.web import dump
from vllm_mm.sim.websocket import Gone, WebSocket

STEP: Final = 2560
"""Bytes of 80 ms: 16 kHz, 16 bits, one channel."""
PROMPT: Final = 39
"""Tokens before the first word: the frame of a prompt and the model's look ahead."""
MOST: Final = 1024**2
"""Samples in one event and a MiB of VLLM_MAX_AUDIO_CLIP_FILESIZE_MB (25); vLLM counts samples there."""


class RealtimeSession:
    """One connection."""

    def __init__(self, service: Service, socket: WebSocket) -> None:
        self._service = service
        self._socket = socket
        self._audio: asyncio.Queue[bytes | None] = asyncio.Queue()
        self._generation: asyncio.Task[None] | None = None
        self._validated = False

    async def run(self) -> None:
        """Until the client is gone, or sends what is no text."""
        self._send({"type": "session.created", "id": f"sess-{new_id()}", "created": int(time.time())})
        try:
            while isinstance(message := await self._socket.receive(), str):
                try:
                    self._event(json.loads(message))
                except json.JSONDecodeError:
                    self._error("Invalid JSON", "invalid_json")
                except Exception as error:
                    self._error(str(error), "processing_error")
        except Gone:
            pass
        finally:
            if self._generation is not None:
                self._generation.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await self._generation

    def _event(self, content: object) -> None:
        event = as_object(content)
        if event is None:
            raise TypeError(f"'{type(content).__name__}' object has no attribute 'get'")
        match event.get("type"):
            case "session.update":
                self._update(event.get("model"))
            case "input_audio_buffer.append":
                self._append(event)
            case "input_audio_buffer.commit":
                self._commit(final=event.get("final") is True)
            case kind:
                self._error(f"Unknown event type: {kind}", "unknown_event")

    def _update(self, model: Any) -> None:
        options = self._service.options
        if model is None:
            self._error("Missing required field: model", "invalid_event")
        elif model not in options.served_names and model not in options.lora_modules:
            self._error(f"The model `{model}` does not exist.", "model_not_found")
        else:
            self._validated = True

    def _append(self, event: dict[str, Any]) -> None:
        audio = event.get("audio")
        if not isinstance(audio, str):
            kind = (
                "Field required [type=missing"
                if "audio" not in event
                else "Input should be a valid string [type=string_type"
            )
            raise TypeError(f"1 validation error for InputAudioBufferAppend\naudio\n  {kind}]")
        try:
            samples = base64.b64decode(audio)
        except (binascii.Error, ValueError):
            samples = b""
        if not samples or len(samples) % 2 or len(samples) / 2 / MOST > 25:
            self._error("Invalid audio data", "invalid_audio")
        else:
            self._audio.put_nowait(samples)

    def _commit(self, *, final: bool) -> None:
        if not self._validated:
            self._error(
                "Model not validated. Make sure to validate the model by sending a session.update event.",
                "model_not_validated",
            )
        elif final:
            self._audio.put_nowait(None)
        elif self._generation is None or self._generation.done():
            self._generation = asyncio.get_running_loop().create_task(self._generate())

    async def _generate(self) -> None:
        try:
            await self._transcribe()
        except EngineDeadError as error:
            self._error(str(error), "processing_error")  # the server ends when its watchdog looks

    async def _transcribe(self) -> None:
        metrics, begun = self._service.metrics, time.monotonic()
        text, words, held, more = "", 0, b"", True
        latest = begun
        self._service.load += 1
        try:
            while more:
                piece = await self._audio.get()
                held, more = held + (piece or b""), piece is not None
                while len(held) >= STEP or (held and not more):
                    step, held = held[:STEP], held[STEP:]
                    await self._step(PROMPT if not words else 1)
                    now = time.monotonic()
                    if words:
                        metrics.next_token(now - latest)
                    else:
                        metrics.first_token(now - begun)
                        metrics.prompt_tokens += PROMPT
                    latest, metrics.generation_tokens = now, metrics.generation_tokens + 1
                    word = self._word(step, words)
                    text, words = text + word, words + 1
                    self._send({"type": "transcription.delta", "delta": word})
        finally:
            self._service.load -= 1
        metrics.finished("stop", time.monotonic() - begun)
        self._send({"type": "transcription.done", "text": text, "usage": usage_of(PROMPT if words else 0, words)})
        while not self._audio.empty():
            self._audio.get_nowait()

    async def _step(self, prompt: int) -> None:
        """One token's time in the core."""
        generation = self._service.engine.submit(prompt, 1, lambda _count, _last: None)
        try:
            await generation.done
        finally:
            self._service.engine.abort(generation)

    def _word(self, step: bytes, index: int) -> str:
        digest = hashlib.blake2b(step, digest_size=8).hexdigest()
        word = Answer(self._service.name, digest, garbled=self._service.engine.stats.garbled)
        return word.token(0) if not index else f" {word.token(0).lower()}"

    def _send(self, event: dict[str, Any]) -> None:
        self._socket.send(dump(event))

    def _error(self, message: str, code: str) -> None:
        self._send({"type": "error", "error": message, "code": code})
