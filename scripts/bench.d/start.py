"""Cold starts of engines as the product makes them, from the request for a start to the first token.

Each round starts every model in every way once, in a new random order, one at a time; medians over the rounds are told.
The ways: `spawn` (a new process), `warm` (forked from a zygote), and both with the weights dropped from the page cache before
(`spawn-cold`, `warm-cold`) or dropped and read ahead again by the product's own reader, whose time is told apart (`warm-ahead`).
"""

import argparse
import asyncio
import contextlib
import json
import os
import platform
import random
import re
import secrets
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from vllm_mm.clock import RealClock
from vllm_mm.domain.errors import MMError
from vllm_mm.domain.residency import Device
from vllm_mm.domain.specs import EngineKind, LauncherKind, ModelSpec
from vllm_mm.engine import command, pagecache, progress
from vllm_mm.engine.guard import guarded
from vllm_mm.engine.instance import real_channels
from vllm_mm.engine.launchers.local import LocalLauncher, become_subreaper
from vllm_mm.engine.launchers.pool import ZygotePool
from vllm_mm.engine.launchers.recipe import Warmth, console_python, warmth
from vllm_mm.engine.launchers.warm import WarmLauncher
from vllm_mm.engine.ports import EngineProcess, LaunchPlan
from vllm_mm.engine.weights import weight_files

WAYS = ("spawn", "warm", "spawn-cold", "warm-cold", "warm-ahead")
USUAL = "spawn,warm,warm-cold,warm-ahead"
POLL = 0.02
"""Seconds between two questions whether the engine is healthy."""
PROBE = 60.0
"""Seconds for one question."""
DEADLINE = 600.0
"""Seconds for one start."""
ENGINE_ENV = {"VLLM_CPU_KVCACHE_SPACE": "1", "HF_HUB_OFFLINE": "1"}
TARGETS = {"tiny-random-llama": 8.0, "smollm2-135m": 5.0}
"""How many times quicker a warm start should be than a spawned one."""

Say = Callable[[str], None]


class Failed(Exception):
    """A start that did not become ready, or not in the way that was asked for."""


@dataclass(frozen=True)
class Case:
    """A model with its flags."""

    name: str
    mode: str
    spec: ModelSpec

    @property
    def weights(self) -> tuple[Path, ...]:
        return weight_files(self.spec, os.environ)


@dataclass
class Run:
    """One start. Seconds."""

    round: int
    model: str
    mode: str
    way: str
    seconds: float
    """From the request for the start to the first token."""
    process_s: float
    """Until there is a process."""
    healthy_s: float
    phases: dict[str, float]
    """When each phase was first told by the log, since the request."""
    cached: float | None
    """Share of the weights that was in the page cache right before; None when the system does not tell."""
    ahead_s: float = 0.0
    """What the read-ahead took before the start (`warm-ahead` only)."""
    stop_s: float = 0.0
    load: float = 0.0
    """Processes that were runnable, on average of the last minute."""


@dataclass
class Results:
    """Everything that was seen."""

    host: dict[str, Any]
    first: dict[str, float] = field(default_factory=dict[str, float])
    """Of each case, the start before the rounds: it fills caches and is not counted."""
    runs: list[Run] = field(default_factory=list[Run])
    zygotes: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    failed: list[str] = field(default_factory=list[str])


