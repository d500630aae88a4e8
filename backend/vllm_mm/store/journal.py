"""The journal: numbers what happens, tells whoever listens at once, and writes it down behind.

A number that a listener saw is never given out again. The numbers in use are reserved in the database in blocks, ahead
of their use; a clean end gives the rest of the block back, a crash leaves a gap.
"""

import asyncio
from collections import deque
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any
from weakref import WeakSet

from sqlalchemy import Row, delete, func, select

from vllm_mm.clock import Clock
from vllm_mm.domain.events import Event
from vllm_mm.domain.reasons import of_event
from vllm_mm.store.behind import WriteBehind
from vllm_mm.store.database import Database
from vllm_mm.store.meta import read_meta, write_meta
from vllm_mm.store.spool import Spool
from vllm_mm.store.tables import Event as EventRow

LAGGED = "lagged"
"""Kind of the marker that stands where a listener lost events: `data` has `lost`, how many (None: not known), and `seq` is
that of the last one lost, so that it can be asked for again. It is made for one listener and is not in the journal."""
BLOCK = 100_000
"""Numbers reserved at a time; twice what may wait to be written, so that it is renewed long before its end."""
PAGE = 500
_RESERVED = "event_seq"
_PRUNED = "events_pruned"


class Journal:
    """Made by `open`. `emit` may be called from then until the process ends."""

    def __init__(
        self,
        database: Database,
        clock: Clock,
        last: int,
        pruned: int,
        *,
        ring: int,
        queue: int,
        spool: Spool[Event] | None,
    ) -> None:
        self._database = database
        self._clock = clock
        self._seq = last
        self._reserved = last
        self._pruned = pruned
        self._queue = queue
        self._ring: deque[Event] = deque(maxlen=ring)
        self._listeners: WeakSet[Subscription] = WeakSet()
        self._writer = WriteBehind(self._write, clock, name="events", limit=BLOCK // 2, spool=spool)
        self._closed = False

    @classmethod
    async def open(
        cls, database: Database, clock: Clock, *, ring: int = 2048, queue: int = 1000, spool: Spool[Event] | None = None
    ) -> "Journal":
        """Goes on after the last number of the run before.

        `ring`: events kept in memory for those who catch up. `queue`: events that a listener may be behind.
        """
        async with database.write() as connection:
            reserved = int(await read_meta(connection, _RESERVED) or 0)
            pruned = int(await read_meta(connection, _PRUNED) or 0)
            newest = (await connection.execute(select(func.max(EventRow.seq)))).scalar_one() or 0
            journal = cls(database, clock, max(reserved, newest), pruned, ring=ring, queue=queue, spool=spool)
            journal._reserved = journal._seq + BLOCK
            await write_meta(database, connection, _RESERVED, str(journal._reserved))
        journal._writer.start()
        return journal

    @property
    def last_seq(self) -> int:
        """The number of the latest event."""
        return self._seq

    def emit(
        self, kind: str, *, model: str | None = None, cause: str = "", data: Mapping[str, Any] | None = None
    ) -> Event:
        """Number it, hand it to the listeners, queue it for the database. Immediate; never fails, never waits."""
        self._seq += 1
        event = Event(self._seq, self._clock.wall(), kind, model, cause, _with_code(kind, cause, data or {}))
        self._ring.append(event)
        self._writer.add(event)
        for listener in tuple(self._listeners):
            listener.push(event)
        return event

    def subscribe(self, after: int | None = None) -> "Subscription":
        """Every event from now on; with `after`, first those since that number, without a gap and none twice.

        A listener that is too slow loses the oldest ones and gets a LAGGED marker in their place. Close it, or use it
        as a context manager.
        """
        # All in one step, so that each event is either in what is caught up or is pushed, and never both.
        backlog: list[Event] = []
        if after is not None:
            known = {e.seq: e for e in (*self._writer.pending(), *self._ring)}
            backlog = [known[seq] for seq in sorted(known)]
        subscription = Subscription(self, after, backlog, self._seq, self._pruned, self._queue)
        if self._closed:
            subscription.close()
        else:
            self._listeners.add(subscription)
        return subscription

    def unsubscribe(self, subscription: "Subscription") -> None:
        self._listeners.discard(subscription)

    async def read(
        self, *, after: int = 0, before: int | None = None, model: str | None = None, limit: int = PAGE
    ) -> Sequence[Event]:
        """Written events with after < seq < before, oldest first."""
        query = select(EventRow).where(EventRow.seq > after).order_by(EventRow.seq).limit(limit)
        if before is not None:
            query = query.where(EventRow.seq < before)
        if model is not None:
            query = query.where(EventRow.model == model)
        async with self._database.read() as connection:
            return [_event(row) for row in await connection.execute(query)]

    async def recent(self, limit: int = 100, *, model: str | None = None) -> Sequence[Event]:
        """The latest events, oldest first; waits a moment for those on their way to the database."""
        await self._writer.flush(1.0)
        query = select(EventRow).order_by(EventRow.seq.desc()).limit(limit)
        if model is not None:
            query = query.where(EventRow.model == model)
        async with self._database.read() as connection:
            rows = (await connection.execute(query)).all()
        return [_event(row) for row in reversed(rows)]

    async def between(
        self, since: float, until: float, kinds: Sequence[str], *, model: str | None = None, limit: int = PAGE
    ) -> Sequence[Event]:
        """The latest written events of these kinds in that time (Unix seconds, `until` not included), oldest first."""
        query = select(EventRow).where(EventRow.at >= since, EventRow.at < until, EventRow.kind.in_(kinds))
        if model is not None:
            query = query.where(EventRow.model == model)
        async with self._database.read() as connection:
            rows = (
                await connection.execute(query.order_by(EventRow.at.desc(), EventRow.seq.desc()).limit(limit))
            ).all()
        return [_event(row) for row in reversed(rows)]

    async def prune(self, *, before: float | None, keep: int | None) -> int:
        """Delete events older than `before` (Unix time) and all but the newest `keep`; how many there were.

        In steps of a few hundred, so that the writer never waits for long.
        """
        limit = await self._prune_limit(before, keep)
        total = 0
        while limit > 0:
            async with self._database.write() as connection:
                step = select(EventRow.seq).where(EventRow.seq <= limit).order_by(EventRow.seq).limit(PAGE)
                last = (await connection.execute(select(func.max(step.subquery().c.seq)))).scalar_one()
                if last is None:
                    break
                total += (await connection.execute(delete(EventRow).where(EventRow.seq <= last))).rowcount
                await write_meta(self._database, connection, _PRUNED, str(last))
            self._pruned = last
        return total

    async def _prune_limit(self, before: float | None, keep: int | None) -> int:
        limit = 0
        async with self._database.read() as connection:
            if before is not None:
                old = await connection.execute(select(func.max(EventRow.seq)).where(EventRow.at < before))
                limit = old.scalar_one() or 0
            if keep is not None:
                beyond = select(EventRow.seq).order_by(EventRow.seq.desc()).offset(keep).limit(1)
                limit = max(limit, (await connection.execute(beyond)).scalar_one_or_none() or 0)
        return limit

    async def flush(self, deadline: float = 5.0) -> bool:
        """Wait until everything emitted so far is written; False at the deadline (seconds)."""
        return await self._writer.flush(deadline)

    @property
    def dropped(self) -> int:
        """Events that could not be written since the start."""
        return self._writer.dropped

    def problem(self) -> str | None:
        """Why events do not reach the database, for `/ready`; None while they do."""
        return self._writer.problem()

    @property
    def healthy(self) -> bool:
        return self.problem() is None

    async def close(self, deadline: float = 5.0) -> None:
        """Write what is left, give unused numbers back, end the listeners (they get what they have not read yet)."""
        self._closed = True
        for listener in tuple(self._listeners):
            listener.close()
        if await self._writer.close(deadline):
            async with self._database.write() as connection:
                self._reserved = self._seq
                await write_meta(self._database, connection, _RESERVED, str(self._seq))

    async def _write(self, events: Sequence[Event]) -> None:
        reserve = self._seq + BLOCK if self._seq + BLOCK // 2 > self._reserved else None
        async with self._database.write() as connection:
            await connection.execute(self._database.insert_new(EventRow, "seq"), [_values(e) for e in events])
            if reserve is not None:
                await write_meta(self._database, connection, _RESERVED, str(reserve))
        if reserve is not None:
            self._reserved = reserve


class Subscription:
    """An async iterator of events for one listener."""

    def __init__(
        self, journal: Journal, after: int | None, backlog: Sequence[Event], now: int, pruned: int, limit: int
    ) -> None:
        self._journal = journal
        self._limit = limit
        self._queue: deque[Event] = deque()
        self._lost = 0
        self._lost_seq = 0
        self._wake = asyncio.Event()
        self._closed = False
        self._ready: deque[Event] = deque()
        self._cursor: int | None = None
        self._until = now + 1
        self._backlog: deque[Event] = deque()
        if after is None or after >= now:
            return
        if after < pruned:
            self._ready.append(_lagged(pruned, None))
            after = pruned
        # What is not in the backlog is in the database: a row leaves the writer's queue only when it is committed.
        first = backlog[0].seq if backlog else now + 1
        if after + 1 < first:
            self._cursor, self._until = after, first
        self._backlog.extend(e for e in backlog if e.seq > after)

    def push(self, event: Event) -> None:
        """Called by the journal; never waits."""
        if self._closed:
            return
        if len(self._queue) >= self._limit:
            self._lost_seq = self._queue.popleft().seq
            self._lost += 1
        self._queue.append(event)
        self._wake.set()

    def __aiter__(self) -> "Subscription":
        return self

    async def __anext__(self) -> Event:
        """Safe to cancel: nothing is lost by it. For one task at a time."""
        while True:
            if self._ready:
                return self._ready.popleft()
            if self._cursor is not None:
                page = await self._journal.read(after=self._cursor, before=self._until)
                self._ready.extend(page)
                self._cursor = page[-1].seq if len(page) == PAGE else None
            elif self._backlog:
                return self._backlog.popleft()
            elif self._lost:
                marker = _lagged(self._lost_seq, self._lost)
                self._lost = 0
                return marker
            elif self._queue:
                return self._queue.popleft()
            elif self._closed:
                raise StopAsyncIteration
            else:
                self._wake.clear()
                await self._wake.wait()

    def close(self) -> None:
        """No more events; those that are here already can still be read."""
        self._closed = True
        self._journal.unsubscribe(self)
        self._wake.set()

    async def aclose(self) -> None:
        self.close()

    async def __aenter__(self) -> "Subscription":
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _lagged(seq: int, lost: int | None) -> Event:
    return Event(seq, 0.0, LAGGED, None, "slow listener" if lost is not None else "retention", {"lost": lost})


def _values(event: Event) -> dict[str, Any]:
    return {
        "seq": event.seq,
        "at": event.at,
        "kind": event.kind,
        "model": event.model,
        "cause": event.cause,
        "data": dict(event.data),
    }


def _with_code(kind: str, cause: str, data: Mapping[str, Any]) -> dict[str, Any]:
    """`code`, beside whatever is told: the reason for programs (`domain.reasons`)."""
    code = of_event(kind, cause, str(data.get("reason", "")))
    return dict(data) if code is None or "code" in data else {**data, "code": code.value}


def _event(row: Row[Any]) -> Event:
    return Event(row.seq, row.at, row.kind, row.model, row.cause, row.data)
