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


_STATES: Final = {
    "08": "It was reached and then lost: see that PostgreSQL runs, and the network between.",
    "25006": "It may only be read: see whether it is a standby, or default_transaction_read_only is on.",
    "28": "It does not let us in: see the user and the password in database.url, and pg_hba.conf.",
    "3D000": "There is no such database: make it (createdb), or mend database.url.",
    "40": "It gave one of two transactions up that waited for each other.",
    "53": "It has no room, no memory or no connection left: see its log and max_connections.",
    "55P03": "Another program holds a lock on it (a backup, or a shell with an open transaction); end that, or try again in a moment.",
    "57": "It was told to stop, or is starting: see that PostgreSQL runs.",
    "58": "Its system fails it: see its log.",
    "XX": "It is damaged, or has a fault of its own: see its log.",
}
"""By the beginning of PostgreSQL's SQLSTATE (https://www.postgresql.org/docs/current/errcodes-appendix.html)."""
_FULL: Final = "53100"


@contextmanager
def told() -> Generator[None]:
    """Raises what the database refuses for reasons of its own as DatabaseUnavailable; faults of ours pass as they are."""
    try:
        yield
    except (DBAPIError, PoolTimeout) as error:
        if not _is_its_own(error):
            raise
        raise _told(error) from error
    except OSError as error:  # no connection to PostgreSQL, or no answer over it
        raise DatabaseUnavailable(
            f"The database could not be reached: {error or type(error).__name__}. Nothing was changed. See that it runs and can be "
            "reached (`vllm-mm db check`).",
            retry_after=5.0,
        ) from error
    except Exception as error:
        if not type(error).__module__.startswith("asyncpg"):  # what it raises while it connects comes as it is
            raise
        raise _told(error) from error


def may_pass(error: Exception) -> bool:
    """Whether the same rows may be taken later: the database is locked, full or away, or its schema is not ours yet. Anything else is
    the fault of a row."""
    # What is wrong with a statement as a whole, as a table that is not there, is wrong for every row.
    kinds = (DatabaseUnavailable, OperationalError, InterfaceError, PoolTimeout, OSError)
    return isinstance(error, kinds) or _state(error).startswith("42")


def _is_its_own(error: DBAPIError | PoolTimeout) -> bool:
    if _state(error):
        return _state_advice(error) is not None
    name = _name(error)
    if name == "SQLITE_ERROR":
        return False  # wrong SQL, or a schema that is not ours
    # Damage is a plain DatabaseError to the driver.
    return isinstance(error, OperationalError | InterfaceError | PoolTimeout) or _advice(name) is not None


def _told(error: Exception) -> DatabaseUnavailable:
    name = _name(error)
    cause = getattr(error, "orig", None) or error
    if _state(error) == _FULL:
        return DatabaseFull(
            f"The database could not be written: {cause}. Nothing was changed. Free some space on PostgreSQL's disk, then try again."
        )
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
    advice = _advice(name) or _state_advice(error) or "See that it runs and can be reached (`vllm-mm doctor`)."
    return DatabaseUnavailable(
        f"The database could not be used: {cause}. Nothing was changed. {advice}", retry_after=5.0
    )


def _state(error: Exception) -> str:
    """PostgreSQL's code of it; empty where there is none."""
    for one in (getattr(error, "orig", None), error):
        if found := getattr(one, "sqlstate", None):
            return str(found)
    return ""


def _state_advice(error: Exception) -> str | None:
    state = _state(error)
    return next((advice for code, advice in _STATES.items() if state.startswith(code)), None) if state else None


def _name(error: Exception) -> str:
    return getattr(getattr(error, "orig", None), "sqlite_errorname", None) or ""


def _advice(name: str) -> str | None:
    return next((advice for code, advice in _ADVICE.items() if name.startswith(code)), None)
