"""The client's end of a data-plane request behind ASGI."""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, Final, TypeAlias

from vllm_mm.api.pace import BodyPace
from vllm_mm.domain.errors import MMError, RequestTooSlow
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
LARGEST_WHOLE: Final = 1 << 26
"""Bytes of an answer that are kept until it is whole; a larger one is cut."""


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


async def in_time(receive: Receive, pace: BodyPace, now: float, size: int) -> Message:
    """More of a body of which there are `size` bytes. Raises RequestTooSlow."""
    try:
        async with asyncio.timeout(max(0.0, pace.left(now, size))):
            return await receive()
    except TimeoutError:
        raise pace.too_slow() from None


async def take_in(
    receive: Receive, upload: Upload | None, client: "AsgiClient", serving: asyncio.Task[None], gateway: Gateway
) -> None:
    """Read a form from the client, as fast as it is taken; then `watch`."""
    if upload is None:
        return
    now = gateway.clock.now
    pace = BodyPace(gateway.rules, now())
    more = True
    try:
        while more:
            began = now()
            await upload.room()
            pace.came(now(), now() - began)
            message = await in_time(receive, pace, now(), upload.size)
            pace.came(now())
            if message["type"] == "http.disconnect":
                leave(client, serving)
                return
            if message.get("body"):
                upload.push(message["body"])
            more = message.get("more_body", False)
        upload.complete()
    except RequestTooSlow as error:
        upload.fail(error)
        return
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

    def __init__(self, *, whole: bool = False) -> None:
        """`whole`: the server cannot send an answer without a length to this client (HTTP/1.0), so it gets it when it is whole."""
        self.gone = False
        self.complete = False
        self.task: asyncio.Task[None] | None = None
        self._messages: deque[Message] = deque()
        self._held = 0
        self._ended = False
        self._some = asyncio.Event()
        self._exchange: Exchange | None = None
        self._paused = False
        self._whole = whole
        self._waiting: tuple[int, Headers] | None = None
        self._kept = bytearray()

    # Client

    def start(self, status: int, headers: Headers, framing: Framing, length: int | None = None) -> None:
        if framing is Framing.LENGTH or (framing is Framing.EMPTY and length is not None):
            headers = [*headers, (b"content-length", b"%d" % (length or 0))]
        elif self._whole and framing is not Framing.EMPTY:
            self._waiting = status, headers
            return
        self._put({"type": "http.response.start", "status": status, "headers": headers})

    def data(self, chunk: bytes) -> None:
        if not chunk or self.gone:
            return
        if self._waiting is not None:
            self._kept += chunk
            if len(self._kept) > LARGEST_WHOLE:
                self.gone = True
                self.interrupt()
            return
        self._held += len(chunk)
        self._put({"type": "http.response.body", "body": chunk, "more_body": True})
        if self._held > HIGH_WATER and not self._paused and self._exchange is not None:
            self._paused = True
            self._exchange.pause()

    def writer(self) -> Callable[[bytes], None]:
        return self.data

    def finish(self, trailers: Headers = []) -> None:  # noqa: ARG002, B006  # uvicorn cannot send any
        self._give()
        self._put({"type": "http.response.body", "body": b"", "more_body": False})

    def cut(self) -> None:
        if self._waiting is not None:
            self._give(502)
            self._put({"type": "http.response.body", "body": b"", "more_body": False})
        self._ended = True
        self._some.set()

    def _give(self, status: int | None = None) -> None:
        """What was kept until it is whole; with a `status` of its own if that never came."""
        if self._waiting is None:
            return
        (meant, headers), self._waiting = self._waiting, None
        body = bytes(self._kept)
        self._put(
            {
                "type": "http.response.start",
                "status": status or meant,
                "headers": [*headers, (b"content-length", b"%d" % len(body))],
            }
        )
        self._put({"type": "http.response.body", "body": body, "more_body": True})

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
