"""Downloads of weights from the Hugging Face Hub: looked at before they begin, in processes of their own, one after the other."""

import asyncio
import contextlib
import json
import logging
import os
import secrets
import signal
import sys
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

from vllm_mm.clock import Clock
from vllm_mm.domain.catalog import Catalog
from vllm_mm.domain.errors import Conflict, HubUnreachable, MMError, NoDiskRoom, NotFound
from vllm_mm.domain.specs import EngineKind, ModelSpec
from vllm_mm.engine import children
from vllm_mm.engine.ports import Journal
from vllm_mm.engine.weights import argument, hub, repository_of

log = logging.getLogger(__name__)

LOOK: Final = 120.0
"""Seconds for the hub to say what a model is made of."""
KEPT: Final = 50
"""Downloads that ended and are still shown."""
WAITING: Final = 100
"""Downloads that may wait for their turn."""
LINE: Final = 1024**2
"""Bytes of one line of a download's process."""
END: Final = 10.0
"""Seconds for that process to end when it was told to."""


class PullState(StrEnum):
    WAITING = "waiting"
    LOOKING = "looking"
    """It asks the hub what there is."""
    DOWNLOADING = "downloading"
    DONE = "done"
    FAILED = "failed"
    CANCELLED = "cancelled"


OVER: Final = frozenset({PullState.DONE, PullState.FAILED, PullState.CANCELLED})


@dataclass(slots=True)
class Pull:
    """One download. Sizes in bytes, moments as Unix seconds."""

    id: str
    repo: str
    revision: str
    cache: Path
    by: str
    asked_at: float
    state: PullState = PullState.WAITING
    sha: str = ""
    files: int = 0
    file: str = ""
    """The one that comes now."""
    total: int | None = None
    """None until the hub has said it."""
    done: int = 0
    reason: str = ""
    """Why it failed."""
    path: str = ""
    """The folder that an engine loads, once it is whole."""
    began_at: float | None = None
    began_with: int = 0
    ended_at: float | None = None
    task: asyncio.Task[None] | None = field(default=None, repr=False)
    looked: asyncio.Event = field(default_factory=asyncio.Event, repr=False)
    """The hub has said what there is to come, or it is over."""
    over: asyncio.Event = field(default_factory=asyncio.Event, repr=False)
    error: MMError | None = field(default=None, repr=False)
    """What whoever waits for `looked` is told."""

    def rate(self, now: float) -> float | None:
        """Bytes a second since it began; None when there is nothing to tell it by."""
        if self.began_at is None or self.done <= self.began_with:
            return None
        return (self.done - self.began_with) / max(0.001, (self.ended_at or now) - self.began_at)


_REFUSALS: Final[Mapping[str, type[MMError]]] = {
    "not_found": NotFound, "gated": Conflict, "offline": Conflict, "no_room": NoDiskRoom, "unreachable": HubUnreachable,
}  # fmt: skip


