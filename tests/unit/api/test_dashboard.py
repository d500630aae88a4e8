"""The dashboard's files at `/`: what is kept by browsers, what is a page, and what is never the dashboard's."""

import gzip
import re
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import httpx
import pytest
from fastapi import FastAPI

from vllm_mm.api import dashboard
from vllm_mm.api.app import create_app

INDEX = (
    "<!doctype html><html><head><title>x</title></head><body><script src='./assets/app-1a2b.js'></script></body></html>"
)
SCRIPT = "console.log('hello');\n" * 100
PAGE = {"Accept": "text/html,application/xhtml+xml,*/*;q=0.8"}
"""As a browser asks when an address is opened."""


def build(folder: Path) -> Path:
    """What Vite leaves, small."""
    (folder / "assets").mkdir(parents=True)
    (folder / "index.html").write_text(INDEX)
    (folder / "docs.html").write_text(INDEX.replace("<title>x", "<title>docs"))
    (folder / "assets/app-1a2b.js").write_text(SCRIPT)
    (folder / "icon.svg").write_text("<svg/>")
    (folder / ".complete").write_text("secret of the build")
    return folder


def bare_app() -> FastAPI:
    """The whole API without services: enough for what never asks for one."""
    return create_app(cast("Any", SimpleNamespace(version="1.2.3")))


def client(folder: Path) -> httpx.AsyncClient:
    app = bare_app()
    del app.router.routes[-2:]  # those of this checkout, built or not
    dashboard.attach(app, folder)
    return httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://mm")


@pytest.fixture
async def built(tmp_path: Path) -> AsyncIterator[httpx.AsyncClient]:
    async with client(build(tmp_path / "static")) as made:
        yield made


async def test_the_application_ends_with_the_dashboard() -> None:
    """It comes after all other routes, from the folder that the build fills and the wheel carries."""
    assert isinstance(bare_app().router.routes[-1], dashboard._Dashboard)
    assert Path(dashboard.__file__).parents[1] / "static" == dashboard.STATIC


