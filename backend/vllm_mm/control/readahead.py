"""Reads the weights of models that are likely to be next into the page cache: `warm.read_ahead`, off by default."""

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from vllm_mm.clock import Clock
from vllm_mm.domain import lifecycle as lc
from vllm_mm.domain.lifecycle import State
from vllm_mm.domain.specs import ModelSpec
from vllm_mm.engine import pagecache
from vllm_mm.engine.manager import ProcessManager
from vllm_mm.engine.readahead import MARGIN, Candidate, Choice, Stretch, WeightFile, choose
from vllm_mm.engine.weights import weight_files

log = logging.getLogger(__name__)

EVERY = 5.0
"""Seconds between two looks at which models are likely to be next."""
MEASURE_EVERY = 60.0
"""Seconds for which it is believed how much of a file is cached: asking takes a second for each hundred GiB."""
STEP = 64 * 2**20
"""Bytes that are read before it is looked again whether a load began or memory became scarce."""


@dataclass(frozen=True, slots=True)
class CachedWeights:
    """One model, for people to see. Bytes."""

    model: str
    size: int
    """Of its weight files; 0 when they are not on this machine (yet)."""
    cached: int
    """In the page cache, as last measured."""
    measured: bool
    """False where the system does not tell; then `cached` is what was read ahead here."""
    kept: bool
    """Whether it has a part of the budget now."""


@dataclass(frozen=True, slots=True)
class ReadAheadView:
    """What reading ahead does and did since the server started, for people to see. Bytes."""

    budget: int = 0
    """0: it is off."""
    read: int = 0
    """Read ahead."""
    starts: int = 0
    """Of engines whose weights were known here before."""
    wanted: int = 0
    """Weights that those starts read."""
    hits: int = 0
    """What of that was in memory at the last look before the start, whoever put it there."""
    models: tuple[CachedWeights, ...] = ()


@dataclass(slots=True)
class _Seen:
    """What is known of one file."""

    cached: int
    measured: bool
    at: float


@dataclass(frozen=True, slots=True)
class _Found:
    """What one look found."""

    files: Mapping[str, tuple[WeightFile, ...]] = field(default_factory=dict[str, tuple[WeightFile, ...]])
    candidates: tuple[Candidate, ...] = ()


