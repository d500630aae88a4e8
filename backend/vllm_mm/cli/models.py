"""`ps ls show load unload restart sleep wake pin unpin drain undrain reset logs`: models and their engines."""

import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Annotated, Any

import typer

from vllm_mm.cli import estimates
from vllm_mm.cli.devices import ask, end, one_of
from vllm_mm.cli.exits import Exit, fail
from vllm_mm.cli.loading import follow_load
from vllm_mm.cli.options import Json, MaybeModel, Model, NoWait, Timeout
from vllm_mm.cli.output import (
    clock,
    coloured,
    first_line,
    json_line,
    print_json,
    print_table,
    seconds,
    shortened,
    size,
    table,
    terminal_width,
)
from vllm_mm.cli.server import Server, model_path, the_server
from vllm_mm.cli.watching import watch

WAIT = 600.0
"""Seconds that a command waits for its end when not told otherwise; the server's own bound for one request."""


def add_to(app: typer.Typer) -> None:
    app.command("ps", epilog="Example: vllm-mm ps --json")(ps)
    app.command("ls", epilog="Example: vllm-mm ls")(ls)
    app.command("show", epilog="Example: vllm-mm show demo")(show)
    app.command("load", epilog="Example: vllm-mm load demo --timeout 120")(load)
    app.command("unload", epilog="Example: vllm-mm unload demo")(unload)
    app.command("restart", epilog="Example: vllm-mm restart demo")(restart)
    app.command("sleep", epilog="Example: vllm-mm sleep demo")(sleep)
    app.command("wake", epilog="Example: vllm-mm wake demo")(wake)
    app.command("pin", epilog="Example: vllm-mm pin demo")(pin)
    app.command("unpin", epilog="Example: vllm-mm unpin demo")(unpin)
    app.command("drain", epilog="Example: vllm-mm drain demo --no-wait")(drain)
    app.command("undrain", epilog="Example: vllm-mm undrain demo")(undrain)
    app.command("reset", epilog="Example: vllm-mm reset demo")(reset)
    app.command("logs", epilog="Example: vllm-mm logs demo --tail 50 -f")(logs)


def ps(
    context: typer.Context,
    watch_: Annotated[bool, typer.Option("--watch", "-w", help="Go on, and show what changes, until Ctrl-C.")] = False,
    json: Json = False,
) -> None:
    """Show the engines that run or ran: state, devices, requests."""
    server = the_server(context)

    def shown() -> str:
        found = server.get("/api/instances")
        return json_line(found) if json else engines_table(found)

    if watch_:
        watch(shown)
    elif json:
        print_json(server.get("/api/instances"))
    else:
        typer.echo(shown())


def engines_table(instances: Sequence[Mapping[str, Any]]) -> str:
    """What `ps` prints."""
    rows = [
        (
            shortened(i["model"]), state_of(i), ",".join(i["devices"]), size(sum(i["memory"]["reserved"].values())) if i["memory"]["reserved"] else None, i["in_flight"],
            i["queued"], i["pid"], seconds(i["progress"]["elapsed_s"]), first_line(i["reason"], 60),
        )
        for i in instances
    ]  # fmt: skip
    columns = ("model", "state", "devices", "memory", "running", "waiting", "pid", "for", "reason")
    empty = "No engine runs. `vllm-mm ls` shows the models, `vllm-mm load MODEL` starts one."
    return table(columns, rows, empty, terminal_width(), coloured=coloured())


def ls(context: typer.Context, json: Json = False) -> None:
    """List the models and where they were declared."""
    models = the_server(context).get("/api/models")
    if json:
        print_json(models)
        return
    rows = [
        (
            m["id"], m["engine"], state_of(m["instance"]) if m["instance"] else "stopped",
            f"{size(m['footprint']['per_device'])} ({m['footprint']['source']})", "pinned" if m["pinned"] else "",
            m["source"], ", ".join(m["aliases"]),
        )
        for m in models
    ]  # fmt: skip
    columns = ("id", "engine", "state", "memory", "pinned", "source", "aliases")
    print_table(columns, rows, "No models. Declare some in vllm-mm.yaml, or `vllm-mm add` one.")


def show(context: typer.Context, model: Model, json: Json = False) -> None:
    """Show one model: its declaration, its engine, its last starts."""
    server = the_server(context)
    found = server.get(model_path(model))
    history = server.look(model_path(found["id"], "history") + "?limit=5")  # in the database, which may be away
    starts = None if history is None else history["starts"]
    if json:
        print_json({**found, "history": starts})
        return
    instance, footprint, times = found.pop("instance"), found.pop("footprint"), found.pop("schedule_now")
    for name, value in found.items():
        if value not in (None, [], {}, ""):
            typer.echo(f"{name}: {_plain(value)}")
    if times is not None:
        typer.echo(f"schedule now: {times['text']}")
    typer.echo(f"footprint: {estimates.line(footprint)}")
    for told in footprint["notes"]:
        typer.echo(f"  note: {told}")
    if instance is not None:
        typer.echo(f"state: {state_of(instance)} since {clock(instance['since'])}")
        for name in ("reason", "pid", "in_flight", "queued", "failures"):
            if instance[name]:
                typer.echo(f"{name}: {instance[name]}")
    if starts is None:
        typer.echo("its last starts: not known, for the database could not be read; `/ready` says why")
    for start in starts or ():
        took = seconds(start["ready_at"] - start["started_at"]) if start["ready_at"] else start["outcome"]
        how = f" ({start['launcher']})" if start["launcher"] else ""
        typer.echo(f"start {clock(start['started_at'])}: {took}{how} {first_line(start['reason'])}".rstrip())


