"""`/api/keys`: made, changed, rotated, revoked, moved; never a secret in what is listed, told or stored."""

from typing import Any

import pytest
from msgspec import structs

from admin_rig import ADMIN, ROW, Admin
from vllm_mm.domain.errors import Unauthorized
from vllm_mm.domain.keys import Key, Limits, Right, Scope


@pytest.fixture(autouse=True)
async def stored(api: Admin) -> None:
    """The keys that the tests themselves use are in the database too, so that a change does not forget them."""
    await api.services.keys.add(api.services.keyring.keys, api.services.keys.mark)


async def made(api: Admin, **body: Any) -> dict[str, Any]:
    answer = await api.client.post("/api/keys", json={"name": "ci", **body})
    assert answer.status_code == 201, answer.text
    return answer.json()


def known(api: Admin, secret: str) -> Key:
    return api.services.keyring.identify(f"Bearer {secret}".encode(), None)


async def test_a_key_with_everything(api: Admin) -> None:
    """What was asked for is what it has; aliases become ids, patterns stay."""
    key = await made(
        api, scopes=["infer", "read"], models=["gpt", "a*", "Qwen/Qwen2.5-7B"], acts=["load"], weight=2, progress=True,
        limits={"concurrency": 3, "tokens_per_day": 1000}, expires_in=60,
    )  # fmt: skip
    assert key["models"] == ["Qwen/Qwen2.5-7B", "a*"]
    assert (key["acts"], key["weight"], key["progress"], key["scopes"]) == (["load"], 2.0, True, ["infer", "read"])
    assert {name: most for name, most in key["limits"].items() if most is not None} == {
        "concurrency": 3,
        "tokens_per_day": 1000,
    }
    assert key["secret"].startswith(key["prefix"])
    assert key["used"]["concurrency"] == key["used"]["tokens_per_day"] == 0
    found = known(api, key["secret"])
    assert (found.acts, found.weight, found.progress) == (frozenset({Right.LOAD}), 2.0, True)
    assert found.limits == Limits(concurrency=3, tokens_per_day=1000)
    shown = (await api.client.get(f"/api/keys/{key['id']}")).json()
    assert shown == {name: value for name, value in key.items() if name != "secret"}
    assert key["secret"] not in (await api.client.get("/api/keys")).text


async def test_a_plain_key(api: Admin) -> None:
    """Infer, all models, all rights, no limits."""
    key = await made(api)
    assert (key["scopes"], key["models"], key["acts"], key["used"]) == (
        ["infer"],
        None,
        ["capture", "evict", "load", "logs"],
        None,
    )
    assert set(key["limits"].values()) == {None}
    assert known(api, key["secret"]).limits is None


@pytest.mark.parametrize(
    "body",
    [
        {"limits": {"concurrency": 0}}, {"limits": {"requests": 5}}, {"weight": 0}, {"acts": ["fly"]}, {"scopes": []},
        {"models": ["nope"]}, {"models": [""]}, {"limits": {"tokens_per_minute": "many"}}, {"name": ""}, {"expires_in": 0},
        {"limits": {"device_seconds_per_day": 0}}, {"limits": {"requests_per_minute": 10**6}},
    ],
)  # fmt: skip
async def test_what_makes_no_sense_is_refused(api: Admin, body: dict[str, Any]) -> None:
    """With a message, and without a key."""
    answer = await api.client.post("/api/keys", json={"name": "ci", **body})
    assert answer.status_code in {404, 422}, answer.text
    assert len((await api.client.get("/api/keys")).json()) == 4


async def test_a_change_is_in_force_at_once(api: Admin) -> None:
    """What is named changes, limits are merged, null takes one away; what changed is told."""
    key = await made(api, limits={"concurrency": 3, "tokens_per_day": 1000})
    path = f"/api/keys/{key['id']}"
    answer = await api.client.patch(
        path, json={"limits": {"concurrency": 5, "requests_per_minute": 9}, "weight": 4, "name": "cd"}
    )
    assert answer.status_code == 200, answer.text
    found = known(api, key["secret"])
    assert found.limits == Limits(concurrency=5, tokens_per_day=1000, requests_per_minute=9)
    assert (found.weight, found.name, found.scopes) == (4.0, "cd", frozenset({Scope.INFER}))
    await api.services.journal.flush(5.0)
    event = (await api.services.journal.recent(1))[-1]
    assert event.kind == "key.changed"
    assert set(event.data["changed"]) == {"limits", "weight", "name"}
    for change, now in (
        ({"scopes": ["read"]}, ("scopes", ["read"])), ({"models": ["gpt"]}, ("models", ["Qwen/Qwen2.5-7B"])), ({"models": None}, ("models", None)),
        ({"acts": []}, ("acts", [])), ({"progress": True}, ("progress", True)), ({"expires_in": None}, ("expires_at", None)),
    ):  # fmt: skip
        assert (await api.client.patch(path, json=change)).json()[now[0]] == now[1]
    nothing = {"concurrency": None, "tokens_per_day": None, "requests_per_minute": None}
    await api.client.patch(path, json={"limits": nothing})
    assert known(api, key["secret"]).limits is None


