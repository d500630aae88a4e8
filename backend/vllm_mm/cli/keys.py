"""`keys create|ls|revoke`: who may do what."""

from typing import Annotated, Any

import typer

from vllm_mm.cli.exits import Exit, fail
from vllm_mm.cli.options import Config, DataDir, Json
from vllm_mm.cli.output import clock, print_json, print_table
from vllm_mm.cli.server import the_server


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
        list[str] | None, typer.Option("--model", help="Only these models; may be repeated. Default all.")
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
    from vllm_mm.settings import parse_duration  # noqa: PLC0415  # pydantic takes its time

    try:
        seconds = parse_duration(expires) if expires is not None else None
    except ValueError as error:
        fail(f"--expires: {error}", Exit.USAGE)
    if local:
        from vllm_mm.cli.database import create_key  # noqa: PLC0415  # as above

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
    context: typer.Context, key: Annotated[str, typer.Argument(help="The key's id.")], json: Json = False
) -> None:
    """Revoke a key. It stops working at once."""
    gone = the_server(context).call("DELETE", f"/api/keys/{key}")
    if json:
        print_json(gone)
    else:
        typer.echo(f"{gone['id']} ({gone['name']}): revoked")
