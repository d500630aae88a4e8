"""Responses that an engine makes after its answer: each keeps the lease of its request until it is done, so that the engine is not
taken for idle meanwhile."""

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


class Background:
    """Those under way."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._tasks: dict[asyncio.Task[None], str] = {}

    @property
    def running(self) -> Sequence[str]:
        """Their ids."""
        return tuple(self._tasks.values())

    def follow(
        self, held: AbstractAsyncContextManager[LeaseView], lease: LeaseView, response: str, deadline: float
    ) -> None:
        """Keep `lease`, which `held` gave, until the engine is done with `response`; at `deadline` (monotonic seconds, to which
        the time is added for which it stands still) it is told to stop."""
        task = asyncio.get_running_loop().create_task(self._follow(held, lease, response, deadline), name=response)
        self._tasks[task] = response
        task.add_done_callback(self._tasks.pop)

    async def close(self) -> None:
        """Give all leases back; what the engines do goes on without."""
        tasks = tuple(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _follow(
        self, held: AbstractAsyncContextManager[LeaseView], lease: LeaseView, response: str, deadline: float
    ) -> None:
        frozen = False

        def on_freeze(stands: bool) -> None:  # the lease's signature
            nonlocal frozen
            frozen = stands

        lease.on_freeze = on_freeze
        target = f"/v1/responses/{quote(response, safe='')}".encode()
        pause = FIRST
        try:
            while True:
                await self._clock.sleep(pause)
                pause = min(LONGEST, 1.5 * pause)
                if frozen and lease.revoked is None:
                    continue  # its engine sleeps, and is asked nothing
                if not await _runs(lease, target):
                    return
                if self._clock.now() - lease.frozen_s(self._clock.now()) >= deadline:
                    log.warning("%s: %s took too long in the background and is cancelled", lease.model, response)
                    await ask(lease, b"POST", target + b"/cancel")
                    return
        except TimeoutError:
            log.warning("%s: the engine did not say within %g s that it cancelled %s", lease.model, PATIENCE, response)
        except MMError as error:
            log.info("%s: %s in the background ended with its engine: %s", lease.model, response, error.message)
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
