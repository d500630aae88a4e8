"""The zygotes of this server: made when first needed, one for each engine environment, repaired when one dies, ended when idle.

A zygote is never an owner of engines: those are children of this process (see `zygote`), and go on when their zygote dies.
"""

import asyncio
import contextlib
import logging
import os
import signal
import socket
import struct
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from vllm_mm.clock import Clock
from vllm_mm.engine.launchers import zygote as script
from vllm_mm.engine.launchers.recipe import Needs, Recipe, Warmth
from vllm_mm.engine.ports import LAUNCH_VARIABLE, OWNER_VARIABLE

_LOG = logging.getLogger(__name__)

ZYGOTE_TOKEN = "0" * 32
"""A launch token that is no launch's: all zygotes carry it, so that a boot finds and ends those of a dead controller."""
IMPORT_DEADLINE = 180.0
"""Seconds for the imports; a start that waits for them has its own, usually shorter, deadline as well."""
FORK_DEADLINE = 20.0
"""Seconds from the request to the engine's pid. The fork itself takes some hundredths of one."""
MOST = 4
"""Zygotes at once; the one that was idle longest makes room."""
TRIES = 3
"""Zygotes of one recipe that may fail or die young before the recipe is given up."""
_TICK = 30.0


class ZygoteError(Exception):
    """No engine came out of it; the text says why. Nothing is left of the attempt."""


@dataclass(frozen=True, slots=True)
class ZygoteReport:
    """What a zygote last said of itself. Sizes in bytes."""

    private: int = 0
    """Memory that only it uses: what would be free without it."""
    proportional: int = 0
    """With a page that n processes share counted as 1/n."""
    threads: int = 0
    """Of the operating system; of Python's there is one."""
    seconds: float = 0.0
    """Spent on imports."""
    problems: tuple[str, ...] = ()
    """Modules that could not be imported, and why; engines then import what they need themselves."""


@dataclass(frozen=True, slots=True)
class ZygoteView:
    """One zygote for people to see."""

    key: str
    python: str
    kind: str
    state: str
    """`importing`, `ready`, or `failed` (given up, with the reason)."""
    reason: str = ""
    pid: int | None = None
    forks: int = 0
    idle_s: float = 0.0
    report: ZygoteReport = field(default_factory=ZygoteReport)


