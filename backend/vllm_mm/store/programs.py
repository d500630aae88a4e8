"""PostgreSQL's own programs, which copy a database and bring a copy back."""

import asyncio
import os
import shutil
from pathlib import Path
from typing import Final

from sqlalchemy import make_url

from vllm_mm.domain.errors import ConfigError

DEADLINE: Final = 3600.0
"""Seconds for pg_dump and pg_restore."""


async def dump(url: str, target: Path) -> None:
    """A consistent copy in pg_dump's custom format, also while it is in use. Raises ConfigError, also when `target` exists."""
    if target.exists():
        raise ConfigError(f"{target} exists already; name another file")
    target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    partial = target.with_name(f".{target.name}.part")
    partial.unlink(missing_ok=True)
    partial.touch(mode=0o600)
    try:
        await run(url, "pg_dump", "--format=custom", "--no-owner", "--file", str(partial))
        partial.replace(target)
    finally:
        partial.unlink(missing_ok=True)


def _find(tool: str) -> str:
    found = shutil.which(tool)
    if found is not None:
        return found
    by_version = sorted(
        Path("/usr/lib/postgresql").glob(f"*/bin/{tool}"), key=lambda p: (len(p.parts[-3]), p.parts[-3])
    )
    if not by_version:
        raise ConfigError(
            f"{tool} is not installed here: install PostgreSQL's client programs (Debian: postgresql-client), or run it where they are"
        )
    return str(by_version[-1])


async def run(url: str, tool: str, *args: str) -> None:
    """Run one of them on that database. Raises ConfigError with what it said. The password goes through the environment: command lines can
    be read by everybody."""
    parsed = make_url(url)
    host = parsed.query.get("host") or parsed.host
    given = {
        "PGHOST": host if isinstance(host, str) else None, "PGPORT": str(parsed.port) if parsed.port else None,
        "PGUSER": parsed.username, "PGPASSWORD": str(parsed.password) if parsed.password else None, "PGDATABASE": parsed.database,
        "PGCONNECT_TIMEOUT": "10",
    }  # fmt: skip
    environment = {**os.environ, **{name: value for name, value in given.items() if value}}
    process = await asyncio.create_subprocess_exec(
        _find(tool), *args, env=environment, stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    try:
        async with asyncio.timeout(DEADLINE):
            _, said = await process.communicate()
    except TimeoutError as error:
        raise ConfigError(f"{tool} did not end within {DEADLINE:.0f} s") from error
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode:
        raise ConfigError(
            f"{tool} failed: {said.decode(errors='replace').strip()[-1000:] or f'exit code {process.returncode}'}"
        )
