"""`queue plan events status`: what goes on and what would happen."""

import json as jsonlib
import sys
from collections.abc import Iterable, Iterator, Mapping
from typing import Annotated, Any

import typer

from vllm_mm.cli import estimates
from vllm_mm.cli.exits import Exit, fail
from vllm_mm.cli.options import Json
from vllm_mm.cli.output import clock, count, first_line, print_json, print_table, seconds, size
from vllm_mm.cli.server import the_server

LATE = {
    "cut": "is cut with an error",
    "wait": "is let finish, however long it takes",
    "freeze": "is frozen in the sleeping engine, and goes on later",
    "keep": "is frozen in the sleeping engine, and goes on later; if nothing is left, it stops",
}
"""What becomes of requests that take too long."""


def add_to(app: typer.Typer) -> None:
    app.command("status", epilog="Example: vllm-mm status")(status)
    app.command("queue", epilog="Example: vllm-mm queue")(queue)
    app.command("plan", epilog="Example: vllm-mm plan demo, or vllm-mm plan --estimate --model ./models/llama")(plan)
    app.command("top", epilog="Example: vllm-mm top")(top)
    app.command("events", epilog="Example: vllm-mm events --tail 20 -f")(events)


def status(context: typer.Context, json: Json = False) -> None:
    """One look at the server: version, models by state, the queue, alerts."""
    found = the_server(context).get("/api/status")
    if json:
        print_json(found)
        return
    states = ", ".join(f"{number} {state}" for state, number in found["states"].items()) or "no models"
    waiting = found["queue"]
    typer.echo(f"vllm-mm {found['version']}, up {seconds(found['uptime_s'])}: {states}")
    typer.echo(
        f"{count(found['in_flight'], 'request')} in flight, {waiting['length']} waiting"
        + (f", the oldest for {seconds(waiting['oldest_s'])}" if waiting["length"] else "")
    )
    host = found["host_memory"]
    budget = "off" if host["budget"] == 0 else "no bound" if host["budget"] is None else size(host["budget"])
    typer.echo(f"host memory for sleep: {size(host['used'])} of {budget}; {size(host['free'])} of the host are free")
    for told, forecast in found["forecasts"].items():
        if forecast["compared"]:
            typer.echo(
                f"ETAs when {told}: typically off by {seconds(forecast['typical_error_s'])} "
                f"({forecast['typical_ratio']:.0%}), {forecast['kept_at_latest']:.0%} there at latest when said "
                f"(last {forecast['compared']})"
            )
    for alert in found["alerts"]:
        typer.echo(f"alert: {alert}")


def queue(context: typer.Context, json: Json = False) -> None:
    """Show who waits for which model, how long, and why."""
    found = the_server(context).get("/api/queue")
    if json:
        print_json(found)
        return
    rows = [
        (e["model"], e["position"], seconds(e["waited_s"]), seconds(e["eta_s"]), e["key"], e["ticket"], e["why"])
        for e in found["entries"]
    ]
    print_table(("model", "position", "waited", "eta", "key", "request", "why"), rows, "Nobody waits.")


def top(context: typer.Context) -> None:
    """Watch devices, models, the queue and events on one screen, and load, unload, sleep, wake or pin by a key."""
    if not sys.stdout.isatty():
        fail("top needs a terminal; `vllm-mm ps -w` and `vllm-mm events -f` do not", Exit.USAGE)
    from vllm_mm.cli.top_server import run  # noqa: PLC0415  # textual takes its time

    run(the_server(context))


