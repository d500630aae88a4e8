"""The product as a process of its own, for the benchmarks that load and swap models."""

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncGenerator, Mapping
from pathlib import Path
from typing import Any

import httpx
import yaml
from start import Failed

DEADLINE = 300.0


class Product:
    """A server on a port of its own, without keys."""

    def __init__(self, process: subprocess.Popen[bytes], url: str) -> None:
        self.pid = process.pid
        self.url = url
        self.http = httpx.AsyncClient(base_url=url, timeout=DEADLINE, trust_env=False)

    @classmethod
    @contextlib.asynccontextmanager
    async def running(cls, folder: Path, config: Mapping[str, Any]) -> "AsyncGenerator[Product]":
        """Until the end of the block; its engines end with it."""
        path, log = folder / "vllm-mm.yaml", folder / "server.log"
        path.write_text(yaml.safe_dump({"auth": {"mode": "none"}, **config}))
        argv = [
            sys.executable, "-m", "vllm_mm.main", "serve", "--config", str(path), "--data-dir", str(folder / "d"),
            "--port", "0",
        ]  # fmt: skip
        with log.open("wb") as out:
            process = subprocess.Popen(argv, stdout=out, stderr=out, cwd=folder, env={**os.environ})  # noqa: ASYNC220  # at once
        try:
            it = cls(process, await _address(process, log))
            try:
                yield it
            finally:
                await it.http.aclose()
        finally:
            process.send_signal(signal.SIGTERM)
            try:
                await asyncio.to_thread(process.wait, 60)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    async def token(self, model: str) -> None:
        """Raises Failed with what was answered instead."""
        body = {"model": model, "prompt": "Hello", "max_tokens": 1, "temperature": 0}
        answer = await self.http.post("/v1/completions", json=body, headers={"x-vllm-mm-wait": "300"})
        if answer.status_code != 200:
            raise Failed(f"{model}: {answer.status_code} {answer.text[:300]}")

    async def sequence(self) -> int:
        """The number of the latest event."""
        events = await self.events(0)
        return events[-1]["seq"] if events else 0

    async def events(self, after: int) -> list[dict[str, Any]]:
        answer = await self.http.get("/api/events", params={"after": after, "follow": False})
        rows = (line.removeprefix("data: ") for line in answer.text.splitlines() if line.startswith("data: "))
        return [httpx.Response(200, text=row).json() for row in rows]

    async def settled(self) -> None:
        """Until no engine is on its way anywhere."""
        until = time.monotonic() + DEADLINE
        while time.monotonic() < until:
            instances = (await self.http.get("/api/instances")).json()
            if not any(i["pending"] for i in instances):
                return
            await asyncio.sleep(0.05)
        raise Failed("the server did not come to rest")


async def _address(process: subprocess.Popen[bytes], log: Path) -> str:
    until = time.monotonic() + 60
    while time.monotonic() < until:
        text = log.read_text(errors="replace")
        if "serves on http://" in text:
            return "http://" + text.split("serves on http://", 1)[1].split()[0]
        if process.poll() is not None:
            break
        await asyncio.sleep(0.02)
    raise Failed(f"the server did not start: {log.read_text(errors='replace')[-2000:]}")
