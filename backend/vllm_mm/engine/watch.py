"""What is watched of an engine from its start on: that it lives, answers, makes a token, sleeps and wakes as it should.

Nothing here changes the instance: what was seen is returned, or raised, to the actor, which tells its lifecycle.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from vllm_mm.clock import Clock
from vllm_mm.domain.errors import Conflict, MMError
from vllm_mm.domain.specs import EngineKind, ModelSpec
from vllm_mm.engine.ports import EngineProcess, ExitStatus
from vllm_mm.engine.wire import ControlChannel

log = logging.getLogger(__name__)

HEALTH_MISSES = 3
"""Times in a row that /health does not answer before the engine counts as of no use."""
WORK = ("vllm:prompt_tokens_total", "vllm:generation_tokens_total", "vllm:kv_cache_usage_perc")
"""Metrics that move with the steps of an engine, and with nothing else: not with requests that come and wait."""
LEADER_FOLLOWS = 0.05
"""Seconds in which a leader that is killed together with a part of its engine is seen to be dead too."""
LEADER_EXPLAINS = 2.0
"""Seconds for the leader of a start to say why a part gave up, and to end; it knows more than the part's exit code."""


@dataclass(frozen=True, slots=True)
class Death:
    """How an engine ended, unasked or not. `what` is the end of it in words."""

    status: ExitStatus
    what: str


async def death(process: EngineProcess, clock: Clock, loading: Callable[[], bool]) -> Death:
    """Returns when the leader is gone, or a process without which it cannot serve. Leaves what is left as it is."""
    loop = asyncio.get_running_loop()
    exited, lost = loop.create_task(process.exited()), loop.create_task(process.lost())
    patience: asyncio.Task[None] | None = None
    try:
        await asyncio.wait({exited, lost}, return_when=asyncio.FIRST_COMPLETED)
        if not exited.done():
            gave_up = loading() and lost.result().status.signal is None
            patience = loop.create_task(clock.sleep(LEADER_EXPLAINS if gave_up else LEADER_FOLLOWS))
            await asyncio.wait({exited, patience}, return_when=asyncio.FIRST_COMPLETED)
        if exited.done():
            return Death(exited.result(), f"the engine {exited.result()} unasked")
        return Death(lost.result().status, f"the engine lost {lost.result()} unasked")
    finally:
        for task in (exited, lost, patience):
            if task is not None:
                task.cancel()


class Untrue(Conflict):
    """The engine says that it did what it was told, and that is not what is seen."""