class Bench:
    """Starts and stops engines through the product's launchers."""

    def __init__(self, root: Path, owner: str, launcher: WarmLauncher, say: Say) -> None:
        self._root = root
        self._owner = owner
        self._launcher = launcher
        self._say = say
        self.channels = real_channels()[1]
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        self._devices = (Device("cpu", memory, kind="cpu"),)

    def plan(self, case: Case, kind: LauncherKind) -> LaunchPlan:
        token = secrets.token_hex(16)
        workdir = self._root / token[:6]
        spec = replace(case.spec, launcher=kind)
        address, device_bytes = command.address_for(spec, workdir), {"cpu": 0}
        argv, env = command.build(
            spec, address=address, device_bytes=device_bytes, devices=self._devices, workdir=workdir, token=token,
            owner=self._owner, cache_dir=self._root / "cache", sim_ledger=self._root / "sim", python=sys.executable,
        )  # fmt: skip
        return LaunchPlan(
            model=spec.id, generation=1, token=token, argv=argv, env=env, address=address, workdir=workdir,
            log=self._root / "logs" / f"{case.name}-{token[:6]}.log", fingerprint=spec.fingerprint,
            device_bytes=device_bytes, launcher=kind,
        )  # fmt: skip

    async def preload(self, case: Case) -> None:
        """Raises Failed with the reason why there is no zygote for it."""
        if reason := await self._launcher.preload(self.plan(case, LauncherKind.WARM)):
            raise Failed(f"{case.name}: no warm start is possible: {reason}")

    async def once(self, case: Case, way: str, number: int) -> Run:
        """Raises Failed, and leaves no process."""
        how, _, cache = way.partition("-")
        ahead_s = await asyncio.to_thread(self._settle_cache, case.weights, cache)
        cached = await asyncio.to_thread(pagecache.share, case.weights)
        plan = self.plan(case, LauncherKind.WARM if how == "warm" else LauncherKind.LOCAL)
        load = os.getloadavg()[0]
        began = time.monotonic()
        try:
            process = await self._launcher.start(plan)
        except OSError as error:
            raise Failed(f"{case.name} {way}: {error}") from error
        process_s = time.monotonic() - began
        phases: dict[str, float] = {}
        stop_following = process.follow(lambda line: _note(phases, line, time.monotonic() - began))
        try:
            if (how == "warm") != (process.launcher == "warm"):
                raise Failed(
                    f"{case.name}: the start became a {process.launcher} one: {self._launcher.view().last_reason}"
                )
            healthy_s, seconds = await self._until_token(plan, process, case.spec, began)
        finally:
            stop_following()
            stopping = time.monotonic()
            report = await process.stop(graceful=True, grace=15.0, deadline=45.0)
            await process.close()
            stop_s = time.monotonic() - stopping
        if report.survivors:
            raise Failed(f"{case.name} {way}: these processes survived: {report.survivors}")
        return Run(
            number, case.name, case.mode, way, seconds, process_s, healthy_s, phases, cached, ahead_s, stop_s, load
        )  # fmt: skip

    def _settle_cache(self, files: tuple[Path, ...], cache: str) -> float:
        if cache:
            for file in files:
                pagecache.drop(file)
        if cache == "cold":
            return 0.0
        began = time.monotonic()
        for file in files:
            pagecache.read(file, 0, file.stat().st_size)
        return time.monotonic() - began if cache == "ahead" else 0.0

    async def _until_token(
        self, plan: LaunchPlan, process: EngineProcess, spec: ModelSpec, began: float
    ) -> tuple[float, float]:
        channel = self.channels(plan.address, PROBE)
        gone = asyncio.ensure_future(process.exited())
        try:
            async with asyncio.timeout(DEADLINE):
                while not await channel.healthy():
                    if gone.done():
                        raise Failed(f"{spec.id} {gone.result()}: {_last(plan.log)}")
                    await asyncio.sleep(POLL)
                healthy = time.monotonic() - began
                await channel.probe(spec.id, spec.task)
                return healthy, time.monotonic() - began
        except MMError as error:
            raise Failed(f"{spec.id}: the probe failed: {error.message}: {_last(plan.log)}") from error
        except TimeoutError as error:
            raise Failed(f"{spec.id} was not ready after {DEADLINE:.0f} s: {_last(plan.log)}") from error
        finally:
            gone.cancel()
            await channel.close()


def _note(phases: dict[str, float], line: str, at: float) -> None:
    told = progress.parse(line)
    if told is not None and told.phase:
        phases.setdefault(told.phase, round(at, 3))


