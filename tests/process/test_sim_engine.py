"""The launcher on simulated engines, whose processes are made, named and orphaned as vLLM's are: started from specs by
`command.build`, followed by `progress.parse`, killed in every way. Nothing is ever left."""

import asyncio
import os
import random
import secrets
import signal
import sys
from pathlib import Path

import httpx
import pytest

from rig import Rig, alive, marked, until
from vllm_mm.clock import RealClock
from vllm_mm.domain.residency import Device
from vllm_mm.domain.specs import GIB, DeviceWish, EngineKind, ModelSpec
from vllm_mm.engine import command, procfs
from vllm_mm.engine.devices import SimulatedInventory, owned_by
from vllm_mm.engine.ports import ExitStatus, LaunchPlan
from vllm_mm.engine.process import LocalProcess
from vllm_mm.engine.progress import LineInfo, parse

DEVICES = tuple(Device(f"sim{i}", 8 * GIB, kind="sim") for i in range(2))


def plan(rig: Rig, sim: dict[str, object] | None = None, *, model: str = "m", ranks: int = 1) -> LaunchPlan:
    spec = ModelSpec(
        id=model,
        engine=EngineKind.SIM,
        sim={"weights": "2GiB", "kv_cache": "1GiB", **(sim or {})},  # type: ignore[dict-item] # text and numbers
        devices=DeviceWish(count=ranks),
    )
    token = secrets.token_hex(8)
    workdir = rig.tmp / f"w{token[:6]}"
    address = command.address_for(spec, workdir)
    device_bytes = {d.id: 3 * GIB for d in DEVICES[:ranks]}
    argv, env = command.build(
        spec,
        address=address,
        device_bytes=device_bytes,
        devices=DEVICES,
        workdir=workdir,
        token=token,
        owner=rig.owner,
        cache_dir=rig.tmp / "cache",
        sim_ledger=rig.tmp / "ledger",
        python=sys.executable,
        base_env={**os.environ, "PYTHONPATH": str(Path("backend").absolute())},
    )
    log = rig.tmp / "logs" / f"{model}.log"
    return LaunchPlan(model, 1, token, argv, env, address, workdir, log, spec.fingerprint, device_bytes)


async def launch(rig: Rig, sim: dict[str, object] | None = None, **more: object) -> tuple[LocalProcess, list[LineInfo]]:
    process = await rig.launcher.start(plan(rig, sim, **more))  # type: ignore[arg-type] # passed through
    rig.started.append(process)
    infos: list[LineInfo] = []

    def on_line(line: str) -> None:
        info = parse(line)
        if info is not None:
            infos.append(info)

    process.follow(on_line)
    return process, infos


async def ready(process: LocalProcess) -> None:
    async with httpx.AsyncClient(transport=httpx.AsyncHTTPTransport(uds=process.record.address.socket)) as client:
        for _ in range(1000):
            try:
                if (await client.get("http://engine/health")).status_code == 200:
                    return
            except httpx.HTTPError:
                pass
            await asyncio.sleep(0.01)
    pytest.fail(f"never ready: {process.tail(5)}")


def tree(rig: Rig) -> dict[str, int]:
    """Pid by name of the living processes with our mark."""
    return {stat.name: pid for pid, stat in marked(rig.owner).items()}