class _Zygote:
    """One process. Requests go out one after another; each answer comes back before the next."""

    def __init__(self, recipe: Recipe, clock: Clock) -> None:
        self.recipe = recipe
        self.report = ZygoteReport()
        self.forks = 0
        self.used = clock.now()
        self.ready = False
        self.process: subprocess.Popen[bytes] | None = None
        self._channel: socket.socket | None = None
        self._lock = asyncio.Lock()
        self._have: set[str] = set()

    @property
    def pid(self) -> int | None:
        return self.process.pid if self.process is not None else None

    def spawn(self, owner: str, log: Path, tmp: Path) -> None:
        """Raises OSError."""
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        env = dict(self.recipe.env)
        env["TMPDIR"] = str(tmp)
        env["SPT_NOENV"] = "1"
        for name in (OWNER_VARIABLE, LAUNCH_VARIABLE):
            env.pop(name, None)
        # Engines write their own token over this one, in place: it has to be as long (see `zygote.write_marks`).
        env[OWNER_VARIABLE] = owner
        env[LAUNCH_VARIABLE] = ZYGOTE_TOKEN
        libraries = ["--libraries"] if self.recipe.kind == "vllm" else []
        log.parent.mkdir(parents=True, exist_ok=True)
        tmp.mkdir(parents=True, exist_ok=True, mode=0o700)
        with theirs, log.open("ab") as out:
            try:
                self.process = subprocess.Popen(
                    [self.recipe.python, script.__file__, *libraries, " " * script.TITLE_BYTES],
                    env=env, stdin=theirs.fileno(), stdout=out, stderr=out, start_new_session=True,
                )  # fmt: skip
            except BaseException:
                ours.close()
                raise
        self._channel = ours

    async def prepare(self, needs: Needs) -> None:
        message = {"op": "prepare", "kind": self.recipe.kind, "entry": self.recipe.entry}
        await self._load(message, self.recipe.modules, needs)
        self.ready = True

    async def learn(self, needs: Needs) -> None:
        """Import what a model needs besides, unless that was done."""
        if {*needs.architectures, *needs.model_types} - self._have:
            await self._load({"op": "import"}, (), needs)

    async def _load(self, message: dict[str, Any], modules: tuple[str, ...], needs: Needs) -> None:
        self._have |= {*needs.architectures, *needs.model_types}
        wanted = {"modules": modules, "architectures": needs.architectures, "model_types": needs.model_types}
        async with asyncio.timeout(IMPORT_DEADLINE):
            answer = await self._ask(message | wanted)
        self._note(answer)
        if not answer["ready"]:
            raise ZygoteError(str(answer["reason"]))

    async def status(self) -> None:
        async with asyncio.timeout(FORK_DEADLINE):
            self._note(await self._ask({"op": "status"}))

    async def fork(self, warmth: Warmth, env: Mapping[str, str], log: int) -> tuple[int, int]:
        """The engine's pid and a pidfd. It is a child of this process (if this reaps orphans) and a zombie until reaped."""
        loop = asyncio.get_running_loop()
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        fds: list[int] = []
        try:
            with theirs:
                request = {
                    "op": "fork", "argv": warmth.argv, "env": dict(env), "script": warmth.script,
                    "marks": {LAUNCH_VARIABLE: env[LAUNCH_VARIABLE]},
                }  # fmt: skip
                async with self._lock, asyncio.timeout(FORK_DEADLINE):
                    await self._send(request, (log, theirs.fileno()))
            async with asyncio.timeout(FORK_DEADLINE):
                first = await _receive(loop, ours, fds)
                if first is None or "pid" not in first:
                    raise ZygoteError(str(first["error"]) if first else "it ended during the fork")
                # Until the zygote says that the process in between is gone, the engine is not our child yet.
                if await _receive(loop, ours, fds) is None:
                    _LOG.info("the zygote ended right after a fork")
            if not fds:
                raise ZygoteError("it sent no pidfd")
            self.forks += 1
            return int(first["pid"]), fds.pop(0)
        except (OSError, ValueError) as error:
            raise ZygoteError(f"it does not answer: {error or type(error).__name__}") from error
        finally:
            ours.close()
            for fd in fds:
                os.close(fd)

    async def _ask(self, message: Mapping[str, Any]) -> dict[str, Any]:
        if self._channel is None:
            raise ZygoteError("it is not running")
        async with self._lock:
            fds: list[int] = []
            try:
                await self._send(message)
                answer = await _receive(asyncio.get_running_loop(), self._channel, fds)
            except OSError as error:
                raise ZygoteError(f"it does not answer: {error}") from error
        if answer is None:
            raise ZygoteError(f"it ended{self._how()}")
        return answer

    async def _send(self, message: Mapping[str, Any], fds: tuple[int, ...] = ()) -> None:
        if self._channel is None:
            raise ZygoteError("it is not running")
        # Blocking, in a thread: descriptors have to go out with the first byte, and a large environment may not fit at once.
        channel = self._channel.dup()
        keep = [os.dup(fd) for fd in fds]

        def write() -> None:
            try:
                channel.settimeout(FORK_DEADLINE)
                script.write_frame(channel, dict(message), keep)
            finally:
                channel.close()
                for fd in keep:
                    os.close(fd)

        await asyncio.get_running_loop().run_in_executor(None, write)

    def _note(self, answer: Mapping[str, Any]) -> None:
        self.report = ZygoteReport(
            private=int(answer["private"]), proportional=int(answer["proportional"]), threads=int(answer["threads"]),
            seconds=float(answer["seconds"]), problems=tuple(str(p) for p in answer["problems"]),
        )  # fmt: skip

    def _how(self) -> str:
        code = self.process.poll() if self.process is not None else None
        if code is None:
            return ""
        return f", killed by signal {-code}" if code < 0 else f" with exit code {code}"

    def kill(self) -> None:
        """End it, now. Engines are not in its session, and not its children."""
        if self._channel is not None:
            self._channel.close()
            self._channel = None
        if self.process is not None:
            with contextlib.suppress(ProcessLookupError):
                self.process.send_signal(signal.SIGKILL)
            self.process.wait()


