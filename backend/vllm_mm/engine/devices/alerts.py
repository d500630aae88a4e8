"""What an operator should know of the devices: told once when it begins, and once when it ends."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from vllm_mm.domain.residency import Device, Ledger, gib
from vllm_mm.engine.ports import ForeignProcess, Journal

NOTABLE = 1 << 30
"""Bytes of a stranger's memory on a GPU that are worth an alert; a desktop takes some hundred MiB."""
NOTABLE_SHARE = 0.02
"""Of the device, where that is less."""
CALM_SHARE = 0.5
"""It is over when less than this much of what is notable is left."""


@dataclass(slots=True)
class DeviceAlerts:
    """Compares each reading with the one before."""

    journal: Journal
    _problems: dict[str, str] = field(default_factory=dict[str, str])
    _taken: dict[str, frozenset[int]] = field(default_factory=dict[str, frozenset[int]])
    """The pids that were told, by device with an alert."""

    def look(self, ledger: Ledger, processes: Sequence[ForeignProcess]) -> None:
        """Emits `alert.device` and `device.well`, `alert.foreign_memory` and `foreign_memory.gone`."""
        for device in ledger.devices.values():
            self._look_at_health(device)
            self._look_for_strangers(device, ledger, [p for p in processes if p.device == device.id])

    def standing(self, ledger: Ledger) -> list[str]:
        """The alerts that have not ended, as sentences."""
        found = [f"device {d.id} is out of use: {d.problem}" for d in ledger.devices.values() if d.problem]
        there = [ledger.devices[device] for device in self._taken if device in ledger.devices]
        return [*found, *(_sentence(device, ledger.foreign(device.id)) for device in there)]

    def _look_at_health(self, device: Device) -> None:
        before = self._problems.get(device.id, "")
        if device.problem and not before:
            self.journal.emit(
                "alert.device", cause=device.problem, data={"device": device.id, "problem": device.problem}
            )
        elif before and not device.problem:
            self.journal.emit("device.well", cause="it reads well again", data={"device": device.id, "was": before})
        self._problems[device.id] = device.problem

    def _look_for_strangers(self, device: Device, ledger: Ledger, there: Sequence[ForeignProcess]) -> None:
        foreign = ledger.foreign(device.id)
        notable = min(NOTABLE, device.capacity * NOTABLE_SHARE)
        # The RAM pool is everybody's: what others use there matters when it is taken from what was promised.
        short = ledger.free_after_leaving(device.id) < 0
        told = self._taken.get(device.id)
        if (foreign >= notable if device.kind != "cpu" else short) and device.capacity:
            who = frozenset(p.pid for p in there)
            # Of those in RAM only the largest are known, and which ones these are changes by the minute.
            if told is not None and (who <= told or device.kind == "cpu"):
                return
            self._taken[device.id] = who | (told or frozenset())
            self.journal.emit(
                "alert.foreign_memory", cause=_sentence(device, foreign),
                data={
                    "device": device.id, "bytes": foreign, "short": short,
                    "processes": [{"pid": p.pid, "name": p.name, "bytes": p.size} for p in there],
                },
            )  # fmt: skip
        elif told is not None and (foreign < notable * CALM_SHARE if device.kind != "cpu" else not short):
            del self._taken[device.id]
            self.journal.emit(
                "foreign_memory.gone", cause=f"{gib(foreign)} are left", data={"device": device.id, "bytes": foreign}
            )


def _sentence(device: Device, foreign: int) -> str:
    who = f": {', '.join(device.strangers)}" if device.strangers else ""
    return f"{gib(foreign)} of device {device.id} are used by programs that are not ours{who}"
