"""`keys create|ls|show|edit|rotate|revoke|export|import`: who may do what."""

import os
import sys
from collections.abc import Mapping
from json import dump, loads
from pathlib import Path
from typing import Annotated, Any, Final
from urllib.parse import quote

import typer

from vllm_mm.cli.exits import Exit, fail, understood
from vllm_mm.cli.options import Config, DataDir, Json
from vllm_mm.cli.output import clock, count, print_json, print_table
from vllm_mm.cli.server import the_server
from vllm_mm.vocabulary.quantities import parse_duration

SHORTEST = 4
"""Characters of the beginning of an id that are enough to mean a key."""


Limit = Annotated[
    list[str] | None,
    typer.Option(
        "--limit",
        help="NAME=NUMBER, may be repeated: concurrency, requests (a minute), tokens (a minute), tokens-day, tokens-month, seconds-day, "
        "seconds-month (of devices). `NAME=none` takes one away.",
    ),
]
Deny = Annotated[
    list[str] | None,
    typer.Option(
        "--deny",
        help="A right that it does not have: load, evict, logs or capture; may be repeated. `none`: all are its.",
    ),
]
_LIMITS: Final[Mapping[str, str]] = {
    "concurrency": "concurrency",
    "requests": "requests_per_minute",
    "tokens": "tokens_per_minute",
    "tokens-day": "tokens_per_day",
    "tokens-month": "tokens_per_month",
    "seconds-day": "device_seconds_per_day",
    "seconds-month": "device_seconds_per_month",
}
_ACTS: Final = ("load", "evict", "logs", "capture")


def app() -> typer.Typer:
    keys = typer.Typer(help="Who may do what: API keys.", no_args_is_help=True, rich_markup_mode=None)
    keys.command(
        "create",
        epilog="Example: vllm-mm keys create ci --scope infer --model 'qwen*' --limit requests=60 --limit tokens-day=100000 --deny evict",
    )(create)
    keys.command("ls", epilog="Example: vllm-mm keys ls")(ls)
    keys.command("show", epilog="Example: vllm-mm keys show ci")(show)
    keys.command("edit", epilog="Example: vllm-mm keys edit ci --limit concurrency=4 --limit tokens=none --weight 2")(
        edit
    )
    keys.command("rotate", epilog="Example: vllm-mm keys rotate ci --overlap 1h")(rotate)
    keys.command("revoke", epilog="Example: vllm-mm keys revoke key_0123456789ab")(revoke)
    keys.command("export", epilog="Example: vllm-mm keys export keys.json")(export)
    keys.command("import", epilog="Example: vllm-mm keys import keys.json")(import_)
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
        typer.Option(
            "--model", help="Only these models, by id, alias or pattern (`qwen*`); may be repeated. Default all."
        ),
    ] = None,
    expires: Annotated[
        str | None, typer.Option("--expires", help="End by itself after this time, such as 30d.")
    ] = None,
    limit: Limit = None,
    deny: Deny = None,
    weight: Annotated[
        float | None, typer.Option("--weight", help="Its share of a model's slots beside other keys. Default 1.")
    ] = None,
    progress: Annotated[
        bool, typer.Option("--progress", help="Its streams get progress comments while they wait.")
    ] = False,
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
    rights = _rights(limit, deny, weight, progress=progress or None)
    if local:
        from vllm_mm.cli.database import create_key  # noqa: PLC0415  # the database takes its time

        made = create_key(config, data_dir, name, scope or ["infer"], model, seconds, rights)
    else:
        body: dict[str, Any] = {
            "name": name,
            "scopes": scope or ["infer"],
            "models": model,
            "expires_in": seconds,
            **rights,
        }
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
            k["id"], k["name"], f"{k['prefix']}…" if k["prefix"] else None, ",".join(k["scopes"]),
            "all" if k["models"] is None else ",".join(k["models"]), ",".join(_denied(k)), " ".join(_limits(k)),
            clock(k["created_at"]), _ended(k),
        )
        for k in keys
    ]  # fmt: skip
    print_table(("id", "name", "secret", "scopes", "models", "denied", "limits", "created", "state"), rows, "No keys.")


