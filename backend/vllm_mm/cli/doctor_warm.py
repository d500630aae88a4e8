"""`doctor` on warm starts: whether they work here, what they cost, and what they save."""

import asyncio
import contextlib
import logging
import os
import secrets
import sys
import tempfile
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from vllm_mm.cli.checks import Finding, Status, devices
from vllm_mm.cli.output import count, size
from vllm_mm.clock import RealClock
from vllm_mm.domain.catalog import Catalog
from vllm_mm.domain.errors import MMError
from vllm_mm.domain.launches import Address, StartRecord
from vllm_mm.domain.residency import Device
from vllm_mm.domain.specs import EngineKind, LauncherKind, ModelSpec
from vllm_mm.engine import command
from vllm_mm.engine.launchers.local import LocalLauncher
from vllm_mm.engine.launchers.pool import ZygoteError, ZygotePool, ZygoteReport
from vllm_mm.engine.launchers.recipe import NotWarm, Recipe, Warmth, warmth
from vllm_mm.engine.ports import LaunchPlan
from vllm_mm.settings import Settings
from vllm_mm.store import migrate
from vllm_mm.store.database import Database
from vllm_mm.store.launches import Launches

DEADLINE = 30.0
"""Seconds for all environments together."""
_MEASURE = "`scripts/bench start` measures it; the history of starts tells it once models were started both ways"


@dataclass(frozen=True, slots=True)
class _Environment:
    """An engine environment of the configuration, and one of the ways into it."""

    warm: Warmth
    models: tuple[str, ...]


def warm_starts(settings: Settings, catalog: Catalog, say: Callable[[str], object]) -> Iterator[Finding]:
    """One finding for each environment that vLLM models are started in, and one of what warm starts saved. `say` is told
    what takes long. Simulated engines are quick either way, and are left out."""
    specs = [spec for spec in catalog if spec.engine is EngineKind.VLLM]
    if not specs:
        return
    wanted = [spec for spec in specs if spec.launcher is not LauncherKind.LOCAL]
    if not wanted:
        yield Finding("warm starts", Status.OK, "not asked for (`launcher: local`)")
        return
    environments, left_out = _environments(settings, wanted, devices(settings)[1])
    yield from left_out
    until = time.monotonic() + DEADLINE
    for environment in environments:
        left = until - time.monotonic()
        name = f"warm starts {environment.warm.recipe.python}"
        if left < 1:
            yield Finding(name, Status.WARN, "not looked at: the others took the time that there is", "run this again")
            continue
        say(f"importing vLLM in {environment.warm.recipe.python}, as a warm start would: {left:.0f} s at most")
        with _quiet():
            finding = asyncio.run(_look(name, environment, left))
        yield finding
    if environments:
        yield asyncio.run(_savings(settings, [spec.id for spec in wanted]))


@contextlib.contextmanager
def _quiet() -> Generator[None]:
    """What the launchers warn of is a finding here."""
    logger = logging.getLogger("vllm_mm.engine.launchers")
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(before)


def _environments(
    settings: Settings, specs: list[ModelSpec], here: tuple[Device, ...]
) -> tuple[list[_Environment], list[Finding]]:
    found: dict[Recipe, tuple[Warmth, list[str]]] = {}
    left_out: dict[str, list[str]] = {}
    for spec in specs:
        try:
            warm = warmth(_plan(settings, spec, here))
        except (MMError, OSError) as error:
            warm = NotWarm(str(error))
        if isinstance(warm, NotWarm):
            left_out.setdefault(warm.reason, []).append(spec.id)
        else:
            found.setdefault(warm.recipe, (warm, []))[1].append(spec.id)
    findings = [
        Finding(
            "warm starts",
            Status.WARN,
            f"not for {', '.join(models)}: {reason}",
            "each start takes the time of all imports; let `executable` be the `vllm` of an installed vLLM, or set "
            "`launcher: local` if that is meant",
        )
        for reason, models in left_out.items()
    ]
    return [_Environment(warm, tuple(models)) for warm, models in found.values()], findings


