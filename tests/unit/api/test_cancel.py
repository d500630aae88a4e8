"""An operator cancels a request: what is told for one that runs, that is over, that nobody knows."""

import pytest
from msgspec.structs import asdict, replace

from admin_rig import INFER, OPERATE, READ, ROW, Admin
from vllm_mm.domain.running import Listing, Running, Stage
from vllm_mm.store import usage


@pytest.fixture
def running(api: Admin) -> list[tuple[str, str]]:
    """Requests that were asked to end; only `runs` is there."""
    asked: list[tuple[str, str]] = []

    async def cancel(request: str, cause: str) -> bool:
        asked.append((request, cause))
        return request == "runs/1"

    object.__setattr__(api.services, "cancel", cancel)
    return asked


async def test_a_request_that_runs_ends(api: Admin, running: list[tuple[str, str]]) -> None:
    """With an event and an entry in the audit that name the operator, and a message to the client that does not."""
    async with api.as_(OPERATE) as client:
        answer = await client.post("/api/requests/runs/1/cancel")
    assert (answer.status_code, answer.json()) == (200, {"id": "runs/1", "cancelled": True})
    assert running == [("runs/1", "an operator")]
    (event,) = [e for e in api.world.journal.events if e.kind == "request.cancelled"] or await _events(api)
    assert (event.cause, event.data["id"]) == ("operator ada-operate", "runs/1")
    (entry,) = (await api.client.get("/api/audit?act=cancel_request")).json()["entries"]
    assert (entry["name"], entry["object"], entry["before"], entry["after"]) == (
        "ada-operate", "runs/1", {"state": "running"}, {"state": "cancelled"},
    )  # fmt: skip


async def _events(api: Admin) -> list:
    return [e for e in await api.services.journal.recent() if e.kind == "request.cancelled"]


async def test_what_is_under_way_is_listed(api: Admin) -> None:
    """For everybody who may read; so many as asked for."""
    asked: list[int] = []
    row = Running(
        id="req_1", request_id="mine", at=12.0, route="chat/completions", model="demo", asked="gpt", key="key_1", stream=True,
        stage=Stage.ANSWERS, queued_s=0.5, load_s=0.25, ttft_s=0.75, total_s=2.0, frozen_s=0.0, frozen=False, bytes_in=10,
        bytes_out=20, generation=3, retried=False, ending=False,
    )  # fmt: skip

    async def running(most: int) -> Listing:
        asked.append(most)
        return Listing([row], 4)

    object.__setattr__(api.services, "running", running)
    async with api.as_(READ) as client:
        shown = (await client.get("/api/requests/running")).json()
        assert (await client.get("/api/requests/running?limit=1")).status_code == 200
        assert (await client.get("/api/requests/running?limit=1001")).status_code == 422
    assert shown == {"requests": [asdict(row)], "total": 4}
    assert asked == [200, 1]
    async with api.as_(INFER) as client:
        assert (await client.get("/api/requests/running")).status_code == 403


async def test_one_that_is_over_is_a_conflict(api: Admin, running: list[tuple[str, str]]) -> None:
    """By our id or the client's own; its outcome is told. The rows on their way are waited for."""
    waited: list[bool] = []

    async def written() -> None:
        waited.append(True)
        await api.services.ledger.add([replace(ROW, id="req_9", request_id="theirs")])

    object.__setattr__(api.services, "written", written)
    for name in ("req_9", "theirs"):
        answer = await api.client.post(f"/api/requests/{name}/cancel")
        assert answer.status_code == 409
        assert "is over already: ok, after 1.5 s" in answer.json()["error"]["message"]
    assert waited == [True, True]


async def test_one_that_nobody_knows_is_404(
    api: Admin, running: list[tuple[str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also a client's own id that is too far back to be looked for."""
    await api.services.ledger.add([replace(ROW, id=f"req_{i}", request_id=f"their_{i}") for i in range(5)])
    monkeypatch.setattr(usage, "RECENT", 3)
    assert (await api.client.post("/api/requests/nobody/cancel")).status_code == 404
    assert (await api.client.post("/api/requests/their_0/cancel")).status_code == 404
    assert (await api.client.post("/api/requests/their_4/cancel")).status_code == 409
