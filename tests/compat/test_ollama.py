"""Ollama's routes, as Open WebUI and others ask them."""

from datetime import datetime

import pytest

from admin_rig import INFER, Admin
from compat import shapes


@pytest.mark.parametrize("prefix", ["", "/ollama"])
async def test_what_there_is_and_what_is_loaded(api: Admin, prefix: str) -> None:
    """Every name in the list; only what can answer at once among the loaded ones, with its memory and when it goes."""
    tags = (await api.client.get(f"{prefix}/api/tags")).json()
    assert shapes.differs(tags, shapes.OLLAMA_TAGS) == ""
    assert [m["model"] for m in tags["models"]] == ["a", "Qwen/Qwen2.5-7B", "gpt"]
    assert (await api.client.get(f"{prefix}/api/ps")).json() == {"models": []}
    await api.world.ready("a")
    loaded = (await api.client.get(f"{prefix}/api/ps")).json()
    assert shapes.differs(loaded, shapes.OLLAMA_PS) == ""
    (one,) = loaded["models"]
    assert (one["model"], one["size"] > 0, one["size_vram"]) == ("a", True, one["size"])
    assert datetime.fromisoformat(one["expires_at"]).tzinfo is not None
    await api.client.post("/api/models/a/pin")
    (one,) = (await api.client.get(f"{prefix}/api/ps")).json()["models"]
    assert one["expires_at"].startswith("9999")


async def test_the_version_is_numbers(api: Admin) -> None:
    """Clients compare it part by part."""
    version = (await api.client.get("/api/version")).json()["version"]
    assert all(part.isdecimal() for part in version.split("."))


async def test_a_model_is_loaded_and_unloaded_by_an_empty_request(api: Admin) -> None:
    """That is how Ollama's clients do it: no prompt, and `keep_alive` 0 to unload."""
    answer = (await api.client.post("/api/generate", json={"model": "a"})).json()
    assert shapes.differs(answer, shapes.OLLAMA_DONE) == ""
    assert answer["done_reason"] == "load"
    await api.world.clock.advance(10.0)
    assert len((await api.client.get("/api/ps")).json()["models"]) == 1
    answer = (await api.client.post("/api/generate", json={"model": "a", "prompt": "", "keep_alive": 0})).json()
    assert answer["done_reason"] == "unload"
    await api.world.clock.advance(1.0)
    assert (await api.client.get("/api/ps")).json() == {"models": []}


async def test_a_chat_is_refused_with_what_to_do(api: Admin) -> None:
    """Nobody has to guess that only the lists are Ollama's."""
    answer = await api.client.post("/api/chat", json={"model": "a", "messages": [{"role": "user", "content": "x"}]})
    assert answer.status_code == 422
    assert "/v1/chat/completions" in answer.json()["error"]
    assert (await api.client.post("/api/generate", json={})).status_code == 422


async def test_show_tells_what_a_model_can(api: Admin) -> None:
    """And refuses one that is not there."""
    answer = await api.client.post("/api/show", json={"name": "gpt"})
    assert shapes.differs(answer.json(), shapes.OLLAMA_SHOW) == ""
    assert answer.json()["capabilities"] == ["completion"]
    assert (await api.client.post("/api/show", json={"model": "b"})).status_code == 404


async def test_who_may(api: Admin) -> None:
    """The lists of models are for every key; what is loaded is for those that may read; acts are for operators."""
    async with api.as_(INFER) as client:
        assert (await client.get("/api/tags")).status_code == 200
        assert (await client.get("/api/version")).status_code == 200
        assert (await client.get("/api/ps")).status_code == 403
        assert (await client.post("/api/generate", json={"model": "a"})).status_code == 403
    async with api.as_(None) as client:
        assert (await client.get("/api/version")).status_code == 401


@pytest.mark.parametrize("prefix", ["", "/ollama"])
async def test_errors_are_a_text_as_ollamas_own(api: Admin, prefix: str) -> None:
    """Its clients print what is under `error`; beside its routes the form is ours."""
    asked = [
        await api.client.post(f"{prefix}/api/show", json={"model": "nobody"}),
        await api.client.post(f"{prefix}/api/generate", json={"model": 5}),
        await api.client.post(f"{prefix}/api/chat", content=b"{"),
    ]
    async with api.as_("mm-nobody") as stranger:
        asked.append(await stranger.get(f"{prefix}/api/tags"))
    assert [a.status_code for a in asked] == [404, 422, 422, 401]
    for answer in asked:
        assert isinstance(answer.json()["error"], str), answer.text
    assert isinstance((await api.client.get("/api/models/nobody")).json()["error"], dict)
