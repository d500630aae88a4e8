"""Reading the configuration again while the server runs: all of it is checked first, then the difference is applied; one reload at a
time, and nothing of one that is refused."""

import asyncio
import logging
import stat
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from vllm_mm.clock import Clock
from vllm_mm.control import declared
from vllm_mm.control.in_force import InForce
from vllm_mm.domain.catalog import Catalog
from vllm_mm.domain.changes import Effect, ModelChange, summary
from vllm_mm.domain.errors import ConfigError, MMError
from vllm_mm.domain.flags import Checked
from vllm_mm.domain.specs import ModelSpec
from vllm_mm.engine.manager import ProcessManager
from vllm_mm.engine.ports import Journal
from vllm_mm.settings import Loaded, Problem, SettingsError, at_restart
from vllm_mm.settings.nodes import KeyPath
from vllm_mm.store.audit import Audit
from vllm_mm.store.models import Models

log = logging.getLogger(__name__)

EVERY = 2.0
"""Seconds between two looks at the file."""

Stamp: TypeAlias = tuple[Path, int, int, int] | None
CheckArguments = Callable[[Iterable[ModelSpec]], Awaitable[Checked]]
"""Asks engines what they would not take of the arguments of these models."""


async def no_check(_specs: Iterable[ModelSpec]) -> Checked:
    """Nothing is known of any engine's arguments."""
    return Checked()


@dataclass(frozen=True, slots=True)
class Reloaded:
    """What a reload changed, or would change."""

    changes: tuple[ModelChange, ...]
    at_restart: tuple[str, ...]
    """Settings that differ from those with which the server was started, and take effect when it is started again."""
    warnings: tuple[str, ...]
    applied: bool


class Configuration:
    """The configuration as it was read last, and the way to read it again."""

    def __init__(
        self,
        loaded: Loaded,
        read: Callable[[], Loaded],
        in_force: InForce,
        manager: ProcessManager,
        store: Models,
        journal: Journal,
        clock: Clock,
        check: CheckArguments = no_check,
        audit: Audit | None = None,
    ) -> None:
        """`read` reads all sources again, as at the start; it is called in a thread. Raises SettingsError. `audit`: of reloads that come
        by no request, which is audited by itself."""
        self._started_with = loaded.settings
        self._loaded = loaded
        self._read = read
        self._in_force = in_force
        self._manager = manager
        self._store = store
        self._journal = journal
        self._clock = clock
        self._check = check
        self._audit = audit
        self._refused = ""
        self._seen: Stamp = _stamp(loaded.candidates)
        self._changed: Stamp = None

    @property
    def loaded(self) -> Loaded:
        """As it was read last."""
        return self._loaded

    def problem(self) -> str | None:
        """Why the last reload was refused; None after a good one. An alert, no reason not to serve."""
        return f"the configuration was not reloaded: {self._refused}" if self._refused else None

    async def reload(self, cause: str, *, actor: str = "", dry_run: bool = False) -> Reloaded:
        """Read everything again and apply the difference; with `dry_run` only say what that would be. `actor`: who did, where that is no
        request (`signal`, `file`).

        Raises ConfigError with all that is wrong, each with its place; then nothing has changed.
        """
        async with self._in_force.changing:
            try:
                if not dry_run:
                    self._seen = await asyncio.to_thread(_stamp, self._loaded.candidates)  # before it is read
                loaded, models, warnings = await self._checked()
                changes = self._in_force.look(models, loaded.settings)
            except MMError as error:
                if not dry_run:
                    self._refuse(cause, error.message)
                    self._record(actor, 422, {"reason": error.message})
                raise
            later = at_restart(self._started_with, loaded.settings)
            if dry_run:
                return Reloaded(changes, later, warnings, applied=False)
            changes = tuple(await self._in_force.put(models, cause, loaded.settings))
            self._loaded, self._refused = loaded, ""
            self._record(actor, 200, self._tell(cause, changes, later, warnings))
            return Reloaded(changes, later, warnings, applied=True)

    async def watch(self) -> None:
        """Look at the file again and again, and reload when it has changed, while `config.watch` is set. Until cancelled."""
        while True:
            await self._clock.sleep(EVERY)
            await self.look()

    async def look(self) -> None:
        """One round. A file that changed is read when it is the same in two rounds: then nobody is writing it any more. While there is none
        nothing is read: it says nothing of what should be instead."""
        if not self._in_force.settings.config.watch:
            return
        stamp = await asyncio.to_thread(_stamp, self._loaded.candidates)
        if stamp is None or stamp == self._seen:
            self._changed = None
        elif stamp != self._changed:
            self._changed = stamp
        else:
            self._seen, self._changed = stamp, None
            try:
                await self.reload("the file changed", actor="file")
            except MMError as error:
                log.error("the configuration was not reloaded: %s", error.message)  # noqa: TRY400  # the message says it all

    async def _checked(self) -> tuple[Loaded, Catalog, tuple[str, ...]]:
        loaded = await asyncio.to_thread(self._read_again)
        _refuse_lost(self._loaded, loaded)
        stored = {m.id: m.declaration for m in await self._store.all()}
        models, warnings = await asyncio.to_thread(_models, loaded, stored)
        before = {s.id: s for s in self._in_force.declared}
        fresh = [s for s in models if s != before.get(s.id)]
        await self._manager.prepare(fresh)
        checked = await self._check(fresh)
        if checked.wrong:
            raise ConfigError("\n".join(arguments(loaded, checked)))
        return loaded, models, (*warnings, *checked.notes)

    def _read_again(self) -> Loaded:
        try:
            return self._read()
        except SettingsError as error:
            raise ConfigError(str(error)) from error

    def _refuse(self, cause: str, why: str) -> None:
        self._refused = why
        self._journal.emit("config.refused", cause=cause, data={"reason": why})

    def _record(self, actor: str, status: int, after: Mapping[str, Any]) -> None:
        if actor and self._audit is not None:
            self._audit.record("reload_config", actor=actor, source=actor, kind="config", after=after, status=status)

    def _tell(
        self, cause: str, changes: Sequence[ModelChange], later: Sequence[str], warnings: Sequence[str]
    ) -> Mapping[str, Any]:
        log.info("reloaded: %s", summary(changes))
        if later:
            log.warning("these settings take effect when the server is started again: %s", ", ".join(later))
        for warning in warnings:
            log.warning("%s", warning)
        by_effect = {effect.value: [c.model for c in changes if c.effect is effect] for effect in Effect}
        data = {**by_effect, "at_restart": list(later), "warnings": list(warnings)}
        self._journal.emit("config.reloaded", cause=cause, data=data)
        return data


