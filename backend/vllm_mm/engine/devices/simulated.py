"""Simulated devices: who holds how much is in a directory that the simulated engines write.

LEDGER/DEVICE/PID-STARTTICKS is a file whose content is the bytes that this process holds. The claim of a process that is
gone (or of an earlier one with its number) counts as nothing; names that begin with a dot are no claims.

LEDGER/DEVICE/.fault makes the device faulty, to see what becomes of it: with the text `unplugged` it is not there, with
`unreadable` it cannot be read, and any other text is what its driver says of it. Without the file it is well again.
"""

import contextlib
from collections.abc import Iterator, Mapping
from pathlib import Path

from vllm_mm.clock import Clock
from vllm_mm.domain.residency import Device
from vllm_mm.engine import procfs
from vllm_mm.engine.devices.polled import MISSING, Ours, PolledInventory, Reading
from vllm_mm.engine.ports import ForeignProcess

FAULT = ".fault"
UNPLUGGED = "unplugged"
UNREADABLE = "unreadable"


class SimulatedInventory(PolledInventory):
    """`capacities` and `headroom` in bytes by device id."""

    kind = "sim"

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

    def holds(self, mine: Ours) -> dict[str, int]:
        return {
            device: sum(claim.size or 0 for claim in self._claims(device) if mine(claim.pid))
            for device in self._capacities
        }

    def read(self) -> Reading:
        devices: list[Device] = []
        foreign: list[ForeignProcess] = []
        faults: dict[str, str] = {}
        missed: dict[str, str] = {}
        held: dict[str, dict[int, int]] = {}
        for device, capacity in self._capacities.items():
            fault = self._fault(device)
            if fault == UNREADABLE:
                missed[device] = "its driver gives an error"
                continue
            if fault:
                faults[device] = MISSING if fault == UNPLUGGED else fault
            if fault == UNPLUGGED:
                continue
            claims = list(self._claims(device))
            others = [process for process in claims if not self._ours(process.pid)]
            held[device] = {process.pid: process.size or 0 for process in claims if process not in others}
            foreign += others
            devices.append(
                Device(
                    id=device,
                    capacity=capacity,
                    headroom=self._headroom.get(device, 0),
                    foreign=sum(process.size or 0 for process in others),
                    kind=self.kind,
                    name="simulated",
                )
            )
        return Reading(devices, foreign, faults, missed, held)

    def _fault(self, device: str) -> str:
        try:
            return " ".join((self._ledger / device / FAULT).read_text(errors="replace").split())
        except OSError:
            return ""

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
