"""Which profile is active: chosen by hand or by its times of the week, and kept over restarts."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from difflib import get_close_matches
from zoneinfo import ZoneInfo

from vllm_mm.clock import Clock
from vllm_mm.control.in_force import InForce
from vllm_mm.domain import profiles
from vllm_mm.domain.changes import ModelChange
from vllm_mm.domain.errors import ConfigError, Conflict, MMError, NotFound
from vllm_mm.domain.profiles import Profile
from vllm_mm.domain.reasons import Reason
from vllm_mm.engine.manager import ProcessManager
from vllm_mm.engine.ports import Journal
from vllm_mm.store.audit import Audit
from vllm_mm.store.profiles import ActiveProfile, ActiveProfileStore

log = logging.getLogger(__name__)

EVERY = 2.0
"""Seconds between two looks at the times."""


@dataclass(frozen=True, slots=True)
class Activated:
    """What a switch changed, or would."""

    profile: str | None
    before: str | None
    changes: tuple[ModelChange, ...]
    missing: tuple[str, ...]
    """Models that the profile names and that are not there."""


class Profiles:
    """One is active, or none. A choice by hand holds until the schedule says something new."""

    def __init__(
        self,
        in_force: InForce,
        manager: ProcessManager,
        store: ActiveProfileStore,
        journal: Journal,
        clock: Clock,
        zone: str | None,
        audit: Audit | None = None,
    ) -> None:
        """`zone`: of the times; None is that of the machine. `audit`: of what the schedule does."""
        self._in_force = in_force
        self._manager = manager
        self._store = store
        self._journal = journal
        self._clock = clock
        self._zone = ZoneInfo(zone) if zone is not None else None
        self._audit = audit
        self._now = ActiveProfile()

    @property
    def active(self) -> ActiveProfile:
        """The one that is active, and since when."""
        found = self._in_force.profile
        return replace(self._now, active=None if found is None else found.name)

    def all(self) -> Sequence[Profile]:
        """In the order in which they are declared."""
        return tuple(self._known().values())

    def missing(self, profile: Profile) -> tuple[str, ...]:
        """The models that it names and that are not there."""
        return profiles.missing(self._in_force.declared, profile)

    async def restore(self) -> None:
        """The profile that was active before the server ended, if it still is there. To be called before anything is loaded."""
        async with self._in_force.changing:
            self._now = await self._store.get()
            profile = self._known().get(self._now.active or "")
            if self._now.active is not None and profile is None:
                log.warning("the profile %r was active and is not declared any more: none is active", self._now.active)
            if profile is not None:
                try:
                    await self._in_force.use(profile, "boot")
                except ConfigError as error:
                    log.warning("the profile %r is not active any more: %s", profile.name, error.message)

    async def activate(self, name: str | None, cause: str, *, dry_run: bool = False) -> Activated:
        """Make a profile the active one; None for none. Those that it preloads are loaded; nothing that runs is disturbed.

        Raises NotFound, and Conflict for an alias that is the id of a model.
        """
        async with self._in_force.changing:
            return await self._activate(name, cause, self._now.scheduled, dry_run=dry_run)

    async def run(self) -> None:
        """Follow the times. Until cancelled."""
        while True:
            await self.look()
            await self._clock.sleep(EVERY)

    async def look(self) -> None:
        """One round: what the schedule says is done when it is new."""
        now = datetime.fromtimestamp(self._clock.wall(), UTC)
        due = profiles.scheduled(self.all(), now, self._zone)
        if due == self._now.scheduled:
            return
        async with self._in_force.changing:
            try:
                done = await self._activate(due, Reason.SCHEDULE.value, due)
                if self._audit is not None:
                    act = "deactivate_profile" if due is None else "activate_profile"
                    who = Reason.SCHEDULE.value
                    self._audit.record(
                        act, actor=who, source=who, kind="profiles", object=due or "",
                        before={"profile": done.before}, after={"profile": due},
                    )  # fmt: skip
            except MMError as error:
                self._now = replace(self._now, scheduled=due)
                log.error("the profile %r is not made active by its schedule: %s", due, error.message)  # noqa: TRY400  # all is said

    async def _activate(
        self, name: str | None, cause: str, scheduled: str | None, *, dry_run: bool = False
    ) -> Activated:
        profile = None if name is None else self._require(name)
        before, old = self.active.active, {s.id: s for s in self._manager.catalog}
        missing = () if profile is None else self.missing(profile)
        try:
            if dry_run:
                return Activated(name, before, self._in_force.look_over(profile), missing)
            changes = tuple(await self._in_force.use(profile, cause))
        except ConfigError as error:
            raise Conflict(f"The profile `{name}` cannot be active: {error.message}.") from error
        self._now = ActiveProfile(name, scheduled, cause, self._clock.wall())
        await self._store.put(self._now)
        data = {"profile": name, "before": before, "changed": [c.model for c in changes], "missing": list(missing)}
        self._journal.emit("profile.activated", cause=cause, data=data)
        for spec in self._manager.catalog:
            if profile is not None and spec.preload and (spec.id not in old or not old[spec.id].preload):
                await self._manager.start(spec.id, Reason.PRELOAD.value, urgent=False)
        return Activated(name, before, changes, missing)

    def _known(self) -> dict[str, Profile]:
        return self._in_force.profiles(self._in_force.settings)

    def _require(self, name: str) -> Profile:
        known = self._known()
        if name not in known:
            near = get_close_matches(name, known, n=1, cutoff=0.5)
            hint = f"Did you mean `{near[0]}`?" if near else f"There are: {', '.join(known) or 'none'}."
            raise NotFound(f"There is no profile `{name}`. {hint} Profiles are declared in the configuration file.")
        return known[name]
