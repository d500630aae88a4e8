"""How engines come into being, and which weights wait in memory, as the API tells it."""

from dataclasses import replace

import httpx

from admin_rig import Admin
from vllm_mm.api.app import create_app
from vllm_mm.control.readahead import CachedWeights, ReadAheadView


async def test_nothing_was_started_and_nothing_is_read(api: Admin) -> None:
    """A server without zygotes, with reading ahead off, says so with zeros."""
    told = (await api.client.get("/api/launchers")).json()
    assert (told["starts"], told["zygotes"]) == ({"local": 0, "warm": 0}, [])
    assert told["read_ahead"] == {"budget": 0, "read": 0, "starts": 0, "wanted": 0, "hits": 0, "models": []}


async def test_weights_that_were_read_ahead_are_told(api: Admin) -> None:
    """The budget, what it did for starts, and how much of each model is in memory."""
    view = ReadAheadView(100, 40, 2, 80, 40, (CachedWeights("a", 50, 40, measured=True, kept=True),))
    app = create_app(replace(api.services, read_ahead=lambda: view))
    headers = api.client.headers
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://mm", headers=headers) as client:
        told = (await client.get("/api/launchers")).json()["read_ahead"]
    assert told == {
        "budget": 100, "read": 40, "starts": 2, "wanted": 80, "hits": 40,
        "models": [{"model": "a", "size": 50, "cached": 40, "measured": True, "kept": True}],
    }  # fmt: skip
