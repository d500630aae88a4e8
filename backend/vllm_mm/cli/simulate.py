"""`simulate`: the scheduler over a trace in virtual time, to compare policies and to try what other hardware would bring."""

import re
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from vllm_mm.cli.exits import Exit, fail, understood
from vllm_mm.cli.options import Config, DataDir, Json
from vllm_mm.cli.output import print_json, print_table
from vllm_mm.vocabulary.quantities import parse_duration, parse_size

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from vllm_mm.domain.footprint import Learned
    from vllm_mm.domain.residency import Device
    from vllm_mm.settings import Settings
    from vllm_mm.virtual.engine import VirtualModel
    from vllm_mm.virtual.generate import Kind
    from vllm_mm.virtual.results import Result
    from vllm_mm.virtual.terms import Terms
    from vllm_mm.virtual.trace import Request

PER = {"s": 1.0, "m": 60.0, "h": 3600.0}


def add_to(app: typer.Typer) -> None:
    app.command("simulate", epilog="Example: vllm-mm simulate zipf6 --models 6 --policy brain,lru,fifo")(simulate)


def simulate(
    trace: Annotated[
        str | None,
        typer.Argument(
            help="A trace: our CSV, Azure's CSV, Mooncake's JSON lines, or the name of one that is shipped."
        ),
    ] = None,
    trace_option: Annotated[str | None, typer.Option("--trace", help="The same, as an option.")] = None,
    config: Config = None,
    data_dir: DataDir = None,
    policy: Annotated[str, typer.Option("--policy", help="What to compare, such as brain,lru,fifo.")] = "brain",
    memory: Annotated[str | None, typer.Option("--memory", help="What if every device had this much? 48GiB")] = None,
    sleep_budget: Annotated[
        str | None,
        typer.Option(
            "--sleep-budget",
            help="Host memory for models that sleep instead of stopping; 0 for none. If not given: what the configuration says in "
            "bytes, else none.",
        ),
    ] = None,
    max_wait: Annotated[str | None, typer.Option("--max-wait", help="What if swap.max_wait were this? 20s")] = None,
    min_dwell: Annotated[str | None, typer.Option("--min-dwell", help="What if swap.min_dwell were this? 5s")] = None,
    quantum: Annotated[str | None, typer.Option("--quantum", help="What if swap.quantum were this? 10s")] = None,
    drain_timeout: Annotated[
        str | None, typer.Option("--drain-timeout", help="What if swap.drain_timeout were this? 60s")
    ] = None,
    on_drain_timeout: Annotated[
        str | None, typer.Option("--on-drain-timeout", help="What if swap.on_drain_timeout were preempt, cut or wait?")
    ] = None,
    patience: Annotated[
        str | None, typer.Option("--patience", help="A request gives up after waiting this long; never, if not given.")
    ] = None,
    learned: Annotated[
        bool, typer.Option("--learned", help="Load times and footprints from the database of the data directory.")
    ] = False,
    times: Annotated[
        Path | None, typer.Option("--times", help="YAML: model (or `default`) to load, wake, prefill, decode, ...")
    ] = None,
    load: Annotated[str | None, typer.Option("--load", help="Seconds of a start, for all models.")] = None,
    wake: Annotated[str | None, typer.Option("--wake", help="Seconds of a wake, for all models.")] = None,
    models: Annotated[
        int | None, typer.Option("--models", min=1, max=1000, help="No configuration: this many models of one size.")
    ] = None,
    footprint: Annotated[str, typer.Option("--footprint", help="Their size; the device has room for one.")] = "10GiB",
    tags: Annotated[
        str, typer.Option("--tags", help="Models for a trace that names none: zipf, bursts or day.")
    ] = "zipf",
    generate: Annotated[
        str | None, typer.Option("--generate", help="Print a made-up trace instead: zipf, bursts or day.")
    ] = None,
    rate: Annotated[
        str, typer.Option("--rate", help="Of the made-up trace: requests, such as 603/h or 2/s.")
    ] = "600/h",
    hours: Annotated[float, typer.Option("--hours", min=0.0, help="Its length.")] = 1.0,
    skew: Annotated[float, typer.Option("--skew", min=0.0, help="How unequally models are wanted (Zipf).")] = 1.0,
    seed: Annotated[int, typer.Option("--seed", help="The same seed gives the same trace.")] = 1,
    plot: Annotated[Path | None, typer.Option("--plot", help="Draw a PNG (needs vllm-mm[plot]).")] = None,
    json: Json = False,
) -> None:
    """Run the scheduler over a trace in virtual time; no engine, no server, no waiting. See docs/simulate.md."""
    from vllm_mm.virtual.plot import NoPlot  # noqa: PLC0415  # beside the others
    from vllm_mm.virtual.scenario import ScenarioError  # noqa: PLC0415  # YAML takes its time
    from vllm_mm.virtual.trace import TraceError  # noqa: PLC0415  # as above

    if trace is not None and trace_option is not None:
        fail("name the trace once: by its place, or with --trace", Exit.USAGE)
    trace = trace if trace is not None else trace_option
    try:
        if generate is not None:
            settings = None if models else _settings(config, data_dir)
            names = _names(models) if settings is None else list(settings.models)
            _generate(_kind(generate), names or _names(6), rate, hours, skew, seed)
            return
        if trace is None:
            fail("which trace? Name a file, a shipped trace (zipf6), or make one with --generate", Exit.USAGE)
        wanted = {"load": load, "wake": wake}
        options = {
            name: understood(f"--{name}", value, parse_duration) for name, value in wanted.items() if value is not None
        }
        if models is not None:
            scenario = _plain(models, footprint, memory, times, options)
        else:
            scenario = _declared(_settings(config, data_dir), memory, times, options, learned=learned)
            _tell_what_is_left_out(scenario, sleep_budget, patience)
        terms = _terms(
            scenario,
            sleep_budget,
            patience,
            {
                "max_wait": max_wait,
                "min_dwell": min_dwell,
                "quantum": quantum,
                "drain_timeout": drain_timeout,
                "on_drain_timeout": on_drain_timeout,
            },
        )
        requests = _requests(trace, scenario, _kind(tags), seed, skew)
        _run(requests, scenario, terms, policy, trace, plot, json=json)
    except (TraceError, ScenarioError, NoPlot) as error:
        fail(str(error))
    except ValueError as error:
        fail(str(error), Exit.USAGE)


