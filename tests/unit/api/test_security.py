"""The table of docs/security.md: every route is in it, and it is so for every scope, every right and every kind of bad key."""

import re
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi.routing import APIRoute

from admin_rig import Admin
from fakes import FakeClock
from plane import PlainLeases
from vllm_mm.api.openai import OpenAIApp
from vllm_mm.api.problems import explain
from vllm_mm.domain.catalog import Catalog
from vllm_mm.domain.errors import Unavailable
from vllm_mm.domain.keys import ALL_RIGHTS, Key, Right, Scope, digest
from vllm_mm.domain.launches import Address
from vllm_mm.domain.specs import ModelSpec, Task
from vllm_mm.gateway import routes as planes
from vllm_mm.gateway.forward import Gateway
from vllm_mm.gateway.identity import Keyring

DOCUMENT = Path(__file__).parents[3] / "docs" / "security.md"
OURS = {"X-VLLM-MM-Session": "1"}
NO_ENDS = {"/api/events": "follow=false"}
"""Routes that do not end by themselves, and what makes them."""
UPSTREAM = {
    "GET /upstream/{model}/{path}": "/upstream/m-generate/version",
    "POST /upstream/{model}/{path}": "/upstream/m-generate/v1/completions",
}
ENDLESS = {"/logs/stream", "/logs/streamSSE"}
"""Those that never do, for who may: tests/compat reads them."""


@dataclass(frozen=True)
class Line:
    """One route of the table."""

    method: str
    path: str
    scopes: tuple[str, ...]
    """Any one is enough. `open`, `any`, or names of scopes."""
    rights: frozenset[Right]
    in_brackets: bool

    @property
    def name(self) -> str:
        return f"{self.method} {self.path}"

    def lets(self, key: Key) -> bool:
        by_scope = self.scopes in {("open",), ("any",)} or any(key.allows(Scope(s)) for s in self.scopes)
        return by_scope and (self.in_brackets or self.rights <= key.acts)


def table() -> list[Line]:
    text = DOCUMENT.read_text().partition("## Every route")[2]
    found: list[Line] = []
    for routes, scope, right in re.findall(r"^\| (`[^|]*`) \| ([^|]*) \| ?([^|]*) ?\|$", text, re.MULTILINE):
        rights = right.strip()
        acts = frozenset(Right(a.strip()) for a in rights.strip("()").split(",") if a.strip())
        for name in re.findall(r"`([^`]*)`", routes):
            method, path = name.split(" ")
            found.append(Line(method, path, tuple(scope.split(" or ")), acts, rights.startswith("(")))
    return found


TABLE = table()


def made(api: Admin) -> set[str]:
    """What the application has, as the table writes it."""
    found = set[str]()
    pending: list[Any] = list(api.app.routes)
    while pending:
        route = pending.pop()
        if isinstance(route, APIRoute):
            found |= {f"{method} {route.path.replace(':path}', '}')}" for method in route.methods}
        pending += getattr(getattr(route, "original_router", None), "routes", [])
    return found


def served() -> set[str]:
    """The routes of the data plane."""
    known = (*planes.ROUTES.values(), *planes.UPLOADS.values(), planes.REALTIME, planes.RETRIEVE, planes.CANCEL)
    return {f"{route.method.decode()} {route.name}" for route in known} | {
        "GET /v1/models", "GET /v1/models/{id}", "GET /upstream/{model}/{path}", "POST /upstream/{model}/{path}"
    }  # fmt: skip


PLANE = [line for line in TABLE if line.name in served()]
ADMIN_API = [line for line in TABLE if line not in PLANE]


async def test_every_route_is_in_the_table(api: Admin) -> None:
    """A new route has to say there who may use it; one that is gone has to go there too. No route is there twice."""
    names = [line.name for line in TABLE]
    assert set(names) == made(api) | served()
    assert len(names) == len(set(names))


def test_the_table_knows_its_words() -> None:
    """Scopes that there are; `open` and `any` stand alone."""
    assert {scope for line in TABLE for scope in line.scopes} == {"open", "any", *Scope}
    assert all(len(line.scopes) == 1 or set(line.scopes) <= set(Scope) for line in TABLE)


KEYS = {
    f"mm-{scope}-{without or 'all'}": Key(
        f"key_{scope}_{without}", f"{scope}", digest(f"mm-{scope}-{without or 'all'}"), frozenset({scope}),
        acts=ALL_RIGHTS - ({without} if without else set()),
    )
    for scope, without in product(Scope, (None, *Right))
}  # fmt: skip
"""By secret: each scope with all rights, and with all but each."""
WORST = Key("key_x", "x", "", frozenset(Scope))


