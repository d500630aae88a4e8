"""Facts about this installation that there is one of each."""

import secrets

from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncConnection

from vllm_mm.store.database import Database
from vllm_mm.store.tables import Meta

OWNER = "owner"


async def read_meta(connection: AsyncConnection, name: str) -> str | None:
    return (await connection.execute(select(Meta.value).where(Meta.name == name))).scalar_one_or_none()


async def write_meta(database: Database, connection: AsyncConnection, name: str, value: str) -> None:
    await connection.execute(database.upsert(Meta, "name"), {"name": name, "value": value})


async def installation(database: Database) -> str:
    """The mark of this installation (32 hex digits), made at the first call and the same for ever: engines carry it in
    their environment, so that a controller knows its own."""
    async with database.write() as connection:
        await connection.execute(database.insert_new(Meta, "name"), {"name": OWNER, "value": secrets.token_hex(16)})
        owner = await read_meta(connection, OWNER)
    assert owner is not None  # noqa: S101  # the line above put it there
    return owner


async def known_installation(database: Database) -> str | None:
    """The mark, if there is one already; changes nothing."""
    async with database.read() as connection:
        return await read_meta(connection, OWNER)