class Scenario:
    """Models on devices, and the names by which a trace may ask for them."""

    def __init__(
        self,
        models: "Sequence[VirtualModel]",
        devices: "Sequence[Device]",
        names: "Mapping[str, str]",
        settings: "Settings | None" = None,
    ) -> None:
        self.models = models
        self.devices = devices
        self.names = names
        self.settings = settings


def _names(count: int | None) -> list[str]:
    return [f"model-{number}" for number in range(1, (count or 6) + 1)]


def _kind(name: str) -> "Kind":
    from vllm_mm.virtual.generate import Kind  # noqa: PLC0415  # as above

    try:
        return Kind(name)
    except ValueError:
        raise ValueError(f"{name} is no kind of trace; there are {', '.join(Kind)}") from None


def _settings(config: Path | None, data_dir: Path | None) -> "Settings":
    from vllm_mm.cli.settings import read_settings  # noqa: PLC0415  # as above

    return read_settings(config, data_dir)


def _rate(text: str) -> float:
    """Requests a second. Raises ValueError."""
    match = re.fullmatch(r"\s*([0-9]+(?:\.[0-9]+)?)\s*(?:/\s*([smh]))?\s*", text)
    if match is None or float(match[1]) <= 0:
        raise ValueError(f"{text!r} is no rate; write it like 603/h or 2/s")
    return float(match[1]) / PER[match[2] or "s"]


def _generate(kind: "Kind", names: "Sequence[str]", rate: str, hours: float, skew: float, seed: int) -> None:
    from vllm_mm.virtual.generate import generate  # noqa: PLC0415  # as above
    from vllm_mm.virtual.trace import write  # noqa: PLC0415  # as above

    write(generate(kind, names, _rate(rate), hours * 3600, seed=seed, skew=skew), sys.stdout)


def _plain(
    count: int, footprint: str, memory: str | None, times: Path | None, options: "Mapping[str, Any]"
) -> Scenario:
    from vllm_mm.domain.residency import Device  # noqa: PLC0415  # as above
    from vllm_mm.virtual.scenario import plain_models, read_times  # noqa: PLC0415  # as above

    size = understood("--footprint", footprint, parse_size)
    given = read_times(times, _names(count)) if times is not None else {}
    models = plain_models(_names(count), size, given=given, options=options)
    device = Device("sim0", understood("--memory", memory, parse_size) if memory is not None else size, kind="sim")
    return Scenario(models, [device], {m.id: m.id for m in models})


