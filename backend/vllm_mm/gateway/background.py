"""Responses that an engine makes after its answer: each keeps the lease of its request until it is done, so that the engine is not
taken for idle meanwhile. What nobody may have any more is cancelled at its engine."""

import asyncio
import logging
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from typing import Final
from urllib.parse import quote

import msgspec

from vllm_mm.clock import Clock
from vllm_mm.domain.errors import MMError
from vllm_mm.engine.exchange import UpstreamRequest
from vllm_mm.gateway.ports import Headers, LeaseView

log = logging.getLogger(__name__)

FIRST: Final = 0.1
"""Seconds before the engine is asked for the first time how far it is..."""
LONGEST: Final = 2.0
"""...and the longest time between two questions."""
PATIENCE: Final = 30.0
"""Seconds for an answer to such a question."""
LARGEST: Final = 1 << 20
"""Bytes of an answer that are kept; unfinished responses have no output yet, and are smaller."""
_RUNS: Final = frozenset({"queued", "in_progress"})


class _Status(msgspec.Struct):
    status: str | None = None


class _Answer:
    """Takes a small answer in."""

    raw = False

    def __init__(self) -> None:
        self.status = 0
        self.body = b""
        self.large = False

    def head(self, status: int, headers: Headers, *, chunked: bool, length: int | None) -> None:  # noqa: ARG002
        self.status = status

    def data(self, chunk: bytes) -> None:
        self.large = self.large or len(self.body) + len(chunk) > LARGEST
        if not self.large:
            self.body += chunk

    def end(self) -> None:
        pass

    @property
    def runs(self) -> bool:
        """The engine says that it works on it still."""
        return self._said in _RUNS

    @property
    def over(self) -> str | None:
        """What became of it, when the engine says that it is done with it."""
        if self.status == 200 and self.large:
            return "complete"
        return None if self.runs else self._said

    @property
    def _said(self) -> str | None:
        if self.status != 200 or self.large:
            return None
        try:
            return msgspec.json.decode(self.body, type=_Status).status
        except msgspec.MsgspecError:
            return None


class Work:
    """One of them: what it is, whose, and whether it is wanted."""

    __slots__ = ("_news", "deadline", "key", "response", "unwanted")

    def __init__(self, response: str, key: str, deadline: float) -> None:
        """`key`: the id of the key that asked for it; `deadline`: in monotonic seconds, to which the time is added for which it stands
        still. Then the engine is told to stop."""
        self.response = response
        self.key = key
        self.deadline = deadline
        self.unwanted: str | None = None
        """Why the engine is to stop before that."""
        self._news: asyncio.Future[None] | None = None

    def end(self, reason: str) -> None:
        """It is not wanted any more."""
        self.unwanted = reason
        self.look()

    def look(self) -> None:
        """There is something new: a `pause` ends."""
        if self._news is not None and not self._news.done():
            self._news.set_result(None)

    async def pause(self, clock: Clock, seconds: float) -> None:
        """Until then, or until there is something new."""
        self._news = asyncio.get_running_loop().create_future()
        timer = clock.call_at(clock.now() + seconds, self.look)
        try:
            await self._news
        finally:
            timer.cancel()
            self._news = None


class Background:
    """Those under way."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._tasks: dict[asyncio.Task[None], Work] = {}

    @property
    def running(self) -> Sequence[str]:
        """Their ids."""
        return tuple(work.response for work in self._tasks.values())

    def follow(self, held: AbstractAsyncContextManager[LeaseView], lease: LeaseView, work: Work) -> None:
        """Keep `lease`, which `held` gave, until the engine is done with `work`."""
        task = asyncio.get_running_loop().create_task(self._follow(held, lease, work), name=work.response)
        self._tasks[task] = work
        task.add_done_callback(self._tasks.pop)

    def revoked(self, key: str) -> None:
        """The key with that id is good no more: what runs for it is cancelled at its engine, at once, or when that is awake again."""
        for work in self._tasks.values():
            if work.key == key:
                work.end("its key was revoked")

    async def close(self) -> None:
        """Give all leases back; what the engines do goes on without."""
        tasks = tuple(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _follow(self, held: AbstractAsyncContextManager[LeaseView], lease: LeaseView, work: Work) -> None:
        frozen = False

        def on_freeze(stands: bool) -> None:  # the lease's signature
            nonlocal frozen
            frozen = stands
            if work.unwanted is not None:
                work.look()

        lease.on_freeze = on_freeze
        target = f"/v1/responses/{quote(work.response, safe='')}".encode()
        pause = FIRST
        try:
            while True:
                if work.unwanted is None or frozen:
                    await work.pause(self._clock, pause)
                    pause = min(LONGEST, 1.5 * pause)
                if frozen and lease.revoked is None:
                    continue  # its engine sleeps, and is asked nothing
                if not await _runs(lease, target):
                    return
                now = self._clock.now()
                if work.unwanted is None and now - lease.frozen_s(now) >= work.deadline:
                    work.unwanted = "it took too long"
                if work.unwanted is not None:
                    log.warning("%s: %s in the background is cancelled: %s", lease.model, work.response, work.unwanted)
                    await ask(lease, b"POST", target + b"/cancel")
                    return
        except TimeoutError:
            log.warning(
                "%s: the engine did not say within %g s that it cancelled %s", lease.model, PATIENCE, work.response
            )
        except MMError as error:
            log.info("%s: %s in the background ended with its engine: %s", lease.model, work.response, error.message)
        finally:
            await held.__aexit__(None, None, None)


async def _runs(lease: LeaseView, target: bytes) -> bool:
    """An engine that does not answer in time is taken to be busy with it: whether it hangs is not judged here."""
    try:
        return (await ask(lease, b"GET", target)).runs
    except TimeoutError:
        return True


async def ask(lease: LeaseView, method: bytes, target: bytes) -> _Answer:
    """Raises TimeoutError."""
    answer = _Answer()
    async with asyncio.timeout(PATIENCE):
        await lease.exchange(UpstreamRequest(method, target), answer)
    return answer
