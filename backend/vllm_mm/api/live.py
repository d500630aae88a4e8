"""What goes on as it happens: events and engine logs, over server-sent events or plain text.

A reader that is too slow loses the oldest lines of its own bounded queue and is told how many. Nobody waits for it.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Sequence
from datetime import datetime
from typing import Annotated, Final

from fastapi import APIRouter, Header, Query, Request
from fastapi.responses import Response, StreamingResponse

from vllm_mm.api.dependencies import ROW_MAX, MayReadLogs, Reader, Services, The, operation_id, resolve
from vllm_mm.api.log_reader import BEHIND, Line, LogReader
from vllm_mm.api.schemas import REFUSALS, EventOut
from vllm_mm.domain.errors import BadRequest
from vllm_mm.domain.events import Event
from vllm_mm.domain.loglines import Level, Wanted
from vllm_mm.store.journal import LAGGED, Subscription
from vllm_mm.vocabulary.quantities import parse_duration

router = APIRouter(generate_unique_id_function=operation_id, prefix="/api", responses=REFUSALS)

KEEP_ALIVE = 15.0
"""Seconds of silence after which a comment is sent, so that nothing in between closes the connection."""
LOOK_EVERY = 1.0
"""Seconds between two looks at whether the reader is still there, or the model has a new process."""
_LONG_AGO: Final = 100_000_000.0
"""A larger number is a moment, a smaller one a time: nobody asks for the log of the seventies."""
SSE: Final = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}


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
    """Server-sent events: `id` is the number, `event` the kind, `data` the event as JSON. Without `after`, or where that is a number of
    another database, only what is new, and before it the `tail`. A `lagged` event stands where a slow reader lost some: `data.lost` says how many."""
    since = after if last_event_id is None else _number(last_event_id)
    only = resolve(the, model).id if model is not None else None
    if since is not None and since > the.journal.last_seq:
        since = None  # a number that was never given: the reader knew another database
    backlog: Sequence[Event] = ()
    if since is None and tail:
        backlog = await the.journal.recent(tail, model=only)
        since = backlog[-1].seq if backlog else None
    elif since is not None and not follow:
        await the.journal.flush(1.0)
        backlog = await the.journal.read(after=since, model=only, limit=1000)
    head = "".join(map(_event, backlog))
    if not follow:
        return Response(head, media_type="text/event-stream", headers=SSE)
    stream = _events(the, request, the.journal.subscribe(since), only, head)
    return StreamingResponse(stream, media_type="text/event-stream", headers=SSE)


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
    _key: MayReadLogs,
    request: Request,
    id: str,  # noqa: A002  # the path's name
    follow: Annotated[bool, Query(description="Go on with what comes, over restarts too.")] = False,
    tail: Annotated[int, Query(ge=0, le=2000, description="Lines to begin with.")] = 200,
    search: Annotated[
        str, Query(max_length=200, description="Only lines with this in them, whatever the case of its letters.")
    ] = "",
    level: Annotated[
        str | None, Query(description="Only lines of this level (debug, info, warning, error, critical) or above.")
    ] = None,
    after: Annotated[
        str, Query(max_length=60, description="Lines since that number come first, instead of the tail.")
    ] = "",
    last_event_id: Annotated[
        str | None, Header(description="As `after`; browsers send it when they reconnect.")
    ] = None,
    since: Annotated[
        str | None,
        Query(max_length=40, description="Only lines written since: Unix time, or how long ago, such as 10m."),
    ] = None,
) -> Response:
    """The engine's log: of the launch that runs, or of the last one. A slow reader loses the oldest lines of its own
    queue: a `dropped` event says how many (in plain text, a line)."""
    model = resolve(the, id).id
    wanted = _wanted(the, search, level, since)
    as_events = "text/event-stream" in request.headers.get("accept", "")
    kind = "text/event-stream" if as_events else "text/plain; charset=utf-8"
    reader = LogReader(
        lambda: [the.manager.require(model)], tail=tail, after=last_event_id or after, wanted=wanted, behind=BEHIND
    )
    if follow:
        return StreamingResponse(stream_lines(the, request, reader, as_events=as_events), headers=SSE, media_type=kind)
    try:
        return Response(_shown(reader, as_events), media_type="text/event-stream" if as_events else "text/plain")
    finally:
        reader.close()


def _wanted(the: Services, search: str, level: str | None, since: str | None) -> Callable[[], Wanted] | None:
    """Makes the filter; None where every line is wanted. Raises BadRequest."""
    least = None
    if level is not None:
        least = Level.__members__.get({"warn": "warning"}.get(level.lower(), level).upper())
        if least is None:
            raise BadRequest(
                f"There is no level {level!r}; use one of {', '.join(name.lower() for name in Level.__members__)}.",
                param="level",
            )
    start = None if since is None else _start(since, the.clock.wall())
    if not search and least is None and start is None:
        return None
    return lambda: Wanted(
        search=search, level=least, since=start, now=lambda: datetime.fromtimestamp(the.clock.wall()).astimezone()
    )


def _start(since: str, now: float) -> float:
    """Unix time. Raises BadRequest."""
    try:
        seconds = parse_duration(since)
    except ValueError as error:
        raise BadRequest(f"`since` is Unix time, or how long ago, such as 10m: {error}.", param="since") from None
    return seconds if seconds >= _LONG_AGO else now - seconds


def _line_event(line: Line) -> str:
    number = f"id: {line.number}\n" if line.number else ""
    return f"{number}data: {json.dumps(line.text, ensure_ascii=False)}\n\n"


def _shown(reader: LogReader, as_events: bool) -> str:
    lines, lost = reader.taken(), reader.lost
    reader.lost = 0
    if as_events:
        told = f'event: dropped\ndata: {{"count": {lost}}}\n\n' if lost else ""
        return told + "".join(map(_line_event, lines))
    told = f"[{lost} lines left out here: this reader was too slow]\n" if lost else ""
    return told + "".join(f"{line.text}\n" for line in lines)


async def stream_lines(the: Services, request: Request, reader: LogReader, *, as_events: bool) -> AsyncIterator[str]:
    """What the reader gets, until it leaves or the server ends."""
    quiet = 0.0
    try:
        while not the.closing.is_set():
            await reader.wait(LOOK_EVERY)
            if text := _shown(reader, as_events):
                quiet = 0.0
                yield text
                continue
            if await request.is_disconnected():
                return
            quiet += LOOK_EVERY
            if as_events and quiet >= KEEP_ALIVE:
                quiet = 0.0
                yield ": keep-alive\n\n"
    finally:
        reader.close()
