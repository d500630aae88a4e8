"""What goes on as it happens: events and engine logs, over server-sent events or plain text.

A reader that is too slow loses the oldest lines of its own bounded queue and is told how many. Nobody waits for it.
"""

import asyncio
import json
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Annotated

from fastapi import APIRouter, Header, Query, Request
from fastapi.responses import Response, StreamingResponse

from vllm_mm.api.dependencies import ROW_MAX, Reader, Services, The, operation_id, resolve
from vllm_mm.api.schemas import REFUSALS, EventOut
from vllm_mm.domain.errors import BadRequest
from vllm_mm.domain.events import Event
from vllm_mm.engine.instance import ModelInstance
from vllm_mm.store.journal import LAGGED, Subscription

router = APIRouter(generate_unique_id_function=operation_id, prefix="/api", responses=REFUSALS)

KEEP_ALIVE = 15.0
"""Seconds of silence after which a comment is sent, so that nothing in between closes the connection."""
LOOK_EVERY = 1.0
"""Seconds between two looks at whether the reader is still there, or the model has a new process."""
BEHIND = 1000
"""Log lines that a reader may be behind."""
_SSE = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}


@router.get(
    "/events", name="stream_events", tags=["live"], response_class=StreamingResponse,
    responses={200: {"content": {"text/event-stream": {"schema": EventOut.model_json_schema()}}}},
)  # fmt: skip
async def stream_events(
    the: The,
    _key: Reader,
    request: Request,
    after: Annotated[int | None, Query(ge=0, le=ROW_MAX, description="Events since that number come first.")] = None,
    model: Annotated[str | None, Query(description="Only those about this model.")] = None,
    tail: Annotated[int | None, Query(ge=0, le=1000, description="The latest events come first, this many.")] = None,
    follow: Annotated[bool, Query(description="False: end after what there is already.")] = True,
    last_event_id: Annotated[
        str | None, Header(description="As `after`; browsers send it when they reconnect.")
    ] = None,
) -> Response:
    """Server-sent events: `id` is the number, `event` the kind, `data` the event as JSON. Without `after` only what is
    new. A `lagged` event stands where a slow reader lost some: `data.lost` says how many."""
    since = after if last_event_id is None else _number(last_event_id)
    only = resolve(the, model).id if model is not None else None
    backlog: Sequence[Event] = ()
    if since is None and tail:
        backlog = await the.journal.recent(tail, model=only)
        since = backlog[-1].seq if backlog else None
    elif since is not None and not follow:
        await the.journal.flush(1.0)
        backlog = await the.journal.read(after=since, model=only, limit=1000)
    head = "".join(map(_event, backlog))
    if not follow:
        return Response(head, media_type="text/event-stream", headers=_SSE)
    stream = _events(the, request, the.journal.subscribe(since), only, head)
    return StreamingResponse(stream, media_type="text/event-stream", headers=_SSE)


def _number(last_event_id: str) -> int:
    if not (last_event_id.isascii() and last_event_id.isdecimal() and len(last_event_id) < 20):
        raise BadRequest(
            f"Last-Event-ID has to be the number of an event, not {last_event_id[:50]!r}.", param="Last-Event-ID"
        )
    return min(int(last_event_id), ROW_MAX)


async def _events(
    the: Services, request: Request, events: Subscription, only: str | None, head: str
) -> AsyncIterator[str]:
    async with events:
        # At once, so that the reader knows that it is connected.
        yield f": events\n\n{head}"
        quiet = 0.0
        while not the.closing.is_set():
            try:
                async with asyncio.timeout(LOOK_EVERY):
                    event = await anext(events)
            except StopAsyncIteration:
                return
            except TimeoutError:
                if await request.is_disconnected():
                    return
                quiet += LOOK_EVERY
                if quiet >= KEEP_ALIVE:
                    quiet = 0.0
                    yield ": keep-alive\n\n"
                continue
            if only is None or event.model == only or event.kind == LAGGED:
                quiet = 0.0
                yield _event(event)


