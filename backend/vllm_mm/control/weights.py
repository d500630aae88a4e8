"""The weights on the disk: who uses them, and which may go."""

import asyncio
import json
import shutil
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from vllm_mm.clock import Clock
from vllm_mm.control.pulls import Pulls
from vllm_mm.domain.catalog import Catalog
from vllm_mm.domain.specs import ModelSpec
from vllm_mm.engine.hub import cache
from vllm_mm.engine.hub.cache import Cached
from vllm_mm.engine.ports import Journal
from vllm_mm.engine.weights import hub
from vllm_mm.store.models import Models

AT_REST: Final = 3600.0
"""Seconds after which a part of a file that nobody has written to is taken for one that was left behind."""


@dataclass(frozen=True, slots=True)
class Stored:
    """A model in a cache, and who uses it."""

    cached: Cached
    used_by: tuple[str, ...]
    """Models that are declared and name it, in whatever place."""
    downloading: bool

    @property
    def unused(self) -> bool:
        return not self.used_by and not self.downloading


@dataclass(frozen=True, slots=True)
class Place:
    """A cache. Bytes of its disk."""

    path: Path
    free: int
    total: int


@dataclass(frozen=True, slots=True)
class Pruned:
    """What went, or would, and what did not."""

    removed: tuple[tuple[Cached, int], ...]
    """With the bytes that it freed."""
    kept: tuple[tuple[str, str], ...]
    """A repository that was asked for, and why it stays."""


class Weights:
    """`environment`: what engines inherit; `catalog`: the models that are declared now."""

    def __init__(
        self,
        environment: Mapping[str, str],
        catalog: Callable[[], Catalog],
        store: Models,
        pulls: Pulls,
        journal: Journal,
        clock: Clock,
    ) -> None:
        self._environment = environment
        self._catalog = catalog
        self._store = store
        self._pulls = pulls
        self._journal = journal
        self._clock = clock
        self._one = asyncio.Lock()

    async def look(self) -> tuple[Sequence[Place], Sequence[Stored]]:
        """All caches that models use, and what is in them."""
        caches = self._caches()
        found = await asyncio.to_thread(cache.scan, caches)
        names = await self._names()
        running = self._pulls.running()
        stored = [
            Stored(c, tuple(m for m, texts in names.items() if any(c.repo in t for t in texts)), (c.cache, c.repo) in running)
            for c in found
        ]  # fmt: skip
        return [Place(path, *_room(path)) for path in caches if path.exists()], stored

    async def prune(self, repos: Collection[str] | None, cause: str, *, dry_run: bool = False) -> Pruned:
        """Take away these repositories, or all that no declared model uses; and of all others what downloads left behind.

        Never what a declared model uses or what is being downloaded.
        """
        async with self._one:
            _, stored = await self.look()
            kept = [(s.cached.repo, _why(s)) for s in stored if repos and s.cached.repo in repos and not s.unused]
            there = {s.cached.repo for s in stored}
            kept += [(repo, "it is not there") for repo in dict.fromkeys(repos or ()) if repo not in there]
            removed: list[tuple[Cached, int]] = []
            for one in stored:
                whole = one.unused and (repos is None or one.cached.repo in repos)
                if not whole and (repos is not None or one.downloading or not one.cached.partial):
                    continue
                before = self._clock.wall() - AT_REST
                try:
                    freed = await asyncio.to_thread(_remove, one.cached, None if whole else before, dry_run=dry_run)
                except OSError as error:
                    kept.append((one.cached.repo, f"it cannot be deleted: {error.strerror or error}"))
                    continue
                if whole or freed:
                    removed.append((one.cached, freed))
            if removed and not dry_run:
                data = {"repositories": [c.repo for c, _ in removed], "bytes": sum(freed for _, freed in removed)}
                self._journal.emit("weights.pruned", cause=cause, data=data)
            return Pruned(tuple(removed), tuple(kept))

    def _caches(self) -> list[Path]:
        specs = (ModelSpec("none"), *self._catalog())
        return list(dict.fromkeys(hub(s, {**self._environment, **s.env}) for s in specs))

    async def _names(self) -> Mapping[str, Sequence[str]]:
        """Every text in a declaration, of the models of the database too that are left out for now."""
        found = {m.id: [m.id, json.dumps(m.declaration)] for m in await self._store.all()}
        for spec in self._catalog():
            said = (spec.model or spec.id, spec.args, spec.env, spec.lora, spec.command)
            found[spec.id] = [*found.get(spec.id, ()), *(text for value in said for text in _texts(value))]
        return found


def _remove(cached: Cached, parts_before: float | None, *, dry_run: bool) -> int:
    if parts_before is None:
        return cached.size if dry_run else cache.remove(cached)
    return cache.parts(cached, parts_before) if dry_run else cache.remove_parts(cached, parts_before)


def _why(stored: Stored) -> str:
    return "it is being downloaded" if stored.downloading else f"used by {', '.join(stored.used_by)}"


def _room(path: Path) -> tuple[int, int]:
    usage = shutil.disk_usage(path)
    return usage.free, usage.total


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, Mapping):
        for inner in value.values():  # pyright: ignore[reportUnknownVariableType]  # JSON
            yield from _texts(inner)
    elif isinstance(value, list | tuple):
        for inner in value:  # pyright: ignore[reportUnknownVariableType]  # JSON
            yield from _texts(inner)
    elif value is not None:
        yield str(value)