def plan(
    context: typer.Context,
    model: Annotated[str | None, typer.Argument(help="Id or alias of a model.")] = None,
    estimate: Annotated[bool, typer.Option("--estimate", help="Show its memory instead, as a sum.")] = False,
    folder: Annotated[
        str | None,
        typer.Option(
            "--model", help="With --estimate: a folder, or an id in the cache of Hugging Face; needs no server."
        ),
    ] = None,
    changes: Annotated[
        list[str] | None, typer.Option("--set", help="With --model: KEY=VALUE, as in a declaration (repeatable).")
    ] = None,
    cpu: Annotated[bool, typer.Option("--cpu", help="With --model: on the CPU build instead of a GPU.")] = False,
    json: Json = False,
) -> None:
    """Show what loading a model would do, without doing it; or what memory it takes, and why."""
    if estimate and folder is not None and model is None:
        estimates.of_folder(folder, changes or [], cpu=cpu, json=json)
        return
    if folder is not None or changes or cpu:
        fail("--model, --set and --cpu go with --estimate, and without the name of a model", Exit.USAGE)
    if model is None:
        fail("name a model, or a folder with --estimate --model DIR", Exit.USAGE)
    if estimate:
        estimates.of_model(the_server(context), model, json=json)
        return
    found = the_server(context).get("/api/plan", model=model)
    if json:
        print_json(found)
        return
    eta = ""
    if found["eta_s"]:
        eta = f", ready in about {seconds(found['eta_s'])}, at latest in {seconds(found['at_latest_s'])}"
    typer.echo(f"{found['model']} is {found['state']}. A load would: {found['act']} ({found['reason']}){eta}")
    parts = [("wait", found["again_in_s"]), ("room", found["room_s"]), ("load", found["load_s"])]
    if told := ", ".join(f"{name} {seconds(value)}" for name, value in parts if value):
        typer.echo(f"  of which: {told}")
    source = found["footprint"]["source"]
    for device, taken in found["devices"].items():
        typer.echo(f"  takes {size(taken)} on {device} ({source})")
    for victim in found["victims"]:
        running = ""
        if victim["in_flight"]:
            running = (
                f", {count(victim['in_flight'], 'request')} would finish first, in about {seconds(victim['drain_s'])}"
            )
        typer.echo(f"  evicts {victim['model']} ({victim['state']}, gives back {size(victim['bytes'])}{running})")
        cache = f" and {seconds(victim['cache_s'])} to fill its prefix cache" if victim["cache_s"] >= 0.1 else ""
        typer.echo(
            f"    to {victim['goal']} takes {seconds(victim['go_s'])}, to have it back {seconds(victim['return_s'])}{cache}: {victim['why']}"
        )
        if victim["in_flight"]:
            typer.echo(f"    what is left after `swap.drain_timeout` {LATE[victim['on_timeout']]}")
    for sleeper in found["stopped"]:
        late = f", if requests of {sleeper['sleeps_for']} outlast `swap.drain_timeout`" if sleeper["late"] else ""
        anew = "; it would be started anew instead of woken" if sleeper["model"] == found["model"] else ""
        typer.echo(
            f"  stops {sleeper['model']} (asleep for {seconds(sleeper['asleep_s'])}), whose {size(sleeper['host_bytes'])} of host "
            f"memory the sleep of {sleeper['sleeps_for']} needs{late}{anew}"
        )


def events(
    context: typer.Context,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on with what comes.")] = False,
    tail: Annotated[int, typer.Option("--tail", "-n", min=0, max=1000, help="Events to begin with.")] = 20,
    after: Annotated[int | None, typer.Option("--after", min=0, help="Begin after the event of this number.")] = None,
    model: Annotated[str | None, typer.Option("--model", help="Only those about this model.")] = None,
    json: Annotated[bool, typer.Option("--json", help="One JSON object a line.")] = False,
) -> None:
    """Print what happened: loads, swaps, failures, and who wanted them."""
    params = {"follow": follow, "after": after, "tail": None if after is not None else tail, "model": model}
    with the_server(context).stream("GET", "/api/events", params=params, accept="text/event-stream") as answer:
        for event in _data(answer.iter_lines()):
            typer.echo(jsonlib.dumps(event, ensure_ascii=False) if json else _line(event))


def _data(lines: Iterable[str]) -> Iterator[Mapping[str, Any]]:
    """The bodies of server-sent events; each is one line."""
    for line in lines:
        if line.startswith("data: "):
            yield jsonlib.loads(line.removeprefix("data: "))


def _line(event: Mapping[str, Any]) -> str:
    data = event["data"]
    if event["kind"] == "lagged":
        return f"-- {data['lost'] if data['lost'] is not None else 'some'} events were lost here"
    reason = data.get("reason") or ", ".join(f"{k}={v}" for k, v in data.items() if k != "generation")
    parts = (clock(event["at"]), event["kind"], event["model"] or "", f"[{event['cause']}]" if event["cause"] else "")
    return "  ".join(part for part in (*parts, first_line(str(reason), 160)) if part)
