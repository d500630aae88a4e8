"""`db upgrade|backup`, and keys made on the machine itself."""

import asyncio
import getpass
import sys
from collections.abc import Coroutine, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer

from vllm_mm.cli.exits import Exit, fail
from vllm_mm.cli.held import held
from vllm_mm.cli.options import Config, DataDir, Json
from vllm_mm.cli.output import print_json
from vllm_mm.cli.settings import read_settings

T = TypeVar("T")


def app() -> typer.Typer:
    database = typer.Typer(help="Look after the database.", no_args_is_help=True, rich_markup_mode=None)
    database.command("upgrade", epilog="Example: vllm-mm db upgrade")(upgrade)
    database.command("backup", epilog="Example: vllm-mm db backup state-copy.db")(backup)
    database.command("restore", epilog="Example: vllm-mm db restore state-copy.db --yes")(restore)
    database.command("check", epilog="Example: vllm-mm db check")(check)
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
    """Copy the database, also while the server runs: a SQLite file, or what pg_dump makes of PostgreSQL."""
    from vllm_mm.store import maintenance  # noqa: PLC0415  # as above

    settings = read_settings(config, data_dir)
    run(maintenance.backup(settings.database_url, target))
    typer.echo(f"copied to {target}")


def restore(
    source: Annotated[Path, typer.Argument(help="A copy that `backup`, or an upgrade, made.")],
    config: Config = None,
    data_dir: DataDir = None,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
) -> None:
    """Put a copy in the place of the database, which is copied first. No server may run."""
    from vllm_mm.store import maintenance  # noqa: PLC0415  # as above

    settings = read_settings(config, data_dir)
    if not yes:
        if not sys.stdin.isatty():
            fail("this replaces the database; say --yes to do it")
        if not typer.confirm("Replace the database?", err=True):
            fail("nothing was replaced")
    backups = settings.paths.data_dir / "backups"
    before = run(maintenance.restore(settings.database_url, source, backups, settings.paths.data_dir))
    typer.echo(f"restored from {source}")
    if before is not None:
        typer.echo(f"what was there before: {before}")


def check(config: Config = None, data_dir: DataDir = None, json: Json = False) -> None:
    """Look whether the database is well: schema, integrity, room. Changes nothing; exit code 1 when something is wrong."""
    from vllm_mm.store import maintenance  # noqa: PLC0415  # as above

    settings = read_settings(config, data_dir)
    found = run(maintenance.check(settings.database_url))
    if json:
        print_json([{"name": f.name, "ok": f.ok, "detail": f.detail} for f in found])
    else:
        for finding in found:
            typer.echo(f"{'ok' if finding.ok else 'FAIL':<5} {finding.name}: {finding.detail}")
    if not all(finding.ok for finding in found):
        raise typer.Exit(Exit.FAILED)


def create_key(
    config: Path | None,
    data_dir: Path | None,
    name: str,
    scopes: Sequence[str],
    models: Sequence[str] | None,
    seconds: float | None,
    rights: Mapping[str, Any],
) -> dict[str, Any]:
    """A key straight in the database. `rights`: limits, acts, weight and progress, as the API takes them, where they are said."""
    from vllm_mm.domain.errors import BadRequest  # noqa: PLC0415  # as above
    from vllm_mm.domain.keys import ALL_RIGHTS, Right, Scope, is_pattern, limits_of  # noqa: PLC0415  # as above

    settings = read_settings(config, data_dir)
    try:
        wanted = [Scope(scope) for scope in scopes]
    except ValueError as error:
        fail(f"{error}; the scopes are {', '.join(Scope)}", Exit.USAGE)
    try:
        limits = limits_of(rights.get("limits", {}))
    except BadRequest as error:
        fail(f"--limit: {error.message}", Exit.USAGE)
    acts = frozenset(Right(act) for act in rights["acts"]) if "acts" in rights else ALL_RIGHTS
    weight = float(rights.get("weight", 1.0))
    if not 0.001 <= weight <= 1000:
        fail("--weight: a weight is a number from 0.001 to 1000", Exit.USAGE)

    async def make() -> dict[str, Any]:
        from vllm_mm.clock import RealClock  # noqa: PLC0415  # as above
        from vllm_mm.control import declared  # noqa: PLC0415  # as above
        from vllm_mm.store import migrate  # noqa: PLC0415  # as above
        from vllm_mm.store.audit import Audit  # noqa: PLC0415  # as above
        from vllm_mm.store.database import Database  # noqa: PLC0415  # as above
        from vllm_mm.store.keys import Keys  # noqa: PLC0415  # as above
        from vllm_mm.store.models import Models  # noqa: PLC0415  # as above
        from vllm_mm.store.secret import server_secret  # noqa: PLC0415  # as above

        clock = RealClock()
        await migrate.upgrade(settings.database_url, None)
        database = Database(settings.database_url)
        try:
            stored, _ = declared.usable(settings, {m.id: m.declaration for m in await Models(database).all()})
            known = declared.catalog(settings, stored)
            ids = (
                None
                if models is None
                else list(dict.fromkeys(m if is_pattern(m) else known.resolve(m).id for m in models))
            )
            given = settings.auth.secret
            pepper = server_secret(settings.paths.data_dir, given.get_secret_value() if given is not None else None)
            key, secret = await Keys(database, clock, pepper).create(
                name, wanted, models=ids, expires_at=clock.wall() + seconds if seconds else None, acts=acts,
                weight=weight, progress=bool(rights.get("progress")), limits=limits,
            )  # fmt: skip
            audit = Audit(database, clock)
            audit.record(
                "create_key", actor="local", name=getpass.getuser(), source="command line", kind="keys", object=key.id,
                after={"id": key.id, "name": key.name, "scopes": sorted(key.scopes), "models": ids, **rights},
            )  # fmt: skip
            await audit.write_now()
        finally:
            await database.close()
        return {"id": key.id, "name": key.name, "scopes": sorted(key.scopes), "secret": secret}

    made = run(make())
    if held(settings.paths.data_dir):
        typer.echo(
            "vllm-mm: a server runs on this data directory. It knows the key once it is started again; until then it answers 401 to it.",
            err=True,
        )
    return made


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