def show(
    context: typer.Context,
    key: Annotated[str, typer.Argument(help="The key's id, the beginning of it, or its name.")],
    json: Json = False,
) -> None:
    """Show one key: what it may, its limits, and what it uses now."""
    server = the_server(context)
    found: dict[str, Any] = server.get(_path(_named(server.get("/api/keys"), key, revoked=True)))
    if json:
        print_json(found)
        return
    used: dict[str, Any] = found["used"] or {}
    rows: list[tuple[str, object]] = [
        ("id", found["id"]), ("name", found["name"]), ("secret", f"{found['prefix']}…"), ("state", _ended(found)),
        ("scopes", ", ".join(found["scopes"])), ("models", "all" if found["models"] is None else ", ".join(found["models"])),
        ("rights", ", ".join(found["acts"]) or "none"), ("weight", f"{found['weight']:g}"),
        ("progress", "yes" if found["progress"] else "no"),
    ]  # fmt: skip
    if found["rotated_until"] is not None:
        rows.append(("secret of before", f"good until {clock(found['rotated_until'])}"))
    for name, field in _LIMITS.items():
        most = found["limits"][field]
        if most is not None:
            rows.append((name, f"{used.get(field, 0):g} of {most:,.10g}"))
    for label, value in rows:
        typer.echo(f"{label:<18}{value}")


def edit(
    context: typer.Context,
    key: Annotated[str, typer.Argument(help="The key's id, the beginning of it, or its name.")],
    name: Annotated[str | None, typer.Option("--name", help="Another name.")] = None,
    scope: Annotated[
        list[str] | None,
        typer.Option("--scope", help="Its scopes from now on: infer, read, operate, admin; may be repeated."),
    ] = None,
    model: Annotated[
        list[str] | None,
        typer.Option("--model", help="Its models from now on: ids, aliases, patterns; `all` for all; may be repeated."),
    ] = None,
    expires: Annotated[
        str | None,
        typer.Option("--expires", help="End by itself after this time from now, such as 30d; `never` for never."),
    ] = None,
    limit: Limit = None,
    deny: Deny = None,
    weight: Annotated[
        float | None, typer.Option("--weight", help="Its share of a model's slots beside other keys.")
    ] = None,
    progress: Annotated[
        bool | None,
        typer.Option("--progress/--no-progress", help="Whether its streams get progress comments while they wait."),
    ] = None,
    json: Json = False,
) -> None:
    """Change what a key may do. What is not named stays; in force at once."""
    changes = _rights(limit, deny, weight, progress=progress)
    if name is not None:
        changes["name"] = name
    if scope:
        changes["scopes"] = scope
    if model:
        changes["models"] = None if model == ["all"] else model
    if expires is not None:
        changes["expires_in"] = None if expires == "never" else understood("--expires", expires, parse_duration)
    if not changes:
        fail("nothing to change was named; `vllm-mm keys edit --help` lists what can be", Exit.USAGE)
    server = the_server(context)
    after = server.call("PATCH", _path(_named(server.get("/api/keys"), key)), json=changes)
    if json:
        print_json(after)
    else:
        typer.echo(f"{after['id']} ({after['name']}): changed {', '.join(sorted(changes))}")


def rotate(
    context: typer.Context,
    key: Annotated[str, typer.Argument(help="The key's id, the beginning of it, or its name.")],
    overlap: Annotated[
        str, typer.Option("--overlap", help="For how long the secret of before is good as well, such as 1h.")
    ] = "0",
    json: Json = False,
) -> None:
    """Give a key another secret and print it. It is shown this once."""
    seconds = understood("--overlap", overlap, parse_duration)
    server = the_server(context)
    made = server.call("POST", f"{_path(_named(server.get('/api/keys'), key))}/rotate", json={"overlap": seconds})
    if json:
        print_json(made)
        return
    until = made["rotated_until"]
    old = "is not good any more" if until is None else f"is good until {clock(until)}"
    typer.echo(f"{made['id']} ({made['name']}). The secret of before {old}. The new one, shown this once:", err=True)
    typer.echo(made["secret"])


