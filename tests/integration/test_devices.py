"""Devices that fail, strangers on them, and room that is lent: the product with simulated devices and real processes."""

import asyncio
import os
from typing import Any

from hard_cases import Case, running, sim, until
from vllm_mm.sim import ledger

GIB = 2**30
TWO = [{"id": f"sim{i}", "memory": "12GiB", "simulated": True} for i in range(2)]


def claim(it: Case, device: str, gib: int) -> None:
    """This test is the stranger."""
    ledger.claim(it.serving.data / "sim", device, os.getpid(), gib * GIB, capacity=None)


async def device(it: Case, name: str) -> dict[str, Any]:
    return next(d for d in await it.get("/api/devices") if d["id"] == name)


async def test_a_stranger_that_comes_between_the_decision_and_the_start_is_planned_around() -> None:
    """Decided for the first device, whose model still drains; a stranger moves there from the second: that one it is. No
    start fails, and who the stranger is was told."""
    async with running(
        {"a": sim(), "b": sim()}, devices=TWO, swap={"max_wait": "100ms", "min_dwell": "0s", "drain_timeout": "20s"}
    ) as it:
        await it.ready("a")
        (on,) = (await it.instance("a"))["devices"]
        other = next(d["id"] for d in TWO if d["id"] != on)
        claim(it, other, 11)
        stream = asyncio.create_task(it.streamed("a", tokens=1600))
        await it.in_flight("a", 1)
        request = asyncio.create_task(it.complete("b"))
        await it.until("a", "draining")
        claim(it, other, 0)
        claim(it, on, 11)
        answer = await request
        assert answer.status_code == 200, answer.text
        assert (await it.instance("b"))["devices"] == [other]
        status, body = await stream
        assert (status, body.endswith(b"data: [DONE]\n\n")) == (200, True)
        await it.written()
        assert not {"instance.backoff", "instance.failed"} & set(it.events())
        (who,) = {p["pid"] for p in (await device(it, on))["foreign_processes"]}
        assert who == os.getpid()
        await until(lambda: "alert.foreign_memory" in it.events(), "the alert")
        assert str(os.getpid()) in str((await it.get("/api/status"))["alerts"])
        claim(it, on, 0)
        await it.quiet()


async def test_nothing_is_placed_on_a_device_that_is_unplugged() -> None:
    """What runs there goes on; another model goes to the device that is left; one that wants this one is told why."""
    models = {
        "a": sim(model={"devices": {"ids": ["sim0"]}}),
        "b": sim(),
        "c": sim(model={"devices": {"ids": ["sim0"]}}),
    }
    async with running(models, devices=TWO) as it:
        await it.ready("a")
        (it.serving.data / "sim" / "sim0" / ".fault").write_text("unplugged")

        async def marked() -> bool:
            return (await device(it, "sim0"))["problem"] != ""

        await until(marked, "the device to be out of use")
        assert (await it.complete("a")).status_code == 200
        assert (await it.complete("b")).status_code == 200
        assert (await it.instance("b"))["devices"] == ["sim1"]
        answer = await it.complete("c", wait=0.5)
        assert (answer.status_code, "sim0 is out of use: it is not there any more" in answer.text) == (503, True), (
            answer.text
        )
        assert "sim0 is out of use" in str((await it.get("/api/status"))["alerts"])
        await it.written()
        assert it.events().count("alert.device") == 1


async def test_room_on_a_device_is_lent_over_a_restart_and_given_back() -> None:
    """The model in the way goes, the borrower's use is not counted twice, the lease outlives the controller, and at its end
    the model comes back."""
    async with running({"a": sim(), "b": sim(weights="1GiB", kv_cache="1GiB")}, memory="16GiB") as it:
        await it.ready("a")
        body = {"free": "12GiB", "for": "1h", "note": "training"}
        answer = await it.client.post(f"{it.url}/api/devices/sim0/leases", params={"wait": 20}, json=body)
        assert answer.status_code == 200, answer.text
        lease = answer.json()
        assert (lease["stage"], lease["evicted"]) == ("held", [{"model": "a", "wanted": True}])
        claim(it, "sim0", 12)
        assert (await it.complete("b")).status_code == 200
        refused = await it.complete("a", wait=0.5)
        assert (refused.status_code, f"lease:{lease['id']}" in refused.text) == (503, True), refused.text
        it.serving.kill()
        await it.serving.start()
        assert [(i["id"], i["stage"]) for i in await it.get("/api/devices/leases")] == [(lease["id"], "held")]
        found = await device(it, "sim0")
        assert (found["foreign"], found["free"]) == (12 * GIB, 2 * GIB)
        claim(it, "sim0", 0)
        assert (await it.client.delete(f"{it.url}/api/devices/leases/{lease['id']}")).status_code == 200
        await it.until("a", "ready")

        async def over() -> bool:
            return await it.get("/api/devices/leases") == []

        await until(over, "the end of the lease")
        await it.written()
        kinds = [k for k in it.events() if k.startswith("device_lease.")]
        assert kinds == [f"device_lease.{k}" for k in ("asked", "held", "ended", "restored")]