@pytest.mark.parametrize("path", ["/", "/index.html"])
async def test_the_first_page_is_asked_for_anew_each_time(built: httpx.AsyncClient, path: str) -> None:
    """So that a new build is seen at once; no key is needed, and no other site may run or frame anything."""
    answer = await built.get(path)
    assert (answer.status_code, answer.headers["content-type"]) == (200, "text/html; charset=utf-8")
    assert answer.headers["cache-control"] == "no-cache"
    assert "default-src 'self'" in answer.headers["content-security-policy"]
    assert "frame-ancestors 'none'" in answer.headers["content-security-policy"]
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert "<title>x</title>" in answer.text
    again = await built.get(path, headers={"If-None-Match": answer.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")


async def test_hashed_assets_last_for_ever(built: httpx.AsyncClient) -> None:
    """Immutable for a year, with gzip for who takes it and plain for who does not."""
    packed = await built.get("/assets/app-1a2b.js", headers={"Accept-Encoding": "gzip"})
    assert packed.headers["cache-control"] == "public, max-age=31536000, immutable"
    assert packed.headers["content-type"] == "text/javascript; charset=utf-8"
    assert packed.headers["content-encoding"] == "gzip"
    assert int(packed.headers["content-length"]) == len(gzip.compress(SCRIPT.encode(), 9, mtime=0)) < len(SCRIPT)
    assert packed.headers["vary"] == "Accept-Encoding"
    plain = await built.get("/assets/app-1a2b.js", headers={"Accept-Encoding": "identity"})
    assert "content-encoding" not in plain.headers
    assert packed.text == plain.text == SCRIPT


async def test_files_without_a_hash_are_not_kept(built: httpx.AsyncClient) -> None:
    """The icon has the same name in every build."""
    icon = await built.get("/icon.svg")
    assert (icon.text, icon.headers["content-type"], icon.headers["cache-control"]) == (
        "<svg/>",
        "image/svg+xml",
        "no-cache",
    )


async def test_head_is_get_without_a_body(tmp_path: Path) -> None:
    """As HTTP wants it, with the length that GET would send."""
    async with client(build(tmp_path / "static")) as asked:
        got = await asked.get("/", headers={"Accept-Encoding": "identity"})
        head = await asked.head("/", headers={"Accept-Encoding": "identity"})
    assert head.status_code == 200
    assert head.headers["content-length"] == str(len(got.content))


@pytest.mark.parametrize(
    ("path", "base"), [("/", "./"), ("/models", "./"), ("/models/Qwen/Qwen2.5-7B", "../../"), ("/keys/", "../")]
)
async def test_an_address_of_the_page_gives_the_page(built: httpx.AsyncClient, path: str, base: str) -> None:
    """What a browser opens is answered with index.html, whose base leads back to the root, also behind a prefix."""
    answer = await built.get(path, headers=PAGE)
    assert answer.status_code == 200
    assert f'<head><base href="{base}">' in answer.text
    assert answer.headers["cache-control"] == "no-cache"


@pytest.mark.parametrize("path", ["/helth", "/models/a", "/favicon.ico"])
async def test_a_program_that_errs_gets_no_page(built: httpx.AsyncClient, path: str) -> None:
    """Without `text/html` in Accept an unknown path is the API's 404, as JSON."""
    answer = await built.get(path)
    assert (answer.status_code, answer.json()["error"]["code"]) == (404, "unknown_route")


@pytest.mark.parametrize(
    "path", ["/assets/gone-9f.js", "/assets/", "/.complete", "/assets/../.complete", "/%2e%2e/app.py"]
)
async def test_what_is_not_of_the_build_is_not_there(built: httpx.AsyncClient, path: str) -> None:
    """A missing asset is no page (a browser would run it), and nothing beside or above the build is served."""
    answer = await built.get(path)
    assert (answer.status_code, answer.json()["error"]["code"]) == (404, "unknown_route")
    assert "secret" not in (await built.get(path, headers=PAGE)).text
    if path.startswith("/assets/") and ".." not in path:
        assert (await built.get(path, headers=PAGE)).status_code == 404


async def test_no_path_of_the_api_is_shadowed() -> None:
    """Every route that is documented, and every one of the data plane, begins with a reserved segment."""
    documented = bare_app().openapi()["paths"]
    assert len(documented) > 20
    assert {path.split("/")[1] for path in documented} <= dashboard.RESERVED
    assert {"v1", "v2", "docs", "redoc", "openapi.json", "rerank", "tokenize"} <= dashboard.RESERVED


@pytest.mark.parametrize(
    "path", ["/api", "/api/nothing", "/v1/nothing", "/v2", "/docs/nothing", "/health/x", "/metrics/x"]
)
async def test_a_wrong_path_of_the_api_stays_a_404_for_browsers_too(built: httpx.AsyncClient, path: str) -> None:
    """Otherwise a typing error in a client would look like an answer."""
    answer = await built.get(path, headers=PAGE)
    assert (answer.status_code, answer.json()["error"]["code"]) == (404, "unknown_route")


@pytest.mark.parametrize(
    ("method", "path", "status"), [("POST", "/", 404), ("DELETE", "/nothing", 404), ("POST", "/health", 405)]
)
async def test_other_methods_are_not_the_dashboards(
    built: httpx.AsyncClient, method: str, path: str, status: int
) -> None:
    """They are answered as if it were not there."""
    assert (await built.request(method, path, headers=PAGE)).status_code == status


async def test_routes_of_the_api_still_answer(built: httpx.AsyncClient) -> None:
    """Also to a browser."""
    assert (await built.get("/health", headers=PAGE)).json() == {"status": "ok"}
    assert (await built.get("/docs", headers=PAGE)).status_code == 200


async def test_the_documentation_is_a_page_of_the_build(built: httpx.AsyncClient) -> None:
    """With the dashboard's headers, so that nothing from elsewhere can run in it; and at no other address."""
    answer = await built.get("/docs")
    assert (answer.status_code, answer.headers["content-type"]) == (200, "text/html; charset=utf-8")
    assert '<head><base href="./"><title>docs</title>' in answer.text
    assert answer.headers["content-security-policy"] == (await built.get("/")).headers["content-security-policy"]
    assert (await built.get("/docs", headers={"If-None-Match": answer.headers["etag"]})).status_code == 304
    assert (await built.get("/docs.html")).status_code == 404
    assert (await built.post("/docs")).status_code == 405


async def test_without_a_build_the_documentation_is_a_list(tmp_path: Path) -> None:
    """Of every operation, without a script, and with the document beside it."""
    async with client(tmp_path / "static") as asked:
        answer = await asked.get("/docs")
        document = (await asked.get("/openapi.json")).json()
    assert answer.status_code == 200
    assert "<script" not in answer.text
    assert "://" not in answer.text
    assert len(document["paths"]) > 20
    assert all(f"<code>{path}</code>" in answer.text for path in document["paths"])
    assert 'href="openapi.json"' in answer.text


async def test_the_document_says_how_keys_are_sent() -> None:
    """So the page can ask for one, and generated clients know the header."""
    document = bare_app().openapi()
    assert document["components"]["securitySchemes"]["bearer"] == {
        "type": "http",
        "scheme": "bearer",
        "description": "A key of this server: `mm-...`.",
    }
    assert {"bearer": []} in document["security"]


NOT_BUILT = pytest.mark.skipif(
    not (dashboard.STATIC / "docs.html").is_file(), reason="the dashboard is not built here (npm run build)"
)


@NOT_BUILT
@pytest.mark.parametrize("page", ["/", "/docs"])
async def test_everything_that_a_built_page_names_is_served_here(page: str) -> None:
    """The real build: no asset comes from another host, and each is there with its type."""
    transport = httpx.ASGITransport(bare_app())
    async with httpx.AsyncClient(transport=transport, base_url="http://mm") as asked:
        text = (await asked.get(page)).text
        named = re.findall(r'(?:src|href)="([^"]+)"', text.replace('<base href="./">', ""))
        assert len(named) >= 3
        for name in named:
            assert name.startswith("./"), name
            answer = await asked.get(f"/{name[2:]}")
            assert answer.status_code == 200, name
            kind = {"js": "text/javascript", "css": "text/css", "svg": "image/svg+xml"}[name.rpartition(".")[2]]
            assert answer.headers["content-type"].startswith(kind)
        assert "swagger-ui-dist" in (await asked.get("/licences.txt")).text


async def test_without_a_build_the_first_page_says_how_to_make_one(tmp_path: Path) -> None:
    """And where the API's documentation is; it is not kept, and a build made meanwhile is served at once."""
    folder = tmp_path / "static"
    async with client(folder) as asked:
        answer = await asked.get("/")
        assert (answer.status_code, answer.headers["cache-control"]) == (200, "no-store")
        for hint in ("scripts/run", "Node 20", "npm ci", 'href="docs"'):
            assert hint in answer.text
        assert (await asked.get("/icon.svg")).status_code == 404
        build(folder)
        assert "<title>x</title>" in (await asked.get("/")).text


async def test_a_page_and_its_assets_are_of_one_build(tmp_path: Path) -> None:
    """What was read is kept while another build is put in its place."""
    folder = build(tmp_path / "static")
    async with client(folder) as asked:
        await asked.get("/")
        (folder / "assets/app-1a2b.js").unlink()
        (folder / "index.html").write_text("<head>another</head>")
        assert (await asked.get("/assets/app-1a2b.js")).text == SCRIPT
        assert "another" not in (await asked.get("/")).text