def bad(clock: FakeClock) -> tuple[list[Key], list[dict[str, str | bytes]]]:
    """Keys that are not good any more, and the headers of everybody who has none."""
    keys = [
        replace(WORST, id="expired", digest=digest("mm-expired"), expires_at=clock.wall()),
        replace(WORST, id="revoked", digest=digest("mm-revoked"), revoked_at=1.0),
        replace(WORST, id="rotated", digest=digest("mm-new"), old_digest=digest("mm-rotated"), old_until=clock.wall()),
    ]
    good = "mm-admin-all"
    headers: list[dict[str, str | bytes]] = [
        {},
        {"Authorization": ""},
        {"Authorization": good},
        {"Authorization": f"Basic {good}"},
    ]
    headers += [{"Authorization": f"Bearer {s}"} for s in ("", "mm-unknown", "mm-expired", "mm-revoked", "mm-rotated")]
    headers += [
        {"Authorization": f"Bearer {s}"} for s in (f"{good} {good}", good[:-1], f"{good}0", good.upper(), f'"{good}"')
    ]
    headers += [
        {"Authorization": "Bearer mm-é".encode()},
        {"x-api-key": ""},
        {"x-api-key": f"Bearer {good}"},
        {"x-api-key": "a" * 5000},
    ]
    headers += [{"x-api-key": "mm-expired"}, {"x-api-key": "mm-revoked"}, {"Cookie": f"vllm_mm_session={good}"}]
    return keys, headers


def asked(line: Line) -> str:
    url = UPSTREAM.get(line.name) or re.sub(r"\{[^}]*\}", "nope", line.path)
    return f"{url}?{NO_ENDS[line.path]}" if line.path in NO_ENDS else url


OLLAMA = frozenset(f"/api/{name}" for name in ("version", "tags", "ps", "show", "generate", "chat"))


def refused(answer: httpx.Response) -> str | None:
    """As what: not a key, not this key; None when it was let in."""
    if answer.status_code not in {401, 403}:
        return None
    error = answer.json()["error"]
    if isinstance(error, str):  # as Ollama says it, on its routes
        assert answer.url.path.removeprefix("/ollama") in OLLAMA
        assert len(error) > 20
    else:
        assert error["type"] in {"authentication_error", "permission_error"}
        assert len(error["message"]) > 20
    return "401" if answer.status_code == 401 else "403"


async def test_scopes_and_rights(api: Admin) -> None:
    """403 without the scope or a right, and neither that nor 401 with them, on every route of the admin API."""
    api.services.keyring.replace(KEYS.values())
    for line in ADMIN_API:
        for secret, key in KEYS.items():
            api.services.refusals.clear()
            if line.path in ENDLESS and line.lets(key):
                continue
            async with api.as_(secret) as client:
                answer = await client.request(line.method, asked(line), headers=OURS)
            assert refused(answer) == (None if line.lets(key) else "403"), (line.name, secret, answer.text[:300])
        api.services.keyring.replace(KEYS.values())  # an allowed change takes over what the database has


async def test_bad_keys(api: Admin) -> None:
    """401, whatever is wrong with them, on every route of the admin API that needs one."""
    gone, everybody = bad(api.world.clock)
    api.services.keyring.replace([*KEYS.values(), *gone])
    for line in ADMIN_API:
        for headers in everybody:
            async with api.as_(None) as client:
                answer = await client.request(line.method, asked(line), headers={**OURS, **headers})
            assert refused(answer) == (None if line.scopes == ("open",) else "401"), (
                line.name,
                headers,
                answer.text[:300],
            )


@dataclass
class Data:
    """The data plane as an application, with leases of nobody."""

    app: OpenAIApp
    leases: PlainLeases
    clock: FakeClock


@pytest.fixture
async def data() -> Data:
    clock = FakeClock()
    specs = [ModelSpec(f"m-{task}", task=task) for task in Task]
    leases = PlainLeases(Catalog(specs), Address("/nowhere"))
    keys = Keyring(clock)
    keys.replace([*KEYS.values(), *bad(clock)[0]])
    gateway = Gateway(leases, keys, lambda _: None, explain, clock)
    return Data(OpenAIApp(gateway), leases, clock)


async def ask(data: Data, line: Line, headers: dict[str, Any]) -> httpx.Response:
    transport = httpx.ASGITransport(data.app)
    data.leases.fail = [Unavailable("Nothing is served here.")]
    known = {**planes.ROUTES, **planes.UPLOADS}.get(line.path.encode())
    body: dict[str, Any] = {}
    if known in planes.UPLOADS.values():
        body = {"data": {"model": "m-transcribe"}, "files": {"file": b"x"}}
    elif known is not None:
        body = {"json": {"model": f"m-{sorted(known.tasks)[0]}"}}
    elif line.name == "POST /upstream/{model}/{path}":
        body = {"json": {}}
    async with httpx.AsyncClient(transport=transport, base_url="http://mm", headers=headers, timeout=20) as client:
        return await client.request(line.method, asked(line), **body)


async def test_scopes_on_the_data_plane(data: Data) -> None:
    """403 without `infer`; with it the request goes on its way, and its ticket says what its key may cause."""
    for line in [line for line in PLANE if line.path != "/v1/realtime"]:
        for secret, key in KEYS.items():
            data.leases.tickets.clear()
            answer = await ask(data, line, {"x-api-key": secret})
            assert refused(answer) == (None if line.lets(key) else "403"), (line.name, secret, answer.text[:300])
            if line.lets(key) and line.in_brackets:
                assert {(t.loads, t.evicts) for t in data.leases.tickets} == {
                    (key.may(Right.LOAD), key.may(Right.EVICT))
                }, line.name


async def test_bad_keys_on_the_data_plane(data: Data) -> None:
    """401, whatever is wrong with them; a cookie is none."""
    for line in [line for line in PLANE if line.path != "/v1/realtime"]:
        for headers in bad(data.clock)[1]:
            answer = await ask(data, line, headers)
            assert refused(answer) == "401", (line.name, headers, answer.text[:300])