class Pulls:
    """Kept in memory: after a restart of the server a download is asked for again, and goes on where it was."""

    def __init__(
        self, environment: Mapping[str, str], journal: Journal, clock: Clock, python: str = sys.executable
    ) -> None:
        """`environment`: what engines inherit; of it come the place of the cache, the token and the address of the hub."""
        self._environment = environment
        self._journal = journal
        self._clock = clock
        self._python = python
        self._all: dict[str, Pull] = {}
        self._over: deque[str] = deque()
        self._turn = asyncio.Lock()

    def all(self) -> Sequence[Pull]:
        """The latest first."""
        return tuple(reversed(self._all.values()))

    def get(self, pull: str) -> Pull:
        """Raises NotFound."""
        if pull not in self._all:
            raise NotFound(f"There is no download {pull!r}. GET /api/pulls lists those of late.")
        return self._all[pull]

    def running(self) -> frozenset[tuple[Path, str]]:
        """(Cache, repository) of those that are not over."""
        return frozenset((p.cache, p.repo) for p in self._all.values() if p.state not in OVER)

    async def start(self, name: str, catalog: Catalog, cause: str, revision: str | None = None) -> Pull:
        """Download the weights of a declared model, or of an id on the hub. Returns when the hub has said what there is to come, or
        another download has its turn first.

        Raises NotFound, Conflict (gated, offline, a folder), NoDiskRoom, HubUnreachable; then nothing was downloaded.
        """
        repo, revision, cache, environment = self._wanted(name, catalog, revision)
        for other in self._all.values():
            if (other.repo, other.cache) == (repo, cache) and other.state not in OVER:
                return other
        before = sum(p.state not in OVER for p in self._all.values())
        if before >= WAITING:
            raise Conflict(f"{WAITING} downloads wait already. Try again when some of them are over.")
        pull = Pull(f"pull_{secrets.token_hex(6)}", repo, revision, cache, cause, self._clock.wall())
        self._all[pull.id] = pull
        pull.task = asyncio.get_running_loop().create_task(self._run(pull, environment))
        if before == 0:  # else it has to wait for its turn
            await pull.looked.wait()
            if pull.error is not None:
                raise pull.error
        return pull

    async def cancel(self, pull: str, cause: str) -> Pull:
        """End it; what has come stays for the next try. One that is over stays as it is."""
        found = self.get(pull)
        if found.state not in OVER and found.task is not None:
            found.reason = f"cancelled by {cause}"
            found.task.cancel()
            await found.over.wait()
        return found

    async def wait(self, pull: str, seconds: float) -> Pull:
        """Until it is over, or for so long."""
        found = self.get(pull)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await found.over.wait()
        return found

    async def close(self) -> None:
        """End them all."""
        for pull in self._all.values():
            if pull.task is not None:
                pull.task.cancel()
        await asyncio.gather(*(p.task for p in self._all.values() if p.task is not None), return_exceptions=True)

    def _wanted(self, name: str, catalog: Catalog, revision: str | None) -> tuple[str, str, Path, Mapping[str, str]]:
        spec = catalog.names().get(name) or ModelSpec(name)
        if spec.engine is EngineKind.SIM:
            raise Conflict(f"{spec.id} is a simulated model: it has no weights.")
        environment = {**self._environment, **spec.env}
        repo = repository_of(spec)
        if repo is None:
            raise Conflict(_no_id(spec.model or spec.id))
        return repo, revision or argument(spec, "revision") or "main", hub(spec, environment), environment

    async def _run(self, pull: Pull, environment: Mapping[str, str]) -> None:
        try:
            async with self._turn:
                pull.state = PullState.LOOKING
                await self._fetch(pull, environment)
            pull.state, pull.done = PullState.DONE, pull.total or pull.done
        except asyncio.CancelledError:
            pull.state, pull.error = (
                PullState.CANCELLED,
                Conflict(f"The download of {pull.repo} was {pull.reason or 'cancelled'}."),
            )
        except MMError as error:
            pull.state, pull.reason, pull.error = PullState.FAILED, error.message, error
        except Exception as error:
            log.exception("the download of %s failed", pull.repo)
            pull.state, pull.reason = PullState.FAILED, f"{type(error).__name__}: {error}"
            pull.error = HubUnreachable(f"The download of {pull.repo} failed; the server's log says why.")
        finally:
            pull.ended_at = self._clock.wall()
            self._tell(pull, f"pull.{pull.state.value}")
            pull.looked.set()
            pull.over.set()
            self._forget(pull)

    async def _fetch(self, pull: Pull, environment: Mapping[str, str]) -> None:
        process = await asyncio.create_subprocess_exec(
            self._python, "-m", "vllm_mm.engine.hub.fetch", stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE, limit=LINE, start_new_session=True,
            env={**environment, "HF_HUB_DISABLE_PROGRESS_BARS": "1", "HF_HUB_DISABLE_TELEMETRY": "1"},
        )  # fmt: skip
        children.expect(process.pid, session=True)
        assert process.stdin is not None and process.stdout is not None and process.stderr is not None  # noqa: S101, PT018  # pipes
        errors = asyncio.ensure_future(_last_line(process.stderr))
        try:
            wanted = {"repo": pull.repo, "revision": pull.revision, "cache": str(pull.cache)}
            process.stdin.write(json.dumps(wanted).encode() + b"\n")
            lines = aiter(process.stdout)
            try:
                async with asyncio.timeout(LOOK):
                    first = await anext(lines, b"")
            except TimeoutError as error:
                raise HubUnreachable(
                    f"The hub did not say in {LOOK:.0f} s what {pull.repo} is made of. Try again."
                ) from error
            self._hear(pull, first)
            async for line in lines:
                self._hear(pull, line)
            code = await process.wait()
            if code != 0 or not pull.path:
                raise HubUnreachable(
                    f"The download of {pull.repo} ended early ({await errors or f'exit code {code}'}); what has come stays for the next try."
                )
        finally:
            errors.cancel()
            await _end(process)

    def _hear(self, pull: Pull, line: bytes) -> None:
        said: dict[str, Any] = json.loads(line) if line.startswith(b"{") else {}
        if "refused" in said:
            raise _REFUSALS[said["refused"]](_sentence(said["message"]))
        if "plan" in said:
            plan = said["plan"]
            pull.sha, pull.files, pull.total = plan["sha"], plan["files"], plan["total"]
            pull.done = pull.began_with = plan["there"]
            pull.state, pull.began_at = PullState.DOWNLOADING, self._clock.wall()
            self._tell(pull, "pull.started")
            pull.looked.set()
        pull.done = said.get("done", pull.done)
        pull.file = said.get("file", pull.file)
        pull.path = said.get("path", pull.path)

    def _tell(self, pull: Pull, kind: str) -> None:
        data = {"pull": pull.id, "repo": pull.repo, "total": pull.total, "done": pull.done, "reason": pull.reason}
        self._journal.emit(kind, cause=pull.by, data=data)

    def _forget(self, pull: Pull) -> None:
        self._over.append(pull.id)
        while len(self._over) > KEPT:
            self._all.pop(self._over.popleft(), None)


async def _last_line(errors: asyncio.StreamReader) -> str:
    """The last words of a process, all of which are read, so that it never waits for that."""
    tail = b""
    while chunk := await errors.read(65536):
        tail = (tail + chunk)[-4096:]
    lines = [line.strip() for line in tail.decode(errors="replace").splitlines() if line.strip()]
    return lines[-1][:300] if lines else ""


async def _end(process: asyncio.subprocess.Process) -> None:
    """It and all of its session."""
    try:
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(END):
                    await process.wait()
    finally:
        children.done(process.pid)


def _no_id(name: str) -> str:
    """Why nothing of that name can be downloaded."""
    if Path(name).expanduser().exists():
        return f"{name} is no id of a model on the hub: it is a folder or a file of this machine."
    return (
        f"{name!r} is no id of a model on the hub, and no folder or file of this machine. An id is OWNER/NAME, of letters, digits, "
        "`-`, `_` and `.`, such as Qwen/Qwen3-0.6B."
    )


def _sentence(text: str) -> str:
    """With a capital, unless it begins with an address."""
    return text if "://" in text.partition(" ")[0] else f"{text[:1].upper()}{text[1:]}"
