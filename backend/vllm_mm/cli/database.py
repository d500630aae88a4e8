"""`db upgrade|backup`, and keys made on the machine itself."""

import asyncio
import getpass
from collections.abc import Coroutine, Sequence
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer

from vllm_mm.cli.exits import Exit, fail
from vllm_mm.cli.options import Config, DataDir, Json
from vllm_mm.cli.output import print_json
from vllm_mm.cli.settings import read_settings

T = TypeVar("T")


def app() -> typer.Typer:
    database = typer.Typer(help="Look after the database.", no_args_is_help=True, rich_markup_mode=None)
    database.command("upgrade", epilog="Example: vllm-mm db upgrade")(upgrade)
    database.command("backup", epilog="Example: vllm-mm db backup state-copy.db")(backup)
    return database


def upgrade(config: Config = None, data_dir: DataDir = None, json: Json = False) -> None:
    """Bring the schema up to date, after a backup. `serve` does it by itself."""
    from vllm_mm.store import migrate  # noqa: PLC0415  # SQLAlchemy takes its time

    settings = read_settings(config, data_dir)
    backups = settings.paths.data_dir / "backups" if settings.database.backup else None
    done = run(migrate.upgrade(settings.database_url, backups))
    if json:
        copy = str(done.backup) if done.backup else None
        print_json({"before": done.before, "after": done.after, "changed": done.changed, "backup": copy})
    elif done.changed:
        typer.echo(f"upgraded from {done.before or 'nothing'} to {done.after}")
        if done.backup is not None:
            typer.echo(f"the copy of before: {done.backup}")
    else:
        typer.echo(f"up to date ({done.after})")


def backup(
    target: Annotated[Path, typer.Argument(help="File to make; it must not exist.")],
    config: Config = None,
    data_dir: DataDir = None,
) -> None:
    """Copy a SQLite database, also while the server runs."""
    from vllm_mm.store import migrate  # noqa: PLC0415  # as above

    settings = read_settings(config, data_dir)
    run(migrate.backup(settings.database_url, target))
    typer.echo(f"copied to {target}")


def create_key(
    config: Path | None,
    data_dir: Path | None,
    name: str,
    scopes: Sequence[str],
    models: Sequence[str] | None,
    seconds: float | None,
) -> dict[str, Any]:
    """A key straight in the database."""
    from vllm_mm.domain.keys import Scope  # noqa: PLC0415  # as above

    settings = read_settings(config, data_dir)
    try:
        wanted = [Scope(scope) for scope in scopes]
    except ValueError as error:
        fail(f"{error}; the scopes are {', '.join(Scope)}", Exit.USAGE)

    async def make() -> dict[str, Any]:
        from vllm_mm.clock import RealClock  # noqa: PLC0415  # as above
        from vllm_mm.control import declared  # noqa: PLC0415  # as above
        from vllm_mm.store import migrate  # noqa: PLC0415  # as above
        from vllm_mm.store.audit import Audit  # noqa: PLC0415  # as above
        from vllm_mm.store.database import Database  # noqa: PLC0415  # as above
        from vllm_mm.store.keys import Keys  # noqa: PLC0415  # as above
        from vllm_mm.store.models import Models  # noqa: PLC0415  # as above

        clock = RealClock()
        await migrate.upgrade(settings.database_url, None)
        database = Database(settings.database_url)
        try:
            stored, _ = declared.usable(settings, {m.id: m.declaration for m in await Models(database).all()})
            known = declared.catalog(settings, stored)
            ids = None if models is None else list(dict.fromkeys(known.resolve(m).id for m in models))
            key, secret = await Keys(database, clock).create(
                name, wanted, models=ids, expires_at=clock.wall() + seconds if seconds else None
            )
            audit = Audit(database, clock)
            audit.record(
                "create_key", actor="local", name=getpass.getuser(), source="command line", kind="keys", object=key.id,
                after={"id": key.id, "name": key.name, "scopes": sorted(key.scopes), "models": ids},
            )  # fmt: skip
            await audit.write_now()
        finally:
            await database.close()
        return {"id": key.id, "name": key.name, "scopes": sorted(key.scopes), "secret": secret}

    return run(make())


def run(work: Coroutine[Any, Any, T]) -> T:
    """To its end; what is wrong with the configuration or the database is said, not thrown."""
    from vllm_mm.domain.errors import MMError, UnknownModel  # noqa: PLC0415  # as above

    try:
        return asyncio.run(work)
    except UnknownModel as error:
        fail(error.message, Exit.NOT_FOUND)
    except MMError as error:
        fail(error.message)
    except OSError as error:
        fail(f"{error.filename or 'the database'}: {error.strerror or error}")
