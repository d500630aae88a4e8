"""One controller for each database. Two would take each other's engines for their own, and end them.

For a SQLite file in the data directory that directory's lock does (`main.alone`); another file is locked as well. PostgreSQL has a lock
that its session holds: on a connection of its own, given back with it, whatever the end of this process.
"""

import asyncio
import contextlib
import fcntl
import os
from collections.abc import AsyncGenerator, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Final

from sqlalchemy import make_url, text

from vllm_mm.clock import Clock
from vllm_mm.domain.errors import ConfigError
from vllm_mm.store.database import make_engine, sqlite_path
from vllm_mm.store.failures import DatabaseUnavailable, told

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncConnection

PATIENCE: Final = 10.0
"""Seconds that a predecessor has for its end: it may be handing its engines over."""
EVERY: Final = 2.0
"""Seconds between two looks at whether the lock is still held."""
ANSWER: Final = 10.0
"""Seconds for one look: a connection that died without a word is noticed."""
_LOCK: Final = 7_614_203_553
"""Any number that nobody else uses for an advisory lock; those of a database are its own."""
_WHO: Final = text(
    "SELECT coalesce(host(a.client_addr), 'its own host'), to_char(a.backend_start, 'YYYY-MM-DD HH24:MI TZ') "
    "FROM pg_locks l JOIN pg_stat_activity a USING (pid) WHERE l.locktype = 'advisory' AND l.granted AND l.objsubid = 1 "
    "AND l.classid::bigint = :high AND l.objid::bigint = :low "
    "AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())"
)


class Hold:
    """PostgreSQL's lock, held or looked for. Made by `sole`."""

    def __init__(self, url: str, clock: Clock) -> None:
        self._engine = make_engine(url)
        self._clock = clock
        self._connection: AsyncConnection | None = None
        self._problem: str | None = None

    def problem(self) -> str | None:
        """For `/ready`: why it is not known that nobody else serves from the database."""
        return self._problem

    async def take(self, say: Callable[[str], object]) -> None:
        """Wait for a predecessor, which is told by `say`. Raises ConfigError when there still is one, and DatabaseUnavailable."""
        deadline, said = self._clock.now() + PATIENCE, False
        while (who := await self._try()) is not None:
            if not said:
                said = True
                say(f"waiting for {who} to end, up to {PATIENCE:.0f} s")
            if self._clock.now() >= deadline:
                raise ConfigError(
                    f"{who} serves from this database. Stop it, or give this one its own (database.url): two servers on one database "
                    "would take each other's engines for their own"
                )
            await self._clock.sleep(0.2)

    async def run(self) -> None:
        """Look after it until cancelled: a lock whose connection is lost is taken again as soon as that is possible."""
        while True:
            await self._clock.sleep(EVERY)
            await self.look()

    async def look(self) -> None:
        """One round."""
        try:
            who = await self._try()
        except DatabaseUnavailable as error:
            self._problem = f"the lock on the database is lost, and another server could take it. It is tried again. {error.message}"
        else:
            self._problem = (
                None
                if who is None
                else f"{who} took the database while this server had no connection to it. Stop one of the two: each takes the other's engines "
                "for its own"
            )

    async def _try(self) -> str | None:
        """Hold it, or say who does."""
        with told():
            try:
                async with asyncio.timeout(ANSWER):
                    return await self._held()
            except BaseException:
                await self._drop()
                raise

    async def _held(self) -> str | None:
        if self._connection is not None:
            await self._connection.execute(text("SELECT 1"))
            return None
        fresh = await self._engine.connect()
        try:
            await fresh.execution_options(
                isolation_level="AUTOCOMMIT"
            )  # a transaction that stands still would be ended
            for setting in (
                "idle = 10",
                "interval = 5",
                "count = 3",
            ):  # for the next one, should this machine go without a word
                await fresh.execute(text(f"SET tcp_keepalives_{setting}"))
            if (await fresh.execute(text("SELECT pg_try_advisory_lock(:lock)"), {"lock": _LOCK})).scalar_one():
                self._connection, fresh = fresh, None
                return None
            found = (await fresh.execute(_WHO, {"high": _LOCK >> 32, "low": _LOCK & 0xFFFFFFFF})).first()
            return "another vllm-mm" + ("" if found is None else f" (from {found[0]}, since {found[1]})")
        finally:
            if fresh is not None:
                await fresh.close()

    async def _drop(self) -> None:
        lost, self._connection = self._connection, None
        if lost is not None:
            with contextlib.suppress(Exception):  # it is of no use any more, whatever it says
                await lost.invalidate()
                await lost.close()

    async def close(self) -> None:
        """Give it back."""
        await self._drop()
        await self._engine.dispose()


@contextlib.asynccontextmanager
async def sole(url: str, data_dir: Path, clock: Clock, say: Callable[[str], object]) -> AsyncGenerator[Hold | None]:
    """Serve from this database alone. Yields what is to be looked after, if anything is. Raises ConfigError when another server does, or
    when the database cannot be reached."""
    path = sqlite_path(url)
    if path is not None or make_url(url).get_backend_name() != "postgresql":
        lock = None if path is None or path.resolve().parent == data_dir.resolve() else await _lock(path, clock, say)
        try:
            yield None
        finally:
            if lock is not None:
                os.close(lock)
        return
    hold = Hold(url, clock)
    try:
        try:
            await hold.take(say)
        except DatabaseUnavailable as error:
            raise ConfigError(f"the database cannot be reached: {error.message}") from error
        yield hold
    finally:
        await hold.close()


async def _lock(path: Path, clock: Clock, say: Callable[[str], object]) -> int:
    """A descriptor that holds the lock beside the file."""
    beside = path.with_name(f"{path.name}.lock")
    try:
        beside.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        lock = os.open(beside, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise ConfigError(f"{beside} cannot be opened: {error.strerror}. Set database.url to another place.") from error
    deadline, said = clock.now() + PATIENCE, False
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if not said:
                said = True
                say(f"waiting for another vllm-mm to end, which serves from {path}, up to {PATIENCE:.0f} s")
            if clock.now() >= deadline:
                os.close(lock)
                raise ConfigError(
                    f"another vllm-mm serves from {path}. Stop it, or give this one its own (database.url)."
                ) from None
            await clock.sleep(0.05)
        else:
            return lock