def export(
    context: typer.Context,
    file: Annotated[
        Path | None, typer.Argument(help="File to make; it must not exist. Default: standard output.")
    ] = None,
) -> None:
    """Write all keys, with their hashes and without secrets, as JSON."""
    found = the_server(context).get("/api/keys/export")
    if file is None:
        print_json(found)
        return
    try:
        with os.fdopen(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as out:
            dump(found, out, indent=2, ensure_ascii=False)
            out.write("\n")
    except OSError as error:
        fail(f"{file}: {error.strerror}")
    typer.echo(f"{file}: {count(len(found['keys']), 'key')}")


def import_(
    context: typer.Context,
    file: Annotated[Path, typer.Argument(help="What `keys export` wrote; `-` for standard input.")],
    json: Json = False,
) -> None:
    """Take over exported keys, all or none. The server needs the same `auth.secret`."""
    try:
        text = sys.stdin.read() if str(file) == "-" else file.read_text()
        asked = loads(text)
    except OSError as error:
        fail(f"{file}: {error.strerror}")
    except ValueError as error:
        fail(f"{file} is not what `vllm-mm keys export` wrote: {error}")
    done = the_server(context).call("POST", "/api/keys/import", json=asked)
    if json:
        print_json(done)
    else:
        typer.echo(f"{count(done['imported'], 'key')} imported")


def _rights(
    limit: list[str] | None, deny: list[str] | None, weight: float | None, *, progress: bool | None
) -> dict[str, Any]:
    """As the API takes them; only what was named."""
    rights: dict[str, Any] = {}
    if limit:
        rights["limits"] = dict(_limit(text) for text in limit)
    if deny:
        unknown = [right for right in deny if right not in {*_ACTS, "none"}]
        if unknown:
            fail(f"--deny: there is no right {unknown[0]!r}; there are {', '.join(_ACTS)}", Exit.USAGE)
        rights["acts"] = [right for right in _ACTS if right not in deny]
    if weight is not None:
        rights["weight"] = weight
    if progress is not None:
        rights["progress"] = progress
    return rights


def _limit(text: str) -> tuple[str, float | None]:
    name, mark, number = text.partition("=")
    field = _LIMITS.get(name.strip())
    if field is None or not mark:
        fail(f"--limit: {text!r} is not NAME=NUMBER with one of {', '.join(_LIMITS)}", Exit.USAGE)
    if number.strip() == "none":
        return field, None
    try:
        most = float(number)
    except ValueError:
        fail(f"--limit: {number!r} is no number (of {name})", Exit.USAGE)
    return field, int(most) if most.is_integer() else most


def _denied(key: dict[str, Any]) -> list[str]:
    return [right for right in _ACTS if right not in key["acts"]]


def _limits(key: dict[str, Any]) -> list[str]:
    return [f"{name}={key['limits'][field]:g}" for name, field in _LIMITS.items() if key["limits"][field] is not None]


def _path(key: dict[str, Any]) -> str:
    return f"/api/keys/{quote(key['id'], safe='')}"


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
    """Revoke a key. It stops working at once, and what waits or runs with it ends."""
    server = the_server(context)
    keys: list[dict[str, Any]] = server.get("/api/keys")
    found = _named(keys, key)
    if not force and _last_admin(keys, found):
        _confirm(found)
    gone = server.call("DELETE", _path(found))
    if json:
        print_json(gone)
    else:
        typer.echo(f"{gone['id']} ({gone['name']}): revoked")


def _named(keys: list[dict[str, Any]], text: str, *, revoked: bool = False) -> dict[str, Any]:
    """The key that `text` means; leaves when it means none, or more than one. `revoked`: also one that is not good any more."""
    exact = [k for k in keys if k["id"] == text]
    able = [k for k in keys if k["active"] or revoked]
    found = exact or [k for k in able if k["name"] == text]
    if not found and len(text) >= SHORTEST:
        found = [k for k in able if k["id"].startswith(text) or k["id"].removeprefix("key_").startswith(text)]
    if not found:
        what = "" if revoked else " that is good"
        fail(f"there is no key {text!r}{what}; `vllm-mm keys ls` lists them", Exit.NOT_FOUND)
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
