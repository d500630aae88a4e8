"""The client's end of a data-plane request behind ASGI."""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, Final, TypeAlias

from vllm_mm.domain.errors import MMError
from vllm_mm.engine.exchange import Exchange
from vllm_mm.gateway.forward import Gateway
from vllm_mm.gateway.multipart import Form
from vllm_mm.gateway.ports import Framing, Headers
from vllm_mm.gateway.relay import Call
from vllm_mm.gateway.upload import Upload, too_large

Message: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[Message]]
Send: TypeAlias = Callable[[Message], Awaitable[None]]

HIGH_WATER: Final = 1 << 18
"""Bytes held for a slow client before the engine is read no further."""


def begin_upload(call: Call, gateway: Gateway) -> None:
    """Make the upload of a call whose body is a form; or refuse it by its head."""
    fields = dict(call.headers)
    declared = int(fields[b"content-length"]) if b"content-length" in fields else None
    try:
        form = Form(fields.get(b"content-type", b""))
        if declared is not None and declared > gateway.rules.upload:
            raise too_large(gateway.rules.upload)
    except MMError as error:
        call.refused = error
        return
    if gateway.admits(call.headers):  # else the gateway refuses it by its key
        call.upload = Upload(form, declared, gateway.rules)


async def take_in(receive: Receive, upload: Upload | None, client: "AsgiClient", serving: asyncio.Task[None]) -> None:
    """Read a form from the client, as fast as it is taken; then `watch`."""
    if upload is None:
        return
    more = True
    try:
        while more:
            await upload.room()
            message = await receive()
            if message["type"] == "http.disconnect":
                leave(client, serving)
                return
            if message.get("body"):
                upload.push(message["body"])
            more = message.get("more_body", False)
        upload.complete()
    except MMError:
        return  # whoever serves the request has it too
    await watch(receive, client, serving)


async def watch(receive: Receive, client: "AsgiClient", serving: asyncio.Task[None]) -> None:
    """A client that leaves ends its request at once."""
    while (await receive())["type"] != "http.disconnect":
        pass
    leave(client, serving)


def leave(client: "AsgiClient", serving: asyncio.Task[None]) -> None:
    """The client closed its connection."""
    if not client.complete:
        client.gone = True
        serving.cancel()
        client.wake()


class AsgiClient:
    """The client's end behind ASGI's asynchronous `send`: answers are queued here and pumped by the application."""

    raw = False

    def __init__(self) -> None:
        self.gone = False
        self.complete = False
        self.task: asyncio.Task[None] | None = None
        self._messages: deque[Message] = deque()
        self._held = 0
        self._ended = False
        self._some = asyncio.Event()
        self._exchange: Exchange | None = None
        self._paused = False

    # Client

    def start(self, status: int, headers: Headers, framing: Framing, length: int | None = None) -> None:
        if framing is Framing.LENGTH or (framing is Framing.EMPTY and length is not None):
            headers = [*headers, (b"content-length", b"%d" % (length or 0))]
        self._put({"type": "http.response.start", "status": status, "headers": headers})

    def data(self, chunk: bytes) -> None:
        if not chunk or self.gone:
            return
        self._held += len(chunk)
        self._put({"type": "http.response.body", "body": chunk, "more_body": True})
        if self._held > HIGH_WATER and not self._paused and self._exchange is not None:
            self._paused = True
            self._exchange.pause()

    def writer(self) -> Callable[[bytes], None]:
        return self.data

    def finish(self) -> None:
        self._put({"type": "http.response.body", "body": b"", "more_body": False})

    def cut(self) -> None:
        self._ended = True
        self._some.set()

    def bind(self, exchange: Exchange) -> None:
        self._exchange = exchange
        if self._paused:
            exchange.pause()

    def interrupt(self) -> None:
        if self.task is not None:
            self.task.cancel()

    def release(self) -> None:
        self._exchange = None

    # The application's side

    def wake(self) -> None:
        self._some.set()

    async def pump(self, send: Send, serving: asyncio.Task[None]) -> None:
        """Send what comes until the answer is complete, cut, or the client is gone. A cut answer is left without its
        last message, which makes servers close the connection in the middle of it."""
        serving.add_done_callback(lambda _: self._some.set())
        while not self.gone and not self.complete:
            if not self._messages:
                if self._ended or serving.done():
                    return
                self._some.clear()
                await self._some.wait()
                continue
            message = self._messages.popleft()
            if message["type"] == "http.response.body" and not message["more_body"]:
                self.complete = True
            await send(message)
            self._held -= len(message.get("body", b""))
            if self._paused and self._held < HIGH_WATER // 2:
                self._paused = False
                if self._exchange is not None:
                    self._exchange.resume()

    def _put(self, message: Message) -> None:
        if not self.gone:
            self._messages.append(message)
            self._some.set()
