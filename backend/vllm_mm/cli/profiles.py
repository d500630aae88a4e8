"""`profile ls|use`: named sets of pins, preloads and aliases."""

from typing import Annotated
from urllib.parse import quote

import typer

from vllm_mm.cli.declarations import change_lines
from vllm_mm.cli.options import DryRun, Json
from vllm_mm.cli.output import clock, print_json, print_table
from vllm_mm.cli.server import the_server


def app() -> typer.Typer:
    profile = typer.Typer(help="Switch between profiles.", no_args_is_help=True, rich_markup_mode=None)
    profile.command("ls", epilog="Example: vllm-mm profile ls")(ls)
    profile.command("use", epilog="Example: vllm-mm profile use night")(use)
    return profile


def ls(context: typer.Context, json: Json = False) -> None:
    """List the profiles of the configuration and which one is active."""
    found = the_server(context).get("/api/profiles")
    if json:
        print_json(found)
        return
    rows = [
        (
            p["name"], "active" if p["active"] else "", _listed(p["pins"]), _listed(p["preloads"]),
            ", ".join(f"{name}={model}" for name, model in p["aliases"].items()), ", ".join(p["schedule"]), ", ".join(p["missing"]),
        )
        for p in found["profiles"]
    ]  # fmt: skip
    columns = ("name", "state", "pins", "preloads", "aliases", "schedule", "no such model")
    print_table(columns, rows, "No profiles. `profiles` in docs/configuration.md says how to declare some.")
    if found["since"] is not None:
        typer.echo(f"{found['active'] or 'none'} is active since {clock(found['since'])} ({found['by']})")


def use(
    context: typer.Context,
    name: Annotated[str, typer.Argument(help="A profile; `none` for none.")],
    dry_run: DryRun = False,
    json: Json = False,
) -> None:
    """Make a profile the active one, until another one is. What runs is not disturbed."""
    path = "/api/profiles/deactivate" if name == "none" else f"/api/profiles/{quote(name, safe='')}/activate"
    found = the_server(context).call("POST", path, params={"dry_run": 1} if dry_run else {})
    if json:
        print_json(found)
        return
    for change in found["changes"]:
        typer.echo("\n".join(change_lines(change)))
    for model in found["missing"]:
        typer.echo(f"warning: there is no model {model}", err=True)
    typer.echo(f"{found['profile'] or 'none'} {'is' if found['applied'] else 'would be'} active")


def _listed(names: list[str] | None) -> str:
    return "as declared" if names is None else ", ".join(names) or "none"