class ReadAhead:
    """A background task of the server. `unused` tells the bytes of memory that hold nothing."""

    def __init__(
        self, manager: ProcessManager, budget: int, environment: Mapping[str, str], clock: Clock,
        unused: Callable[[], int] = pagecache.unused_memory,
    ) -> None:  # fmt: skip
        self._manager = manager
        self._budget = budget
        self._environment = environment
        self._clock = clock
        self._unused = unused
        self._seen: dict[tuple[int, int, int, int], _Seen] = {}
        self._found = _Found()
        self._choice = Choice()
        self._generations: dict[str, int] = {}
        self._read = self._starts = self._wanted = self._hits = 0

    def view(self) -> ReadAheadView:
        """As of the last look; no models while reading ahead is off."""
        models = tuple(self._cached(model) for model in self._found.files)
        return ReadAheadView(self._budget, self._read, self._starts, self._wanted, self._hits, models)

    def _cached(self, model: str) -> CachedWeights:
        files = self._found.files[model]
        seen = [self._seen[f.identity] for f in files if f.identity in self._seen]
        return CachedWeights(
            model, sum(f.size for f in files), sum(s.cached for s in seen), all(s.measured for s in seen),
            model in self._choice.kept,
        )  # fmt: skip

    async def run(self) -> None:
        """Until cancelled. Disks and folders fail; the next look may be luckier."""
        while self._budget <= 0:  # off: it stays in the list of tasks, and does nothing
            await self._clock.sleep(3600.0)
        while True:
            try:
                await self.look()
            except OSError as error:
                log.warning("reading ahead failed: %s", error)
            await self._clock.sleep(EVERY)

    async def look(self) -> int:
        """One round; returns the bytes that were read."""
        if self._budget <= 0:
            return 0
        self._count()
        self._found = await self._examine()
        self._choice = choose(self._found.candidates, self._budget, self._unused())
        done = 0
        for stretch in self._choice.stretches:
            done += await self._fill(stretch)
        return done

    def _count(self) -> None:
        """The starts since the last look, by what was in memory then."""
        for spec in self._manager.catalog:
            generation = self._manager.require(spec.id).snapshot.generation
            before = self._generations.get(spec.id, generation)
            self._generations[spec.id] = generation
            if generation > before and self._found.files.get(spec.id):
                known = self._cached(spec.id)
                self._starts += 1
                self._wanted += known.size
                self._hits += min(known.cached, known.size)

    async def _examine(self) -> _Found:
        specs = list(self._manager.catalog)
        found = await asyncio.to_thread(self._list, specs, self._clock.now())
        here = {file.identity for files in found.values() for file in files}
        self._seen = {identity: seen for identity, seen in self._seen.items() if identity in here}
        still = [spec for spec in specs if spec.id in self._manager.catalog]  # it may have changed meanwhile
        return _Found(found, tuple(self._candidate(spec, found[spec.id]) for spec in still))

    def _candidate(self, spec: ModelSpec, files: tuple[WeightFile, ...]) -> Candidate:
        instance = self._manager.require(spec.id)
        view, used = self._manager.describe(spec.id), instance.gate.last_used
        return Candidate(
            spec.id, files, loaded=instance.state in lc.LIVE, waiting=view.queued, last_used=used or None,
            wanted=spec.preload or view.pinned or self._manager.loading(spec.id) is not None,
        )  # fmt: skip

    def _list(self, specs: Sequence[ModelSpec], now: float) -> dict[str, tuple[WeightFile, ...]]:
        return {spec.id: tuple(self._files(spec, now)) for spec in specs}

    def _files(self, spec: ModelSpec, now: float) -> list[WeightFile]:
        files: list[WeightFile] = []
        for path in weight_files(spec, self._environment):
            try:
                info = path.stat()
                identity = (info.st_dev, info.st_ino, info.st_size, info.st_mtime_ns)
                seen = self._seen.get(identity)
                if seen is None or now - seen.at >= MEASURE_EVERY:
                    seen = self._measure(path, identity, now)
            except OSError as error:  # being replaced, or not ours to read
                log.debug("%s is not read ahead: %s", path, error)
                continue
            files.append(WeightFile(str(path), identity, seen.cached))
        return files

    def _measure(self, path: Path, identity: tuple[int, int, int, int], now: float) -> _Seen:
        told, before = pagecache.cached(path), self._seen.get(identity)
        kept = before.cached if before is not None else 0
        seen = _Seen(told if told is not None else kept, told is not None, now)
        self._seen[identity] = seen
        return seen

    def _busy(self, disk: int) -> str:
        """The model that is being loaded from that disk, which would be slowed down; empty for none."""
        for instance in self._manager.instances():
            if instance.state is State.STARTING:
                files = self._found.files.get(instance.spec.id, ())
                if not files or any(file.disk == disk for file in files):  # or it may be fetched, and written there
                    return instance.spec.id
        return ""

    async def _fill(self, stretch: Stretch) -> int:
        """Read what is missing of the stretch, step by step; returns the bytes that were read."""
        file, seen = stretch.file, self._seen[stretch.file.identity]
        path, done = Path(file.path), 0
        first = 0 if seen.measured else seen.cached
        for start in range(first, stretch.end, STEP):
            end = min(start + STEP, stretch.end, start + stretch.missing - done if not seen.measured else stretch.end)
            if end <= start or done >= stretch.missing:
                break
            if model := self._busy(file.disk):
                log.debug("no reading ahead while %s is loaded", model)
                break
            if self._unused() < MARGIN + (end - start):
                break
            got = await asyncio.to_thread(_step, path, start, end, stretch.missing - done)
            done += got
        if done:
            self._read += done
            seen.cached += done
            await asyncio.to_thread(self._measure, path, file.identity, self._clock.now())
            log.info("%s: %d MiB of its weights read ahead", stretch.model, done >> 20)
        return done


def _step(path: Path, start: int, end: int, most: int) -> int:
    """Read the stretch unless it is cached; counts what was not."""
    there = pagecache.cached(path, start, end)
    missing = end - start - (there or 0)
    if missing <= 0:
        return 0
    if missing > most:
        end = start + (there or 0) + most
    return min(pagecache.read(path, start, end), missing)
