"""Which profile is active, kept over restarts."""

import json
from dataclasses import asdict, dataclass

from vllm_mm.store.database import Database
from vllm_mm.store.meta import read_meta, write_meta

_NAME = "profile"


@dataclass(frozen=True, slots=True)
class ActiveProfile:
    """Names of profiles; None for none."""

    active: str | None = None
    scheduled: str | None = None
    """Whose time it was when that was looked at last: a choice by hand holds until it is another."""
    by: str = ""
    """Who or what made it active."""
    since: float | None = None
    """Unix time."""


class ActiveProfileStore:
    """One row of the facts about the installation."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def get(self) -> ActiveProfile:
        async with self._database.read() as connection:
            text = await read_meta(connection, _NAME)
        return ActiveProfile() if text is None else ActiveProfile(**json.loads(text))

    async def put(self, now: ActiveProfile) -> None:
        async with self._database.write() as connection:
            await write_meta(self._database, connection, _NAME, json.dumps(asdict(now)))
