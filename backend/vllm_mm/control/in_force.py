"""What is in force: the settings that were read last, the models that are declared, and the profile that is laid over them.

Everything that changes one of them (the admin API, a reload, a profile) holds `changing` while it does, so that each change begins
where the one before it ended.
"""

import asyncio
from collections.abc import Sequence

from vllm_mm.control.declared import profile
from vllm_mm.control.reload import apply, difference
from vllm_mm.domain.catalog import Catalog
from vllm_mm.domain.changes import ModelChange
from vllm_mm.domain.profiles import Profile, overlaid
from vllm_mm.engine.manager import ProcessManager
from vllm_mm.settings import Settings


class InForce:
    """Made with the models of the manager's catalog as those that are declared, and no profile."""

    def __init__(self, manager: ProcessManager, settings: Settings) -> None:
        self._manager = manager
        self._settings = settings
        self._declared: Catalog | None = None
        self._profile: str | None = None
        self.changing = asyncio.Lock()

    @property
    def settings(self) -> Settings:
        """As they were read last; only those that a reload applies are in force."""
        return self._settings

    @property
    def declared(self) -> Catalog:
        """The models without what a profile says of them."""
        return self._manager.catalog if self._declared is None else self._declared

    @property
    def profile(self) -> Profile | None:
        """The active one."""
        return self._over(None)

    @staticmethod
    def profiles(settings: Settings) -> dict[str, Profile]:
        """All that there are, in the order in which they are declared."""
        return {name: profile(name, config) for name, config in settings.profiles.items()}

    def look(self, declared: Catalog, settings: Settings | None = None) -> tuple[ModelChange, ...]:
        """What `put` would change now. Raises ConfigError as it does."""
        return difference(self._manager, overlaid(declared, self._over(settings)))

    def look_over(self, profile: Profile | None) -> tuple[ModelChange, ...]:
        """What `use` would change now. Raises ConfigError as it does."""
        return difference(self._manager, overlaid(self.declared, profile))

    async def put(self, declared: Catalog, cause: str, settings: Settings | None = None) -> Sequence[ModelChange]:
        """Other models, with the same profile if it still is there. Raises ConfigError when its aliases do not go with them; then
        nothing has changed."""
        found = await self._apply(declared, self._over(settings), cause)
        self._settings = settings or self._settings
        return found

    async def use(self, profile: Profile | None, cause: str) -> Sequence[ModelChange]:
        """Another profile. Raises ConfigError as `put`."""
        return await self._apply(self.declared, profile, cause)

    async def _apply(self, declared: Catalog, over: Profile | None, cause: str) -> Sequence[ModelChange]:
        catalog = overlaid(declared, over)
        self._declared = None if over is None else declared
        self._profile = None if over is None else over.name
        return await apply(self._manager, catalog, cause)

    def _over(self, settings: Settings | None) -> Profile | None:
        return self.profiles(settings or self._settings).get(self._profile or "")
