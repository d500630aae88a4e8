"""`usage`: requests, tokens, times and costs, by key, model, day or hour."""

import math
import time
from typing import Annotated, Any, Final

import typer

from vllm_mm.cli.exits import Exit, fail, understood
from vllm_mm.cli.options import Json
from vllm_mm.cli.output import print_json, print_table, seconds
from vllm_mm.cli.server import the_server
from vllm_mm.vocabulary.quantities import parse_duration

GROUPS: Final = ("key", "model", "day", "hour")


def add_to(app: typer.Typer) -> None:
    app.command("usage", epilog="Example: vllm-mm usage --by key,day --since 7d")(usage)


def usage(
    context: typer.Context,
    by: Annotated[
        str, typer.Option("--by", help="Any of key, model, day and hour, with commas between them.")
    ] = "key,model",
    since: Annotated[
        str | None,
        typer.Option(
            "--since", help="So far back, such as 12h or 30d; whole hours. `all`: everything that is kept. Default 30d."
        ),
    ] = None,
    start: Annotated[
        str | None,
        typer.Option("--from", help="From this day or time (UTC) on, such as 2026-01-31 or 2026-01-31T14:00Z."),
    ] = None,
    end: Annotated[str | None, typer.Option("--to", help="Before this day or time (UTC).")] = None,
    key: Annotated[str | None, typer.Option("--key", help="Only this key, by id or name.")] = None,
    model: Annotated[str | None, typer.Option("--model", help="Only this model, by id.")] = None,
    csv: Annotated[bool, typer.Option("--csv", help="Print CSV, for a spreadsheet.")] = False,
    json: Json = False,
) -> None:
    """Show who used what: requests, tokens, device-seconds, and costs where models have a price."""
    if csv and json:
        fail("--csv and --json are two forms of one answer: say one of them", Exit.USAGE)
    if since is not None and start is not None:
        fail("--since and --from both say where to begin: say one of them", Exit.USAGE)
    if unknown := [word for word in (w.strip() for w in by.split(",")) if word and word not in GROUPS]:
        fail(f"--by takes {', '.join(GROUPS)}, with commas between them, and not {unknown[0]!r}", Exit.USAGE)
    since = since or "30d"
    if start is None and since != "all":
        start = f"{time.time() - understood('--since', since, parse_duration):.0f}"
    where: dict[str, Any] = {"group_by": by, "from": start, "to": end, "key": key, "model": model}
    server = the_server(context)
    if csv:
        with server.stream("GET", "/api/usage", params={**where, "format": "csv"}, silence=60.0) as answer:
            for piece in answer.iter_text():
                typer.echo(piece, nl=False)
        return
    found = server.get("/api/usage", **where)
    if json:
        print_json(found)
        return
    groups: list[str] = found["group_by"]
    priced, metered = found["total"]["cost"] is not None, found["total"]["energy_j"] is not None
    columns = [
        *groups,
        "requests",
        "failed",
        "prompt",
        "cached",
        "completion",
        "queued",
        "device time",
        *(["cost"] if priced else []),
        *(["energy"] if metered else []),
    ]
    rows = [_row(row, groups, priced=priced, metered=metered) for row in found["rows"]]
    if len(rows) > 1:
        rows.append(_row(found["total"], groups, priced=priced, metered=metered, first="total"))
    print_table(columns, rows, "Nothing was used.")


def _row(
    row: dict[str, Any], groups: list[str], *, priced: bool, metered: bool = False, first: str = ""
) -> list[object]:
    names: list[object] = [(row["key_name"] or row["key"]) if group == "key" else row[group] for group in groups]
    if first and names:
        names[0] = first
    failed = sum(count for outcome, count in row["outcomes"].items() if outcome != "ok")
    cost = [] if not priced else [None if row["cost"] is None else price(row["cost"])]
    energy = [] if not metered else [None if row["energy_j"] is None else f"{row['energy_j'] / 3.6e6:.3f} kWh"]
    tokens = [f"{row[name]:,}" for name in ("prompt_tokens", "cached_tokens", "completion_tokens")]
    return [
        *names,
        row["requests"],
        failed,
        *tokens,
        seconds(row["queued_s"]),
        seconds(row["device_s"]),
        *cost,
        *energy,
    ]


def price(cost: float) -> str:
    """Two digits after the point; below 0.01 as many as show the first two that are not 0."""
    if not 0 < cost < 0.01:
        return f"{cost:.2f}"
    return f"{cost:.{min(12, 1 - math.floor(math.log10(cost)))}f}"
