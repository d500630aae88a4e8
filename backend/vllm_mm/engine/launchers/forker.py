"""One zygote as its owner sees it: a child process that is asked over a socket, and whose end is cleaned up after."""

import asyncio
import contextlib
import logging
import os
import signal
import socket
import struct
import subprocess
from collections import deque
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from vllm_mm.clock import Clock
from vllm_mm.engine import children, procfs
from vllm_mm.engine.launchers import zygote as script
from vllm_mm.engine.launchers.recipe import Needs, Recipe, Warmth
from vllm_mm.engine.launchers.stillness import answered
from vllm_mm.engine.ports import LAUNCH_VARIABLE, OWNER_VARIABLE
from vllm_mm.engine.process import kill, peek_exit, reap

_LOG = logging.getLogger(__name__)
_T = TypeVar("_T")

ZYGOTE_TOKEN = "0" * 32
"""A launch token that is no launch's: all zygotes carry it, so that a boot finds and ends those of a dead controller."""
_FRAME_BYTES = 1 << 24
_BURIAL = 10.0
"""Seconds from SIGKILL until a zygote and what is left of its forks have to be gone."""
STILL = 15.0
"""Seconds in which a zygote that was asked for something does nothing at all, until it is given up. Imports wait for disks, but
not for so long at one go."""
FORK_STILL = 5.0
"""The same while it forks, which takes some hundredths of a second."""


class ZygoteError(Exception):
    """No engine came out of it; the text says why. Nothing is left of the attempt."""


class Unfit(ZygoteError):
    """Imports made a zygote unfit for forking: that lies in what was imported, and will be so again."""


@dataclass(frozen=True, slots=True)
class ZygoteReport:
    """What a zygote last said of itself. Sizes in bytes."""

    private: int = 0
    """Memory that only it uses: what would be free without it. Unchanged pages of files do not count."""
    proportional: int = 0
    """With a page that n processes share counted as 1/n."""
    threads: int = 0
    """Of the operating system; of Python's there is one."""
    seconds: float = 0.0
    """Spent on imports."""
    problems: tuple[str, ...] = ()
    """Modules that could not be imported, and why; engines then import what they need themselves."""


