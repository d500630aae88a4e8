"""The built pages in a real browser."""

import asyncio
import re
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from admin_rig import serving
from vllm_mm.api import dashboard
from vllm_mm.api.app import create_app

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


@pytest.mark.skipif(
    not (dashboard.STATIC / "docs.html").is_file(), reason="the dashboard is not built here (npm run build)"
)
@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here")
async def test_a_browser_shows_the_documentation_without_a_complaint(tmp_path: Path) -> None:
    """Every operation is on the page, the console is silent (the policy was not broken), and no other host was asked."""
    app = create_app(cast("Any", SimpleNamespace(version="1.2.3")))
    async with serving(app) as url:
        browser = await asyncio.create_subprocess_exec(
            str(CHROMIUM), "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path}",
            "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1", "--enable-logging=stderr",
            "--virtual-time-budget=10000", "--dump-dom", f"{url}/docs",
            stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
        )  # fmt: skip
        async with asyncio.timeout(90):
            out, err = await browser.communicate()
    shown = set(re.findall(r'data-path="([^"]+)"', out.decode()))
    assert shown == set(app.openapi()["paths"])
    assert [line for line in err.decode().splitlines() if "CONSOLE" in line] == []
