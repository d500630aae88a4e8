"""What is remembered of launches, footprints, sleeps and starts: the engine layer's `LaunchStore`."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from sqlalchemy import Row, delete, func, insert, select

from vllm_mm.clock import Clock
from vllm_mm.domain.estimates import RECENT, Kind, Times, start_kind
from vllm_mm.domain.footprint import Learned
from vllm_mm.domain.launches import Address, LaunchRecord, StartRecord
from vllm_mm.domain.sleep import Experience, Trial
from vllm_mm.domain.specs import SleepMode, SleepSpec
from vllm_mm.store.database import Database
from vllm_mm.store.tables import Footprint, Instance, Sleep, Start, Timing

_KINDS = frozenset(kind.value for kind in Kind)
_MODES = frozenset(mode.value for mode in SleepMode)


class Launches:
    """The tables `instances`, `footprints`, `sleeps`, `starts` and `timings`."""

    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock

    async def save(self, record: LaunchRecord) -> None:
        """Insert or replace the row of (model)."""
        async with self._database.write() as connection:
            await connection.execute(self._database.upsert(Instance, "model"), _values(record))

    async def forget(self, model: str, generation: int) -> None:
        """Drop the row of that launch; that of a later launch of the same model stays."""
        async with self._database.write() as connection:
            await connection.execute(delete(Instance).where(Instance.model == model, Instance.generation == generation))

    async def all(self) -> Sequence[LaunchRecord]:
        async with self._database.read() as connection:
            return [_record(row) for row in await connection.execute(select(Instance).order_by(Instance.model))]

    async def footprints(self) -> Mapping[tuple[str, str], Learned]:
        """What launches took, by (spec fingerprint, device set)."""
        async with self._database.read() as connection:
            return {
                (row.fingerprint, row.devices): Learned(
                    row.launches, row.mean, row.squares, row.largest, row.weights, row.kv_cache, row.learned_at
                )
                for row in await connection.execute(select(Footprint))
            }

    async def learn(self, fingerprint: str, devices: str, known: Learned) -> None:
        """Insert or replace what is known of that spec on that device set."""
        values = {
            "fingerprint": fingerprint,
            "devices": devices,
            "launches": known.count,
            "mean": known.mean,
            "squares": known.squares,
            "largest": known.largest,
            "weights": known.weights,
            "kv_cache": known.kv_cache,
            "learned_at": known.at,
        }
        async with self._database.write() as connection:
            await connection.execute(self._database.upsert(Footprint, "fingerprint", "devices"), values)

    async def sleeps(self) -> Mapping[tuple[str, int], Experience]:
        """What sleeps taught, by spec fingerprint and level of sleep."""
        async with self._database.read() as connection:
            return {
                (row.fingerprint, row.level): Experience(
                    SleepSpec(SleepMode(row.mode), row.level, row.declared), Trial(row.failures, row.reason), row.kept
                )
                for row in await connection.execute(select(Sleep))
                if row.mode in _MODES  # a later version may know more
            }

    async def slept(self, fingerprint: str, known: Experience) -> None:
        """Insert or replace what is known of that spec at that level."""
        values = {
            "fingerprint": fingerprint,
            "level": known.terms.level,
            "mode": known.terms.mode.value,
            "declared": known.terms.keeps,
            "failures": known.trial.failures,
            "reason": known.trial.reason,
            "kept": dict(known.kept),
        }
        async with self._database.write() as connection:
            await connection.execute(self._database.upsert(Sleep, "fingerprint", "level"), values)

    async def record_start(
        self,
        model: str,
        generation: int,
        started_at: float,
        ready_at: float | None,
        phases: Mapping[str, float],
        outcome: str,
        reason: str,
        launcher: str = "",
    ) -> None:
        """Unix times; `ready_at` is None for a start that failed, and for an adoption, of which nobody knows it."""
        async with self._database.write() as connection:
            await connection.execute(
                insert(Start),
                {
                    "model": model,
                    "generation": generation,
                    "started_at": started_at,
                    "ready_at": ready_at,
                    "phases": dict(phases),
                    "outcome": outcome,
                    "reason": reason,
                    "launcher": launcher,
                },
            )

    async def starts(self, model: str, limit: int = 50) -> Sequence[StartRecord]:
        """The history of a model, newest first."""
        async with self._database.read() as connection:
            rows = await connection.execute(
                select(Start).where(Start.model == model).order_by(Start.id.desc()).limit(limit)
            )
            return [
                StartRecord(r.model, r.generation, r.started_at, r.ready_at, r.phases, r.outcome, r.reason, r.launcher)
                for r in rows
            ]

    async def took(self, model: str, kind: Kind, seconds: Sequence[float]) -> None:
        """What is remembered of this kind from now on, newest last; for kinds that are no starts (those have `record_start`)."""
        values = {"model": model, "kind": kind.value, "seconds": [round(s, 4) for s in seconds]}
        async with self._database.write() as connection:
            await connection.execute(self._database.upsert(Timing, "model", "kind"), values)

    async def times(self) -> Mapping[str, Times]:
        """How long things took lately, by model: the good ones of the recent starts, and what `took` was told."""
        newest = func.row_number().over(partition_by=Start.model, order_by=Start.id.desc()).label("newest")
        good = (
            select(Start.id, Start.model, Start.started_at, Start.ready_at, Start.phases, newest)
            .where(Start.ready_at.is_not(None))
            .subquery()
        )
        found: dict[str, Times] = {}
        async with self._database.read() as connection:
            for row in await connection.execute(select(good).where(good.c.newest <= RECENT).order_by(good.c.id)):
                took = row.ready_at - row.started_at
                found[row.model] = found.get(row.model, Times()).note(start_kind(row.phases), took, row.phases)
            for row in await connection.execute(select(Timing.model, Timing.kind, Timing.seconds)):
                if row.kind in _KINDS:  # a later version may know more
                    for seconds in row.seconds:
                        found[row.model] = found.get(row.model, Times()).note(Kind(row.kind), seconds)
        return found


def _values(record: LaunchRecord) -> dict[str, Any]:
    return {
        "model": record.model,
        "generation": record.generation,
        "token": record.token,
        "pid": record.pid,
        "start_ticks": record.start_ticks,
        "boot_id": record.boot_id,
        "socket": record.address.socket,
        "host": record.address.host,
        "port": record.address.port,
        "workdir": str(record.workdir),
        "log": str(record.log),
        "fingerprint": record.fingerprint,
        "device_bytes": dict(record.device_bytes),
        "started_at": record.started_at,
        "launcher": record.launcher,
        "answer": record.answer,
    }


def _record(row: Row[Any]) -> LaunchRecord:
    return LaunchRecord(
        model=row.model,
        generation=row.generation,
        token=row.token,
        pid=row.pid,
        start_ticks=row.start_ticks,
        boot_id=row.boot_id,
        address=Address(row.socket, row.host, row.port),
        workdir=Path(row.workdir),
        log=Path(row.log),
        fingerprint=row.fingerprint,
        device_bytes=row.device_bytes,
        started_at=row.started_at,
        launcher=row.launcher,
        answer=row.answer,
    )
