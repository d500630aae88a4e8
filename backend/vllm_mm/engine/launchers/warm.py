"""The launcher that forks: from a zygote where that is possible, else as `local` does. Ownership is `local`'s throughout."""

import asyncio
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from vllm_mm.domain.specs import LauncherKind
from vllm_mm.engine.launchers.forker import ZygoteError
from vllm_mm.engine.launchers.local import LocalLauncher
from vllm_mm.engine.launchers.pool import ZygotePool, ZygoteView
from vllm_mm.engine.launchers.recipe import NotWarm, Warmth, warmth
from vllm_mm.engine.ports import LaunchPlan, LaunchRecord, SweepReport
from vllm_mm.engine.process import LocalProcess

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Distrust:
    """A model whose warm starts failed."""

    model: str
    key: str
    """Of its zygote: another one is another try."""
    reason: str


@dataclass(frozen=True, slots=True)
class WarmView:
    """What the warm launcher did and has, for people to see."""

    zygotes: tuple[ZygoteView, ...] = ()
    starts: Mapping[str, int] = field(default_factory=lambda: {"local": 0, "warm": 0})
    """Of processes, by launcher."""
    fallbacks: int = 0
    """Warm starts that were asked for or tried, and became local ones."""
    distrusted: tuple[Distrust, ...] = ()
    last_reason: str = ""
    """Why the last of the fallbacks was one."""


class WarmLauncher:
    """Implements `ports.Launcher`."""

    def __init__(
        self, local: LocalLauncher, pool: ZygotePool, tell: Callable[[str, str, dict[str, Any]], object] = lambda _kind, _model, _data: None
    ) -> None:  # fmt: skip
        self._local = local
        self._pool = pool
        self._tell = tell
        self._distrusted: dict[tuple[str, str], Distrust] = {}
        self._keys: dict[str, str] = {}
        self._starts = {"local": 0, "warm": 0}
        self._fallbacks = 0
        self._last = ""

    def view(self) -> WarmView:
        """Cheap; sizes are those that each zygote last told."""
        return WarmView(
            self._pool.views(), dict(self._starts), self._fallbacks, tuple(self._distrusted.values()), self._last
        )

    async def start(self, plan: LaunchPlan) -> LocalProcess:
        """Raises OSError as `LocalLauncher.start` does: what the warm way cannot do, the other tries at once."""
        if plan.launcher is not LauncherKind.LOCAL:
            warm = await asyncio.to_thread(warmth, plan)
            if isinstance(warm, Warmth):
                process = await self._warm(plan, warm)
                if process is not None:
                    return process
            elif plan.launcher is LauncherKind.WARM:
                self._fell_back(plan, warm.reason)
        process = await self._local.start(plan)
        self._starts["local"] += 1
        return process

    async def _warm(self, plan: LaunchPlan, warm: Warmth) -> LocalProcess | None:
        key = warm.recipe.key
        self._pool.outdated(warm.recipe)
        for old in [k for k in self._distrusted if k[0] == plan.fingerprint and k[1] != key]:
            del self._distrusted[old]  # another zygote is another try
        known = self._distrusted.get((plan.fingerprint, key))
        if known is not None:
            self._last = known.reason
            return None
        env = self._local.environment(plan)
        try:
            process = await self._local.launch(plan, lambda log: self._pool.fork(warm, env, log), "warm")
        except ZygoteError as error:
            self._fell_back(plan, str(error))
            return None
        self._keys[plan.fingerprint] = key
        self._starts["warm"] += 1
        return process

    def distrust(self, plan: LaunchPlan, reason: str) -> bool:
        key = self._keys.get(plan.fingerprint)
        if key is None or plan.launcher is LauncherKind.LOCAL:
            return False
        self._distrusted[plan.fingerprint, key] = Distrust(plan.model, key, reason)
        self._fell_back(plan, reason)
        return True

    def vindicate(self, plan: LaunchPlan) -> None:
        key = self._keys.pop(plan.fingerprint, None)
        if key is not None:
            self._distrusted.pop((plan.fingerprint, key), None)

    def _fell_back(self, plan: LaunchPlan, reason: str) -> None:
        self._fallbacks += 1
        self._last = reason
        _LOG.warning("%s: no warm start, a local one instead: %s", plan.model, reason)
        self._tell("launcher.fallback", plan.model, {"reason": reason})

    async def preload(self, plan: LaunchPlan) -> str:
        """Make the zygote that `plan` would be forked from, and import what its model needs. Returns why not, or an empty text."""
        warm = await asyncio.to_thread(warmth, plan)
        if isinstance(warm, NotWarm):
            return warm.reason
        try:
            await self._pool.get(warm)
        except ZygoteError as error:
            return str(error)
        return ""

    async def adopt(self, record: LaunchRecord) -> LocalProcess | None:
        return await self._local.adopt(record)

    async def sweep(self, record: LaunchRecord, deadline: float) -> SweepReport:
        return await self._local.sweep(record, deadline)

    async def sweep_unknown(self, keep: frozenset[str], deadline: float) -> SweepReport:
        return await self._local.sweep_unknown(keep, deadline)

    async def close(self) -> None:
        """End the zygotes; engines go on."""
        await self._pool.close()
