"""`audit`: who did what to which object, before and after, from where."""

import json as jsons
import time
from typing import Annotated, Any, cast

import typer

from vllm_mm.cli.exits import understood
from vllm_mm.cli.options import Json
from vllm_mm.cli.output import clock, first_line, print_json, print_table
from vllm_mm.cli.server import the_server
from vllm_mm.vocabulary.quantities import parse_duration

WIDTH = 60
"""Characters of a change in the table; `--json` has all of it."""


def add_to(app: typer.Typer) -> None:
    app.command("audit", epilog="Example: vllm-mm audit --object qwen2.5-7b --since 7d")(audit)


def audit(
    context: typer.Context,
    actor: Annotated[str | None, typer.Option("--actor", help="Only acts of this key, by id or name.")] = None,
    act: Annotated[str | None, typer.Option("--act", help="Only these, such as start_model.")] = None,
    kind: Annotated[
        str | None, typer.Option("--kind", help="Only what was done to such things: models, keys, ...")
    ] = None,
    target: Annotated[str | None, typer.Option("--object", help="Only what was done to this one, by id.")] = None,
    since: Annotated[str | None, typer.Option("--since", help="Not older than this, such as 7d.")] = None,
    limit: Annotated[int, typer.Option("--limit", min=1, max=1000, help="So many, the latest.")] = 20,
    csv: Annotated[bool, typer.Option("--csv", help="Print all that fit as CSV, for a file.")] = False,
    json: Json = False,
) -> None:
    """List what was done by whom, newest first. Needs a key with the scope admin."""
    oldest = time.time() - understood("--since", since, parse_duration) if since is not None else None
    where: dict[str, Any] = {"actor": actor, "act": act, "kind": kind, "object": target, "since": oldest}
    server = the_server(context)
    if csv:
        with server.stream("GET", "/api/audit", params={**where, "format": "csv"}, silence=60.0) as answer:
            for piece in answer.iter_text():
                typer.echo(piece, nl=False)
        return
    found = server.get("/api/audit", **where, limit=limit)["entries"]
    if json:
        print_json(found)
        return
    rows = [
        (clock(e["at"]), e["name"], e["source"], e["act"], e["object"], e["status"], _change(e["before"], e["after"]))
        for e in found
    ]
    print_table(("at", "who", "from", "act", "object", "status", "change"), rows, "Nothing was done.")


def _change(before: Any, after: Any) -> str:
    """`pinned: false -> true`; what was not there before, or is not there any more, stands alone."""
    if not isinstance(before, dict) and not isinstance(after, dict):
        return ""
    old, new = cast("dict[str, Any]", before or {}), cast("dict[str, Any]", after or {})
    if before is None or after is None:
        return "removed" if after is None else "new"
    names = dict.fromkeys((*old, *new))
    return first_line(
        ", ".join(f"{name}: {jsons.dumps(old.get(name))} -> {jsons.dumps(new.get(name))}" for name in names), WIDTH
    )