def load(
    context: typer.Context, model: Model, no_wait: NoWait = False, timeout: Timeout = 1800.0, json: Json = False
) -> None:
    """Start (or wake) a model and show how far it is. Fails with the reason and, if there was an engine, the last lines of its log."""
    server = the_server(context)
    before = server.get(model_path(model))["instance"]
    instance = server.call("POST", model_path(model, "start"))
    if not no_wait:
        try:
            instance = follow_load(server, instance, timeout, quiet=json)
        except KeyboardInterrupt:
            fail(_goes_on(instance["model"]), Exit.INTERRUPTED)
    if json:
        print_json(instance)
    if not no_wait and instance["state"] != "ready":
        _not_loaded(server, before, instance, timeout)


def _not_loaded(server: Server, before: Mapping[str, Any] | None, instance: Mapping[str, Any], timeout: float) -> None:
    """`before`: as it was before the load was asked for."""
    model = instance["model"]
    if instance["pending"]:
        why = f", {instance['reason'].rstrip('.')}" if instance["reason"] else ""
        fail(f"{model} is not ready after {seconds(timeout)}: {state_of(instance)}{why}. {_goes_on(model)}")
    if _had_an_engine(before, instance):
        with server.stream("GET", model_path(model, "logs"), params={"tail": 20}) as answer:
            for line in answer.iter_lines():
                typer.echo(f"  {line}", err=True)
    fail(f"{model} was not loaded: {state_of(instance)}: {instance['reason'] or 'somebody stopped it'}")


def _had_an_engine(before: Mapping[str, Any] | None, instance: Mapping[str, Any]) -> bool:
    """Whether an engine was started or woken for this load: the log of an earlier launch would say nothing about it."""
    if before is None or instance["generation"] != before["generation"]:
        return bool(instance["generation"])
    return before["state"] in {"starting", "waking"} or before["state"] == "sleeping" != instance["state"]


def _goes_on(model: str) -> str:
    name = shlex.quote(model)
    return f"{model} goes on loading. `vllm-mm load {name}` looks at it again, `vllm-mm unload {name}` stops it."


def unload(
    context: typer.Context,
    model: Model,
    force: Annotated[bool, typer.Option("--force", help="Cut what runs instead of letting it finish.")] = False,
    no_wait: NoWait = False,
    timeout: Timeout = WAIT,
    json: Json = False,
) -> None:
    """Let requests finish, then stop the engine; a load is called off."""
    _act(context, model, "stop", {"stopped", "failed", "backoff"}, no_wait, timeout, json, {"force": force})


def restart(
    context: typer.Context, model: Model, no_wait: NoWait = False, timeout: Timeout = WAIT, json: Json = False
) -> None:
    """Let requests finish, stop the engine, start it again."""
    _act(context, model, "restart", {"ready"}, no_wait, timeout, json)


def sleep(
    context: typer.Context, model: Model, no_wait: NoWait = False, timeout: Timeout = WAIT, json: Json = False
) -> None:
    """Let requests finish, then put the engine to sleep: its weights stay in host memory."""
    _act(context, model, "sleep", {"sleeping"}, no_wait, timeout, json)


def wake(
    context: typer.Context, model: Model, no_wait: NoWait = False, timeout: Timeout = WAIT, json: Json = False
) -> None:
    """Wake a sleeping engine."""
    _act(context, model, "wake", {"ready"}, no_wait, timeout, json)


def drain(
    context: typer.Context,
    model: MaybeModel = None,
    device: Annotated[str | None, typer.Option(help="Free memory of this device instead.")] = None,
    free: Annotated[str | None, typer.Option(help="How much of it, such as 10GiB.")] = None,
    for_: Annotated[
        str | None, typer.Option("--for", help="For how long, such as 2h; at most 7d. An hour, if not given.")
    ] = None,
    note: Annotated[str | None, typer.Option(help="What for; for people.")] = None,
    no_wait: NoWait = False,
    timeout: Timeout = WAIT,
    json: Json = False,
) -> None:
    """Take no new requests, let finish what runs however long it takes, then stop. With --device: make the models free
    some of its memory, keep it free for a while for something else, and bring them back afterwards."""
    one_of(model, device, "--device")
    if device is not None:
        if not free:
            fail("say how much of the device: --free 10GiB", Exit.USAGE)
        ask(context, device, free, for_ or "1h", note or "", no_wait, timeout, json)
        return
    lost = [name for name, value in (("--free", free), ("--for", for_), ("--note", note)) if value is not None]
    if lost:
        fail(
            f"{', '.join(lost)} only together with --device: to free memory for something else, name the device instead of a "
            "model, such as `vllm-mm drain --device 0 --free 10GiB --for 2h`",
            Exit.USAGE,
        )
    assert model is not None  # noqa: S101  # one of them is there
    _act(context, model, "drain", {"stopped", "failed", "backoff"}, no_wait, timeout, json)