def _refuse_lost(before: Loaded, now: Loaded) -> None:
    """A file that is gone, or empty, is an accident: an editor, a copy or a full disk leaves one for a moment. What it said stays in
    force. Raises ConfigError."""
    advice = "What it said stays in force. To have no models, write `models: {}`"
    if before.file is not None and now.file is None:
        raise ConfigError(f"{before.file}: the file is not there any more. {advice} into it.")
    if now.empty and before.file is not None and not before.empty:
        raise ConfigError(f"{now.file}: the file is empty. {advice}.")


def _models(loaded: Loaded, stored: Mapping[str, Mapping[str, Any]]) -> tuple[Catalog, tuple[str, ...]]:
    good, bad = declared.usable(loaded.settings, stored)
    left_out = tuple(f"the model {m!r}, made over the API, is left out: {why}" for m, why in bad.items())
    return declared.catalog(loaded.settings, good), left_out


def arguments(loaded: Loaded, checked: Checked) -> Iterator[str]:
    """What engines would not take, each with its place in the file; what stands in the defaults is told once."""
    yield from dict.fromkeys(str(Problem(what, *_place(loaded, model, name))) for model, name, what in checked.wrong)


def _place(loaded: Loaded, model: str, argument: str) -> tuple[Any, KeyPath]:
    """Where an argument of a model stands: in the model, or in the defaults."""
    settings = loaded.settings
    said = settings.models[model].args if model in settings.models else {}
    path: KeyPath = ("models", model, "args", argument)
    if argument not in said and argument in settings.defaults.args:
        path = ("defaults", "args", argument)
    origin = loaded.place(path)
    return (origin if origin.line is not None else None), path


def _stamp(candidates: Iterable[Path]) -> Stamp:
    """Another one for another content of the file, and for another file, which may not have been there before; None where there is none."""
    for file in candidates:
        try:
            found = file.stat()
        except OSError:
            continue
        if stat.S_ISREG(found.st_mode):
            return file, found.st_mtime_ns, found.st_size, found.st_ino
    return None
