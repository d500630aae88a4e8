"""`devices`, and the leases on device memory that `drain --device` asks for and `undrain --lease` ends."""

from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import quote

import typer

from vllm_mm.cli.exits import Exit, fail, understood
from vllm_mm.cli.options import Json
from vllm_mm.cli.output import clock, first_line, print_json, print_table, size
from vllm_mm.cli.server import Server, the_server
from vllm_mm.domain.device_leases import LONGEST
from vllm_mm.vocabulary.quantities import parse_duration, parse_size

WAIT_MAX = 600.0
"""The server's own bound for one request."""


def add_to(app: typer.Typer) -> None:
    app.command("devices", epilog="Example: vllm-mm devices")(devices)


def devices(context: typer.Context, json: Json = False) -> None:
    """Show the devices: their memory, who uses it, what is wrong with them; and the leases on their memory."""
    server = the_server(context)
    found, leases = server.get("/api/devices"), server.get("/api/devices/leases")
    if json:
        print_json({"devices": found, "leases": leases})
        return
    rows = [
        (
            d["id"], d["kind"], d["name"], size(d["capacity"]), size(d["free"]), size(d["foreign"]),
            ", ".join(f"{r['model']} {size(r['bytes'])}" for r in d["reservations"]), _state(d),
        )
        for d in found
    ]  # fmt: skip
    columns = ("id", "kind", "name", "memory", "free", "others", "reserved", "state")
    print_table(columns, rows, "There is no device.")
    if leases:
        typer.echo("")
        print_leases(leases)


def print_leases(leases: Sequence[Mapping[str, Any]]) -> None:
    rows = [
        (
            lease["id"], lease["device"], size(lease["bytes"]), lease["stage"],
            clock(lease["ends_at"]) if lease["ends_at"] else None, lease["note"],
            ", ".join(e["model"] for e in lease["evicted"] if e["wanted"]), first_line(lease["reason"], 60),
        )
        for lease in leases
    ]  # fmt: skip
    columns = ("lease", "device", "memory", "stage", "until", "note", "restores", "reason")
    print_table(columns, rows, "There are no leases on device memory.")


def ask(
    context: typer.Context, device: str, free: str, for_: str, note: str, no_wait: bool, timeout: float, json: bool
) -> None:
    """`vllm-mm drain --device`."""
    asked, seconds = understood("--free", free, parse_size), understood("--for", for_, parse_duration)
    if asked <= 0:
        fail("--free: ask for more than nothing, such as 10GiB", Exit.USAGE)
    if not 0 < seconds <= LONGEST:
        fail("--for: ask for more than nothing and for at most 7d, such as 2h", Exit.USAGE)
    wait = None if no_wait else min(timeout, WAIT_MAX)
    lease = the_server(context).call(
        "POST", f"/api/devices/{quote(device, safe='')}/leases", params={"wait": wait},
        json={"free": asked, "for": seconds, "note": note}, wait=wait or 0.0,
    )  # fmt: skip
    if json:
        print_json(lease)
    else:
        print_leases([lease])
    if wait is not None and lease["stage"] != "held":
        fail(
            f"the memory is not free yet ({lease['reason']}). It goes on waiting; `vllm-mm devices` looks at it, "
            f"`vllm-mm undrain --lease {lease['id']}` ends it."
        )


def end(context: typer.Context, lease: str, json: bool) -> None:
    """`vllm-mm undrain --lease`: its id, or the beginning of it that no other has."""
    server = the_server(context)
    ended = server.call("DELETE", f"/api/devices/leases/{quote(_whole(server, lease), safe='')}")
    if json:
        print_json(ended)
    else:
        typer.echo(f"{ended['id']}: {ended['stage']}, {ended['reason']}")


def _whole(server: Server, lease: str) -> str:
    """The id that is meant; as it was given where no lease begins so: the server says what there is."""
    given = lease.removeprefix("lease:")
    if not given:
        fail("--lease: give the id of a lease, or its beginning; `vllm-mm devices` lists them", Exit.USAGE)
    ids = [found["id"] for found in server.get("/api/devices/leases")]
    meant = [one for one in ids if one == given] or [one for one in ids if one.startswith(given)]
    if len(meant) > 1:
        fail(f"--lease: {given} is the beginning of {', '.join(meant)}; give more of it", Exit.USAGE)
    return meant[0] if meant else given


def one_of(model: str | None, other: str | None, option: str) -> None:
    """Usage: a model, or the option."""
    if (model is None) == (other is None):
        fail(
            f"name a model, or give {option}" if model is None else f"a model and {option} do not go together",
            Exit.USAGE,
        )


def _state(device: Mapping[str, Any]) -> str:
    strangers = ", ".join(f"{p['name']} (pid {p['pid']})" for p in device["foreign_processes"][:3])
    return first_line(device["problem"], 60) or (f"shared with {strangers}" if strangers else "well")
