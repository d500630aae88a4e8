"""What is shipped: built from this checkout, installed in an environment of its own, and served without Node."""

import asyncio
import os
import re
import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile
from pathlib import Path

import httpx
import pytest

from vllm_mm.api import dashboard

ROOT = Path(__file__).resolve().parents[2]
PAGE = "backend/vllm_mm/static/index.html"
PATIENCE = 300.0
"""Seconds for each step; what they take is a hundredth of that."""

pytestmark = [
    pytest.mark.timeout(900),
    pytest.mark.skipif(
        not (dashboard.STATIC / "index.html").is_file(), reason="the dashboard is not built here (npm run build)"
    ),
]


async def _run(*argv: str | Path, cwd: Path, path: str = os.environ["PATH"]) -> str:
    env = {**{n: v for n, v in os.environ.items() if not n.startswith(("PYTHON", "VLLM_MM_"))}, "PATH": path}
    process = await asyncio.create_subprocess_exec(
        *argv, cwd=cwd, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    try:
        async with asyncio.timeout(PATIENCE):
            out, _ = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert process.returncode == 0, out.decode()[-5000:]
    return out.decode()


async def _build(what: str, source: Path, to: Path) -> Path:
    """By the build system that pyproject.toml names."""
    call = f"import sys; from hatchling import build; print(build.build_{what}(sys.argv[1]))"
    told = await _run(sys.executable, "-c", call, to, cwd=source)
    return to / told.split()[-1]


def _environment(folder: Path, wheel: Path) -> Path:
    """A new one with the wheel alone, beside the packages that it needs: those of this run. Returns its `bin`."""
    venv.create(folder, symlinks=True)
    packages = Path(sysconfig.get_path("purelib", vars={"base": str(folder)}))
    # Files named .pth are not looked for there: so the checkout, which is installed here by one, is not found by it.
    (packages / "needed.pth").write_text(sysconfig.get_path("purelib") + "\n")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(packages)  # noqa: S202  # made a moment ago, of this checkout
    return folder / "bin"


async def test_the_wheel_serves_the_dashboard_without_node(tmp_path: Path) -> None:
    """Built from the source distribution, as pip builds it: what is in the one is in the other. Each file that the page names is there,
    from the wheel; and there is no Node on the path."""
    source = await _build("sdist", ROOT, tmp_path)
    with tarfile.open(source) as archive:
        names = {name.split("/", 1)[1] for name in archive.getnames() if "/" in name}
        archive.extractall(tmp_path / "source", filter="data")
    assert PAGE in names
    assert not [name for name in names if "node_modules" in name or name.startswith((".venv", ".state", ".git/"))]
    (unpacked,) = (tmp_path / "source").iterdir()
    wheel = await _build("wheel", unpacked, tmp_path)
    scripts = _environment(tmp_path / "venv", wheel)
    python, serve = scripts / "python", "import sys; from vllm_mm.main import run; sys.exit(run())"
    where = await _run(python, "-c", "import vllm_mm; print(vllm_mm.__file__)", cwd=tmp_path)
    assert where.startswith(str(tmp_path / "venv")), where
    (tmp_path / "vllm-mm.yaml").write_text(
        "auth: {mode: none}\ndevices: [{id: sim0, memory: 1GiB, simulated: true}]\nmodels: {}\n"
    )
    server = await asyncio.create_subprocess_exec(
        python, "-c", serve, "serve", "--config", "vllm-mm.yaml", "--data-dir", "d", "--port", "0", cwd=tmp_path,
        env={"PATH": str(scripts), "HOME": str(tmp_path)}, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )  # fmt: skip
    assert server.stdout is not None
    try:
        told = b""
        async with asyncio.timeout(PATIENCE):
            while (found := re.search(rb"serves on (http://[^/\s]+)", told)) is None:
                line = await server.stdout.readline()
                assert line, told.decode()
                told += line
        async with httpx.AsyncClient(base_url=found[1].decode(), timeout=60, headers={"Accept": "text/html"}) as client:
            page = await client.get("/")
            assert (page.status_code, page.headers["content-type"].split(";")[0]) == (200, "text/html")
            assert 'id="root"' in (await client.get("/ui")).text
            assets = re.findall(r'(?:src|href)="\./([^"]+\.(?:js|css|svg))"', page.text)
            assert len(assets) >= 3, page.text
            for asset in assets:
                answer = await client.get(f"/{asset}")
                assert answer.status_code == 200, asset
                assert len(answer.content) > 100, asset
            deep = await client.get("/ui/models/some/model")
            assert (deep.status_code, 'id="root"' in deep.text) == (200, True)
    finally:
        if server.returncode is None:
            server.terminate()
        async with asyncio.timeout(PATIENCE):
            await server.communicate()
    assert server.returncode == 0