class Checks:
    """What one engine is asked, over its control channel, to see whether it is of use. `name`: the model's, in its API."""

    def __init__(self, control: ControlChannel, spec: ModelSpec, name: str, clock: Clock) -> None:
        self.control = control
        self._spec = spec
        self._name = name
        self._clock = clock

    async def answers(self) -> bool:
        """Healthy; for a command, which may have no /health, also when it lists its models."""
        if await self.control.healthy():
            return True
        if self._spec.engine is not EngineKind.COMMAND:
            return False
        try:
            await self.control.models()
        except MMError:
            return False
        return True

    async def probe(self) -> str:
        """One token, to be compared with a later one. Raises MMError."""
        return await self.control.probe(self._name, self._spec.task)

    async def until_ready(self, probing: Callable[[], None]) -> str:
        """Healthy *and* able to produce one token, which is returned. How long it may take is the lifecycle's business.

        `probing` is called before each try of the token.
        """
        delay, began = 0.03, self._clock.now()
        while not self.control.listens():
            # A look costs next to nothing, and so do the two in a thousand of a start by which this is late.
            await self._clock.sleep(min(0.1, max(0.005, (self._clock.now() - began) / 250)))
        while True:
            if await self.answers():
                probing()
                try:
                    return await self.probe()
                except MMError as error:
                    log.info("%s: healthy, but the probe failed: %s", self._spec.id, error)
            await self._clock.sleep(delay)
            # A start of some seconds should not end with half a second of nobody asking.
            delay = min(delay * 1.3, max(0.1, min(0.5, (self._clock.now() - began) / 100)))

    async def until_useless(
        self,
        every: float,
        stuck: float,
        reads: Callable[[], int],
        count: Callable[[], int],
        suspicions: Callable[[], int] = lambda: 0,
        look: Callable[[], Awaitable[None]] | None = None,
    ) -> str:
        """Notice an engine that lives but is of no use; returns why. It is looked at `every` so many seconds.

        `count` requests are with it, and `reads` grows whenever it sends something: with requests, and nothing for
        `stuck` seconds, it has to prove itself. So it has when `suspicions` grows: a stream of it was given up, for nothing
        came, although others may have got something. `look`: at something else, each time; it raises nothing.
        """
        misses, before, quiet_since = 0, -1, self._clock.now()
        known = suspicions()
        while True:
            await self._clock.sleep(every)
            misses = 0 if await self.answers() else misses + 1
            if misses >= HEALTH_MISSES:
                return f"health did not answer {misses} times in a row"
            if look is not None and not misses:
                await look()
            now, last, before = self._clock.now(), before, reads()
            if before != last or not count():
                quiet_since = now
            suspect, known = suspicions() != known, suspicions()
            if now - quiet_since < stuck and not suspect:
                continue
            try:
                await self._shows_life()
                quiet_since = self._clock.now()
            except MMError as error:
                if suspect:
                    return f"a stream of it was given up, for nothing came, and a probe failed: {error}"
                return f"{count()} requests got nothing for {now - quiet_since:.0f} s and a probe failed: {error}"

    async def _shows_life(self) -> None:
        """It makes a token, or it goes on with what it has: while all its sequences are taken by answers that come whole, or a long
        prompt is taken in, nobody gets a byte, and a probe has to wait like everybody. Raises MMError."""
        before = await self._work()
        try:
            await self.probe()
        except MMError:
            if await self._work() in {before, ()} or not before:
                raise
            log.info("%s: a probe found no place, and the engine goes on with what it has", self._spec.id)

    async def _work(self) -> tuple[str, ...]:
        """What of its metrics changes with each step; nothing where it has no such metrics, or does not tell them."""
        try:
            text = await self.control.metrics()
        except MMError:
            return ()
        return tuple(line for line in text.splitlines() if line.startswith(WORK))

    async def sleeps(self) -> bool:
        """Engines without sleep mode have no such route; they are awake."""
        try:
            return await self.control.is_sleeping()
        except MMError:
            return False

    async def fall_asleep(self, level: int, *, keep: bool = False) -> None:
        """With the requests that it has if `keep`. Raises MMError, with the reason, when it will not."""
        if keep and not await self.control.keeps_requests():
            raise Conflict("this version of it cannot keep requests over a sleep")
        await self.control.sleep(level, keep=keep)
        if not await self.control.is_sleeping():
            raise Untrue("it was told to sleep and says that it does not")

    async def wake(self, level: int, before: str | None) -> str:
        """Wake it from its sleep at `level` and see that it answers as it did `before` (unless that is None); returns its answer.

        Raises MMError: Untrue when it says that it is awake and answers differently.
        """
        try:
            await self._wake(level)
            answer = await self.probe()
            if before is not None and answer != before:
                answer = await self.probe()  # where two tokens are as likely, rounding may have decided once
        except MMError as error:
            raise Conflict(f"it would not wake: {error}") from error
        if before is not None and answer != before:
            raise Untrue(f"it answers differently after its sleep ({answer!r}, before {before!r})")
        return answer

    async def _wake(self, level: int) -> None:
        """After level 2 there are no weights, and the engine answers gibberish unless they are read again in between."""
        if level == 1:
            await self.control.wake()
            return
        await self.control.wake(("weights",))
        await self.control.reload_weights()
        await self.control.wake(("kv_cache",))
        await self.control.reset_prefix_cache()
