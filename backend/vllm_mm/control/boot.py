"""At boot: adopt the engines that an earlier controller left and that are still of use, kill the rest, and nobody else's."""

import asyncio
import logging

from vllm_mm.domain.launches import LaunchRecord
from vllm_mm.engine.manager import ProcessManager
from vllm_mm.engine.ports import Journal, Launcher, LaunchStore, SweepReport

log = logging.getLogger(__name__)

SWEEP_DEADLINE = 30.0
"""Seconds for killing what an earlier controller left behind."""


async def adopt_or_sweep(
    manager: ProcessManager, launcher: Launcher, store: LaunchStore, journal: Journal, *, adopt: bool = True
) -> tuple[list[str], list[str]]:
    """Settle every recorded launch before the first new one; returns the models (adopted, swept).

    Identity is pid and start time and token, so a reused pid is never touched. With `adopt` false every engine is
    killed (`engines_outlive_controller: false`).
    """
    records = await store.all()
    results = await asyncio.gather(*(_settle(manager, launcher, store, journal, r, adopt=adopt) for r in records))
    adopted = [r.model for r, kept in zip(records, results, strict=True) if kept]
    swept = [r.model for r, kept in zip(records, results, strict=True) if not kept]
    keep = frozenset(r.token for r, kept in zip(records, results, strict=True) if kept)
    # Those whose row was never written: the controller died between the fork and the row.
    _tell(journal, None, await launcher.sweep_unknown(keep, SWEEP_DEADLINE))
    return adopted, swept


async def _settle(
    manager: ProcessManager,
    launcher: Launcher,
    store: LaunchStore,
    journal: Journal,
    record: LaunchRecord,
    *,
    adopt: bool,
) -> bool:
    if adopt and await manager.adopt(record):
        return True
    report = await launcher.sweep(record, SWEEP_DEADLINE)
    _tell(journal, record.model, report)
    if not report.survivors:
        await store.forget(record.model, record.generation)
    return False


def _tell(journal: Journal, model: str | None, report: SweepReport) -> None:
    for pid, name in report.orphans:
        log.warning("killed a process that an earlier controller left behind: %s (%s)", pid, name)
        journal.emit("orphan.swept", model=model, cause="boot", data={"pid": pid, "name": name})
    if report.survivors:
        journal.emit("alert.survivors", model=model, cause="boot", data={"pids": list(report.survivors)})
