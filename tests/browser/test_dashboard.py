"""The dashboard in Debian's Chromium, against real servers with simulated engines. What is done there is in frontend/browser.

`MM_SPECS="acts stranger"` tries only those files."""

import asyncio
import contextlib
import os
import re
import shutil
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from hard_cases import Case, running
from vllm_mm.api import dashboard

FRONTEND = Path(__file__).resolve().parents[2] / "frontend"
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
NODE = shutil.which("node")
QUICK = {"weights": "1GiB", "load_bandwidth": "50GiB/s", "startup": "10ms", "kv_cache": "1GiB"}
MODELS = {
    "org/small": {
        "engine": "sim",
        "sim": {**QUICK, "tokens_per_second": 50},
        "price": {"prompt": 0.1, "completion": 0.4},
    },
    "second": {"engine": "sim", "sim": {**QUICK, "tokens_per_second": 50}},
    "vectors": {"engine": "sim", "task": "embed", "sim": QUICK},
    "slow": {"engine": "sim", "sim": {**QUICK, "startup": "10m"}},
}
DEADLINE = 600.0
"""Seconds for all specs: many times what they take."""

pytestmark = [
    pytest.mark.timeout(DEADLINE + 120),
    pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here (Debian: apt-get install chromium)"),
    pytest.mark.skipif(NODE is None, reason="no Node here"),
    pytest.mark.skipif(
        not (FRONTEND / "node_modules/playwright-core").is_dir(), reason="frontend/node_modules is not there (npm ci)"
    ),
    pytest.mark.skipif(
        not (dashboard.STATIC / "index.html").is_file(), reason="the dashboard is not built here (npm run build)"
    ),
]


SPARE = {name: {"engine": "sim", "sim": {**QUICK, "tokens_per_second": 50}} for name in ("first", "second")}


@contextlib.asynccontextmanager
async def control(case: Case) -> AsyncIterator[str]:
    """An address at which the specs have that server stop and start: `POST /stop`, `/start`, and `/anew`, with another database."""

    async def obey(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        wish = (await reader.readuntil(b"\r\n\r\n")).split(b" ")[1]
        status, why = b"200 OK", b""
        try:
            if wish == b"/stop":
                await case.serving.stop()
            else:
                if wish == b"/anew":
                    shutil.rmtree(case.serving.data)
                await case.serving.start()
        except (AssertionError, OSError) as error:
            status, why = b"500 It failed", repr(error).encode()
        writer.write(b"HTTP/1.1 %b\r\ncontent-length: %d\r\nconnection: close\r\n\r\n%b" % (status, len(why), why))
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(obey, "127.0.0.1", 0) as server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"


async def test_every_page_and_act_in_a_browser() -> None:
    """All specs, in one browser: without a complaint in its console, and with nothing that axe finds."""
    async with (
        running(MODELS, captures={"models": ["*"]}, host_memory={"sleep_budget": "64GiB"}) as case,
        running({"org/small": MODELS["org/small"]}, auth={"mode": "keys"}) as keyed,
        running(SPARE) as spare,
        control(spare) as controlled,
    ):
        key = re.search(r"mm-[A-Za-z0-9_-]{20,}", keyed.serving.log)
        assert key is not None, keyed.serving.log
        told = {
            "MM_URL": case.serving.url,
            "MM_KEYED_URL": keyed.serving.url,
            "MM_SPARE_URL": spare.serving.url,
            "MM_CONTROL_URL": controlled,
            "MM_KEY": key[0],
            "CHROMIUM": str(CHROMIUM),
            "NO_COLOR": "1",
        }
        specs = await asyncio.create_subprocess_exec(
            str(NODE), "node_modules/vitest/vitest.mjs", "run", "--config", "browser/browser.config.ts", *os.environ.get("MM_SPECS", "").split(),
            cwd=FRONTEND, env={**os.environ, **told}, stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip
        try:
            async with asyncio.timeout(DEADLINE):
                out, _ = await specs.communicate()
        finally:
            if specs.returncode is None:
                specs.terminate()  # vitest ends the browser
                await specs.wait()
        assert specs.returncode == 0, out.decode()[-20_000:]
