"""What engines would not take of the arguments of the models that are in force. They are asked in the background: a start of the server
waits for none of them."""

import logging
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from vllm_mm.clock import Clock
from vllm_mm.control.configuration import CheckArguments
from vllm_mm.domain.lifecycle import LOADING
from vllm_mm.domain.specs import ModelSpec
from vllm_mm.engine.manager import ProcessManager
from vllm_mm.engine.ports import Journal

if TYPE_CHECKING:
    from vllm_mm.domain.catalog import Catalog

log = logging.getLogger(__name__)

EVERY: Final = 2.0
"""Seconds between two looks at whether there are other models."""
AGAIN: Final = 60.0
"""Seconds after which the same models are looked at once more: somebody may have installed another version of their engine."""
PATIENCE: Final = 120.0
"""Seconds for which models that load are left alone: asking costs as much of the processor as the first seconds of a start."""


class Arguments:
    """Asked by the manager about each start (`objection`), which it refuses with what is said here."""

    def __init__(self, manager: ProcessManager, check: CheckArguments, journal: Journal, clock: Clock) -> None:
        self._manager = manager
        self._check = check
        self._journal = journal
        self._clock = clock
        self._wrong: dict[str, str] = {}
        """By the fingerprint of a spec."""
        self._told: set[str] = set()
        self._seen: Catalog | None = None
        self._looked_at = self._since = clock.now()

    def objection(self, spec: ModelSpec) -> str:
        """Why no engine would start with that declaration; empty when nothing is known against it."""
        return self._wrong.get(spec.fingerprint, "")

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            await self.look()
            await self._clock.sleep(EVERY)

    async def look(self) -> None:
        """One round."""
        catalog, now = self._manager.catalog, self._clock.now()
        if catalog is self._seen and now < self._looked_at + AGAIN:
            self._since = now
            return
        if self._loading() and now < self._since + PATIENCE:
            return
        self._seen, self._looked_at, self._since = catalog, now, now
        self._forget(catalog)
        for spec in catalog:
            await self._ask(spec)

    def _loading(self) -> bool:
        return any(instance.state in LOADING for instance in self._manager.instances())

    def _forget(self, catalog: Iterable[ModelSpec]) -> None:
        there = {spec.fingerprint for spec in catalog}
        self._wrong = {known: what for known, what in self._wrong.items() if known in there}

    async def _ask(self, spec: ModelSpec) -> None:
        checked = await self._check((spec,))
        for note in checked.notes:
            if note not in self._told:
                self._told.add(note)
                log.info("%s", note)
        wrong = "; ".join(f"args.{name}: {what}" for _, name, what in checked.wrong)
        before = self.objection(spec)
        if not wrong:
            self._wrong.pop(spec.fingerprint, None)
        elif wrong != before:
            self._wrong[spec.fingerprint] = wrong
            log.error("%s cannot be started: %s", spec.id, wrong)
            self._journal.emit("alert.arguments", model=spec.id, cause="its engine's parser", data={"reason": wrong})
