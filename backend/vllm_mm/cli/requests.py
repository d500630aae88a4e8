"""`requests ls|show|replay|cancel`: the ledger, what was captured of a request and how it goes when it is sent again, and the end of one
that runs."""

from typing import Annotated, Any
from urllib.parse import quote

import typer

from vllm_mm.cli.exits import Exit, fail
from vllm_mm.cli.options import Json
from vllm_mm.cli.output import clock, print_json, print_table, seconds
from vllm_mm.cli.server import the_server

SILENCE = 600.0
"""Seconds without a byte after which a replayed answer is given up; the first one may have to wait for a load."""


def app() -> typer.Typer:
    requests = typer.Typer(
        help="Look at requests: the ledger, and captures; send one again; cancel one.",
        no_args_is_help=True,
        rich_markup_mode=None,
    )
    requests.command("ls", epilog="Example: vllm-mm requests ls --model demo --outcome timeout")(ls)
    requests.command("show", epilog="Example: vllm-mm requests show req_0123456789ab_7 --curl")(show)
    requests.command("replay", epilog="Example: vllm-mm requests replay req_0123456789ab_7")(replay)
    requests.command("cancel", epilog="Example: vllm-mm requests cancel req_0123456789ab_7")(cancel)
    return requests


def ls(
    context: typer.Context,
    model: Annotated[str | None, typer.Option("--model", help="Only those for this model, by id.")] = None,
    key: Annotated[str | None, typer.Option("--key", help="Only those of the key with this id.")] = None,
    outcome: Annotated[str | None, typer.Option("--outcome", help="Only those that ended so, such as ok.")] = None,
    limit: Annotated[int, typer.Option("--limit", min=1, max=1000, help="So many, the latest.")] = 20,
    running: Annotated[
        bool, typer.Option("--running", help="Those that are under way instead, the oldest first.")
    ] = False,
    json: Json = False,
) -> None:
    """List the latest requests, with how they ended; or those under way, with how far they are."""
    if running:
        if model or key or outcome:
            fail("--running lists all that are under way, and takes no filter.", Exit.USAGE)
        _running(the_server(context).get("/api/requests/running", limit=limit), as_json=json)
        return
    found = the_server(context).get("/api/requests", model=model, key=key, outcome=outcome, limit=limit)
    if json:
        print_json(found["requests"])
        return
    rows = [
        (
            clock(r["at"]),
            r["id"],
            r["route"],
            r["model"] or r["asked"],
            r["outcome"],
            r["status"],
            seconds(r["total_s"]),
        )
        for r in found["requests"]
    ]
    print_table(("at", "request", "route", "model", "outcome", "status", "took"), rows, "No requests.")


def _running(found: dict[str, Any], *, as_json: bool) -> None:
    if as_json:
        print_json(found["requests"])
        return
    rows = [
        (clock(r["at"]), r["id"], r["route"], r["model"] or r["asked"], _stage(r), seconds(r["total_s"]))
        for r in found["requests"]
    ]
    print_table(("at", "request", "route", "model", "now", "for"), rows, "No request is under way.")
    if found["total"] > len(rows):
        typer.echo(f"{found['total'] - len(rows)} younger ones are not shown: --limit")


def _stage(row: dict[str, Any]) -> str:
    if row["ending"]:
        return "is being ended"
    return "stands still" if row["frozen"] else row["stage"]


def show(
    context: typer.Context,
    request: Annotated[str, typer.Argument(help="Its id, or its X-Request-Id.")],
    curl: Annotated[
        bool, typer.Option("--curl", help="A command that sends it again, with the key that VLLM_MM_TOKEN holds.")
    ] = False,
    json: Json = False,
) -> None:
    """Show what was captured of a request and its answer (`captures` in the configuration says of which)."""
    server, path = the_server(context), f"/api/requests/{quote(request, safe='')}/capture"
    if curl:
        with server.stream("GET", path, params={"as": "curl"}, silence=30.0) as answer:
            for piece in answer.iter_text():
                typer.echo(piece, nl=False)
        return
    found = server.get(path)
    if json:
        print_json(found)
        return
    row = found["row"]
    typer.echo(
        f"{found['id']} {clock(row['at'])} {row['model'] or row['asked']}: {row['outcome']}, {seconds(row['total_s'])}"
    )
    typer.echo(f"\n{found['request']['method']} {found['request']['target']}")
    _message(found["request"])
    typer.echo(f"\n{found['answer']['status']}")
    _message(found["answer"])


def replay(
    context: typer.Context,
    request: Annotated[str, typer.Argument(help="Its id, or its X-Request-Id.")],
) -> None:
    """Send a captured request again, and print the answer as it comes. The key needs the scopes operate and infer."""
    path = f"/api/requests/{quote(request, safe='')}/replay"
    with the_server(context).stream("POST", path, silence=SILENCE) as answer:
        for piece in answer.iter_text():
            typer.echo(piece, nl=False)
    typer.echo()


def cancel(
    context: typer.Context,
    request: Annotated[str, typer.Argument(help="Its id, or its X-Request-Id.")],
    json: Json = False,
) -> None:
    """End a request that waits or runs. Its client is told that an operator cancelled it."""
    done = the_server(context).call("POST", f"/api/requests/{quote(request, safe='')}/cancel")
    if json:
        print_json(done)
    else:
        typer.echo(f"{done['id']}: cancelled")


def _message(message: dict[str, Any]) -> None:
    for name, value in message["headers"]:
        typer.echo(f"{name}: {value}")
    body = message["body"]
    if body["cut"]:
        typer.echo(f"(the beginning of {body['size']} bytes)")
    typer.echo("")
    typer.echo(body["text"] if body["text"] is not None else f"(no text; base64) {body['base64']}")
