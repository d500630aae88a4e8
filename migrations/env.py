"""How alembic reaches the database: over the connection it is handed, or for the `alembic` command over one of its own."""

import asyncio

from alembic import context
from sqlalchemy import Connection

from vllm_mm.store.database import make_engine
from vllm_mm.store.tables import Base


def migrate(connection: Connection) -> None:
    context.configure(
        connection=connection,
        target_metadata=Base.metadata,
        render_as_batch=connection.dialect.name == "sqlite",
        compare_type=True,
    )
    with context.begin_transaction():
        context.run_migrations()


async def migrate_alone(url: str) -> None:
    engine = make_engine(url, foreign_keys=False)
    try:
        async with engine.connect() as connection, connection.begin():
            await connection.run_sync(migrate)
    finally:
        await engine.dispose()


given: Connection | None = context.config.attributes.get("connection")
if given is not None:
    migrate(given)
else:
    option = context.config.get_main_option("sqlalchemy.url")
    if not option:
        raise SystemExit("say which database: alembic -x is not read; set sqlalchemy.url in the configuration")
    asyncio.run(migrate_alone(option))