class Forker:
    """One zygote. Exchanges with it go one after another, and each runs to its end, whoever still waits for it.

    `on_end` is called once, on the event loop, when the process ended without being told to.
    """

    def __init__(
        self, recipe: Recipe, clock: Clock, *, import_deadline: float, fork_deadline: float,
        on_end: Callable[["Forker"], object], patience: float = STILL,
    ) -> None:  # fmt: skip
        self.recipe = recipe
        self.report = ZygoteReport()
        self.forks = 0
        self.used = clock.now()
        self.ready = False
        self.ended = ""
        """How it ended; empty while it lives."""
        self._clock = clock
        self._import_deadline = import_deadline
        self._fork_deadline = fork_deadline
        self._on_end = on_end
        self._patience = patience
        self._process: subprocess.Popen[bytes] | None = None
        self._pidfd = -1
        self._dead = asyncio.Event()
        self._told = False
        self._burial: asyncio.Task[None] | None = None
        self._channel: socket.socket | None = None
        self._lock = asyncio.Lock()
        self._running: set[asyncio.Task[Any]] = set()
        self._have: set[str] = set()
        self._discarded: set[asyncio.Future[None]] = set()
        self._released: deque[int] = deque(maxlen=64)

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process is not None else None

    @property
    def busy(self) -> bool:
        """Whether it is being asked something now."""
        return bool(self._running)

    def spawn(self, owner: str, log: Path, tmp: Path) -> None:
        """Raises OSError; nothing is left then."""
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
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        try:
            with theirs, log.open("ab") as out:
                process = subprocess.Popen(
                    [self.recipe.python, script.__file__, *libraries, script.room_for(f"vllm-mm zygote {self.recipe.key}")],
                    env=env, stdin=theirs.fileno(), stdout=out, stderr=out, start_new_session=True,
                )  # fmt: skip
        except BaseException:
            ours.close()
            raise
        try:
            self._pidfd = os.pidfd_open(process.pid)
        except OSError:
            ours.close()
            process.kill()
            process.wait()
            raise
        children.expect(process.pid, session=True)  # and of who is being forked in it
        self._process, self._channel = process, ours
        asyncio.get_running_loop().add_reader(self._pidfd, self._on_exit)

    async def prepare(self) -> None:
        """Import everything that all models want. Raises ZygoteError."""
        message = {"op": "prepare", "kind": self.recipe.kind, "entry": self.recipe.entry}
        await self._load(message, self.recipe.modules, Needs())
        self.ready = True

    async def learn(self, needs: Needs) -> None:
        """Import what a model needs besides, unless that was done. Raises ZygoteError; Unfit when it was these imports."""
        if {*needs.architectures, *needs.model_types} - self._have:
            await self._load({"op": "import"}, (), needs)

    async def status(self) -> None:
        """Raises ZygoteError."""
        self._note(await self._ask({"op": "status"}, self._fork_deadline))

    async def fork(self, warmth: Warmth, env: Mapping[str, str], log: int) -> tuple[int, int]:
        """The engine's pid and a pidfd. It is a child of this process (if this reaps orphans) and a zombie until reaped.

        Raises ZygoteError. A fork that was asked for cannot be called back: the engine of a caller who is cancelled is
        killed and reaped as soon as it is there.
        """
        keep = os.dup(log)
        work = self._begin(lambda: self._fork(warmth, env, keep))
        work.add_done_callback(lambda _: os.close(keep))
        try:
            return await asyncio.shield(work)
        except asyncio.CancelledError:
            work.add_done_callback(self._discard)
            raise

    def end(self) -> asyncio.Task[None]:
        """Kill it, now; the task, which is the same each time, is done when it is dead and cleaned up after. Engines go
        on: they are not in its session, and not its children."""
        self._told = True
        if self._channel is not None:
            with contextlib.suppress(OSError):
                self._channel.shutdown(socket.SHUT_RDWR)  # whoever reads from it sees its end
        if self._pidfd >= 0 and not self._dead.is_set():
            with contextlib.suppress(OSError):
                signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)
        if self._burial is None:
            self._burial = asyncio.get_running_loop().create_task(self._bury(), name=f"end of zygote {self.recipe.key}")
        return self._burial

    async def _load(self, message: dict[str, Any], modules: tuple[str, ...], needs: Needs) -> None:
        wanted = {"modules": modules, "architectures": needs.architectures, "model_types": needs.model_types}
        answer = await self._ask(message | wanted, self._import_deadline)
        self._note(answer)
        if not answer.get("ready"):
            raise Unfit(str(answer.get("reason", "it is not ready and does not say why")))
        self._have |= {*needs.architectures, *needs.model_types}

    def _begin(self, work: Callable[[], Coroutine[Any, Any, _T]]) -> asyncio.Task[_T]:
        async def one() -> _T:
            async with self._lock:
                return await work()

        task = asyncio.get_running_loop().create_task(one(), name=f"zygote {self.recipe.key}")
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        task.add_done_callback(lambda t: t.cancelled() or t.exception())
        return task

    async def _ask(self, message: Mapping[str, Any], deadline: float) -> dict[str, Any]:
        async def exchange() -> dict[str, Any]:
            channel = self._open()
            try:
                async with answered(self.pid or 0, self._clock, deadline=deadline, patience=self._patience):
                    await _send(channel, message)
                    answer = await _receive(channel, [])
            except TimeoutError as error:
                raise ZygoteError(f"it did not answer `{message['op']}` {error}") from None
            except (OSError, ValueError) as error:
                raise ZygoteError(f"it does not answer: {error}{await self._how()}") from error
            if answer is None:
                raise ZygoteError(f"it ended{await self._how()}")
            return answer

        return await asyncio.shield(self._begin(exchange))

    async def _fork(self, warmth: Warmth, env: Mapping[str, str], log: int) -> tuple[int, int]:
        channel = self._open()
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        request = {
            "op": "fork", "argv": warmth.argv, "env": dict(env), "script": warmth.script,
            "marks": {LAUNCH_VARIABLE: env[LAUNCH_VARIABLE]},
        }  # fmt: skip
        fds: list[int] = []
        try:
            patience = min(FORK_STILL, self._patience)
            async with answered(self.pid or 0, self._clock, deadline=self._fork_deadline, patience=patience):
                with theirs:
                    await _send(channel, request, (log, theirs.fileno()))
                answer = await _receive(ours, fds)
            if answer is None:
                raise ZygoteError(f"it ended during the fork{await self._how()}")
            if "pid" not in answer or not fds:
                raise ZygoteError(str(answer.get("error", "it gave no engine and no reason")))
            pid = int(answer["pid"])
            self._released.append(pid)
            children.expect(pid)  # before it leaves the session
            with contextlib.suppress(OSError):  # it was killed meanwhile; whoever has it now will see that
                ours.send(script.GO)
            self.forks += 1
            return pid, fds.pop(0)
        except TimeoutError as error:
            raise ZygoteError(f"it gave no engine {error}") from None
        except (OSError, ValueError) as error:
            raise ZygoteError(f"it cannot be asked for an engine: {error}{await self._how()}") from error
        finally:
            ours.close()  # without its word to go on, an engine that is on its way ends itself
            for fd in fds:
                os.close(fd)

    def _discard(self, work: asyncio.Task[tuple[int, int]]) -> None:
        """Kill an engine that nobody waited for. It has not had the time to start anything."""
        if work.cancelled() or work.exception() is not None:
            return
        pid, pidfd = work.result()
        with contextlib.suppress(OSError):
            signal.pidfd_send_signal(pidfd, signal.SIGKILL)
        os.close(pidfd)
        reaping = asyncio.get_running_loop().run_in_executor(None, _wait_for, pid)
        self._discarded.add(reaping)
        reaping.add_done_callback(self._discarded.discard)

    def _open(self) -> socket.socket:
        if self._channel is None or self._told or self._dead.is_set():
            raise ZygoteError(self.ended or "it was ended")
        return self._channel

    def _note(self, answer: Mapping[str, Any]) -> None:
        try:
            self.report = ZygoteReport(
                private=int(answer["private"]), proportional=int(answer["proportional"]), threads=int(answer["threads"]),
                seconds=float(answer["seconds"]), problems=tuple(str(p) for p in answer["problems"]),
            )  # fmt: skip
        except (KeyError, TypeError, ValueError) as error:
            raise ZygoteError(f"its answer is not understood: {error!r}") from error

    async def _how(self) -> str:
        """Its end is seen at two places, of which this may be the earlier one."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(1.0):
                await self._dead.wait()
        return f" ({self.ended})" if self.ended else ""

    def _on_exit(self) -> None:
        process = self._process
        status = peek_exit(process.pid) if process is not None else None
        if process is None or status is None:
            return
        asyncio.get_running_loop().remove_reader(self._pidfd)
        self.ended = f"it {status}" if status.signal is None else f"it was {status}"
        self._dead.set()
        if not self._told:
            self._on_end(self)

    async def _bury(self) -> None:
        """Wait for the death, end what is left of forks under way, and reap. Until then the zygote's number, and so that
        of its session, is its own."""
        process, channel = self._process, self._channel
        if process is None or channel is None:
            return
        try:
            async with asyncio.timeout(_BURIAL):
                await self._dead.wait()
                if self._running:  # an engine on its way may still arrive
                    await asyncio.wait(self._running, timeout=1.0)
                await self._sweep(process.pid)
                for left in (self._running, self._discarded):
                    if left:
                        await asyncio.wait(left)
        except TimeoutError:
            _LOG.error("zygote %s (pid %d) does not go, %g s after SIGKILL", self.recipe.key, process.pid, _BURIAL)
        finally:
            self._channel = None
            channel.close()
            asyncio.get_running_loop().remove_reader(self._pidfd)
            os.close(self._pidfd)
            self._pidfd = -1
            process.poll()
            children.done(process.pid)

    async def _sweep(self, session: int) -> None:
        """Kill and reap who is in the zygote's session and was not released from it."""
        while True:
            left = [
                stat
                for stat in (await asyncio.to_thread(procfs.table)).values()
                if stat.sid == session and stat.pid != session and stat.pid not in self._released
            ]
            if not left:
                return
            for stat in left:
                if not stat.dead:
                    kill(stat.id)
                else:
                    reap(stat.id)
            await self._clock.sleep(0.005)