def _declared(
    settings: "Settings", memory: str | None, times: Path | None, options: "Mapping[str, Any]", *, learned: bool
) -> Scenario:
    from vllm_mm.cli.checks import declared_devices, devices  # noqa: PLC0415  # as above
    from vllm_mm.control.declared import catalog  # noqa: PLC0415  # as above
    from vllm_mm.domain.errors import ConfigError  # noqa: PLC0415  # as above
    from vllm_mm.engine.command import can_sleep  # noqa: PLC0415  # as above
    from vllm_mm.engine.footprints import Footprints  # noqa: PLC0415  # as above
    from vllm_mm.virtual.engine import EngineTimes  # noqa: PLC0415  # as above
    from vllm_mm.virtual.scenario import model_of, read_times, with_capacity  # noqa: PLC0415  # as above

    try:
        known = catalog(settings)
    except ConfigError as error:
        fail(error.message)
    if not len(known):
        fail("the configuration declares no models; take --config FILE, or --models 6 for six of one size", Exit.USAGE)
    here = with_capacity(
        declared_devices(settings) or devices(settings)[1],
        understood("--memory", memory, parse_size) if memory is not None else None,
    )
    if not here:
        fail("there are no devices here; declare some in the configuration, with their memory")
    load_times: Mapping[str, float] = {}
    sizes: Mapping[tuple[str, str], Learned] = {}
    if learned:
        load_times, sizes = _learned(settings)
    given = read_times(times, [spec.id for spec in known]) if times is not None else {}
    book = Footprints(learned=sizes)
    models = [
        model_of(
            spec, book.of(spec, here, known).per_device, EngineTimes(), given=given, options=options,
            learned=load_times.get(spec.id), can_sleep=can_sleep(spec, here),
        )
        for spec in known
    ]  # fmt: skip
    return Scenario(models, here, {name: spec.id for name, spec in known.names().items()}, settings)


def _learned(settings: "Settings") -> "tuple[Mapping[str, float], Mapping[tuple[str, str], Learned]]":
    """What the server of this data directory has learned."""
    from vllm_mm.cli.database import run  # noqa: PLC0415  # as above
    from vllm_mm.clock import RealClock  # noqa: PLC0415  # as above
    from vllm_mm.store.database import Database  # noqa: PLC0415  # as above
    from vllm_mm.store.launches import Launches  # noqa: PLC0415  # as above

    url = settings.database_url
    path = url.partition(":///")[2]
    if url.startswith("sqlite") and not Path(path).exists():
        fail(f"nothing has been learned yet: there is no database {path}. Leave --learned out, or give --data-dir")

    async def read() -> "tuple[Mapping[str, float], Mapping[tuple[str, str], Learned]]":
        database = Database(url)
        try:
            launches = Launches(database, RealClock())
            known = await launches.times()
            loads = {model: took for model, t in known.items() if (took := t.expect(t.start)) is not None}
            return loads, await launches.footprints()
        finally:
            await database.close()

    return run(read())


def _tell_what_is_left_out(scenario: Scenario, sleep_budget: str | None, patience: str | None) -> None:
    """In one line, what the configuration says and a run does not go by."""
    from vllm_mm.virtual.scenario import left_out  # noqa: PLC0415  # as above

    if scenario.settings is None:
        return
    given = {"host_memory.sleep_budget": sleep_budget, "queue.max_wait": patience}
    found = left_out(scenario.settings, {name for name, value in given.items() if value is not None})
    if found:
        typer.echo(f"not simulated: {'; '.join(found)} (docs/simulate.md)", err=True)


def _sleep_budget(scenario: Scenario, option: str | None) -> int:
    """Bytes: the option, else what the configuration says in bytes, else none. Raises ValueError."""
    if option is not None:
        return understood("--sleep-budget", option, parse_size)
    declared = scenario.settings.host_memory.sleep_budget if scenario.settings is not None else None
    return declared or 0


def _terms(
    scenario: Scenario, sleep_budget: str | None, patience: str | None, changes: "Mapping[str, str | None]"
) -> "Terms":
    """`changes`: of the configuration's `swap`, in its own words. Raises ValueError."""
    from math import inf  # noqa: PLC0415  # only here

    from pydantic import ValidationError  # noqa: PLC0415  # as above

    from vllm_mm.domain.scheduling import Rules  # noqa: PLC0415  # as above
    from vllm_mm.settings import SwapConfig  # noqa: PLC0415  # as above
    from vllm_mm.virtual.terms import Terms  # noqa: PLC0415  # as above

    swap = scenario.settings.swap if scenario.settings is not None else SwapConfig()
    given = {name: value for name, value in changes.items() if value is not None}
    try:
        swap = SwapConfig.model_validate({**swap.model_dump(), **given})
    except ValidationError as error:
        wrong = error.errors()[0]
        raise ValueError(
            f"--{str(wrong['loc'][0]).replace('_', '-')}: {wrong['msg'].removeprefix('Value error, ')}"
        ) from error
    return Terms(
        rules=Rules(swap.max_wait, swap.min_dwell, swap.quantum, swap.placement == "spread"),
        drain_timeout=inf if swap.on_drain_timeout == "wait" else swap.drain_timeout,
        preempt=swap.on_drain_timeout == "preempt",
        sleep_budget=_sleep_budget(scenario, sleep_budget),
        patience=understood("--patience", patience, parse_duration) if patience is not None else inf,
    )