def _last(log: Path) -> str:
    try:
        return " | ".join(log.read_text(errors="replace").splitlines()[-5:])
    except OSError as error:
        return str(error)


def installation(environ: Mapping[str, str]) -> tuple[Path, Path]:
    """(vllm, folder of models) of scripts/install-vllm-cpu, or what the environment names."""
    data = environ.get("XDG_DATA_HOME") or f"{environ.get('HOME', '/nonexistent')}/.local/share"
    folder = Path(environ.get("VLLM_MM_VLLM_CPU") or f"{data}/vllm-mm/vllm-cpu")
    return folder / "bin" / "vllm", folder.parent / "models"


def cases(options: argparse.Namespace) -> list[Case]:
    """Raises Failed."""
    if options.sim:
        return [
            Case("sim", "sim", ModelSpec("sim", EngineKind.SIM, sim=dict(p.split("=", 1) for p in options.profile)))
        ]
    executable, models = installation(os.environ)
    executable = Path(options.executable or executable)
    if not executable.is_file():
        raise Failed(f"real vLLM is not at {executable}: run scripts/install-vllm-cpu, or use --executable, or --sim")
    found: list[Case] = []
    for name in options.models.split(","):
        folder = Path(name) if "/" in name else models / name
        if not (folder / "config.json").is_file():
            raise Failed(f"there is no model in {folder}")
        for mode in ("eager", "compiled") if options.compiled else ("eager",):
            args: dict[str, Any] = {"dtype": "float32", "max-model-len": 2048}
            if mode == "eager":
                args["enforce-eager"] = True
            env = ENGINE_ENV | dict(pair.split("=", 1) for pair in options.env)
            spec = ModelSpec(folder.name, model=str(folder), executable=str(executable), args=args, env=env)
            found.append(Case(folder.name, mode, spec))
    return found


def host() -> dict[str, Any]:
    model = re.search(r"model name\s*:\s*(.*)", Path("/proc/cpuinfo").read_text())
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {
        "cpu": model[1] if model else platform.processor(), "cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(memory / 2**30, 1), "kernel": platform.release(), "load_before": os.getloadavg()[0],
    }  # fmt: skip


async def _engine_version(plan: LaunchPlan) -> str:
    """Of the packages beside the engine's Python; empty when that cannot be told."""
    warm = await asyncio.to_thread(warmth, plan)
    python = warm.recipe.python if isinstance(warm, Warmth) else console_python(Path(plan.argv[0]), "vllm")
    if not isinstance(python, str):
        return ""
    code = "import platform, importlib.metadata as m; print(platform.python_version(), m.version('vllm'), m.version('torch'))"
    asked = await asyncio.create_subprocess_exec(
        python, "-c", code, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL
    )
    said = (await asked.communicate())[0].decode().split()
    return "Python {}, vLLM {}, torch {}".format(*said) if len(said) == 3 else ""


@contextlib.asynccontextmanager
async def bench(say: Say) -> AsyncIterator[tuple[Bench, WarmLauncher]]:
    """In a folder of its own, with an owner of its own, and nothing left of either."""
    root = Path(tempfile.mkdtemp(prefix="mmst-"))
    owner = f"bench-{secrets.token_hex(8)}"
    clock = RealClock()
    become_subreaper()
    try:
        with guarded(owner):  # even a kill of this process leaves no engine
            pool = ZygotePool(owner, clock, logs=root / "logs", tmp=root, idle_after=None)
            launcher = WarmLauncher(LocalLauncher(owner, clock), pool)
            try:
                yield Bench(root, owner, launcher, say), launcher
            finally:
                await launcher.close()
                await launcher.sweep_unknown(frozenset(), 30.0)
    finally:
        shutil.rmtree(root, ignore_errors=True)


