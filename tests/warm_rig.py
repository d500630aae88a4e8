"""Simulated engines from zygotes: real processes for the tests of the warm launcher."""

import asyncio
import os
import secrets
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import httpx
import pytest

from vllm_mm.clock import RealClock
from vllm_mm.domain.residency import Device
from vllm_mm.domain.specs import GIB, ArgValue, DeviceWish, EngineKind, LauncherKind, ModelSpec
from vllm_mm.engine import command
from vllm_mm.engine.launchers.local import LocalLauncher
from vllm_mm.engine.launchers.pool import ZygotePool
from vllm_mm.engine.launchers.recipe import Recipe, Warmth, warmth
from vllm_mm.engine.launchers.warm import WarmLauncher
from vllm_mm.engine.ports import LaunchPlan
from vllm_mm.engine.process import LocalProcess

BACKEND = Path(__file__).parents[1] / "backend"
DEVICES = tuple(Device(f"sim{i}", 8 * GIB, kind="sim") for i in range(2))


def sim_plan(
    owner: str, tmp: Path, sim: Mapping[str, ArgValue] | None = None, *, model: str = "m", ranks: int = 1,
    env: Mapping[str, str] | None = None, base: Mapping[str, str] | None = None, launcher: LauncherKind = LauncherKind.WARM,
) -> LaunchPlan:  # fmt: skip
    """A launch of a simulated engine, as the manager would plan it; `env` is the model's, `base` the server's."""
    spec = ModelSpec(
        id=model, engine=EngineKind.SIM, sim={"weights": "1GiB", "kv_cache": "1GiB", **(sim or {})}, env=dict(env or {}),
        devices=DeviceWish(count=ranks), launcher=launcher,
    )  # fmt: skip
    token = secrets.token_hex(16)
    workdir = tmp / f"w{token[:6]}"
    address = command.address_for(spec, workdir)
    device_bytes = {d.id: 2 * GIB for d in DEVICES[:ranks]}
    argv, environ = command.build(
        spec, address=address, device_bytes=device_bytes, devices=DEVICES, workdir=workdir, token=token, owner=owner,
        cache_dir=tmp / "cache", sim_ledger=tmp / "ledger", python=sys.executable,
        base_env={**os.environ, "PYTHONPATH": str(BACKEND), **(base or {})},
    )  # fmt: skip
    log = tmp / "logs" / f"{model}.log"
    return LaunchPlan(
        model, 1, token, argv, environ, address, workdir, log, spec.fingerprint, device_bytes, launcher=launcher
    )


def recipe_of(plan: LaunchPlan) -> Recipe:
    found = warmth(plan)
    assert isinstance(found, Warmth), found
    return found.recipe


@dataclass
class WarmRig:
    """A warm launcher on simulated engines, and everything that it told."""

    owner: str
    tmp: Path
    pool: ZygotePool
    launcher: WarmLauncher
    events: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    started: list[LocalProcess] = field(default_factory=list)

    def plan(self, sim: Mapping[str, ArgValue] | None = None, **more: Any) -> LaunchPlan:
        return sim_plan(self.owner, self.tmp, sim, **more)

    async def start(self, plan: LaunchPlan | None = None) -> LocalProcess:
        process = await self.launcher.start(plan or self.plan())
        self.started.append(process)
        return process

    def zygotes(self) -> dict[str, int]:
        """Pid by key."""
        return {view.key: view.pid for view in self.pool.views() if view.pid is not None}

    def zygote(self) -> int:
        (pid,) = self.zygotes().values()
        return pid

    def told(self, kind: str) -> list[dict[str, Any]]:
        return [data for k, data in self.events if k == kind]


@asynccontextmanager
async def warm_rig(owner: str, tmp: Path, **pool: Any) -> AsyncIterator[WarmRig]:
    """`pool`: other arguments of the pool. At its end engines and zygotes are gone."""
    clock = RealClock()
    events: list[tuple[str, dict[str, Any]]] = []
    zygotes = ZygotePool(
        owner, clock, logs=tmp / "logs", tmp=tmp,
        tell=lambda kind, data: events.append((kind, data)), **{"idle_after": None, **pool},
    )  # fmt: skip
    launcher = WarmLauncher(
        LocalLauncher(owner, clock), zygotes, lambda kind, model, data: events.append((kind, {"model": model, **data}))
    )
    rig = WarmRig(owner, tmp, zygotes, launcher, events)
    try:
        yield rig
    finally:
        for process in rig.started:
            await process.stop(graceful=False, grace=0, deadline=5)
            await process.close()
        await launcher.close()


async def serves(process: LocalProcess, seconds: float = 60.0) -> None:
    """Returns when the engine is ready, and gives an answer."""
    transport = httpx.AsyncHTTPTransport(uds=process.record.address.socket)
    async with httpx.AsyncClient(transport=transport, base_url="http://engine") as client:
        try:
            async with asyncio.timeout(seconds):
                while not await _healthy(client):
                    await asyncio.sleep(0.01)
        except TimeoutError:
            pytest.fail(f"never ready: {process.tail(5)}")
        answer = await client.post(
            "/v1/completions", json={"model": process.record.model, "prompt": "x", "max_tokens": 2}
        )
        assert answer.status_code == 200, answer.text


async def _healthy(client: httpx.AsyncClient) -> bool:
    try:
        return (await client.get("/health")).status_code == 200
    except httpx.HTTPError:
        return False


def descriptors(pid: int) -> dict[int, str]:
    """What a process has open."""
    found: dict[int, str] = {}
    for entry in Path(f"/proc/{pid}/fd").iterdir():
        try:
            found[int(entry.name)] = str(entry.readlink())
        except OSError:
            continue
    return found


def environ(pid: int) -> dict[str, str]:
    """A process's environment as everybody sees it."""
    entries = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    return dict(e.decode().split("=", 1) for e in entries if b"=" in e)


def relaunched(plan: LaunchPlan) -> LaunchPlan:
    """The same launch once more: what a second start of the same specification would be but for its token and places."""
    token = secrets.token_hex(16)
    workdir = plan.workdir.parent / f"w{token[:6]}"
    old, new = str(plan.workdir), str(workdir)
    return replace(
        plan, token=token, workdir=workdir, argv=tuple(part.replace(old, new) for part in plan.argv),
        env={k: v.replace(old, new).replace(plan.token, token) for k, v in plan.env.items()},
        address=replace(plan.address, socket=plan.address.socket and plan.address.socket.replace(old, new)),
    )  # fmt: skip
