"""Simulated devices: who holds how much is in a directory that the simulated engines write.

LEDGER/DEVICE/PID-STARTTICKS is a file whose content is the bytes that this process holds. The claim of a process that is
gone (or of an earlier one with its number) counts as nothing; names that begin with a dot are no claims.
"""

import contextlib
from collections.abc import Iterator, Mapping
from pathlib import Path

from vllm_mm.clock import Clock
from vllm_mm.domain.residency import Device
from vllm_mm.engine import procfs
from vllm_mm.engine.devices.polled import ForeignProcess, Ours, PolledInventory


class SimulatedInventory(PolledInventory):
    """`capacities` and `headroom` in bytes by device id."""

    def __init__(
        self,
        clock: Clock,
        ours: Ours,
        capacities: Mapping[str, int],
        ledger_dir: Path,
        *,
        headroom: Mapping[str, int] | None = None,
    ) -> None:
        super().__init__(clock)
        self._ours = ours
        self._capacities = dict(capacities)
        self._headroom = dict(headroom or {})
        self._ledger = ledger_dir
        self.refresh_now()

    def read(self) -> tuple[tuple[Device, ...], tuple[ForeignProcess, ...]]:
        devices: list[Device] = []
        foreign: list[ForeignProcess] = []
        for device, capacity in self._capacities.items():
            others = [process for process in self._claims(device) if not self._ours(process.pid)]
            foreign += others
            devices.append(
                Device(
                    id=device,
                    capacity=capacity,
                    headroom=self._headroom.get(device, 0),
                    foreign=sum(process.size or 0 for process in others),
                    kind="sim",
                    name="simulated",
                )
            )
        return tuple(devices), tuple(foreign)

    def _claims(self, device: str) -> Iterator[ForeignProcess]:
        folder = self._ledger / device
        if not folder.is_dir():
            return
        for path in sorted(folder.iterdir()):
            pid, _, ticks = path.name.partition("-")
            if not (pid.isdecimal() and ticks.isdecimal()):
                continue
            stat = procfs.read_stat(int(pid))
            if stat is None or stat.dead or stat.start_ticks != int(ticks):
                continue
            with contextlib.suppress(OSError, ValueError):  # withdrawn in this moment
                yield ForeignProcess(device, stat.pid, stat.name, int(path.read_text()))
