"""`/api/devices/leases`: what is asked, answered and refused. What becomes of a lease is in tests/unit/manager."""

import asyncio

from admin_rig import OPERATE, READ, Admin
from vllm_mm.domain.specs import GIB


async def test_room_is_asked_for_listed_and_given_back(api: Admin) -> None:
    """Sizes and times as people write them; 200 when it is held before `wait` is over."""
    asked = await api.client.post(
        "/api/devices/gpu0/leases?wait=1", json={"free": "10GiB", "for": "2h", "note": "a game"}
    )
    assert asked.status_code == 200, asked.text
    lease = asked.json()
    assert (lease["device"], lease["bytes"], lease["stage"], lease["note"]) == ("gpu0", 10 * GIB, "held", "a game")
    assert lease["ends_at"] == lease["held_at"] + 7200
    assert (await api.client.get("/api/devices/leases")).json() == [lease]
    assert (await api.client.get(f"/api/devices/leases/{lease['id']}")).json() == lease
    (device,) = (await api.client.get("/api/devices")).json()
    (reserved,) = device["reservations"]
    assert (reserved["model"], device["free"]) == (f"lease:{lease['id']}", 14 * GIB)
    ended = await api.client.delete(f"/api/devices/leases/{lease['id']}")
    assert (ended.status_code, ended.json()["stage"]) == (200, "ended")
    assert (await api.client.get("/api/devices/leases")).json() == []
    assert (await api.client.delete(f"/api/devices/leases/{lease['id']}")).status_code == 404


async def test_without_wait_the_answer_comes_at_once(api: Admin) -> None:
    """202, with what it waits for; somebody who runs finishes first."""
    await api.world.ready("a")
    running = await api.world.queue.admit(api.world.ticket("a"))
    asked = await api.client.post("/api/devices/gpu0/leases", json={"free": "10GiB", "for": 60})
    assert (asked.status_code, asked.json()["stage"]) == (202, "asked")
    assert asked.json()["evicted"] == [{"model": "a", "wanted": True}]
    waiting = asyncio.create_task(
        api.client.post("/api/devices/gpu0/leases?wait=5", json={"free": "20GiB", "for": "1m"})
    )
    while not waiting.done():  # the database takes real time
        await asyncio.sleep(0.01)
        await api.world.clock.advance(1)
    late = waiting.result()
    assert (late.status_code, late.json()["stage"]) == (202, "asked")
    api.world.manager.take_back(running)


async def test_what_cannot_be_is_refused(api: Admin) -> None:
    """409 where it can never be, with the pinned model in the way; 404 and 422 for what is wrong."""
    await api.world.ready("a")
    await api.client.post("/api/models/a/pin")
    never = await api.client.post("/api/devices/gpu0/leases", json={"free": "10GiB", "for": "2h"})
    assert (never.status_code, "pinned a holds" in never.json()["error"]["message"]) == (409, True)
    nowhere = await api.client.post("/api/devices/gpu7/leases", json={"free": "1GiB", "for": "2h"})
    assert (nowhere.status_code, nowhere.json()["error"]["code"]) == (404, "not_found")
    for body in (
        {"free": "1GiB"}, {"free": "much", "for": "2h"}, {"free": 0, "for": "2h"}, {"free": "1GiB", "for": "8d"},
        {"free": "1GiB", "for": "2h", "why": "so"},
    ):  # fmt: skip
        assert (await api.client.post("/api/devices/gpu0/leases", json=body)).status_code == 422, body


async def test_who_may(api: Admin) -> None:
    """Looking takes `read`, asking and ending `operate`."""
    body = {"free": "1GiB", "for": "1m"}
    async with api.as_(READ) as reader, api.as_(OPERATE) as operator:
        assert (await reader.get("/api/devices/leases")).status_code == 200
        assert (await reader.post("/api/devices/gpu0/leases", json=body)).status_code == 403
        asked = await operator.post("/api/devices/gpu0/leases", json=body)
        assert (asked.status_code, asked.json()["by"]) == (202, "operator ada-operate")
        assert (await reader.delete(f"/api/devices/leases/{asked.json()['id']}")).status_code == 403


async def test_an_unknown_key_of_a_body_is_told_with_the_nearest_one(api: Admin) -> None:
    """As the configuration does; and a value that is none in plain words."""
    for path, body, told in (
        ("/api/devices/gpu0/leases", {"free": "1GiB", "four": "2h"}, "four: unknown key; did you mean `for`?"),
        ("/api/keys", {"name": "ci", "expires": 3}, "expires: unknown key; did you mean `expires_in`?"),
        (
            "/api/keys",
            {"name": "ci", "zzz": 3},
            "zzz: unknown key; known are acts, expires_in, limits, models, name, progress, scopes, weight",
        ),
        ("/api/devices/gpu0/leases", {"free": "potato", "for": "2h"}, "free: 'potato' is not a size"),
    ):
        answer = await api.client.post(path, json=body)
        assert (answer.status_code, told in answer.json()["error"]["message"]) == (422, True), answer.text
        assert "Value error" not in answer.text
