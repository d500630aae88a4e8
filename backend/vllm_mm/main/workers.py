"""The worker processes, as the controller sees them: started, watched, started again, drained, ended. None is ever left behind."""

import asyncio
import contextlib
import logging
import os
import pickle
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncGenerator, Callable, Mapping
from typing import Any, Final

from vllm_mm.api.handing import TakingOver
from vllm_mm.engine import children
from vllm_mm.engine.lending import messages as say
from vllm_mm.engine.lending.link import Link
from vllm_mm.engine.lending.office import Office, Seat
from vllm_mm.main.accepting import Counts
from vllm_mm.main.setup import Setup

log = logging.getLogger(__name__)

STEADY: Final = 5.0
"""Seconds after which a worker that ends is replaced at once."""
PAUSE: Final = 0.5
"""Seconds before one is replaced that ended sooner; doubled each time..."""
LONGEST: Final = 10.0
"""...up to this."""
LAST_WORDS: Final = 5.0
"""Seconds in which what a dead worker has said is read."""
PARTING: Final = 1.0
"""Seconds for a worker to end that has closed its link."""
BEYOND: Final = 10.0
"""Seconds beyond the grace after which a worker that should have ended is killed."""


class _Worker:
    """One process."""

    def __init__(self, number: int, listener: socket.socket, counts: int, workers: int) -> None:
        """Starts it. Raises OSError."""
        self.number = number
        ours, theirs = socket.socketpair()
        self.hand, hand = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.link_end = ours
        passed = {
            "--link": theirs.fileno(),
            "--hand": hand.fileno(),
            "--listener": listener.fileno(),
            "--counts": counts,
        }
        argv = [sys.executable, "-m", "vllm_mm.main.worker", "--number", str(number), "--workers", str(workers)]
        argv += (str(word) for pair in passed.items() for word in pair)
        try:
            self.process = subprocess.Popen(
                argv, pass_fds=tuple(passed.values()), stdin=subprocess.DEVNULL, start_new_session=True
            )
        except BaseException:
            ours.close()
            self.hand.close()
            raise
        finally:
            theirs.close()
            hand.close()
        # Its own session: a Ctrl-C is for the controller alone, which ends it in order.
        children.expect(self.process.pid)
        self.pidfd = os.pidfd_open(self.process.pid)
        self._reaped = False

    def kill(self) -> None:
        if self._reaped:
            return  # the descriptor may be another's by now
        with contextlib.suppress(OSError):
            signal.pidfd_send_signal(self.pidfd, signal.SIGKILL)

    async def died(self) -> None:
        """Returns when it is gone."""
        loop = asyncio.get_running_loop()
        over: asyncio.Future[None] = loop.create_future()
        loop.add_reader(self.pidfd, lambda: over.done() or over.set_result(None))
        try:
            await over
        finally:
            loop.remove_reader(self.pidfd)

    def reap(self) -> int:
        """After its death: the exit code, negative for a signal."""
        code = self.process.wait()
        self._reaped = True
        children.done(self.process.pid)
        os.close(self.pidfd)
        return code


