"""What goes wrong with a database that nobody here can mend, in our own words and with advice."""

from collections.abc import Generator
from contextlib import contextmanager
from typing import Final

from sqlalchemy.exc import DBAPIError, InterfaceError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from vllm_mm.domain.errors import Unavailable


class DatabaseUnavailable(Unavailable):
    """The database does not answer, or does not take what it is given; nothing was changed."""

    code = "database_unavailable"


class DatabaseFull(DatabaseUnavailable):
    """There is no room for what was to be stored; trying again does not help until somebody makes some."""

    code = "database_full"
    retryable = False


_LOCKED: Final = frozenset({"SQLITE_BUSY", "SQLITE_LOCKED", "SQLITE_PROTOCOL"})
_ADVICE: Final = {
    "SQLITE_READONLY": "It may only be read: see who owns the file and its directory, and how the file system is mounted.",
    "SQLITE_CANTOPEN": "It cannot be opened: see that the directory is there, is writable, and has room.",
    "SQLITE_IOERR": "The disk does not take or give it: see that there is room, and what the system's log says.",
    "SQLITE_CORRUPT": "It is damaged. Stop the server and put a copy from its backups directory in its place.",
    "SQLITE_NOTADB": "It is not a database. Stop the server and put a copy from its backups directory in its place.",
}
"""By the primary result code (https://www.sqlite.org/rescode.html)."""


@contextmanager
def told() -> Generator[None]:
    """Raises what the database refuses for reasons of its own as DatabaseUnavailable; faults of ours pass as they are."""
    try:
        yield
    except (DBAPIError, PoolTimeout) as error:
        if not _is_its_own(error):
            raise
        raise _told(error) from error


def _is_its_own(error: DBAPIError | PoolTimeout) -> bool:
    name = _name(error)
    if name == "SQLITE_ERROR":
        return False  # wrong SQL, or a schema that is not ours
    # Damage is a plain DatabaseError to the driver.
    return isinstance(error, OperationalError | InterfaceError | PoolTimeout) or _advice(name) is not None


def _told(error: DBAPIError | PoolTimeout) -> DatabaseUnavailable:
    name = _name(error)
    cause = getattr(error, "orig", None) or error
    if name.startswith("SQLITE_FULL"):
        return DatabaseFull(
            f"The database could not be written: {cause}. Nothing was changed. Free some space on the disk of "
            "paths.data_dir (old logs and backups lie there too), then try again."
        )
    if name.startswith(tuple(_LOCKED)):
        return DatabaseUnavailable(
            f"The database could not be used: {cause}. Nothing was changed. Another program holds it (a backup, or a shell "
            "with an open transaction); end that, or try again in a moment.",
            retry_after=5.0,
        )
    advice = _advice(name) or "See that it runs and can be reached (`vllm-mm doctor`)."
    return DatabaseUnavailable(
        f"The database could not be used: {cause}. Nothing was changed. {advice}", retry_after=5.0
    )


def _name(error: DBAPIError | PoolTimeout) -> str:
    return getattr(getattr(error, "orig", None), "sqlite_errorname", None) or ""


def _advice(name: str) -> str | None:
    return next((advice for code, advice in _ADVICE.items() if name.startswith(code)), None)
