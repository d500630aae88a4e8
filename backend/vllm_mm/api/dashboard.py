"""The dashboard: the files that `npm run build` leaves in `vllm_mm/static`, served at `/`.

It takes only what no other route could want: GET and HEAD outside the first path segments in RESERVED. So a wrong
method or an unknown path of the API is refused as if there were no dashboard. Nothing here needs a key: the page asks
for one and sends it with its own calls.

The documentation of the API at `/docs` is a second page of the same build: nothing of it comes from another host.
"""

import asyncio
import gzip
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Final

from fastapi import FastAPI
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Match
from starlette.types import Receive, Scope, Send

from vllm_mm.api.documentation import listing
from vllm_mm.gateway.routes import ROUTES

STATIC: Final = Path(__file__).parent.parent / "static"
"""Where the build goes; part of the wheel."""
RESERVED: Final = frozenset(
    {"v1", "v2", "api", "health", "ready", "metrics", "docs", "redoc", "openapi.json"}
    | {route.name.split("/")[1] for route in ROUTES.values()}
)
"""First path segments that are never the dashboard's."""

_INDEX: Final = "index.html"
_DOCS: Final = "docs.html"
_HASHED: Final = "assets/"
"""The build puts here what has a hash of its content in its name, and nothing else."""
_BASE: Final = b"<head>"
_TYPES: Final = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
    ".png": "image/png",
    ".ico": "image/vnd.microsoft.icon",
    ".woff2": "font/woff2",
    ".json": "application/json",
    ".txt": "text/plain; charset=utf-8",
}
_PACKED: Final = frozenset({".html", ".js", ".css", ".svg", ".json", ".txt"})
_HEADERS: Final = {
    # The page holds a key: nothing from elsewhere may run in it, and nobody may put it into a frame.
    "Content-Security-Policy": (
        "default-src 'self'; img-src 'self' data:; object-src 'none'; base-uri 'self'; form-action 'none'; "
        "frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
}
_NOT_BUILT: Final = b"""<!doctype html>
<html lang="en">
<head><meta charset="utf-8"><meta name="viewport" content="width=device-width"><title>vllm-mm</title></head>
<body>
<h1>vllm-mm serves</h1>
<p>The dashboard is not built in this checkout. <code>scripts/run</code> builds it when Node 20 or newer is installed;
by hand: <code>cd frontend &amp;&amp; npm ci &amp;&amp; npm run build</code>, then load this page again.</p>
<p>Without it everything works: <a href="docs">the API and its documentation</a>, and <code>vllm-mm --help</code>.</p>
</body>
</html>
"""


@dataclass(frozen=True, slots=True)
class _File:
    body: bytes
    packed: bytes | None
    """The same with gzip, where that is smaller."""
    media_type: str
    etag: str


def attach(app: FastAPI, folder: Path = STATIC) -> None:
    """Serve the build in `folder` with `app`, after all its other routes. It is read when it is first asked for, and
    kept: a page and its assets are always of one build, also while another is installed over it. A server that found
    none looks again at the next request."""
    dashboard = _Dashboard(folder)
    app.add_route("/docs", dashboard.docs, include_in_schema=False)
    app.router.routes.append(dashboard)


class _Dashboard(BaseRoute):
    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._files: dict[str, _File] = {}

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        mine = (
            scope["type"] == "http"
            and scope["method"] in {"GET", "HEAD"}
            and scope["path"].removeprefix("/").split("/", 1)[0] not in RESERVED
        )
        return (Match.FULL if mine else Match.NONE), {}

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        answer = await self._answer(Request(scope))
        await answer(scope, receive, send)

    async def docs(self, request: Request) -> Response:
        """The documentation; without a build, a list of what there is."""
        page = (await self._read()).get(_DOCS)
        if page is not None:
            return _response(request.headers, _based(page, "docs"), "no-cache")
        text = listing(request.app.openapi())
        return Response(text, media_type="text/html", headers={**_HEADERS, "Cache-Control": "no-store"})

    async def _read(self) -> Mapping[str, _File]:
        if not self._files:
            self._files = await asyncio.to_thread(_read, self._folder)
        return self._files

    async def _answer(self, request: Request) -> Response:
        files = await self._read()
        path = request.scope["path"].removeprefix("/")
        found = files.get(path)
        if found is not None and path not in {_INDEX, _DOCS}:
            lasting = "public, max-age=31536000, immutable" if path.startswith(_HASHED) else "no-cache"
            return _response(request.headers, found, lasting)
        # Any other address that a browser opens is a page, which the script in index.html knows; a missing asset is
        # not, and neither is what a program asks for.
        page = path in {"", _INDEX} or (
            "text/html" in request.headers.get("accept", "") and not path.startswith(_HASHED)
        )
        if not page:
            raise HTTPException(404)
        index = files.get(_INDEX)
        if index is None:
            return Response(_NOT_BUILT, media_type="text/html", headers={**_HEADERS, "Cache-Control": "no-store"})
        return _response(request.headers, _based(index, path), "no-cache")


def _read(folder: Path) -> dict[str, _File]:
    if not (folder / _INDEX).is_file():
        return {}
    return {
        name: _file(path.read_bytes(), path.suffix)
        for path in sorted(folder.rglob("*"))
        if path.is_file() and not (name := path.relative_to(folder).as_posix()).startswith(".")
    }


def _file(body: bytes, suffix: str) -> _File:
    packed = gzip.compress(body, 9, mtime=0) if suffix in _PACKED else body
    return _File(
        body,
        packed if len(packed) < len(body) else None,
        _TYPES.get(suffix, "application/octet-stream"),
        f'"{sha256(body).hexdigest()[:20]}"',
    )


def _based(index: _File, path: str) -> _File:
    """index.html as the page at `path`: what it refers to is relative to the root of the dashboard, wherever a reverse
    proxy has put that."""
    up = "../" * path.count("/") or "./"
    return _file(index.body.replace(_BASE, _BASE + f'<base href="{up}">'.encode(), 1), ".html")


def _response(asked: Headers, file: _File, caching: str) -> Response:
    headers = {**_HEADERS, "Cache-Control": caching, "ETag": file.etag, "Vary": "Accept-Encoding"}
    if file.etag in asked.get("if-none-match", ""):
        return Response(status_code=304, headers=headers)
    body = file.body
    if file.packed is not None and "gzip" in asked.get("accept-encoding", ""):
        body = file.packed
        headers["Content-Encoding"] = "gzip"
    return Response(body, headers={**headers, "Content-Type": file.media_type})
