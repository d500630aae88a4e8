"""`keys create|ls|revoke`: who may do what."""

import sys
from typing import Annotated, Any
from urllib.parse import quote

import typer

from vllm_mm.cli.exits import Exit, fail, understood
from vllm_mm.cli.options import Config, DataDir, Json
from vllm_mm.cli.output import clock, print_json, print_table
from vllm_mm.cli.server import the_server
from vllm_mm.vocabulary.quantities import parse_duration

SHORTEST = 4
"""Characters of the beginning of an id that are enough to mean a key."""


def app() -> typer.Typer:
    keys = typer.Typer(help="Make, list and revoke API keys.", no_args_is_help=True, rich_markup_mode=None)
    keys.command("create", epilog="Example: vllm-mm keys create ci --scope read --scope infer")(create)
    keys.command("ls", epilog="Example: vllm-mm keys ls")(ls)
    keys.command("revoke", epilog="Example: vllm-mm keys revoke key_0123456789ab")(revoke)
    return keys


def create(
    context: typer.Context,
    name: Annotated[str, typer.Argument(help="Whose it is, or what for; shown in events and in the ledger.")],
    scope: Annotated[
        list[str] | None,
        typer.Option("--scope", help="infer (send requests), read, operate or admin; may be repeated. Default infer."),
    ] = None,
    model: Annotated[
        list[str] | None,
        typer.Option("--model", help="Only these models, by id or alias; may be repeated. Default all."),
    ] = None,
    expires: Annotated[
        str | None, typer.Option("--expires", help="End by itself after this time, such as 30d.")
    ] = None,
    local: Annotated[
        bool,
        typer.Option(
            "--local",
            help="Write to this machine's database: for when no admin key is left. A server has to be restarted.",
        ),
    ] = False,
    config: Config = None,
    data_dir: DataDir = None,
    json: Json = False,
) -> None:
    """Make a key and print its secret. It is shown this once: only its hash is kept."""
    seconds = understood("--expires", expires, parse_duration) if expires is not None else None
    if local:
        from vllm_mm.cli.database import create_key  # noqa: PLC0415  # the database takes its time

        made = create_key(config, data_dir, name, scope or ["infer"], model, seconds)
    else:
        body: dict[str, Any] = {"name": name, "scopes": scope or ["infer"], "models": model, "expires_in": seconds}
        made = the_server(context).call("POST", "/api/keys", json=body)
    if json:
        print_json(made)
        return
    typer.echo(f"{made['id']} ({', '.join(made['scopes'])}). The secret, shown this once:", err=True)
    typer.echo(made["secret"])


def ls(context: typer.Context, json: Json = False) -> None:
    """List every key ever issued, without secrets."""
    keys: list[dict[str, Any]] = the_server(context).get("/api/keys")
    if json:
        print_json(keys)
        return
    rows = [
        (
            k["id"], k["name"], ",".join(k["scopes"]), "all" if k["models"] is None else ",".join(k["models"]),
            clock(k["created_at"]), _ended(k),
        )
        for k in keys
    ]  # fmt: skip
    print_table(("id", "name", "scopes", "models", "created", "state"), rows, "No keys.")


def _ended(key: dict[str, Any]) -> str:
    if key["revoked_at"] is not None:
        return f"revoked {clock(key['revoked_at'])}"
    if key["expires_at"] is None:
        return "active"
    return f"{'active until' if key['active'] else 'ended'} {clock(key['expires_at'])}"


def revoke(
    context: typer.Context,
    key: Annotated[str, typer.Argument(help="The key's id, the beginning of it, or its name.")],
    force: Annotated[bool, typer.Option("--force", help="Also the last key that may administer the server.")] = False,
    json: Json = False,
) -> None:
    """Revoke a key. It stops working at once."""
    server = the_server(context)
    keys: list[dict[str, Any]] = server.get("/api/keys")
    found = _named(keys, key)
    if not force and _last_admin(keys, found):
        _confirm(found)
    gone = server.call("DELETE", f"/api/keys/{quote(found['id'], safe='')}")
    if json:
        print_json(gone)
    else:
        typer.echo(f"{gone['id']} ({gone['name']}): revoked")


def _named(keys: list[dict[str, Any]], text: str) -> dict[str, Any]:
    """The key that `text` means; leaves when it means none, or more than one."""
    exact = [k for k in keys if k["id"] == text]
    active = [k for k in keys if k["active"]]
    found = exact or [k for k in active if k["name"] == text]
    if not found and len(text) >= SHORTEST:
        found = [k for k in active if k["id"].startswith(text) or k["id"].removeprefix("key_").startswith(text)]
    if not found:
        fail(f"there is no key {text!r} that could be revoked; `vllm-mm keys ls` lists them", Exit.NOT_FOUND)
    if len(found) > 1:
        fail(f"{text!r} may be any of {', '.join(k['id'] for k in found)}; name one by its id")
    return found[0]


def _last_admin(keys: list[dict[str, Any]], key: dict[str, Any]) -> bool:
    admins = [k["id"] for k in keys if k["active"] and "admin" in k["scopes"]]
    return admins == [key["id"]]


def _confirm(key: dict[str, Any]) -> None:
    warning = (
        f"{key['id']} ({key['name']}) is the last key that may administer this server. Without one, only "
        "`vllm-mm keys create NAME --scope admin --local` on the server's own machine makes another"
    )
    if not sys.stdin.isatty():
        fail(f"{warning}. Use --force to revoke it nevertheless.")
    typer.echo(f"vllm-mm: {warning}.", err=True)
    if not typer.confirm("Revoke it?", err=True):
        fail("nothing was revoked")
