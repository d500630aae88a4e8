"""llama-swap's own routes, as its clients use them."""

import pytest

from admin_rig import INFER, READ, Admin
from compat import shapes


async def test_running_lists_what_has_an_engine(api: Admin) -> None:
    """And nothing else; a model that loads is there with that state."""
    assert (await api.client.get("/running")).json() == {"running": []}
    await api.world.ready("a")
    answer = (await api.client.get("/running")).json()
    assert shapes.differs(answer, shapes.LLAMA_SWAP_RUNNING) == ""
    assert [(e["model"], e["state"], e["proxy"], e["ttl"]) for e in answer["running"]] == [
        ("a", "ready", "/upstream/a", 3600)
    ]


async def test_a_browser_that_opens_such_a_path_gets_the_dashboard(api: Admin) -> None:
    """They are addresses of pages for people, and of answers for programs."""
    for path in ("/running", "/models", "/logs"):
        answer = await api.client.get(path, headers={"Accept": "text/html,*/*"})
        assert answer.headers["content-type"].startswith("text/html"), path
        assert not (await api.client.get(path)).headers["content-type"].startswith("text/html"), path


@pytest.mark.parametrize(("method", "path"), [("GET", "/unload"), ("POST", "/api/models/unload")])
async def test_unload_stops_every_engine(api: Admin, method: str, path: str) -> None:
    """Both spellings, the second without a model behind it; it answers OK."""
    await api.world.ready("a")
    answer = await api.client.request(method, path)
    assert (answer.status_code, answer.text) == (200, "OK")
    await api.world.clock.advance(1.0)
    assert (await api.client.get("/running")).json() == {"running": []}


async def test_one_model_is_unloaded_by_name(api: Admin) -> None:
    """By its id, whatever is in it, or an alias; an unknown one is told with the nearest."""
    await api.world.ready("Qwen/Qwen2.5-7B")
    assert (await api.client.post("/api/models/unload/a")).text == "OK"
    assert len((await api.client.get("/running")).json()["running"]) == 1
    assert (await api.client.post("/api/models/unload/gpt")).text == "OK"
    await api.world.clock.advance(1.0)
    assert (await api.client.get("/running")).json() == {"running": []}
    answer = await api.client.post("/api/models/unload/Qwen/Qwen2.5-8B")
    assert answer.status_code == 404
    assert "Did you mean `Qwen/Qwen2.5-7B`?" in answer.text


async def test_acts_of_a_model_that_is_called_unload_stay_its_own(api: Admin) -> None:
    """Nothing of our own API changes its meaning."""
    made = await api.client.post("/api/models", json={"id": "unload", "engine": "sim"})
    assert made.status_code == 201, made.text
    await api.world.ready("a")
    answer = await api.client.post("/api/models/unload")
    assert "POST needs an act behind the model" in answer.text
    assert len((await api.client.get("/running")).json()["running"]) == 1


async def test_a_page_of_another_site_cannot_unload(api: Admin) -> None:
    """A GET that changes something could be sent by any page that a person opens; browsers say from where."""
    await api.world.ready("a")
    for site, status in (("cross-site", 403), ("same-site", 403), ("same-origin", 200), ("none", 200)):
        assert (await api.client.get("/unload", headers={"Sec-Fetch-Site": site})).status_code == status, site


async def test_logs_have_the_model_in_front(api: Admin) -> None:
    """All engines in one text."""
    await api.world.ready("a")
    api.world.processes["a"].log("a line")
    assert "[a] a line\n" in (await api.client.get("/logs")).text


@pytest.mark.parametrize("path", ["/running", "/logs", "/logs/stream", "/unload", "/api/models/unload"])
async def test_a_key_for_requests_alone_may_not(api: Admin, path: str) -> None:
    """Scopes are those of the admin API."""
    async with api.as_(INFER) as client:
        assert (await client.request("POST" if path.startswith("/api") else "GET", path)).status_code == 403
    async with api.as_(READ) as client:
        assert (await client.post("/api/models/unload/a")).status_code == 403