class Workers:
    """All of them. `running` starts them; they wait for `attach`, so that their imports and the controller's go on side by side."""

    def __init__(self, count: int, listener: socket.socket, grace: float) -> None:
        self._count = count
        self._listener = listener
        self._grace = grace
        self._shared = Counts.make(count)
        self._counts = Counts(self._shared, count)
        self._workers: dict[int, _Worker] = {}
        self._links: dict[int, Link[say.Up]] = {}
        self._tasks: list[asyncio.Task[None]] = []
        self._ending = False
        self._wake = asyncio.Event()

    @classmethod
    @contextlib.asynccontextmanager
    async def running(cls, count: int, listener: socket.socket, grace: float) -> "AsyncGenerator[Workers | None]":
        """None for one worker, which is the controller itself. At the end of the block none is left."""
        if count == 1:
            yield None
            return
        workers = cls(count, listener, grace)
        try:
            for number in range(count):
                workers._workers[number] = _Worker(number, listener, workers._shared, count)
            yield workers
        finally:
            await workers.close()

    def attach(
        self,
        office: Office,
        setup: Callable[[], Setup],
        make: Callable[[], asyncio.Protocol],
        tell: Callable[[str, Mapping[str, Any]], object],
    ) -> None:
        """Let them work. `make` makes the protocol of a connection that they hand over; `tell` hears what becomes of them."""
        loop = asyncio.get_running_loop()
        for number in range(self._count):
            self._tasks.append(
                loop.create_task(self._keep(number, office, setup, make, tell), name=f"worker {number + 1}")
            )

    async def serving(self, office: Office, seconds: float) -> bool:
        """When all accept connections; False when that takes longer than `seconds`, or the server is told to end."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while office.problem() is not None and not self._ending:
                    self._wake.clear()
                    await self._wake.wait()
        return office.problem() is None

    def drain(self) -> None:
        """They accept no more, finish what they have, and end."""
        self._ending = True
        self._wake.set()
        self._listener.close()
        for link in self._links.values():
            link.send(say.End())

    def kill(self) -> None:
        """At once, with all that they do."""
        self._ending = True
        self._wake.set()
        for worker in self._workers.values():
            worker.kill()

    async def ended(self) -> None:
        """After `drain`: when the last one is gone. One that takes too long is killed."""
        if self._tasks:
            _, late = await asyncio.wait(self._tasks, timeout=self._grace + BEYOND)
            if late:
                log.error("%d workers did not end in time and are killed", len(late))
                self.kill()
                await asyncio.wait(late)

    async def close(self) -> None:
        """Nothing is left, whatever happened."""
        self._ending = True
        self.kill()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for worker in self._workers.values():  # those that nobody attended to
            worker.kill()
            worker.link_end.close()
            worker.hand.close()
            worker.reap()
        self._workers.clear()
        os.close(self._shared)

    # One place

    async def _keep(
        self,
        number: int,
        office: Office,
        setup: Callable[[], Setup],
        make: Callable[[], asyncio.Protocol],
        tell: Callable[[str, Mapping[str, Any]], object],
    ) -> None:
        loop, pause = asyncio.get_running_loop(), PAUSE
        while True:
            began = loop.time()
            try:
                if number not in self._workers:
                    self._workers[number] = _Worker(number, self._listener, self._shared, self._count)
                await self._attend(self._workers[number], office, setup, make, tell)
            except OSError as error:
                log.error("worker %d cannot be started: %s", number + 1, error)  # noqa: TRY400  # the message says it all
            if self._ending:
                return
            if loop.time() - began >= STEADY:
                pause = PAUSE
                continue
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    while not self._ending:
                        self._wake.clear()
                        await self._wake.wait()
            if self._ending:
                return
            pause = min(LONGEST, 2 * pause)

    async def _attend(
        self,
        worker: _Worker,
        office: Office,
        setup: Callable[[], Setup],
        make: Callable[[], asyncio.Protocol],
        tell: Callable[[str, Mapping[str, Any]], object],
    ) -> None:
        """From its beginning to its end."""
        loop = asyncio.get_running_loop()
        seat: Seat | None = None
        silent: asyncio.Future[str] = loop.create_future()

        def heard(message: say.Up) -> None:
            if seat is not None:
                seat.heard(message)
            if isinstance(message, say.Serves):
                tell("worker.started", {"worker": worker.number + 1, "pid": worker.process.pid})
                self._wake.set()

        def ended(fault: str) -> None:
            if fault:
                log.error("worker %d is ended: %s", worker.number + 1, fault)
                worker.kill()
            else:
                loop.call_later(PARTING, worker.kill)
            if not silent.done():
                silent.set_result(fault)

        link = Link[say.Up](say.Up, heard, ended)
        taking = TakingOver(worker.hand, make)
        fault = ""
        try:
            await loop.create_unix_connection(lambda: link, sock=worker.link_end)
            link.send(say.Setup(pickle.dumps(setup())))
            self._links[worker.number] = link
            seat = office.seat(link)
            if self._ending:
                link.send(say.End())
            await worker.died()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LAST_WORDS):
                    fault = await silent
        finally:
            worker.kill()
            code = worker.reap()
            silent.cancel()
            self._counts.away(worker.number)
            self._links.pop(worker.number, None)
            del self._workers[worker.number]
            link.close()
            taking.close()
            had = seat.leave() if seat is not None else 0
            if not self._ending or code:
                log.warning(
                    "worker %d (pid %d) ended with %d; %d leases are back",
                    worker.number + 1,
                    worker.process.pid,
                    code,
                    had,
                )
            data = {
                "worker": worker.number + 1,
                "pid": worker.process.pid,
                "exit": code,
                "leases": had,
                "reason": fault,
            }
            tell("worker.ended", data)
            self._wake.set()
