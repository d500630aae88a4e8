"""`add edit copy rm`: models that are made over the API, in the server's database."""

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, cast

import typer

from vllm_mm.cli import estimates
from vllm_mm.cli.exits import Exit, fail
from vllm_mm.cli.options import DryRun, Json, Model, NoWait
from vllm_mm.cli.output import print_json
from vllm_mm.cli.server import model_path, the_server

WAIT = 600.0
"""Seconds that `rm` waits for the end of what runs."""
CHECK_WAIT = 60.0
"""Seconds that the server may take to ask an engine for its arguments, beyond the usual."""


def add_to(app: typer.Typer) -> None:
    app.command("add", epilog="Example: vllm-mm add tiny --engine sim --set sim.weights=1GiB")(add)
    app.command("edit", epilog="Example: vllm-mm edit tiny --set priority=3 --dry-run")(edit)
    app.command("copy", epilog="Example: vllm-mm copy demo mine")(copy)
    app.command("rm", epilog="Example: vllm-mm rm tiny")(rm)


def add(
    context: typer.Context,
    model: Annotated[str, typer.Argument(help="The id that clients will use.")],
    load_: Annotated[
        str | None, typer.Option("--model", help="What the engine loads: a Hugging Face id or a folder.")
    ] = None,
    engine: Annotated[str | None, typer.Option(help="vllm, sim or command.")] = None,
    settings: Annotated[
        list[str] | None, typer.Option("--set", help="Any other key, such as args.max-model-len=8192; may be repeated.")
    ] = None,
    file: Annotated[
        Path | None, typer.Option("--file", "-f", help="A declaration as in the configuration file, without its id.")
    ] = None,
    dry_run: DryRun = False,
    json: Json = False,
) -> None:
    """Make a model over the API; it is kept in the server's database."""
    body: dict[str, Any] = _read(file) if file is not None else {}
    body |= {name: value for name, value in (("model", load_), ("engine", engine)) if value is not None}
    for setting in settings or ():
        put(body, setting)
    made = the_server(context).call(
        "POST", "/api/models", json={**body, "id": model}, params=_dry(dry_run), wait=CHECK_WAIT
    )
    _say(made, json, "made. `vllm-mm load {}` starts it.")


def edit(
    context: typer.Context,
    model: Model,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set", help="A key and its new value, such as priority=3; null takes a key away; may be repeated."
        ),
    ] = None,
    file: Annotated[
        Path | None, typer.Option("--file", "-f", help="The whole declaration anew, as in the configuration file.")
    ] = None,
    dry_run: DryRun = False,
    json: Json = False,
) -> None:
    """Change a model that was made over the API. An engine that no longer fits finishes what runs; the next one is new."""
    if file is None and not settings:
        fail("say what to change: --set KEY=VALUE, or --file FILE with the whole declaration", Exit.USAGE)
    body: dict[str, Any] = {} if file is None else _read(file)
    for setting in settings or ():
        put(body, setting)
    method = "PATCH" if file is None else "PUT"
    found = the_server(context).call(method, model_path(model), json=body, params=_dry(dry_run), wait=CHECK_WAIT)
    _say(found, json, "changed")


def copy(
    context: typer.Context,
    model: Model,
    new: Annotated[str, typer.Argument(help="The id of the new model.")],
    dry_run: DryRun = False,
    json: Json = False,
) -> None:
    """Make a model of another one, of the configuration file or not, that can be changed over the API."""
    path = model_path(model, "copy")
    found = the_server(context).call("POST", path, json={"id": new}, params=_dry(dry_run), wait=CHECK_WAIT)
    _say(found, json, "made. `vllm-mm edit {}` changes it.")


def rm(
    context: typer.Context, model: Model, no_wait: NoWait = False, dry_run: DryRun = False, json: Json = False
) -> None:
    """Take away a model that was made over the API; what runs is let finish."""
    wait = None if no_wait or dry_run else WAIT
    params = {"wait": wait, **_dry(dry_run)}
    gone = the_server(context).call("DELETE", model_path(model), params=params, wait=wait or 0.0)
    _say(gone, json, "removed")


def change_lines(change: Mapping[str, Any]) -> list[str]:
    """What changes of a model, for people: the effect, then each key."""
    lines = [f"{change['model']}: {change['text']}"]
    lines += [f"  {f['key']}: {_shown(f['before'])} -> {_shown(f['after'])}" for f in change["fields"]]
    return lines


def _shown(value: object) -> str:
    import json  # noqa: PLC0415  # `json` is an option's name in this module

    return "-" if value is None else value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _dry(dry_run: bool) -> dict[str, Any]:
    return {"dry_run": 1} if dry_run else {}


def _say(found: Mapping[str, Any], json: bool, done: str) -> None:
    """The result of a change, or of its dry run."""
    if json:
        print_json(found)
    elif "dry_run" in found:
        typer.echo("\n".join(change_lines(found["change"])))
        if found["footprint"] is not None:
            typer.echo(f"  footprint: {estimates.line(found['footprint'])}")
        for note in found["notes"]:
            typer.echo(f"  note: {note}")
        typer.echo("Nothing was changed: this was a dry run.")
    else:
        typer.echo(f"{found['id']}: {done.format(shlex.quote(found['id']))}")


def _read(file: Path) -> dict[str, Any]:
    import yaml  # noqa: PLC0415  # only here

    try:
        value = yaml.safe_load(file.read_text())
    except OSError as error:
        fail(f"{file} cannot be read: {error.strerror}", Exit.USAGE)
    except yaml.YAMLError as error:
        fail(f"{file} is not YAML: {error}", Exit.USAGE)
    if not isinstance(value, dict):
        fail(f"{file} has to be a mapping, such as `engine: sim`", Exit.USAGE)
    return cast("dict[str, Any]", value)


def put(body: dict[str, Any], setting: str) -> None:
    """`a.b=value` into nested mappings; the value is read as YAML."""
    import yaml  # noqa: PLC0415  # only here

    key, mark, text = setting.partition("=")
    if not mark or not key:
        fail(f"--set wants KEY=VALUE, not {setting!r}", Exit.USAGE)
    *sections, name = key.split(".")
    place = body
    for section in sections:
        inner = place.setdefault(section, {})
        if not isinstance(inner, dict):
            fail(f"--set {key}: `{section}` has a value already", Exit.USAGE)
        place = cast("dict[str, Any]", inner)
    try:
        place[name] = yaml.safe_load(text)
    except yaml.YAMLError as error:
        fail(f"--set {key}: {error}", Exit.USAGE)
