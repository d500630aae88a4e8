"""Makes zygotes before anybody waits for one: at the start of the server, and when the models change."""

import logging
from pathlib import Path
from typing import Protocol

from vllm_mm.clock import Clock
from vllm_mm.domain.errors import MMError
from vllm_mm.domain.specs import EngineKind, LauncherKind, ModelSpec
from vllm_mm.engine import command
from vllm_mm.engine.manager import ProcessManager
from vllm_mm.engine.policy import Places
from vllm_mm.engine.ports import Address, LaunchPlan

log = logging.getLogger(__name__)

LOOK_EVERY = 5.0
"""Seconds between two looks at whether there are new models."""
_NOBODY = "f" * 32


class Preloads(Protocol):
    """What is asked of the launcher."""

    async def preload(self, plan: LaunchPlan) -> str:
        """Make what `plan` would be forked from. Returns why that is not possible, or an empty text."""
        ...


class Warmup:
    """A background task of the server."""

    def __init__(self, manager: ProcessManager, launcher: Preloads, places: Places, clock: Clock) -> None:
        self._manager = manager
        self._launcher = launcher
        self._places = places
        self._clock = clock
        self._done: dict[str, str] = {}
        """By model: the fingerprint of the spec that was prepared for."""

    async def run(self) -> None:
        while True:
            await self.look()
            await self._clock.sleep(LOOK_EVERY)

    async def look(self) -> None:
        """Prepare for the models that are new or changed since the last look, one after the other."""
        known = {spec.id: spec for spec in self._manager.catalog}
        self._done = {model: print_ for model, print_ in self._done.items() if model in known}
        for spec in known.values():
            if self._done.get(spec.id) == spec.fingerprint:
                continue
            self._done[spec.id] = spec.fingerprint
            if spec.engine is EngineKind.COMMAND or spec.launcher is LauncherKind.LOCAL:
                continue
            try:
                reason = await self._launcher.preload(self._plan(spec))
            except (MMError, OSError, ValueError) as error:
                reason = str(error)
            if reason:
                log.info("%s: starts of it will not be warm: %s", spec.id, reason)

    def _plan(self, spec: ModelSpec) -> LaunchPlan:
        """A launch that never happens: only what is imported for it, and with which environment, is looked at."""
        workdir, address = self._places.run / "_", Address(socket=str(self._places.run / "_" / "s"))
        argv, env = command.build(
            spec, address=address, device_bytes={d.id: 0 for d in self._manager.devices()},
            devices=self._manager.devices(), workdir=workdir, token=_NOBODY, owner=self._places.owner,
            cache_dir=self._places.cache, sim_ledger=self._places.sim_ledger, python=self._places.python,
            base_env=self._places.environment,
        )  # fmt: skip
        return LaunchPlan(
            model=spec.id, generation=0, token=_NOBODY, argv=argv, env=env, address=address, workdir=workdir,
            log=Path("/dev/null"), fingerprint=spec.fingerprint, launcher=spec.launcher,
        )  # fmt: skip