async def test_a_load_is_followed_and_ended_as_asked(rig: Rig) -> None:
    """Phases in order and facts from the log; memory claimed on the device, ours, and gone afterwards."""
    ours = owned_by(rig.owner)
    inventory = SimulatedInventory(RealClock(), ours, {"sim0": 8 * GIB}, rig.tmp / "ledger")
    process, infos = await launch(rig, {"compile": "50ms", "graphs": "50ms"})
    await ready(process)
    await until(lambda: any(info.phase == "startup_complete" for info in infos), "the last phase")
    phases = list(dict.fromkeys(info.phase for info in infos if info.phase))
    assert phases == [
        *("version", "architecture", "engine", "weights", "compile", "kv_cache", "graphs", "warmup", "tasks"),
        "startup_complete",
    ]
    facts = {name: value for info in infos for name, value in info.facts.items()}
    assert facts["weights_gib"] == 2.0
    assert facts["kv_cache_gib"] == 1.0
    claims = list((rig.tmp / "ledger" / "sim0").glob("[0-9]*"))
    assert sum(int(path.read_text()) for path in claims) >= 3 * GIB
    assert (await inventory.refresh())[0].foreign == 0, "our own claims are not foreign"
    report = await process.stop(graceful=True, grace=5, deadline=10)
    assert report.survivors == report.orphans == ()
    assert await process.exited() == ExitStatus(code=0)
    assert await inventory.wait_free({"sim0": 3 * GIB}, {"sim0": 0}, 1)


@pytest.mark.parametrize("fault", ["", "leave_session", "ignore_term", "leave_session,wipe_environment"])
async def test_orphans_of_a_killed_server_are_taken(rig: Rig, fault: str) -> None:
    """SIGKILL of the API server leaves engine core and workers, whatever they did to hide; all go, by name."""
    process, _ = await launch(rig, {"fault": fault or None, "worker_linger": "60s"}, ranks=2)
    await ready(process)
    everybody = process._hunt.scan()
    await asyncio.sleep(1.1)  # a walk of the tree is at most a second old
    os.kill(process.record.pid, signal.SIGKILL)
    assert (await asyncio.wait_for(process.exited(), 2)).signal == signal.SIGKILL
    report = await process.stop(graceful=True, grace=5, deadline=10)
    assert {name for _, name in report.orphans} >= {"VLLM::EngineCor"}
    assert not [pid for pid in everybody if alive(pid)]


async def test_a_start_that_does_not_fit_is_recognised(rig: Rig) -> None:
    """The device's memory is taken by the first; the second fails with vLLM's own message, and is understood."""
    first, _ = await launch(rig, {"weights": "6GiB"})
    await ready(first)
    second, infos = await launch(rig, {"weights": "6GiB"}, model="b")
    status = await asyncio.wait_for(second.exited(), 20)
    assert status.code not in (None, 0)
    assert [info.failure.kind for info in infos if info.failure][:1] == ["memory_at_start"]
    await second.stop(graceful=False, grace=0, deadline=5)
    assert alive(first.record.pid)


async def test_random_kills_at_random_times_leave_nothing(rig: Rig) -> None:
    """Any process of the tree killed at any moment of load or service, any way of stopping: the tree is gone, reaped, its
    files are gone, and a neighbour never notices."""
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    neighbour, _ = await launch(rig, model="neighbour")
    faults = [None, "leave_session", "ignore_term", "leave_session,ignore_term"]
    for _ in range(10):
        profile = {"startup": "100ms", "fault": rng.choice(faults), "worker_linger": "5s", "watchdog": "100ms"}
        process, _ = await launch(rig, profile, ranks=rng.choice([1, 2]))
        await asyncio.sleep(rng.uniform(0.0, 0.8))
        seen = process._hunt.scan()
        victims = [pid for pid in seen if pid != neighbour.record.pid]
        if victims and rng.random() < 0.8:
            os.kill(rng.choice(victims), rng.choice([signal.SIGKILL, signal.SIGTERM, signal.SIGSTOP]))
        await asyncio.sleep(rng.choice([0.0, 0.05, 0.3]))
        stops = [
            process.stop(graceful=rng.random() < 0.5, grace=rng.choice([0.0, 0.1, 0.5]), deadline=10)
            for _ in range(rng.choice([1, 2, 3]))
        ]
        reports = await asyncio.wait_for(asyncio.gather(*stops), 20)
        assert not [report for report in reports if report.survivors]
        assert not [pid for pid in seen if (stat := procfs.read_stat(pid)) is not None and stat.id == seen[pid].id]
        assert not process.record.workdir.exists()
        assert {stat.sid for stat in marked(rig.owner).values()} == {neighbour.record.pid}
    await ready(neighbour)