def _wait_for(pid: int) -> None:
    with contextlib.suppress(OSError):
        os.waitpid(pid, 0)
    children.done(pid)


async def _send(channel: socket.socket, message: Mapping[str, Any], fds: tuple[int, ...] = ()) -> None:
    """The descriptors go out with the first byte; a large environment may not fit at once."""
    loop = asyncio.get_running_loop()
    data = script.frame(dict(message))
    while True:
        try:
            sent = socket.send_fds(channel, [data], fds) if fds else channel.send(data)
            break
        except BlockingIOError:
            await _possible(channel, loop.add_writer, loop.remove_writer)
    if sent < len(data):
        await loop.sock_sendall(channel, data[sent:])


async def _receive(channel: socket.socket, fds: list[int]) -> dict[str, Any] | None:
    """One frame; None at the end of the stream. Descriptors are appended. Raises OSError and ValueError."""
    head = await _exactly(channel, 4, fds)
    if head is None:
        return None
    size = struct.unpack("!I", head)[0]
    if size > _FRAME_BYTES:
        raise ValueError(f"a frame of {size} bytes")
    body = await _exactly(channel, size, fds)
    return None if body is None else script.decode(body)


async def _exactly(channel: socket.socket, size: int, fds: list[int]) -> bytes | None:
    loop = asyncio.get_running_loop()
    data = b""
    while len(data) < size:
        try:
            part, more, _flags, _address = socket.recv_fds(channel, size - len(data), 4, socket.MSG_CMSG_CLOEXEC)
        except BlockingIOError:
            await _possible(channel, loop.add_reader, loop.remove_reader)
            continue
        fds += more
        if not part:
            return None
        data += part
    return data


async def _possible(channel: socket.socket, add: Callable[..., object], remove: Callable[..., object]) -> None:
    """Until reading (or writing) does something."""
    number = channel.fileno()
    ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    add(number, lambda: ready.done() or ready.set_result(None))
    try:
        await ready
    finally:
        remove(number)
