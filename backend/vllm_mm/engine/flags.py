"""Asking an engine's own parser which arguments it takes: once for each installation, and kept in a file.

Only vLLM's own console script is asked: its Python builds the parser of `vllm serve` and prints it. Nothing of another
program is run.
"""

import asyncio
import contextlib
import hashlib
import json
import os
import shutil
import signal
import subprocess
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, cast

from vllm_mm.clock import Clock
from vllm_mm.domain.flags import Checked, Flag, Flags, Takes, wrong
from vllm_mm.domain.specs import EngineKind, ModelSpec
from vllm_mm.engine import children
from vllm_mm.engine.launchers.recipe import NotWarm, console_python, installed

DEADLINE: Final = 90.0
"""Seconds for one answer: importing vLLM takes ten, and much longer from a cold disk."""
AGAIN: Final = 600.0
"""Seconds after which one that could not be asked is asked again."""
MOST: Final = 4 * 1024**2
"""Bytes of an answer."""
_MARK: Final = "vllm-mm-flags:"

# As vLLM's command line makes it (entrypoints/cli/serve.py, vLLM 0.32); the parser's own module was another in earlier versions.
PROBE: Final = f"""
import argparse, json, os, sys, threading
threading.Thread(target=lambda: (os.read(0, 1), os._exit(1)), daemon=True).start()  # whoever asks is gone
try:
    from vllm.utils.argparse_utils import FlexibleArgumentParser
except ImportError:
    from vllm.utils import FlexibleArgumentParser
from vllm.entrypoints.cli.serve import ServeSubcommand
serve = ServeSubcommand().subparser_init(FlexibleArgumentParser().add_subparsers())
flags = {{}}
for action in serve._actions:
    takes = "none" if action.nargs == 0 else "one" if action.nargs is None else "any"
    choices = [str(choice) for choice in action.choices or ()]
    for option in action.option_strings:
        flags[option.lstrip("-")] = {{"takes": takes, "choices": choices}}
print({_MARK!r} + json.dumps(flags))
"""


@dataclass(frozen=True, slots=True)
class NotAsked:
    """Why nothing is known of an engine's arguments. They are taken as they are."""

    reason: str


class FlagBook:
    """What was learned, in `folder` and in memory. `environment`: what engines inherit."""

    def __init__(self, folder: Path, environment: Mapping[str, str], clock: Clock) -> None:
        self._folder = folder
        self._environment = environment
        self._clock = clock
        self._known: dict[str, Flags] = {}
        self._failed: dict[str, tuple[float, NotAsked]] = {}
        self._one = asyncio.Lock()
        self._asked: subprocess.Popen[bytes] | None = None

    async def check(self, specs: Iterable[ModelSpec]) -> Checked:
        """What engines would not take of the arguments of these models."""
        found: list[tuple[str, str, str]] = []
        notes: dict[str, list[str]] = {}
        for spec in specs:
            if spec.engine is EngineKind.VLLM and spec.args:
                flags = await self.ask(spec.executable, spec.env)
                if isinstance(flags, NotAsked):
                    notes.setdefault(flags.reason, []).append(spec.id)
                else:
                    found += ((spec.id, name, what) for name, what in wrong(spec.args, flags))
        told = (f"the arguments of {', '.join(ids)} were not checked: {why}" for why, ids in notes.items())
        return Checked(tuple(found), tuple(told))

    async def ask(self, executable: str, env: Mapping[str, str]) -> Flags | NotAsked:
        """The arguments of this program. At the first time this takes seconds; one is asked after the other."""
        environment = {**self._environment, **env}
        async with self._one:
            place = await asyncio.to_thread(_place, executable, environment)
            if isinstance(place, NotAsked):
                return place
            python, key = place
            if (flags := self._known.get(key)) is not None:
                return flags
            at, failed = self._failed.get(key, (0.0, None))
            if failed is not None and self._clock.now() < at + AGAIN:
                return failed
            found = await asyncio.to_thread(self._look, python, key, environment)
            if isinstance(found, NotAsked):
                self._failed[key] = self._clock.now(), found
            else:
                self._known[key] = found
            return found

    def close(self) -> None:
        """Whoever is asked now is ended."""
        if self._asked is not None:
            _kill(self._asked)

    def _look(self, python: str, key: str, environment: Mapping[str, str]) -> Flags | NotAsked:
        file = self._folder / f"{key}.json"
        with contextlib.suppress(OSError, ValueError):
            return _read(file.read_bytes())
        quiet = {"VLLM_NO_USAGE_STATS": "1", "VLLM_LOGGING_LEVEL": "ERROR"}
        listens, ours = os.pipe()  # closed with this process, however that ends
        try:
            # In a session of its own, to be ended with all that it made, whose dead are collected by `children`.
            process = self._asked = subprocess.Popen(
                [python, "-c", PROBE], env={**environment, **quiet}, stdin=listens, stdout=subprocess.PIPE,
                stderr=subprocess.PIPE, start_new_session=True,
            )  # fmt: skip
            children.expect(process.pid)
        except OSError as error:
            os.close(ours)
            return NotAsked(f"{python} cannot be started: {error.strerror}")
        finally:
            os.close(listens)
        try:
            said, told = process.communicate(timeout=DEADLINE)
        except subprocess.TimeoutExpired:
            return NotAsked(f"{python} did not answer in {DEADLINE:.0f} s")
        finally:
            _end(process)
            os.close(ours)
            self._asked = None
        line = next((ln for ln in said[:MOST].splitlines() if ln.startswith(_MARK.encode())), None)
        try:
            if line is None:
                raise ValueError(_last(told) or f"exit code {process.returncode}")
            data = line.removeprefix(_MARK.encode())
            flags = _read(data)
        except ValueError as error:
            return NotAsked(f"{python} did not tell its arguments: {error}")
        with contextlib.suppress(OSError):  # a full disk: it is asked again at the next start
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            half = file.with_suffix(f".{os.getpid()}")
            half.write_bytes(data)
            half.replace(file)
        return flags


def _place(executable: str, environment: Mapping[str, str]) -> tuple[str, str] | NotAsked:
    """The Python of the program, and what its answer depends on. Blocking: looks at files."""
    found = shutil.which(executable, path=environment.get("PATH"))
    if found is None:
        return NotAsked(f"there is no program {executable}")
    python = console_python(Path(found), "vllm")
    if isinstance(python, NotWarm):
        return NotAsked(python.reason)
    stamp = f"{Path(found).resolve()} {Path(found).stat().st_mtime_ns} {python} {installed(python)} {PROBE}"
    return python, hashlib.sha256(stamp.encode()).hexdigest()[:24]


def _read(data: bytes) -> Flags:
    """Raises ValueError for what is no answer."""
    raw: object = json.loads(data)
    if not isinstance(raw, dict) or not raw:
        raise ValueError("no arguments at all")
    try:
        return {
            str(name): Flag(Takes(said["takes"]), tuple(str(c) for c in said["choices"]))
            for name, said in cast("dict[str, Any]", raw).items()
        }
    except (KeyError, TypeError) as error:
        raise ValueError(f"not in the form that was asked for: {error}") from error


def _last(told: bytes) -> str:
    lines = told[-10_000:].decode(errors="replace").split("\n")
    return next((line.strip()[:300] for line in reversed(lines) if line.strip()), "")


def _kill(process: subprocess.Popen[bytes]) -> None:
    """It and all that it started; whoever waits for it collects it."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)


def _end(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        _kill(process)
        process.wait()
    children.done(process.pid)
    for pipe in (process.stdout, process.stderr):
        if pipe is not None:
            pipe.close()