def _event(event: Event) -> str:
    shown = EventOut(
        seq=event.seq, at=event.at, kind=event.kind, model=event.model, cause=event.cause, data=dict(event.data)
    )
    return f"id: {event.seq}\nevent: {event.kind}\ndata: {shown.model_dump_json()}\n\n"


@router.get(
    "/models/{id:path}/logs", name="model_logs", tags=["models"], response_class=Response,
    responses={
        200: {
            "description": "Lines as text, or as server-sent events if the request accepts `text/event-stream`.",
            "content": {"text/plain": {"schema": {"type": "string"}}, "text/event-stream": {"schema": {"type": "string"}}},
        }
    },
)  # fmt: skip
async def model_logs(
    the: The,
    _key: Reader,
    request: Request,
    id: str,  # noqa: A002  # the path's name
    follow: Annotated[bool, Query(description="Go on with what comes, over restarts too.")] = False,
    tail: Annotated[int, Query(ge=0, le=2000, description="Lines to begin with.")] = 200,
) -> Response:
    """The engine's log: of the launch that runs, or of the last one."""
    instance = the.manager.require(resolve(the, id).id)
    as_events = "text/event-stream" in request.headers.get("accept", "")
    if not follow:
        lines = instance.tail(tail) if tail else ()
        text = "".join(map(_line_event, lines)) if as_events else "".join(f"{line}\n" for line in lines)
        return Response(text, media_type="text/event-stream" if as_events else "text/plain")
    form = _line_event if as_events else "{}\n".format
    beat = ": keep-alive\n\n" if as_events else ""
    lines = _LogReader(instance, tail)
    return StreamingResponse(
        _lines(the, request, lines, form, beat), headers=_SSE,
        media_type="text/event-stream" if as_events else "text/plain; charset=utf-8",
    )  # fmt: skip


def _line_event(line: str) -> str:
    return f"data: {json.dumps(line, ensure_ascii=False)}\n\n"


class _LogReader:
    """One reader of one model's log: a bounded queue that is filled from the log's own callbacks."""

    def __init__(self, instance: ModelInstance, tail: int) -> None:
        self._instance = instance
        self._lines: deque[str] = deque(instance.tail(tail) if tail else ())
        self._lost = 0
        self._token: str | None = None
        self._wake = asyncio.Event()
        self._stop = _nothing
        self._attach(first=True)

    def _attach(self, *, first: bool = False) -> None:
        """Follow the process that runs now, if it is another than before: from its first line, unless that came in the tail."""
        record = self._instance.record
        if record is None or record.token == self._token:
            return
        self._stop()
        self._token = record.token
        if not first:
            for line in self._instance.tail(BEHIND):
                self._take(line)
        self._stop = self._instance.follow(self._take)

    def _take(self, line: str) -> None:
        if len(self._lines) >= BEHIND + 1:
            self._lines.popleft()
            self._lost += 1
        self._lines.append(line)
        self._wake.set()

    async def read(self) -> list[str]:
        """What has come, or nothing after LOOK_EVERY seconds."""
        self._attach()
        if not self._lines:
            self._wake.clear()
            try:
                async with asyncio.timeout(LOOK_EVERY):
                    await self._wake.wait()
            except TimeoutError:
                self._attach()
        lines = list(self._lines)
        self._lines.clear()
        if self._lost:
            lines.insert(0, f"[{self._lost} lines left out here: this reader was too slow]")
            self._lost = 0
        return lines

    def close(self) -> None:
        self._stop()


def _nothing() -> None:
    """Nothing is followed yet."""


async def _lines(
    the: Services, request: Request, reader: _LogReader, form: Callable[[str], str], beat: str
) -> AsyncIterator[str]:
    quiet = 0.0
    try:
        while not the.closing.is_set():
            lines = await reader.read()
            if lines:
                quiet = 0.0
                yield "".join(map(form, lines))
                continue
            if await request.is_disconnected():
                return
            quiet += LOOK_EVERY
            if beat and quiet >= KEEP_ALIVE:
                quiet = 0.0
                yield beat
    finally:
        reader.close()