async def measure(options: argparse.Namespace, say: Say) -> Results:
    wanted = cases(options)
    ways = options.ways.split(",")
    if unknown := [w for w in ways if w not in WAYS]:
        raise Failed(f"unknown ways {', '.join(unknown)}; there are {', '.join(WAYS)}")
    if options.sim:
        ways = [w for w in ways if "-" not in w]
    found = Results(host())
    rng = random.Random(options.seed)
    async with bench(say) as (it, launcher):
        found.host["engine"] = (
            "simulated" if options.sim else await _engine_version(it.plan(wanted[0], LauncherKind.LOCAL))
        )
        for case in wanted:
            if any(w.startswith("warm") for w in ways):
                await it.preload(case)
            first = await it.once(case, ways[0], -1)
            found.first[f"{case.name} {case.mode}"] = round(first.seconds, 2)
            say(f"{case.name}, {case.mode}: first start ({ways[0]}, not counted) {first.seconds:.2f} s")
        for number in range(options.runs):
            order = [(case, way) for case in wanted for way in ways]
            rng.shuffle(order)
            for case, way in order:
                try:
                    run = await it.once(case, way, number)
                except Failed as error:
                    found.failed.append(str(error))
                    say(f"FAILED {error}")
                    continue
                found.runs.append(run)
                say(
                    f"{number + 1}/{options.runs} {case.name} {case.mode} {way}: {run.seconds:.2f} s (load {run.load:.1f})"
                )
                if options.phases:
                    say(f"    process {run.process_s:.2f}, " + ", ".join(f"{k} {v:.2f}" for k, v in run.phases.items()))
        for zygote in launcher.view().zygotes:
            found.zygotes.append({
                "state": zygote.state, "reason": zygote.reason, "forks": zygote.forks, "import_s": zygote.report.seconds,
                "private": zygote.report.private, "threads": zygote.report.threads, "problems": zygote.report.problems,
            })  # fmt: skip
    found.host["load_after"] = os.getloadavg()[0]
    return found


def summary(found: Results) -> list[dict[str, Any]]:
    """One row of each model, mode and way."""
    rows: list[dict[str, Any]] = []
    groups: dict[tuple[str, str, str], list[Run]] = {}
    for run in found.runs:
        groups.setdefault((run.model, run.mode, run.way), []).append(run)
    for (model, mode, way), runs in sorted(groups.items(), key=lambda g: (g[0][0], g[0][1], WAYS.index(g[0][2]))):
        base = groups.get((model, mode, "spawn-cold" if way.endswith("-cold") else "spawn")) or groups.get(
            (model, mode, "spawn")
        )
        median = statistics.median(r.seconds for r in runs)
        phases = {p: statistics.median(r.phases.get(p, 0.0) for r in runs) for p in runs[0].phases}
        rows.append({
            "model": model, "mode": mode, "way": way, "runs": len(runs), "median_s": round(median, 3),
            "min_s": round(min(r.seconds for r in runs), 3), "max_s": round(max(r.seconds for r in runs), 3),
            "quicker": round(statistics.median(r.seconds for r in base) / median, 2) if base else None,
            "cached": None if (told := [r.cached for r in runs if r.cached is not None]) == [] else round(statistics.median(told), 2),
            "ahead_s": round(statistics.median(r.ahead_s for r in runs), 3), "phases": phases,
            "process_s": round(statistics.median(r.process_s for r in runs), 3),
        })  # fmt: skip
    return rows


def table(rows: list[dict[str, Any]]) -> str:
    lines = [["model", "mode", "way", "n", "median s", "min", "max", "times quicker", "weights cached"]]
    for row in rows:
        quicker = "-" if row["quicker"] is None or row["way"].startswith("spawn") else f"{row['quicker']:.1f}"
        lines.append([
            row["model"], row["mode"], row["way"], str(row["runs"]), f"{row['median_s']:.2f}", f"{row['min_s']:.2f}",
            f"{row['max_s']:.2f}", quicker, f"{row['cached']:.0%}" if row["cached"] is not None else "-",
        ])  # fmt: skip
    widths = [max(len(line[i]) for line in lines) for i in range(len(lines[0]))]
    return "\n".join("  ".join(cell.ljust(w) for cell, w in zip(line, widths, strict=True)).rstrip() for line in lines)