def _requests(trace: str, scenario: Scenario, kind: "Kind", seed: int, skew: float) -> "Sequence[Request]":
    """With a model each, by its id. Raises TraceError."""
    from dataclasses import replace  # noqa: PLC0415  # only here

    from vllm_mm.virtual.generate import tag  # noqa: PLC0415  # as above
    from vllm_mm.virtual.trace import TraceError, find, read  # noqa: PLC0415  # as above

    requests = tag(read(find(trace)), [m.id for m in scenario.models], kind, seed=seed, skew=skew)
    unknown = sorted({r.model for r in requests} - set(scenario.names))
    if unknown:
        shown = ", ".join(unknown[:5]) + (", ..." if len(unknown) > 5 else "")
        raise TraceError(
            f"{trace} asks for {shown}, but the models are {', '.join(m.id for m in scenario.models)}; "
            "take a --config that declares them (aliases count), or a trace of your own models: --generate with that --config prints one"
        )
    return [replace(r, model=scenario.names[r.model]) for r in requests]


def _run(
    requests: "Sequence[Request]",
    scenario: Scenario,
    terms: "Terms",
    policies: str,
    trace: str,
    picture: Path | None,
    *,
    json: bool,
) -> None:
    from vllm_mm.domain.reasons import split  # noqa: PLC0415  # as above
    from vllm_mm.settings import format_size  # noqa: PLC0415  # as above
    from vllm_mm.virtual import report  # noqa: PLC0415  # as above
    from vllm_mm.virtual.fleet import simulate as run  # noqa: PLC0415  # as above
    from vllm_mm.virtual.plot import plot  # noqa: PLC0415  # as above
    from vllm_mm.virtual.policies import pick  # noqa: PLC0415  # as above
    from vllm_mm.virtual.results import summary  # noqa: PLC0415  # as above

    chosen = pick(policies)
    started = time.monotonic()
    outcomes = [run(requests, scenario.models, scenario.devices, policy, terms) for policy in chosen]
    took = time.monotonic() - started
    results: list[Result] = [summary(outcome, scenario.models, terms) for outcome in outcomes]
    if picture is not None:
        plot(outcomes, picture)
    memory = {d.id: d.usable for d in scenario.devices}
    if json:
        about = {
            "trace": trace, "requests": len(requests), "seconds": requests[-1].at, "devices": memory,
            "models": {m.id: m.memory for m in scenario.models},
            "terms": {
                "max_wait": terms.rules.max_wait, "min_dwell": terms.rules.min_dwell,
                "quantum": terms.rules.quantum, "preempt": terms.preempt,
                "drain_timeout": None if terms.drain_timeout == float("inf") else terms.drain_timeout,
                "sleep_budget": terms.sleep_budget,
                "patience": None if terms.patience == float("inf") else terms.patience,
            },
        }  # fmt: skip
        print_json(report.document(results, about))
        return
    typer.echo(
        f"{trace}: {len(requests):,} requests in {requests[-1].at / 3600:.2f} h over {len(scenario.models)} models on "
        f"{', '.join(f'{name} ({format_size(size)})' for name, size in memory.items())}; simulated in {took:.1f} s\n"
    )
    print_table(report.SUMMARY, report.summary_rows(results), "no results")
    typer.echo()
    print_table(report.BY_MODEL, report.model_rows(results), "no models")
    if unwanted := report.unwanted(results):
        typer.echo(f"left out: {unwanted} of the models, which the trace never asks for; --json has them")
    typer.echo(
        "\nseconds; `lost`: memory that served nobody during swaps; `bound`: the wait nearest to what is allowed"
    )
    refused = {u.model: u.why for o in reversed(outcomes) for u in reversed(o.refused)}  # of each the first
    for model, why in sorted(refused.items()):
        typer.echo(f"refused: {model}: {split(why)[1]}", err=True)
