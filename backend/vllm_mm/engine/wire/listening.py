"""The readiness probe of a realtime model: a second of silence over its WebSocket."""

import asyncio
import base64
import json
from typing import Any, Final, cast

from vllm_mm.domain.errors import UpstreamDied, UpstreamTimeout
from vllm_mm.engine.exchange import TEXT, Frame, UpstreamRequest
from vllm_mm.engine.http1 import Traffic
from vllm_mm.engine.ports import Address
from vllm_mm.engine.wire.websocket import open_session

_SECOND: Final = base64.b64encode(bytes(32_000)).decode()
"""16 kHz, 16 bits, one channel."""


async def transcribe_silence(address: Address, model: str, timeout: float) -> str:
    """The text that it hears in it. Raises UpstreamDied, UpgradeRefused or UpstreamTimeout."""
    loop = asyncio.get_running_loop()
    heard: asyncio.Future[str] = loop.create_future()
    listener = _Listener(heard)
    key = b"authorization: Bearer %b\r\n" % address.key.encode() if address.key else b""
    opening = b" HTTP/1.1\r\nhost: localhost\r\n" + key
    request = UpstreamRequest(b"GET", b"/v1/realtime")
    session = open_session(address, opening, request, listener, Traffic(), timeout)
    try:
        async with asyncio.timeout(timeout):
            await asyncio.wait({session.done, listener.ready}, return_when=asyncio.FIRST_COMPLETED)
            for event in (
                {"type": "session.update", "model": model},
                {"type": "input_audio_buffer.commit"},
                {"type": "input_audio_buffer.append", "audio": _SECOND},
                {"type": "input_audio_buffer.commit", "final": True},
            ):
                session.send(Frame(TEXT, json.dumps(event).encode()))
            await asyncio.wait({session.done, heard}, return_when=asyncio.FIRST_COMPLETED)
        if heard.done():
            return heard.result()
        await session.done
        raise UpstreamDied(f"the engine at {address} closed the probe's session", sent=True, started=False)
    except TimeoutError as error:
        raise UpstreamTimeout(f"the engine at {address} did not transcribe silence within {timeout:g} s") from error
    finally:
        session.abort(UpstreamDied("the probe is over", sent=True, started=False))


class _Listener:
    """SessionSink."""

    def __init__(self, heard: asyncio.Future[str]) -> None:
        self.ready: Final[asyncio.Future[None]] = asyncio.get_running_loop().create_future()
        self._heard = heard

    def opened(self) -> None:
        self.ready.set_result(None)

    def frame(self, frame: Frame) -> None:
        try:
            event: object = json.loads(frame.data)
        except ValueError:
            return
        if self._heard.done() or not isinstance(event, dict):
            return
        said = cast("dict[str, Any]", event)
        if said.get("type") == "transcription.done":
            self._heard.set_result(str(said.get("text")))
        elif said.get("type") == "error":
            why = f"the engine refused to transcribe silence: {str(said.get('error'))[:500]}"
            self._heard.set_exception(UpstreamDied(why, sent=True, started=False))

    def full(self, full: bool) -> None:
        pass

    def closed(self, code: int | None, reason: str) -> None:
        pass
