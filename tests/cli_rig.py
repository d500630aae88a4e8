"""The command line against a live server: the admin API on a real socket over fake engines, whose time passes quickly."""

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import typer
from fastapi import Request
from fastapi.responses import StreamingResponse
from fastapi.routing import APIRoute
from typer.testing import CliRunner, Result

from admin_rig import ADMIN, Admin, admin, serving
from fakes_engine import World
from vllm_mm.cli.app import build
from vllm_mm.cli.options import ServeOptions
from vllm_mm.domain.specs import ModelSpec


@dataclass
class Cli:
    """Runs commands; `served` holds what `serve` was asked for."""

    cwd: Path
    url: str = "http://127.0.0.1:1"
    token: str | None = ADMIN
    served: list[ServeOptions] = field(default_factory=list)
    api: Admin | None = None

    def app(self) -> typer.Typer:
        def serve(options: ServeOptions) -> int:
            self.served.append(options)
            return 0

        return build(serve)

    def now(self, *args: str, stdin: str | None = None, env: Mapping[str, str | None] | None = None) -> Result:
        """Run a command in this thread; the environment has no settings of the developer's own."""
        clean: dict[str, str | None] = {name: None for name in os.environ if name.startswith("VLLM_MM_")}
        here = {
            "VLLM_MM_URL": self.url, "VLLM_MM_TOKEN": self.token, "HOME": str(self.cwd),
            "XDG_STATE_HOME": None, "XDG_CONFIG_HOME": None, "XDG_CACHE_HOME": None, "COLUMNS": "100",
        }  # fmt: skip
        with contextlib.chdir(self.cwd):
            return CliRunner().invoke(self.app(), list(args), input=stdin, env={**clean, **here, **(env or {})})

    async def __call__(
        self, *args: str, stdin: str | None = None, env: Mapping[str, str | None] | None = None
    ) -> Result:
        """Run a command in a thread: the server is on this one."""
        return await asyncio.to_thread(self.now, *args, stdin=stdin, env=env)


async def _passing(world: World) -> None:
    while True:
        await world.clock.advance(0.5)
        await asyncio.sleep(0.02)


def chat_stub(api: Admin) -> None:
    """A data plane that repeats the last message, one word a chunk; `cut` ends without [DONE], `wrong` with an error."""

    async def chat(request: Request) -> StreamingResponse:
        body = await request.json()
        words = [m["content"] for m in body["messages"] if m["role"] == "user"][-1].split()

        async def chunks() -> AsyncIterator[str]:
            for i, word in enumerate(words):
                if word == "wrong":
                    yield 'data: {"error": {"message": "the engine died", "code": "upstream_died"}}\n\n'
                    return
                text = word if i == 0 else f" {word}"
                yield f'data: {{"choices": [{{"delta": {{"content": "{text}"}}}}]}}\n\n'
                if word == "cut":
                    return
            yield "data: [DONE]\n\n"

        return StreamingResponse(chunks(), media_type="text/event-stream")

    async def card(name: str) -> dict[str, str]:
        return {"id": name, "task": api.services.manager.catalog.resolve(name).task.value}

    api.app.add_api_route("/v1/chat/completions", chat, methods=["POST"])
    route = APIRoute("/v1/models/{name:path}", card, methods=["GET"])
    api.app.router.routes.insert(0, route)  # before the dashboard's, which takes whatever is left


@contextlib.asynccontextmanager
async def cli(tmp: Path, *specs: ModelSpec, **more: Any) -> AsyncIterator[Cli]:
    """`more`: as `admin` takes it."""
    async with admin(tmp, *specs, **more) as api:
        chat_stub(api)
        async with serving(api.app) as url:
            passing = asyncio.get_running_loop().create_task(_passing(api.world))
            try:
                yield Cli(tmp, url, api=api)
            finally:
                passing.cancel()