async def test_a_key_ends_when_it_is_told_to(api: Admin) -> None:
    """`expires_in` counts from the change."""
    key = await made(api)
    answer = await api.client.patch(f"/api/keys/{key['id']}", json={"expires_in": 30})
    assert answer.json()["expires_at"] == pytest.approx(api.services.clock.wall() + 30)


async def test_rotation(api: Admin) -> None:
    """A new secret at once, the old one as long as was asked for; then, without overlap, not at all."""
    key = await made(api)
    path = f"/api/keys/{key['id']}/rotate"
    answer = await api.client.post(path, json={"overlap": "1h"})
    assert answer.status_code == 200, answer.text
    first = answer.json()
    assert first["rotated_until"] == pytest.approx(api.services.clock.wall() + 3600)
    assert {known(api, s).id for s in (key["secret"], first["secret"])} == {key["id"]}
    second = (await api.client.post(path)).json()
    assert second["rotated_until"] is None
    assert known(api, second["secret"]).id == key["id"]
    for secret in (key["secret"], first["secret"]):
        with pytest.raises(Unauthorized):
            known(api, secret)
    assert (await api.client.post(path, json={"overlap": "31d"})).status_code == 422


async def test_revoked_is_for_ever(api: Admin) -> None:
    """At once; whoever runs with it is told to the gateway; it cannot be changed back."""
    key = await made(api)
    told: list[str] = []
    api.services.keyring.on_revoked = told.append
    assert (await api.client.delete(f"/api/keys/{key['id']}")).json()["active"] is False
    assert told == [key["id"]]
    with pytest.raises(Unauthorized):
        known(api, key["secret"])
    for answer in (
        await api.client.patch(f"/api/keys/{key['id']}", json={"weight": 1}), await api.client.post(f"/api/keys/{key['id']}/rotate"),
    ):  # fmt: skip
        assert (answer.status_code, answer.json()["error"]["code"]) == (409, "conflict")


@pytest.mark.parametrize(
    ("method", "path"),
    [("GET", ""), ("PATCH", ""), ("DELETE", ""), ("POST", "/rotate")],
    ids=["get", "patch", "delete", "rotate"],
)
async def test_an_unknown_key_is_told(api: Admin, method: str, path: str) -> None:
    """404, and where to look."""
    answer = await api.client.request(method, f"/api/keys/key_nope{path}", json={})
    assert answer.status_code == 404
    assert "GET /api/keys lists them" in answer.json()["error"]["message"]


async def test_export_and_import(api: Admin) -> None:
    """Hashes and no secrets; back in, all or none; what is no export is refused."""
    key = await made(api, limits={"concurrency": 2}, models=["a*"], weight=3)
    await api.client.delete(f"/api/keys/{(await made(api))['id']}")
    mine = [k["id"] for k in (await api.client.get("/api/keys")).json()].index(key["id"])
    answer = await api.client.get("/api/keys/export")
    assert key["secret"] not in answer.text
    file = answer.json()
    assert [k["id"] for k in file["keys"]] == [k["id"] for k in (await api.client.get("/api/keys")).json()]
    again = await api.client.post("/api/keys/import", json=file)
    assert (again.status_code, again.json()["error"]["code"]) == (409, "conflict")
    moved = {**file, "keys": [{**file["keys"][mine], "id": "key_moved", "hash": "a" * 64}]}
    answer = await api.client.post("/api/keys/import", json=moved)
    assert (answer.status_code, answer.json()) == (201, {"imported": 1})
    there = (await api.client.get("/api/keys/key_moved")).json()
    assert there == {**(await api.client.get(f"/api/keys/{file['keys'][mine]['id']}")).json(), "id": "key_moved"}
    other = await api.client.post("/api/keys/import", json={**moved, "secret": "0" * 16})
    assert other.status_code == 409
    assert "another server's secret" in other.json()["error"]["message"]
    for wrong in ({}, {**file, "form": "x"}, {**file, "keys": [{**file["keys"][mine], "hash": "short"}]}):
        assert (await api.client.post("/api/keys/import", json=wrong)).status_code == 422


async def test_what_was_used_before_counts_for_a_new_budget(api: Admin) -> None:
    """A budget that is given to a key in the middle of the month knows what the ledger knows."""
    key = await made(api)
    now = api.services.clock.wall()
    await api.services.ledger.add([structs.replace(ROW, key=key["id"], at=now)])
    shown = (await api.client.patch(f"/api/keys/{key['id']}", json={"limits": {"tokens_per_month": 10}})).json()
    assert shown["used"]["tokens_per_month"] == 7
    assert shown["used"]["device_seconds_per_month"] == pytest.approx(1.4)


async def test_secrets_are_nowhere_but_in_the_answer(api: Admin) -> None:
    """Not in events, and in the database only as hashes."""
    secrets = [(await made(api))["secret"]]
    secrets.append((await api.client.post(f"/api/keys/{(await made(api))['id']}/rotate")).json()["secret"])
    await api.services.journal.flush(5.0)
    told = repr(await api.services.journal.recent(100))
    assert "key.rotated" in told
    for secret in secrets:
        assert secret not in told
        for file in api.services.settings.paths.data_dir.iterdir():
            assert not file.is_file() or secret.encode() not in file.read_bytes()
    assert ADMIN not in told