def undrain(
    context: typer.Context,
    model: MaybeModel = None,
    lease: Annotated[str | None, typer.Option(help="End this lease on device memory instead.")] = None,
    json: Json = False,
) -> None:
    """Take a drain back: the engine takes requests again. Refused when its memory was promised to another model."""
    one_of(model, lease, "--lease")
    if lease is not None:
        end(context, lease, json)
        return
    assert model is not None  # noqa: S101  # one of them is there
    _act(context, model, "undrain", None, True, 0, json)


def reset(context: typer.Context, model: Model, json: Json = False) -> None:
    """Forget the failures of a model that failed, so that a request may start it again."""
    _act(context, model, "reset", None, True, 0, json)


def pin(context: typer.Context, model: Model, json: Json = False) -> None:
    """Never swap this model out, until `unpin` or a restart of the server."""
    _act(context, model, "pin", None, True, 0, json)


def unpin(context: typer.Context, model: Model, json: Json = False) -> None:
    """Let this model be swapped out again."""
    _act(context, model, "unpin", None, True, 0, json)


def _act(
    context: typer.Context,
    model: str,
    act: str,
    goal: set[str] | None,
    no_wait: bool,
    timeout: float,
    json: bool,
    params: Mapping[str, Any] | None = None,
) -> None:
    """`goal`: the states in which the act has done its work, after waiting."""
    wait = None if no_wait else min(timeout, WAIT)
    instance = the_server(context).call(
        "POST", model_path(model, act), params={"wait": wait, **(params or {})}, wait=wait or 0.0
    )
    if json:
        print_json(instance)
    else:
        pinned = ", pinned" if instance["pinned"] else ""
        typer.echo(f"{instance['model']}: {state_of(instance)}{pinned}")
    if wait is not None and goal is not None and instance["state"] not in goal:
        fail(f"{instance['model']} is {state_of(instance)}: {instance['reason'] or 'no reason was given'}")


def logs(
    context: typer.Context,
    model: Model,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on with what comes, over restarts too.")] = False,
    tail: Annotated[int, typer.Option("--tail", "-n", min=0, max=2000, help="Lines to begin with.")] = 200,
    search: Annotated[str | None, typer.Option("--search", "-s", help="Only lines with this in them.")] = None,
    level: Annotated[
        str | None, typer.Option("--level", help="Only debug, info, warning, error or critical, and above.")
    ] = None,
    since: Annotated[str | None, typer.Option("--since", help="Only lines of the last while, such as 10m.")] = None,
    json: Json = False,
) -> None:
    """Print the log of a model's engine: the one that runs, or the last."""
    params = {"tail": tail, "follow": follow, "search": search, "level": level, "since": since}
    accept = "text/event-stream" if json else "text/plain"
    with the_server(context).stream("GET", model_path(model, "logs"), params=params, accept=accept) as answer:
        for line in _objects(answer.iter_lines()) if json else answer.iter_lines():
            typer.echo(line)


def _objects(lines: Iterable[str]) -> Iterator[str]:
    """Of events, an object a line: `{"line": ..., "id": ...}`, or `{"dropped": ...}` where this reader was too slow."""
    import json  # noqa: PLC0415  # `json` is an option's name in this module

    number: str | None = None
    for line in lines:
        name, _, value = line.partition(": ")
        if name == "id":
            number = value
        elif name == "data":
            told: Any = json.loads(value)
            dropped = None if isinstance(told, str) else told["count"]
            shown: dict[str, Any] = {"line": told, "id": number} if dropped is None else {"dropped": dropped}
            yield json.dumps(shown, ensure_ascii=False)
        elif not line:
            number = None


def state_of(instance: Mapping[str, Any]) -> str:
    """`starting (weights 45%)`."""
    progress = instance["progress"]
    if instance["frozen"]:
        return f"{instance['state']} ({instance['frozen']} frozen)"
    percent = f" {progress['percent']:.0f}%" if progress["percent"] is not None else ""
    return f"{instance['state']} ({progress['phase']}{percent})" if progress["phase"] else str(instance["state"])


def _plain(value: object) -> str:
    import json  # noqa: PLC0415  # `json` is an option's name in this module

    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
