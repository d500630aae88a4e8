"""The server's end of a WebSocket connection, with uvicorn's manners. Imported only where a route wants it."""

import asyncio
import logging

from websockets.frames import Frame, Opcode
from websockets.http11 import Request as Handshake
from websockets.server import ServerProtocol

MAX_MESSAGE = 16 * 1024**2
"""Bytes; uvicorn's own bound (`ws_max_size`)."""


class Gone(Exception):
    """The client closed, or its connection is lost."""


class WebSocket:
    """Messages of text in and out. `head` is the request that asked for it, as it came."""

    def __init__(self, transport: asyncio.Transport, head: bytes) -> None:
        self._transport = transport
        quiet = logging.getLogger("vllm_mm.sim.websocket")
        quiet.setLevel(logging.CRITICAL)
        self._protocol = ServerProtocol(max_size=MAX_MESSAGE, logger=quiet)
        self._messages: asyncio.Queue[str | bytes | None] = asyncio.Queue()
        self._pieces: list[bytes] = []
        self._text = False
        self._protocol.receive_data(head)
        self._handshake = next(e for e in self._protocol.events_received() if isinstance(e, Handshake))

    def accept(self) -> bool:
        """Answer the handshake; False when it was none that can be accepted, and the answer says so."""
        response = self._protocol.accept(self._handshake)
        self._protocol.send_response(response)
        self._flush()
        return response.status_code == 101

    def received(self, data: bytes) -> None:
        """Bytes of the client."""
        if self._transport.is_closing():
            return
        self._protocol.receive_data(data)
        for event in self._protocol.events_received():
            if isinstance(event, Frame):
                self._take(event)
        self._flush()
        if self._protocol.parser_exc is not None or self._protocol.close_rcvd is not None:
            self._messages.put_nowait(None)
            self._transport.close()

    async def receive(self) -> str | bytes:
        """The next message. Raises Gone."""
        message = await self._messages.get()
        if message is None:
            raise Gone
        return message

    def send(self, text: bytes) -> None:
        """A message of text; nothing when the client is gone."""
        if not self._transport.is_closing():
            self._protocol.send_text(text)
            self._flush()

    def close(self, code: int) -> None:
        """Say why, and close."""
        if not self._transport.is_closing():
            self._protocol.send_close(code)
            self._flush()
            self._transport.close()
        self._messages.put_nowait(None)

    def _take(self, frame: Frame) -> None:
        if frame.opcode in {Opcode.TEXT, Opcode.BINARY}:
            self._text = frame.opcode is Opcode.TEXT
            self._pieces = []
        elif frame.opcode is not Opcode.CONT:
            return
        self._pieces.append(bytes(frame.data))
        if frame.fin:
            message = b"".join(self._pieces)
            try:
                self._messages.put_nowait(message.decode() if self._text else message)
            except UnicodeDecodeError:
                self._protocol.fail(1007)

    def _flush(self) -> None:
        for data in self._protocol.data_to_send():
            if data:
                self._transport.write(data)
