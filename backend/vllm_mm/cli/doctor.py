"""`doctor`: is everything there that a server needs, and what to do if not."""

import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from vllm_mm.cli.options import Config, DataDir, Json
from vllm_mm.cli.output import count, print_json

if TYPE_CHECKING:
    from collections.abc import Iterator

    from vllm_mm.cli.checks import Finding
    from vllm_mm.domain.catalog import Catalog
    from vllm_mm.settings import Settings

MARKS = {"ok": "ok  ", "warn": "warn", "fail": "FAIL"}


def add_to(app: typer.Typer) -> None:
    app.command("doctor", epilog="Example: vllm-mm doctor --config vllm-mm.yaml")(doctor)


def doctor(config: Config = None, data_dir: DataDir = None, json: Json = False) -> None:
    """Check configuration, engines, devices, driver, sockets, memory, disk, limits, database, port and what an earlier server left;
    exit code 1 if one fails."""
    findings: list[Finding] = []
    for finding in _findings(config, data_dir):
        findings.append(finding)
        if not json:
            typer.echo(f"{MARKS[finding.status]}  {finding.name}: {finding.detail}")
            if finding.advice:
                typer.echo(f"      -> {finding.advice}")
    failed = [f for f in findings if f.status == "fail"]
    if json:
        checks = [{"name": f.name, "status": f.status, "detail": f.detail, "advice": f.advice} for f in findings]
        print_json({"ok": not failed, "checks": checks})
    else:
        warned = sum(f.status == "warn" for f in findings)
        typer.echo(f"{count(len(findings), 'check')}, {len(failed)} failed, {warned} to look at")
    if failed:
        raise typer.Exit(1)


def _findings(config: Path | None, data_dir: Path | None) -> "Iterator[Finding]":
    from vllm_mm.cli.checks import Finding, Status, look, look_without  # noqa: PLC0415  # they take their time
    from vllm_mm.cli.doctor_host import arguments, orphans, owner_of  # noqa: PLC0415  # as above
    from vllm_mm.cli.doctor_warm import warm_starts  # noqa: PLC0415  # as above
    from vllm_mm.control.declared import catalog  # noqa: PLC0415  # as above
    from vllm_mm.domain.errors import ConfigError  # noqa: PLC0415  # as above
    from vllm_mm.settings import SettingsError, find_config, load  # noqa: PLC0415  # as above

    overrides = {"paths.data_dir": str(data_dir)} if data_dir is not None else None
    try:
        settings = load(config, overrides, os.environ)
        models = catalog(settings)
    except (SettingsError, ConfigError) as error:
        yield Finding("configuration", Status.FAIL, str(error), "correct it; `vllm-mm validate FILE` checks again")
        # Checking the defaults instead would tell of a server that nobody wants to run.
        yield from look_without()
        rest = "engines, devices, models, sockets, disk, open files, port, access and database"
        yield Finding(
            "the rest", Status.WARN, f"not looked at: {rest} depend on the configuration", "then run this again"
        )
        return
    file = find_config(config, os.environ, Path.cwd())
    told = f"{file}" if file is not None else f"no file, only defaults{_demo()}"
    yield Finding("configuration", Status.OK, f"{told}, {count(len(models), 'model')}")
    owner = owner_of(settings)
    yield from look(settings, models, owner or "")
    yield from _host(settings, models)
    yield from arguments(settings, models)
    yield _database(settings)
    yield orphans(settings, owner)
    yield from warm_starts(settings, models, lambda text: typer.echo(f"...   {text}", err=True))


def _host(settings: "Settings", models: "Catalog") -> "Iterator[Finding]":
    """What is looked at where it matters: simulated models need no GPU and no vLLM."""
    from vllm_mm.cli.doctor_host import gpu_driver, other_environments  # noqa: PLC0415  # as above
    from vllm_mm.domain.specs import EngineKind  # noqa: PLC0415  # as above

    if isinstance(settings.devices, str) or any(not d.simulated and d.id != "cpu" for d in settings.devices):
        yield gpu_driver()
    wanted = {spec.executable for spec in models if spec.engine is EngineKind.VLLM}
    if wanted:
        there = {name: shutil.which(name) for name in wanted}
        used = [Path(found) for found in there.values() if found]
        yield from other_environments(None in there.values(), used, os.environ, Path.cwd())


def _demo() -> str:
    """In a checkout the server that runs is often the demo's, whose configuration is not found by itself."""
    return " (`scripts/run --doctor` looks at the demo's)" if Path("packaging/demo/sim.yaml").is_file() else ""


def _database(settings: "Settings") -> "Finding":
    import asyncio  # noqa: PLC0415  # as above

    from vllm_mm.cli.checks import Finding, Status, disk  # noqa: PLC0415  # as above
    from vllm_mm.domain.errors import ConfigError  # noqa: PLC0415  # as above
    from vllm_mm.store import migrate  # noqa: PLC0415  # as above

    try:
        revision = asyncio.run(migrate.current(settings.database_url))
    except ConfigError as error:
        advice = "correct `database.url`, or restore a backup"
        if disk("data", settings.paths.data_dir, 2**28).status is Status.FAIL:
            advice = "see `disk data`"
        return Finding("database", Status.FAIL, error.message, advice)
    newest = migrate.revisions()[-1]
    if revision is None:
        return Finding("database", Status.OK, "new; the first start makes it")
    if revision not in migrate.revisions():
        return Finding("database", Status.FAIL, f"made by a newer version ({revision})", "install that version")
    told = "up to date" if revision == newest else f"will be upgraded from {revision} at the next start"
    return Finding("database", Status.OK, f"{told} ({newest})")
