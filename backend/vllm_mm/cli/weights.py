"""`pull` and `models disk|prune`: weights from the Hugging Face Hub, and what of them is on the server's disk."""

import sys
import time
from collections.abc import Callable, Mapping
from typing import Annotated, Any, TypeAlias

import typer

from vllm_mm.cli.exits import Exit, fail
from vllm_mm.cli.options import DryRun, Json, NoWait
from vllm_mm.cli.output import clock, count, first_line, print_json, print_table, seconds, size
from vllm_mm.cli.server import Server, the_server

ASK = 150.0
"""Seconds that the server may take to ask the hub, beyond the usual."""
POLL = 0.5
"""Seconds between two looks at a download."""
OVER = frozenset({"done", "failed", "cancelled"})

Pull: TypeAlias = Mapping[str, Any]


def add_to(app: typer.Typer) -> None:
    app.command("pull", epilog="Example: vllm-mm pull Qwen/Qwen2.5-7B-Instruct")(pull)
    models = typer.Typer(help="The weights on the server's disk.", no_args_is_help=True, rich_markup_mode=None)
    models.command("disk", epilog="Example: vllm-mm models disk")(disk)
    models.command("prune", epilog="Example: vllm-mm models prune --dry-run")(prune)
    app.add_typer(models, name="models")


def pull(
    context: typer.Context,
    model: Annotated[
        str | None, typer.Argument(help="Id or alias of a declared model, or an id on the hub.", show_default=False)
    ] = None,
    revision: Annotated[str | None, typer.Option("--revision", help="A branch, a tag or a commit.")] = None,
    cancel: Annotated[str | None, typer.Option("--cancel", help="End the download with this id instead.")] = None,
    no_wait: NoWait = False,
    json: Json = False,
) -> None:
    """Download the weights of a model to the server, or go on where that broke off. Without a model: list the downloads."""
    server = the_server(context)
    if cancel is not None:
        _done(server.call("DELETE", f"/api/pulls/{cancel}"), json)
    elif model is None:
        _list(server.get("/api/pulls"), json)
    else:
        found = server.call("POST", "/api/pulls", json={"model": model, "revision": revision}, wait=ASK)
        if not no_wait:
            try:
                found = _follow(server, found, quiet=json)
            except KeyboardInterrupt:
                told = f"it goes on. `vllm-mm pull` looks at it, `vllm-mm pull --cancel {found['id']}` ends it"
                fail(f"{found['repo']}: {told}", Exit.INTERRUPTED)
        _done(found, json)


def disk(context: typer.Context, json: Json = False) -> None:
    """Show the models in the caches of Hugging Face on the server, and which declared models use them."""
    found = the_server(context).get("/api/weights")
    if json:
        print_json(found)
        return
    rows = [
        (
            r["repo"], size(r["size"]), size(r["partial"]) if r["partial"] else None, clock(r["changed_at"]),
            "downloading" if r["downloading"] else ", ".join(r["used_by"]) or "nobody",
        )
        for r in found["repositories"]
    ]  # fmt: skip
    print_table(("model", "size", "unfinished", "changed", "used by"), rows, "No weights are there yet.")
    for place in found["caches"]:
        typer.echo(f"{place['path']}: {size(place['free'])} of {size(place['total'])} free")


def prune(
    context: typer.Context,
    models: Annotated[
        list[str] | None,
        typer.Argument(help="Only these ids on the hub; without any, all that no declared model uses."),
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    dry_run: DryRun = False,
    json: Json = False,
) -> None:
    """Delete weights that no declared model uses from the server's disk, and what unfinished downloads left behind. Asks first."""
    server, body = the_server(context), {"repos": models or None}
    found = server.call("POST", "/api/weights/prune", json=body, params={"dry_run": 1})
    if not dry_run and found["removed"]:
        if not yes:
            _ask(found)
        found = server.call("POST", "/api/weights/prune", json=body, wait=ASK)
    if json:
        print_json(found)
        return
    for one in found["removed"]:
        typer.echo(f"{one['repo']}: {'deleted' if found['applied'] else 'would be deleted'}, {size(one['freed'])}")
    for one in found["kept"]:
        typer.echo(f"{one['repo']}: stays, {one['why']}", err=True)
    if not found["removed"]:
        typer.echo("nothing to delete")
    if found["kept"]:
        raise typer.Exit(Exit.FAILED)


def _ask(found: Mapping[str, Any]) -> None:
    for one in found["removed"]:
        typer.echo(f"  {one['repo']}: {size(one['freed'])} in {one['cache']}", err=True)
    if not sys.stdin.isatty():
        fail(f"{size(found['freed'])} would be deleted: say --yes, or --dry-run to look only", Exit.USAGE)
    if not typer.confirm(f"Delete {size(found['freed'])}?", err=True):
        fail("nothing was deleted")


def _list(found: list[Pull], json: bool) -> None:
    if json:
        print_json(found)
        return
    rows = [
        (p["id"], p["repo"], p["state"], _amount(p), seconds(p["eta_s"]), first_line(p["reason"], 60)) for p in found
    ]
    empty = "No downloads. `vllm-mm pull MODEL` begins one."
    print_table(("id", "model", "state", "size", "left", "reason"), rows, empty)


def _done(found: Pull, json: bool) -> None:
    """Leaves with 1 where it failed."""
    if json:
        print_json(found)
    elif found["state"] == "done":
        typer.echo(f"{found['repo']}: {size(found['total'] or 0)} in {found['path']}")
    elif found["state"] == "cancelled":
        typer.echo(f"{found['repo']}: cancelled; what has come stays for the next try")
    elif found["state"] != "failed":
        typer.echo(f"{found['repo']}: {found['state']} ({found['id']})")
    if found["state"] == "failed":
        fail(f"{found['repo']}: {found['reason']}")


def _follow(server: Server, found: Pull, *, quiet: bool) -> Pull:
    if quiet:
        return _poll(server, found, lambda _: None)
    if sys.stderr.isatty():
        return _bar(server, found)
    typer.echo(f"{found['repo']}: {_amount(found)} in {count(found['files'], 'file')}", err=True)
    return _poll(server, found, lambda _: None)


def _poll(server: Server, found: Pull, show: Callable[[Pull], None]) -> Pull:
    while True:
        show(found)
        if found["state"] in OVER:
            return found
        time.sleep(POLL)
        found = server.get(f"/api/pulls/{found['id']}")


def _bar(server: Server, found: Pull) -> Pull:
    from rich.console import Console  # noqa: PLC0415  # only for people at a terminal
    from rich.progress import (  # noqa: PLC0415  # as above
        BarColumn,
        DownloadColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
        TransferSpeedColumn,
    )

    columns = (
        TextColumn("{task.description}"), BarColumn(bar_width=24), DownloadColumn(binary_units=True), TransferSpeedColumn(),
        TimeRemainingColumn(), TextColumn("{task.fields[file]}"),
    )  # fmt: skip
    with Progress(*columns, console=Console(stderr=True)) as progress:
        task = progress.add_task(found["repo"], total=found["total"], completed=found["done"], file="")

        def show(now: Pull) -> None:
            what = now["file"] if now["state"] == "downloading" else now["state"]
            progress.update(task, total=now["total"], completed=now["done"], file=what)

        return _poll(server, found, show)


def _amount(found: Pull) -> str:
    return "-" if found["total"] is None else f"{size(found['done'])} of {size(found['total'])}"
