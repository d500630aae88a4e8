"""`validate FILE` and `config show|diff|reload|schema`."""

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from vllm_mm.cli.declarations import CHECK_WAIT, change_lines
from vllm_mm.cli.exits import fail
from vllm_mm.cli.options import Config, DataDir, DryRun, Json
from vllm_mm.cli.output import count, print_json, print_table
from vllm_mm.cli.server import the_server

if TYPE_CHECKING:
    from collections.abc import Iterator

    from vllm_mm.domain.catalog import Catalog
    from vllm_mm.domain.flags import Checked
    from vllm_mm.settings import Settings


def add_to(app: typer.Typer) -> None:
    app.command("validate", epilog="Example: vllm-mm validate vllm-mm.yaml")(validate)
    config = typer.Typer(help="Look at the configuration.", no_args_is_help=True, rich_markup_mode=None)
    config.command("show", epilog="Example: vllm-mm config show")(show)
    config.command("reload", epilog="Example: vllm-mm config reload --dry-run")(reload)
    config.command("diff", epilog="Example: vllm-mm config diff")(diff)
    config.command("schema", epilog="Example: vllm-mm config schema > vllm-mm.schema.json")(schema)
    app.add_typer(config, name="config")


def read_settings(config: Path | None, data_dir: Path | None) -> "Settings":
    """Those in force, as `serve` would see them; leaves with all that is wrong."""
    from vllm_mm.settings import SettingsError, load  # noqa: PLC0415  # pydantic takes its time

    try:
        return load(config, {"paths.data_dir": str(data_dir)} if data_dir is not None else None, os.environ)
    except SettingsError as error:
        fail(f"the configuration cannot be used\n{error}")


def validate(file: Annotated[Path, typer.Argument(help="A configuration file.")], json: Json = False) -> None:
    """Check a configuration file. Every problem is named with its line; exit code 1 if there is one."""
    from vllm_mm.control.configuration import arguments  # noqa: PLC0415  # as above
    from vllm_mm.control.declared import catalog  # noqa: PLC0415  # as above
    from vllm_mm.domain.errors import ConfigError  # noqa: PLC0415  # as above
    from vllm_mm.settings import SettingsError, load_with_places  # noqa: PLC0415  # as above

    # The file alone: what this shell happens to set for its own server is no part of it.
    environ = {name: value for name, value in os.environ.items() if not name.startswith("VLLM_MM_")}
    problems: list[str] = []
    warnings: list[str] = []
    models: list[str] = []
    try:
        loaded = load_with_places(file, None, environ)
        known = catalog(loaded.settings)
        models = [spec.id for spec in known]
        checked = _asked(loaded.settings, known)
        problems = list(arguments(loaded, checked))
        warnings = [*_doubts(loaded.settings, known), *checked.notes]
    except SettingsError as error:
        problems = [str(problem) for problem in error.problems]
    except ConfigError as error:
        problems = [error.message]
    if json:
        print_json({"valid": not problems, "problems": problems, "warnings": warnings, "models": models})
    elif not problems:
        typer.echo(f"{file}: valid, {count(len(models), 'model')}{': ' if models else ''}{', '.join(models)}")
        for warning in warnings:
            typer.echo(f"{file}: warning: {warning}", err=True)
    if problems:
        if not json:
            typer.echo("\n".join(problems), err=True)
        raise typer.Exit(1)


def _asked(settings: "Settings", models: "Catalog") -> "Checked":
    """What the engines themselves say of their arguments; the first time takes seconds."""
    import asyncio  # noqa: PLC0415  # as above

    from vllm_mm.clock import RealClock  # noqa: PLC0415  # as above
    from vllm_mm.engine.flags import FlagBook  # noqa: PLC0415  # as above

    async def ask() -> "Checked":
        book = FlagBook(settings.paths.cache_dir / "flags", os.environ, RealClock())
        try:
            return await book.check(models)
        finally:
            book.close()

    return asyncio.run(ask())


def _doubts(settings: "Settings", models: "Catalog") -> "Iterator[str]":
    """What is allowed, and hardly meant."""
    from vllm_mm.cli.checks import declared_devices, fit_together, fits, folders  # noqa: PLC0415  # as above
    from vllm_mm.settings import format_path, without_effect  # noqa: PLC0415  # as above

    if not len(models):
        yield "it declares no models; see `models` in docs/configuration.md, or make some with `vllm-mm add`"
    for path, message in without_effect(settings):
        yield f"{format_path(path)} {message}"
    here = declared_devices(settings)
    for finding in (*folders(models), *fits(models, here), *fit_together(models, here)):
        yield f"{finding.name}: {finding.detail}; {finding.advice}"


def reload(context: typer.Context, dry_run: DryRun = False, json: Json = False) -> None:
    """Have the server read its configuration again and apply what changed. One with an error changes nothing; exit code 1."""
    found = the_server(context).call(
        "POST", "/api/config/reload", params={"dry_run": 1} if dry_run else {}, wait=CHECK_WAIT
    )
    if json:
        print_json(found)
        return
    for change in found["changes"]:
        typer.echo("\n".join(change_lines(change)))
    if not found["changes"]:
        typer.echo("no model changed" if found["applied"] else "no model would change")
    if found["at_restart"]:
        typer.echo(f"when the server is started again: {', '.join(found['at_restart'])}")
    for warning in found["warnings"]:
        typer.echo(f"warning: {warning}", err=True)


def diff(context: typer.Context, json: Json = False) -> None:
    """Show what `config reload` would change, and change nothing."""
    reload(context, dry_run=True, json=json)


def show(
    context: typer.Context,
    config: Config = None,
    data_dir: DataDir = None,
    server: Annotated[
        bool, typer.Option("--server", help="Those of the running server, each with where it was said.")
    ] = False,
    json: Json = False,
) -> None:
    """Print the settings in force: file, environment and defaults together, without secrets."""
    if server:
        _show_server(context, json)
        return
    from vllm_mm.settings.redact import redacted  # noqa: PLC0415  # as above

    data: dict[str, Any] = redacted(read_settings(config, data_dir))
    if json:
        print_json(data)
        return
    import yaml  # noqa: PLC0415  # only here

    typer.echo(yaml.safe_dump(data, sort_keys=False, allow_unicode=True).rstrip())  # pyright: ignore[reportUnknownMemberType]  # its stubs say Unknown


def _show_server(context: typer.Context, json: bool) -> None:
    found = the_server(context).get("/api/settings")
    if json:
        print_json(found)
        return
    import json as encoding  # noqa: PLC0415  # `json` is an option's name in this module

    rows = [
        (s["key"], encoding.dumps(s["value"], ensure_ascii=False), s["where"] or s["source"], "reload" if s["live"] else "restart")
        for s in found["settings"]
    ]  # fmt: skip
    print_table(("key", "value", "said", "changed by"), rows, "no settings")
    if found["at_restart"]:
        typer.echo(f"when the server is started again: {', '.join(found['at_restart'])}")
    if found["problem"]:
        typer.echo(f"warning: {found['problem']}", err=True)


def schema() -> None:
    """Print the JSON Schema of the configuration file, for editors."""
    from vllm_mm.settings import schema as document  # noqa: PLC0415  # as above

    print_json(document())
