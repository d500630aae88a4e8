"""The routes of llama.cpp's server for several models, as its clients use them."""

from admin_rig import INFER, READ, Admin
from compat import shapes
from vllm_mm.api.compat import llama_cpp


async def states(api: Admin) -> dict[str, str]:
    answer = (await api.client.get("/models")).json()
    assert shapes.differs(answer, shapes.LLAMA_CPP_MODELS) == ""
    return {entry["id"]: entry["status"]["value"] for entry in answer["data"]}


async def test_a_model_is_loaded_and_unloaded_by_name(api: Admin) -> None:
    """The list tells how far it is; a second load does no harm."""
    assert await states(api) == {"a": "unloaded", "Qwen/Qwen2.5-7B": "unloaded"}
    for _ in range(2):
        answer = await api.client.post("/models/load", json={"model": "gpt", "extra": 1})
        assert (answer.status_code, answer.json()) == (200, {"success": True})
    await api.world.clock.advance(10.0)
    assert (await states(api))["Qwen/Qwen2.5-7B"] == "loaded"
    answer = await api.client.post("/models/unload", json={"model": "gpt"})
    assert shapes.differs(answer.json(), shapes.LLAMA_CPP_DONE) == ""
    await api.world.clock.advance(1.0)
    assert (await states(api))["Qwen/Qwen2.5-7B"] == "unloaded"


async def test_a_model_that_is_wanted_loads(api: Admin) -> None:
    """From the moment at which somebody asked for it."""
    await api.world.manager.start("a", "test")
    spec = api.world.manager.catalog.resolve("a")
    assert llama_cpp._status(api.services, spec)["value"] == "loading"


async def test_a_start_that_failed_says_so(api: Admin) -> None:
    """Beside the state, as there."""
    api.world.launch_errors["a"] = FileNotFoundError(2, "no such program", "vllm")
    await api.client.post("/models/load", json={"model": "a"})
    await api.world.clock.advance(1.0)
    (entry,) = [e for e in (await api.client.get("/models")).json()["data"] if e["id"] == "a"]
    assert (entry["status"]["value"], entry["status"]["failed"]) == ("unloaded", True)


async def test_who_may(api: Admin) -> None:
    """The list is for everybody with a key, as /v1/models is; the acts are for operators. Wrong bodies are told."""
    async with api.as_(INFER) as client:
        assert (await client.get("/models")).status_code == 200
        assert (await client.post("/models/load", json={"model": "a"})).status_code == 403
    async with api.as_(READ) as client:
        assert (await client.post("/models/unload", json={"model": "a"})).status_code == 403
    async with api.as_(None) as client:
        assert (await client.get("/models")).status_code == 401
    assert (await api.client.post("/models/load", json={"model": "b"})).status_code == 404
    assert (await api.client.post("/models/load", json={})).status_code == 422
