"""Signing in to the dashboard: a cookie that only this server reads, that ends, and that the page of somebody else cannot use."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from admin_rig import ADMIN, INFER, OPERATE, READ, Admin, admin
from fakes_engine import model
from vllm_mm.api.signing import COOKIE, MOST, SignIns
from vllm_mm.store.sessions import Sessions

OURS = {"X-VLLM-MM-Session": "1"}
PROXY = {
    "auth.proxy.header": "X-Forwarded-User",
    "auth.proxy.addresses": ["127.0.0.0/8", "fd00::/8"],
    "auth.proxy.scopes": ["operate"],
}


@pytest.fixture
async def page(api: Admin) -> AsyncIterator[httpx.AsyncClient]:
    """A browser without a key."""
    async with api.as_(None) as client:
        yield client


async def sign_in(client: httpx.AsyncClient, secret: str = ADMIN, **headers: str) -> httpx.Response:
    return await client.post("/api/session", json={"key": secret}, headers=headers)


async def test_a_session_is_as_good_as_its_key(api: Admin, page: httpx.AsyncClient) -> None:
    """It may what the key may, and says who it is."""
    answer = await sign_in(page)
    assert answer.status_code == 201, answer.text
    who = answer.json()
    assert (who["key"], who["name"], who["by"], who["scopes"]) == (
        "key_admin",
        "ada-admin",
        "session",
        ["read", "operate", "admin"],
    )
    assert who["expires_at"] == pytest.approx(api.services.clock.wall() + 12 * 3600)
    assert (await page.get("/api/keys")).status_code == 200
    assert (await page.get("/api/session")).json() == who
    assert ADMIN not in answer.text + str(answer.headers)


async def test_the_cookie_is_the_browsers_own_business(page: httpx.AsyncClient) -> None:
    """No script reads it, no other site sends it, and it ends; over https it never goes in the clear."""
    cookie = (await sign_in(page)).headers["set-cookie"]
    assert cookie.startswith(f"{COOKIE}=")
    parts = {part.strip().lower() for part in cookie.split(";")[1:]}
    assert parts == {"httponly", "max-age=43200", "path=/", "samesite=strict"}
    page.base_url = httpx.URL("https://mm")
    assert "secure" in (await sign_in(page)).headers["set-cookie"].lower()


@pytest.mark.parametrize(("secret", "scopes"), [(READ, ["read"]), (OPERATE, ["read", "operate"])])
async def test_a_smaller_key_gives_a_smaller_session(page: httpx.AsyncClient, secret: str, scopes: list[str]) -> None:
    """Never more than its own scopes."""
    assert (await sign_in(page, secret)).json()["scopes"] == scopes
    assert (await page.get("/api/status")).status_code == 200
    assert (await page.get("/api/keys")).status_code == 403


async def test_who_may_not_read_cannot_sign_in(page: httpx.AsyncClient) -> None:
    """There would be nothing to see; nor can a wrong key, or none."""
    assert (await sign_in(page, INFER)).status_code == 403
    assert (await sign_in(page, "mm-wrong")).status_code == 401
    assert (await page.post("/api/session", json={})).status_code == 422
    assert (await page.get("/api/session")).status_code == 401


@pytest.mark.parametrize(
    "cookie", ["", "x", "x.y", "{token}", "{token}.", "{token}.0", "x.{signature}", "é.ü", "{token}.{signature}0"]
)
async def test_a_made_up_cookie_is_none(api: Admin, page: httpx.AsyncClient, cookie: str) -> None:
    """Whatever of a real one it has."""
    value = (await sign_in(page)).cookies[COOKIE]
    token, _, signature = value.partition(".")
    sent = f"{COOKIE}={cookie.format(token=token, signature=signature)}".encode()
    async with api.as_(None) as other:
        assert (await other.get("/api/status", headers=[(b"cookie", sent)])).status_code == 401
        assert (await other.get("/api/status", headers=[(b"cookie", f"{COOKIE}={value}".encode())])).status_code == 200


async def test_what_changes_something_has_to_come_from_our_page(page: httpx.AsyncClient) -> None:
    """Shown by a header that no other page can send, or by the browser's own word; a page of another origin is refused, and so is what
    shows nothing. Reading is not concerned: the page of another origin does not see the answer."""
    await sign_in(page)
    for headers, status in (
        ({}, 403), (OURS, 404), ({"Origin": "http://mm"}, 404), ({"Origin": "http://evil"}, 403), ({"Origin": "null"}, 403),
        ({"Sec-Fetch-Site": "same-origin"}, 404), ({"Sec-Fetch-Site": "none"}, 404), ({"Sec-Fetch-Site": "same-site"}, 403),
        ({"Sec-Fetch-Site": "cross-site"}, 403), ({"X-VLLM-MM-Session": "0"}, 403), ({"Origin": "http://mm.evil"}, 403),
    ):  # fmt: skip
        for method in ("DELETE", "PATCH"):
            answer = await page.request(method, "/api/keys/key_nope", json={}, headers=headers)
            assert answer.status_code == status, (method, headers)
    assert (await page.get("/api/status", headers={"Origin": "http://evil"})).status_code == 200


async def test_a_key_needs_no_such_sign(api: Admin) -> None:
    """No browser sends it by itself."""
    assert (await api.client.delete("/api/keys/key_nope", headers={"Origin": "http://evil"})).status_code == 404


async def test_another_page_cannot_sign_in_here(page: httpx.AsyncClient) -> None:
    """Else it could have somebody work under another name without noticing. A program, which sends no Origin, can."""
    assert (await sign_in(page, Origin="http://evil")).status_code == 403
    assert (await sign_in(page, **{"Sec-Fetch-Site": "cross-site"})).status_code == 403
    assert (await sign_in(page, Origin="http://mm")).status_code == 201
    assert (await sign_in(page)).status_code == 201


async def test_signing_out(api: Admin, page: httpx.AsyncClient) -> None:
    """The cookie is good no more, wherever it went; who is not signed in comes to no harm."""
    value = (await sign_in(page)).cookies[COOKIE]
    assert (await page.delete("/api/session")).status_code == 403
    answer = await page.delete("/api/session", headers=OURS)
    assert answer.json() == {"sessions": 1}
    assert "max-age=0" in answer.headers["set-cookie"].lower()
    async with api.as_(None) as other:
        other.cookies.set(COOKIE, value)
        assert (await other.get("/api/status")).status_code == 401
        assert (await other.delete("/api/session", headers=OURS)).json() == {"sessions": 0}


async def test_signing_out_everywhere(api: Admin) -> None:
    """All sessions of the key, on whatever machine; those of others stay, unless an administrator ends them as well."""
    browsers = [api.as_(None) for _ in range(3)]
    reader = api.as_(None)
    for browser in browsers:
        await sign_in(browser)
    await sign_in(reader, READ)
    assert (await reader.delete("/api/sessions?everybody=true", headers=OURS)).status_code == 403
    assert (await browsers[0].delete("/api/sessions", headers=OURS)).json() == {"sessions": 3}
    assert {(await browser.get("/api/status")).status_code for browser in browsers} == {401}
    assert (await reader.get("/api/status")).status_code == 200
    assert (await api.client.delete("/api/sessions?everybody=true")).json() == {"sessions": 1}
    assert (await reader.get("/api/status")).status_code == 401
    for client in (*browsers, reader):
        await client.aclose()


async def test_a_session_ends_with_its_time_and_with_its_key(api: Admin, page: httpx.AsyncClient) -> None:
    """After `auth.session`; and at once when the key is revoked, or its own time is over."""
    await api.services.keys.add(api.services.keyring.keys, api.services.keys.mark)
    await sign_in(page)
    api.world.clock.time += 12 * 3600 - 1
    assert (await page.get("/api/status")).status_code == 200
    api.world.clock.time += 1
    assert (await page.get("/api/status")).status_code == 401
    short = (await api.client.post("/api/keys", json={"name": "s", "scopes": ["read"], "expires_in": 60})).json()
    assert (await sign_in(page, short["secret"])).json()["expires_at"] == short["expires_at"]
    api.world.clock.time += 60
    assert (await page.get("/api/status")).status_code == 401
    other = (await api.client.post("/api/keys", json={"name": "o", "scopes": ["read"]})).json()
    await sign_in(page, other["secret"])
    assert (await page.get("/api/status")).status_code == 200
    await api.client.delete(f"/api/keys/{other['id']}")
    assert (await page.get("/api/status")).status_code == 401


async def test_sessions_outlive_the_server_and_are_stored_as_hashes(api: Admin, page: httpx.AsyncClient) -> None:
    """Another start knows them; what is in the database is not what the cookie holds; those that are over are deleted."""
    value = (await sign_in(page)).cookies[COOKIE]
    the = api.services

    def again() -> SignIns:
        return SignIns(the.settings.auth, b"pepper", the.keyring, the.clock, Sessions(api.database))

    after = again()
    assert after.session(asked(value)) is None
    await after.recall()
    session = after.session(asked(value))
    assert session is not None
    assert session.key == "key_admin"
    for part in value.split("."):
        assert all(part.encode() not in f.read_bytes() for f in the.settings.paths.data_dir.iterdir() if f.is_file())
    api.world.clock.time += 12 * 3600
    assert await Sessions(api.database).all(the.clock.wall()) == []
    assert (
        SignIns(the.settings.auth, b"other", the.keyring, the.clock, Sessions(api.database)).session(asked(value))
        is None
    )


def asked(cookie: str) -> Any:
    from starlette.requests import Request

    return Request({"type": "http", "method": "GET", "headers": [(b"cookie", f"{COOKIE}={cookie}".encode())]})


async def test_sessions_of_one_key_have_a_bound(api: Admin) -> None:
    """The oldest ends when there is one more."""
    async with api.as_(None) as first, api.as_(None) as second:
        await sign_in(first)
        for _ in range(MOST - 1):
            await sign_in(second)
        assert (await first.get("/api/status")).status_code == 200
        await sign_in(second)
        assert (await first.get("/api/status")).status_code == 401
        assert (await second.get("/api/status")).status_code == 200
    assert len(await Sessions(api.database).all(0.0)) == MOST


async def test_guessing_is_slowed_down(api: Admin, page: httpx.AsyncClient) -> None:
    """After ten wrong keys in a minute also the right one has to wait, and is told how long."""
    for _ in range(10):
        assert (await sign_in(page, "mm-wrong")).status_code == 401
    answer = await sign_in(page)
    assert (answer.status_code, answer.json()["error"]["code"]) == (429, "rate_limit_exceeded")
    assert 0 < int(answer.headers["retry-after"]) <= 60
    api.world.clock.time += 60
    assert (await sign_in(page)).status_code == 201


async def test_where_there_are_no_keys_nobody_signs_in(tmp_path: Path) -> None:
    """Everybody is an administrator, and is told so."""
    async with admin(tmp_path, model("a", 20), **{"auth.mode": "none"}) as made, made.as_(None) as client:
        made.services.keyring._open = True
        client.base_url = httpx.URL("http://localhost")
        who = (await client.get("/api/session")).json()
        assert (who["by"], who["scopes"]) == ("none", ["infer", "read", "operate", "admin"])
        assert (await sign_in(client)).status_code == 409


@pytest.mark.parametrize(
    ("peer", "known"), [("127.0.0.1", True), ("127.9.9.9", True), ("::ffff:127.0.0.1", True), ("fd00::1", True), ("10.0.0.1", False), ("", False)]
)  # fmt: skip
async def test_a_proxy_names_who_asks(tmp_path: Path, peer: str, known: bool) -> None:
    """From its own addresses only; what it names has the scopes that are set, and is in the events."""
    async with admin(tmp_path, model("a", 20), **PROXY) as made:
        transport = httpx.ASGITransport(made.app, client=(peer, 1))
        async with httpx.AsyncClient(
            transport=transport, base_url="http://mm", headers={"X-Forwarded-User": "ada"}
        ) as client:
            answer = await client.get("/api/session")
            if not known:
                assert answer.status_code == 401
                return
            who = answer.json()
            assert (who["key"], who["name"], who["by"], who["scopes"]) == (
                "proxy:ada",
                "ada",
                "proxy",
                ["read", "operate"],
            )
            assert (await client.get("/api/status")).status_code == 200
            assert (await client.get("/api/keys")).status_code == 403
            assert (
                await client.post("/api/models/a/reset")
            ).status_code == 403  # a page of somebody else may have sent it
            assert (await client.post("/api/models/a/reset", headers=OURS)).status_code == 202
            for name in ("", " "):
                assert (await client.get("/api/status", headers={"X-Forwarded-User": name})).status_code == 401
            wrong = {"Authorization": "Bearer mm-wrong"}
            assert (await client.get("/api/status", headers=wrong)).status_code == 401  # a key that is given counts


async def test_without_the_setting_the_header_means_nothing(api: Admin) -> None:
    """Whoever sends it."""
    async with api.as_(None) as client:
        assert (await client.get("/api/status", headers={"X-Forwarded-User": "ada"})).status_code == 401
