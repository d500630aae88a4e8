"""The zygotes of this server: made when first needed, one for each engine environment, repaired when one dies, ended when idle.

A zygote is never an owner of engines: those are children of this process (see `zygote`), and go on when their zygote dies.
"""

import asyncio
import logging
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from vllm_mm.clock import Clock
from vllm_mm.engine.launchers.forker import STILL, ZYGOTE_TOKEN, Forker, Unfit, ZygoteError, ZygoteReport
from vllm_mm.engine.launchers.recipe import Needs, Recipe, Warmth

__all__ = ("ZYGOTE_TOKEN", "ZygoteError", "ZygotePool", "ZygoteReport", "ZygoteView")
_LOG = logging.getLogger(__name__)

IMPORT_DEADLINE = 180.0
"""Seconds for the imports; a start that waits for them has its own, usually shorter, deadline as well."""
FORK_DEADLINE = 20.0
"""Seconds from the request to the engine's pid. The fork itself takes some hundredths of one."""
MOST = 4
"""Zygotes at once; the one that was idle longest makes room."""
TRIES = 3
"""Zygotes of one recipe that may fail or die young before the recipe is given up."""
_TICK = 30.0


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


class ZygotePool:
    """Lends zygotes to the warm launcher. One task of each recipe makes its zygote; all who want it share that."""

    def __init__(
        self, owner: str, clock: Clock, *, logs: Path, tmp: Path, idle_after: float | None,
        tell: Callable[[str, dict[str, Any]], object] = lambda _kind, _data: None,
        import_deadline: float = IMPORT_DEADLINE, fork_deadline: float = FORK_DEADLINE, patience: float = STILL,
    ) -> None:  # fmt: skip
        self._owner = owner
        self._clock = clock
        self._logs = logs
        self._tmp = tmp / "z"
        self._idle_after = idle_after
        self._tell = tell
        self._import_deadline = import_deadline
        self._fork_deadline = fork_deadline
        self._patience = patience
        self._living: dict[Recipe, Forker] = {}
        self._making: dict[Recipe, asyncio.Task[Forker]] = {}
        self._ending: set[asyncio.Task[None]] = set()
        self._failures: dict[Recipe, tuple[int, str]] = {}
        self._spoilers: dict[tuple[Recipe, Needs], str] = {}
        self._tidy: asyncio.Task[None] | None = None
        self._closed = False

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
        """(pid, pidfd) of a new engine, whose zygote is made first if there is none. Raises ZygoteError. An engine of a
        caller who is cancelled is ended."""
        zygote = await self.get(warmth)
        try:
            found = await zygote.fork(warmth, env, log)
        except ZygoteError as error:
            self._drop(zygote, str(error))
            raise
        self._failures.pop(warmth.recipe, None)
        return found

    async def get(self, warmth: Warmth) -> Forker:
        """A zygote that is ready and has imported what the model needs. The making goes on for others when this caller
        gives up. Raises ZygoteError."""
        recipe = warmth.recipe
        if spoilt := self._spoilers.get((recipe, warmth.needs)):
            raise ZygoteError(spoilt)
        zygote = self._living.get(recipe)
        if zygote is None or not zygote.ready:
            zygote = await self._made(recipe)
        zygote.used = self._clock.now()
        try:
            await zygote.learn(warmth.needs)
        except Unfit as error:
            # Another zygote will do for the other models; this one's imports have made this one useless.
            self._spoilers[recipe, warmth.needs] = f"what the model imports does not go with forking: {error}"
            self._retire(zygote, str(error))
            raise
        except ZygoteError as error:
            self._drop(zygote, str(error))
            raise
        return zygote

    async def _made(self, recipe: Recipe) -> Forker:
        if refusal := self.refusal(recipe):
            raise ZygoteError(refusal)
        if self._closed:
            raise ZygoteError("the server is ending")
        task = self._making.get(recipe)
        if task is None:
            task = asyncio.get_running_loop().create_task(self._make(recipe), name=f"zygote {recipe.key}")
            self._making[recipe] = task
            task.add_done_callback(lambda _: self._making.pop(recipe, None))
            task.add_done_callback(lambda t: t.cancelled() or t.exception())
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            waiter = asyncio.current_task()
            if task.cancelled() and not (waiter is not None and waiter.cancelling()):
                raise ZygoteError("the server is ending") from None
            raise

    async def _make(self, recipe: Recipe) -> Forker:
        self._make_room()
        zygote = Forker(
            recipe, self._clock, import_deadline=self._import_deadline, fork_deadline=self._fork_deadline,
            on_end=lambda ended: self._drop(ended, ended.ended), patience=self._patience,
        )  # fmt: skip
        try:
            zygote.spawn(self._owner, self._log(recipe), self._tmp)
            self._living[recipe] = zygote
            self._tell("zygote.started", {"key": recipe.key, "python": recipe.python, "pid": zygote.pid})
            await zygote.prepare()
        except (OSError, ZygoteError) as error:
            self._drop(zygote, str(error))
            raise ZygoteError(str(error)) from error
        except BaseException:
            self._end(zygote)
            raise
        zygote.used = self._clock.now()
        self._tell("zygote.ready", {
            "key": recipe.key, "pid": zygote.pid, "took_s": zygote.report.seconds, "private": zygote.report.private,
        })  # fmt: skip
        if self._tidy is None:
            self._tidy = asyncio.get_running_loop().create_task(self._keep_tidy(), name="zygotes")
        return zygote

    def _log(self, recipe: Recipe) -> Path:
        return self._logs / f"zygote-{recipe.key}.log"

    def _make_room(self) -> None:
        """Who was idle longest goes. Those that are still importing, or forking, stay: there may be too many for a while."""
        while len(self._living) >= MOST:
            idle = [z for z in self._living.values() if z.ready and not z.busy]
            if not idle:
                return
            self._retire(min(idle, key=lambda z: z.used), "room for another")

    def _drop(self, zygote: Forker, reason: str) -> None:
        """It failed. Counted until one of its kind forks an engine, so that a recipe that cannot work is not tried for
        ever; once for each zygote, whoever of those who use it comes first."""
        if not self._end(zygote):
            return
        recipe = zygote.recipe
        reason = f"{reason} (its log is {self._log(recipe)})"
        count = 0 if zygote.forks else self._failures.get(recipe, (0, ""))[0]
        self._failures[recipe] = (count + 1, reason)
        _LOG.warning("zygote %s is gone: %s", recipe.key, reason)
        self._tell("zygote.died", {"key": recipe.key, "reason": reason})

    def _retire(self, zygote: Forker, reason: str) -> None:
        if self._end(zygote):
            self._tell("zygote.retired", {"key": zygote.recipe.key, "reason": reason})

    def _end(self, zygote: Forker) -> bool:
        """False when that was done before."""
        if zygote.pid is not None and self._living.get(zygote.recipe) is not zygote:
            return False
        self._living.pop(zygote.recipe, None)
        ending = zygote.end()
        self._ending.add(ending)
        ending.add_done_callback(self._ending.discard)
        return True

    async def _keep_tidy(self) -> None:
        while True:
            await self._clock.sleep(min(_TICK, self._idle_after / 4 if self._idle_after else _TICK))
            await self.tidy()

    async def tidy(self) -> None:
        """End those that are idle, and ask the others how they are."""
        for zygote in [z for z in self._living.values() if z.ready]:
            idle = self._clock.now() - zygote.used
            if zygote.busy:
                continue
            if self._idle_after is not None and idle >= self._idle_after:
                self._retire(zygote, f"idle for {idle:.0f} s")
                continue
            try:
                await zygote.status()
            except ZygoteError as error:
                self._drop(zygote, str(error))

    def outdated(self, current: Recipe) -> None:
        """End the zygotes of the same Python and environment that were made before something was installed there, and
        forget what failed with them."""

        def older(recipe: Recipe) -> bool:
            return recipe != current and replace(recipe, stamp="") == replace(current, stamp="")

        for zygote in [z for z in self._living.values() if older(z.recipe)]:
            self._retire(zygote, "what is installed there changed")
        for recipe in [r for r in self._failures if older(r)]:
            del self._failures[recipe]
        for key in [k for k in self._spoilers if older(k[0])]:
            del self._spoilers[key]

    async def close(self) -> None:
        """End all zygotes, and return when they are gone. Engines go on. There are no new ones afterwards."""
        self._closed = True
        making = list(self._making.values())
        for task in making:
            task.cancel()
        await asyncio.gather(*making, return_exceptions=True)
        if self._tidy is not None:
            self._tidy.cancel()
            await asyncio.gather(self._tidy, return_exceptions=True)
            self._tidy = None
        for zygote in list(self._living.values()):
            self._end(zygote)
        await asyncio.gather(*self._ending, return_exceptions=True)
        await asyncio.to_thread(shutil.rmtree, self._tmp, ignore_errors=True)
