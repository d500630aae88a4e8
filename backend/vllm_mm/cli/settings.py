"""`validate FILE` and `config show|schema`."""

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from vllm_mm.cli.exits import fail
from vllm_mm.cli.options import Config, DataDir, Json
from vllm_mm.cli.output import count, print_json

if TYPE_CHECKING:
    from collections.abc import Iterator

    from vllm_mm.domain.catalog import Catalog
    from vllm_mm.settings import Settings


def add_to(app: typer.Typer) -> None:
    app.command("validate", epilog="Example: vllm-mm validate vllm-mm.yaml")(validate)
    config = typer.Typer(help="Look at the configuration.", no_args_is_help=True, rich_markup_mode=None)
    config.command("show", epilog="Example: vllm-mm config show")(show)
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
    from vllm_mm.control.declared import catalog  # noqa: PLC0415  # as above
    from vllm_mm.domain.errors import ConfigError  # noqa: PLC0415  # as above
    from vllm_mm.settings import SettingsError, load  # noqa: PLC0415  # as above

    # The file alone: what this shell happens to set for its own server is no part of it.
    environ = {name: value for name, value in os.environ.items() if not name.startswith("VLLM_MM_")}
    problems: list[str] = []
    warnings: list[str] = []
    models: list[str] = []
    try:
        settings = load(file, None, environ)
        known = catalog(settings)
        models = [spec.id for spec in known]
        warnings = list(_doubts(settings, known))
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


def _doubts(settings: "Settings", models: "Catalog") -> "Iterator[str]":
    """What is allowed, and hardly meant."""
    from vllm_mm.cli.checks import declared_devices, fit_together, fits  # noqa: PLC0415  # as above
    from vllm_mm.settings import format_path, without_effect  # noqa: PLC0415  # as above

    if not len(models):
        yield "it declares no models; see `models` in docs/configuration.md, or make some with `vllm-mm add`"
    for path, message in without_effect(settings):
        yield f"{format_path(path)} {message}"
    here = declared_devices(settings)
    for finding in (*fits(models, here), *fit_together(models, here)):
        yield f"{finding.name}: {finding.detail}; {finding.advice}"


def show(config: Config = None, data_dir: DataDir = None, json: Json = False) -> None:
    """Print the settings in force: file, environment and defaults together, without secrets."""
    from vllm_mm.settings.redact import redacted  # noqa: PLC0415  # as above

    data: dict[str, Any] = redacted(read_settings(config, data_dir))
    if json:
        print_json(data)
        return
    import yaml  # noqa: PLC0415  # only here

    typer.echo(yaml.safe_dump(data, sort_keys=False, allow_unicode=True).rstrip())  # pyright: ignore[reportUnknownMemberType]  # its stubs say Unknown


def schema() -> None:
    """Print the JSON Schema of the configuration file, for editors."""
    from vllm_mm.settings import schema as document  # noqa: PLC0415  # as above

    print_json(document())