class ZygotePool:
    """Lends zygotes to the warm launcher. One task of each recipe makes its zygote; all who want it share that."""

    def __init__(
        self, owner: str, clock: Clock, *, logs: Path, tmp: Path, idle_after: float | None,
        tell: Callable[[str, dict[str, Any]], object] = lambda _kind, _data: None,
    ) -> None:  # fmt: skip
        self._owner = owner
        self._clock = clock
        self._logs = logs
        self._tmp = tmp
        self._idle_after = idle_after
        self._tell = tell
        self._living: dict[Recipe, _Zygote] = {}
        self._making: dict[Recipe, asyncio.Task[_Zygote]] = {}
        self._failures: dict[Recipe, tuple[int, str]] = {}
        self._tidy: asyncio.Task[None] | None = None

    def views(self) -> tuple[ZygoteView, ...]:
        """All that live, are being made, or were given up."""
        now = self._clock.now()
        found: list[ZygoteView] = []
        for recipe, zygote in self._living.items():
            state = "ready" if zygote.ready else "importing"
            found.append(ZygoteView(
                recipe.key, recipe.python, recipe.kind, state, pid=zygote.pid, forks=zygote.forks,
                idle_s=round(now - zygote.used, 1), report=zygote.report,
            ))  # fmt: skip
        for recipe, (count, reason) in self._failures.items():
            if count >= TRIES and recipe not in self._living:
                found.append(ZygoteView(recipe.key, recipe.python, recipe.kind, "failed", reason=reason))
        return tuple(found)

    def refusal(self, recipe: Recipe) -> str:
        """Why there will be no zygote of `recipe`, or an empty text."""
        count, reason = self._failures.get(recipe, (0, ""))
        return f"its zygote failed {count} times: {reason}" if count >= TRIES else ""

    async def fork(self, warmth: Warmth, env: Mapping[str, str], log: int) -> tuple[int, int]:
        """(pid, pidfd) of a new engine, whose zygote is made first if there is none. Raises ZygoteError."""
        zygote = await self.get(warmth)
        zygote.used = self._clock.now()
        try:
            await zygote.learn(warmth.needs)
            return await zygote.fork(warmth, env, log)
        except (ZygoteError, TimeoutError) as error:
            reason = str(error) or "it did not answer in time"
            self._drop(zygote, reason)
            raise ZygoteError(reason) from error
        finally:
            zygote.used = self._clock.now()

    async def get(self, warmth: Warmth) -> _Zygote:
        """A zygote that is ready. The making goes on for others when this caller gives up. Raises ZygoteError."""
        recipe = warmth.recipe
        zygote = self._living.get(recipe)
        if zygote is not None and zygote.ready:
            if zygote.process is not None and zygote.process.poll() is None:
                return zygote
            self._drop(zygote, "it ended while nobody asked")
        if refusal := self.refusal(recipe):
            raise ZygoteError(refusal)
        task = self._making.get(recipe)
        if task is None:
            task = asyncio.get_running_loop().create_task(self._make(warmth), name=f"zygote {recipe.key}")
            self._making[recipe] = task
            task.add_done_callback(lambda _: self._making.pop(recipe, None))
            task.add_done_callback(lambda t: t.cancelled() or t.exception())
        return await asyncio.shield(task)

    async def _make(self, warmth: Warmth) -> _Zygote:
        recipe = warmth.recipe
        self._make_room()
        zygote = _Zygote(recipe, self._clock)
        try:
            zygote.spawn(self._owner, self._logs / f"zygote-{recipe.key}.log", self._tmp)
            self._living[recipe] = zygote
            self._tell("zygote.started", {"key": recipe.key, "python": recipe.python, "pid": zygote.pid})
            await zygote.prepare(warmth.needs)
        except (OSError, ZygoteError, TimeoutError) as error:
            reason = str(error) or f"its imports took longer than {IMPORT_DEADLINE:.0f} s"
            self._drop(zygote, reason)
            raise ZygoteError(reason) from error
        except BaseException:
            self._drop(zygote, "")
            raise
        zygote.used = self._clock.now()
        self._failures.pop(recipe, None)
        self._tell("zygote.ready", {
            "key": recipe.key, "pid": zygote.pid, "took_s": zygote.report.seconds, "private": zygote.report.private,
        })  # fmt: skip
        if self._tidy is None:
            self._tidy = asyncio.get_running_loop().create_task(self._keep_tidy(), name="zygotes")
        return zygote

    def _make_room(self) -> None:
        """An older zygote of the same Python whose environment or packages changed goes first, then who was idle longest."""
        while len(self._living) >= MOST:
            idle = [z for z in self._living.values() if z.ready]
            if not idle:
                return
            self._retire(min(idle, key=lambda z: z.used), "room for another")

    def _drop(self, zygote: _Zygote, reason: str) -> None:
        """It is of no use any more. Counted, so that a recipe that cannot work is not tried for ever."""
        known = self._living.get(zygote.recipe) is zygote
        if known:
            del self._living[zygote.recipe]
        zygote.kill()
        if reason and (known or not zygote.ready):
            count = self._failures.get(zygote.recipe, (0, ""))[0]
            self._failures[zygote.recipe] = (count + 1, reason)
            _LOG.warning("zygote %s is gone: %s", zygote.recipe.key, reason)
            self._tell("zygote.died", {"key": zygote.recipe.key, "reason": reason})

    def _retire(self, zygote: _Zygote, reason: str) -> None:
        self._living.pop(zygote.recipe, None)
        zygote.kill()
        self._tell("zygote.retired", {"key": zygote.recipe.key, "reason": reason})

    async def _keep_tidy(self) -> None:
        while True:
            await self._clock.sleep(min(_TICK, self._idle_after / 4 if self._idle_after else _TICK))
            await self.tidy()

    async def tidy(self) -> None:
        """End those that are idle or outdated, notice those that died, and ask the others how they are."""
        now = self._clock.now()
        for zygote in [z for z in self._living.values() if z.ready]:
            if zygote.process is None or zygote.process.poll() is not None:
                self._drop(zygote, "it ended while nobody asked")
            elif self._idle_after is not None and now - zygote.used >= self._idle_after:
                self._retire(zygote, f"idle for {now - zygote.used:.0f} s")
            else:
                try:
                    await zygote.status()
                except (ZygoteError, TimeoutError) as error:
                    self._drop(zygote, str(error) or "it did not answer in time")

    def outdated(self, current: Recipe) -> None:
        """End the zygotes of the same Python and entry point that were made before something was installed."""
        for zygote in list(self._living.values()):
            old = zygote.recipe
            same = (old.python, old.kind, old.entry, old.env) == (
                current.python,
                current.kind,
                current.entry,
                current.env,
            )
            if same and old.stamp != current.stamp:
                self._retire(zygote, "what is installed there changed")
        for old in [r for r in self._failures if replace(r, stamp="") == replace(current, stamp="") and r != current]:
            del self._failures[old]

    async def close(self) -> None:
        """End all zygotes. Engines go on."""
        for task in self._making.values():
            task.cancel()
        await asyncio.gather(*self._making.values(), return_exceptions=True)
        if self._tidy is not None:
            self._tidy.cancel()
            await asyncio.gather(self._tidy, return_exceptions=True)
            self._tidy = None
        for zygote in list(self._living.values()):
            zygote.kill()
        self._living.clear()


async def _receive(loop: asyncio.AbstractEventLoop, channel: socket.socket, fds: list[int]) -> dict[str, Any] | None:
    """One frame; None at the end of the stream. Descriptors are appended."""
    head = await _exactly(loop, channel, 4, fds)
    if head is None:
        return None
    body = await _exactly(loop, channel, struct.unpack("!I", head)[0], fds)
    return None if body is None else script.decode(body)


async def _exactly(loop: asyncio.AbstractEventLoop, channel: socket.socket, size: int, fds: list[int]) -> bytes | None:
    data = b""
    while len(data) < size:
        try:
            part, more, _flags, _address = socket.recv_fds(channel, size - len(data), 4)
        except BlockingIOError:
            await _readable(loop, channel)
            continue
        fds += more
        if not part:
            return None
        data += part
    return data


async def _readable(loop: asyncio.AbstractEventLoop, channel: socket.socket) -> None:
    ready: asyncio.Future[None] = loop.create_future()
    loop.add_reader(channel, lambda: ready.done() or ready.set_result(None))
    try:
        await ready
    finally:
        loop.remove_reader(channel)