def _plan(settings: Settings, spec: ModelSpec, here: tuple[Device, ...]) -> LaunchPlan:
    """A launch that never happens."""
    nowhere, token = Path("/nonexistent"), "f" * 32
    address = Address(socket="/nonexistent/s")
    argv, env = command.build(
        spec, address=address, device_bytes={d.id: 0 for d in here}, devices=here, workdir=nowhere, token=token,
        owner="", cache_dir=settings.paths.cache_dir, sim_ledger=nowhere, python=sys.executable,
        base_env=dict(os.environ),
    )  # fmt: skip
    return LaunchPlan(spec.id, 0, token, argv, env, address, nowhere, nowhere, spec.fingerprint, launcher=spec.launcher)


async def _look(name: str, environment: _Environment, seconds: float) -> Finding:
    """Make a zygote as the server would, ask it how it is, and end it."""
    users = ", ".join(environment.models)
    with tempfile.TemporaryDirectory(prefix="mmd-") as folder:
        owner, clock = f"doctor-{secrets.token_hex(8)}", RealClock()
        launcher = LocalLauncher(owner, clock)
        pool = ZygotePool(
            owner, clock, logs=Path(folder) / "logs", tmp=Path(folder), idle_after=None, import_deadline=seconds
        )
        try:
            async with asyncio.timeout(seconds):
                zygote = await pool.get(environment.warm)
            report = zygote.report
        except TimeoutError:
            detail = f"not known: its imports took longer than the {seconds:.0f} s that this may take"
            return Finding(
                name, Status.WARN, detail, "run this again on a quieter machine; the server itself waits longer"
            )
        except ZygoteError as error:
            reason = str(error).partition(" (its log is ")[0]
            advice = f"{users} start as without it; see docs/cold-start.md, `What makes it fall back`"
            return Finding(name, Status.WARN, f"not possible: {reason}", advice)
        finally:
            await pool.close()
            await launcher.sweep_unknown(frozenset(), 10.0)
    return _healthy(name, users, report)


def _healthy(name: str, users: str, report: ZygoteReport) -> Finding:
    detail = (
        f"work, for {users}: {report.seconds:.1f} s of imports that each start is spared; {size(report.private)} of memory, "
        f"{count(report.threads, 'thread')} of the system, one of Python's"
    )
    if report.problems:
        detail += f"; not imported beforehand: {'; '.join(report.problems[:3])}"
    return Finding(name, Status.OK, detail)


async def _savings(settings: Settings, models: list[str]) -> Finding:
    """From the history of starts, without changing the database."""
    name = "warm starts save"
    try:
        history = await _history(settings, models)
    except Exception as error:  # whatever is wrong with the database is told by its own check
        return Finding(name, Status.OK, f"not known: the database cannot be read ({type(error).__name__}). {_MEASURE}")
    told = [text for model, starts in history.items() if (text := saved(model, starts))]
    return Finding(name, Status.OK, "; ".join(told) or f"not known yet. {_MEASURE}")


async def _history(settings: Settings, models: list[str]) -> Mapping[str, list[StartRecord]]:
    if await migrate.current(settings.database_url) != migrate.revisions()[-1]:
        return {}
    database = Database(settings.database_url)
    try:
        launches = Launches(database, RealClock())
        return {model: list(await launches.starts(model)) for model in models}
    finally:
        await database.close()


def saved(model: str, starts: Iterable[StartRecord]) -> str:
    """What the good starts of a model tell: median seconds of both ways; empty when one of them is missing."""
    times: dict[str, list[float]] = {"fork": [], "spawn": []}
    for start in starts:
        for way, seconds in times.items():
            if start.ready_at is not None and way in start.phases:
                seconds.append(start.ready_at - start.started_at)
    if not times["fork"] or not times["spawn"]:
        return ""
    warm, cold = median(times["fork"]), median(times["spawn"])
    return (
        f"{model}: {cold - warm:.1f} s of {cold:.1f} s a start "
        f"(medians of {len(times['fork'])} warm and {len(times['spawn'])} local ones)"
    )
