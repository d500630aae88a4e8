"""`top` on a running server."""

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from typing import Any

import httpx

from vllm_mm.cli.server import CONNECT_TIMEOUT, READ_TIMEOUT, Server, model_path
from vllm_mm.cli.top import Refused, Top, Unreachable, View

TAIL = 50
"""Events to begin with."""


class ServerSource:
    """Asks the admin API."""

    def __init__(self, server: Server) -> None:
        headers = {"Authorization": f"Bearer {server.token}"} if server.token else {}
        self._url = server.url
        self._http = httpx.AsyncClient(
            base_url=server.url, headers=headers, trust_env=False, verify=server.url.startswith("https:"),
            timeout=httpx.Timeout(READ_TIMEOUT, connect=CONNECT_TIMEOUT),
        )  # fmt: skip

    async def look(self) -> View:
        paths = ("/api/status", "/api/devices", "/api/models", "/api/queue")
        status, devices, models, queue = await asyncio.gather(*(self._call("GET", path) for path in paths))
        return View(status, devices, models, queue["entries"])

    async def act(self, model: str, act: str) -> str:
        found = await self._call("POST", model_path(model, act))
        pinned = ", pinned" if found["pinned"] else ""
        return f"{found['state']}{pinned}"

    async def events(self) -> AsyncIterator[Mapping[str, Any]]:
        params = {"tail": TAIL}
        timeout = httpx.Timeout(READ_TIMEOUT, connect=CONNECT_TIMEOUT)
        try:
            async with self._http.stream("GET", "/api/events", params=params, timeout=timeout) as answer:
                if answer.is_error:
                    await answer.aread()
                    raise Refused(_message(answer))
                async for line in answer.aiter_lines():
                    if line.startswith("data: "):
                        yield json.loads(line.removeprefix("data: "))
        except httpx.HTTPError as error:
            raise Unreachable(f"no server at {self._url}") from error

    async def close(self) -> None:
        await self._http.aclose()

    async def _call(self, method: str, path: str) -> Any:
        try:
            answer = await self._http.request(method, path)
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise Unreachable(f"no server at {self._url} ({type(error).__name__})") from error
        if answer.is_error:
            raise Refused(_message(answer))
        return answer.json()


def _message(answer: httpx.Response) -> str:
    try:
        return str(answer.json()["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return f"{answer.url} answered {answer.status_code}; is that a vllm-mm server?"


def run(server: Server) -> None:
    """Until the person leaves it. First asks once, so that a wrong address or key is told as for any command."""
    server.get("/api/status")
    server.close()
    Top(ServerSource(server)).run()