def judge(rows: list[dict[str, Any]]) -> list[str]:
    """How it stands with the targets, which are for eager starts with the weights in memory."""
    told: list[str] = []
    for row in rows:
        target = TARGETS.get(row["model"])
        if target is None or (row["mode"], row["way"]) != ("eager", "warm") or row["quicker"] is None:
            continue
        verdict = "met" if row["quicker"] >= target else "MISSED"
        told.append(f"{row['model']}: warm is {row['quicker']:.1f} times quicker, target {target:.0f}: {verdict}")
    return told


def ratios(rows: list[dict[str, Any]]) -> dict[str, dict[str, float]]:
    """How many times quicker than a spawned start, by model and mode, then by way."""
    found: dict[str, dict[str, float]] = {}
    for row in rows:
        if row["quicker"] is not None:
            found.setdefault(f"{row['model']} {row['mode']}", {})[row["way"]] = row["quicker"]
    return found


def start(options: argparse.Namespace) -> int:
    """`scripts/bench start`."""

    def say(text: str) -> None:
        print(text, file=sys.stderr if options.json else sys.stdout, flush=True)

    try:
        found = asyncio.run(measure(options, say))
    except Failed as error:
        print(f"bench: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("bench: interrupted; nothing is left running", file=sys.stderr)
        return 130
    rows = summary(found)
    if options.json:
        print(json.dumps({
            "host": found.host, "first": found.first, "summary": rows, "targets": judge(rows), "zygotes": found.zygotes,
            "failed": found.failed, "ratios": ratios(rows), "runs": [asdict(r) for r in found.runs],
        }, indent=1))  # fmt: skip
        return 1 if found.failed else 0
    facts = found.host
    say(f"\n{facts['cores']} cores of {facts['cpu']}, {facts['memory_gib']} GiB, Linux {facts['kernel']}; {facts['engine']}; "
        f"load {facts['load_before']:.1f} before, {facts['load_after']:.1f} after")  # fmt: skip
    for zygote in found.zygotes:
        say(f"zygote: {zygote['import_s']:.1f} s of imports, {zygote['private'] / 2**20:.0f} MiB private, "
            f"{zygote['threads']} threads, {zygote['forks']} forks" + "".join(f"\n  {p}" for p in zygote["problems"]))  # fmt: skip
    say("\n" + table(rows))
    for line in judge(rows):
        say(line)
    return 1 if found.failed else 0


def add_to(kinds: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    one = kinds.add_parser("start", help="cold starts: spawned, and forked from a zygote", description=__doc__)
    one.add_argument("--json", action="store_true", help="print one JSON object; progress goes to stderr")
    one.add_argument("--runs", type=int, default=10, help="rounds")
    one.add_argument(
        "--models", default=",".join(TARGETS), help="comma-separated: names of installed models, or folders"
    )
    one.add_argument("--compiled", action="store_true", help="also without --enforce-eager")
    one.add_argument("--ways", default=USUAL, help=f"comma-separated, of {', '.join(WAYS)}")
    one.add_argument("--phases", action="store_true", help="when each phase of a start was told by its log")
    one.add_argument("--executable", help="vLLM's command line (default: that of scripts/install-vllm-cpu)")
    one.add_argument(
        "--env", action="append", default=[], metavar="NAME=VALUE", help="for the engines; may be repeated"
    )
    one.add_argument("--sim", action="store_true", help="simulated engines: runs anywhere, in seconds")
    one.add_argument("--profile", action="append", default=[], metavar="KEY=VALUE", help="of the simulated engine")
    one.add_argument("--seed", type=int, default=1, help="of the random order")
    one.set_defaults(act=start)
