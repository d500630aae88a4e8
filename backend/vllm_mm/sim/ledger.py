"""The memory of simulated devices: who holds how much.

The format is a contract; others read it with their own code:

    LEDGER/DEVICE/PID-STARTTICKS     a file whose content is the number of bytes that this process holds, in decimal
    LEDGER/DEVICE/.lock              taken (flock) by whoever changes a claim of the device

A claim belongs to one process: STARTTICKS is field 22 of /proc/PID/stat. The claim of a process that is gone, is a zombie,
or started at another time counts as nothing; whoever next claims on the device deletes the file. Names that begin with a
dot are not claims.
"""

import contextlib
import fcntl
import os
from collections.abc import Callable, Generator
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Claim:
    """Bytes that a living process holds on a device."""

    device: str
    pid: int
    start_ticks: int
    size: int


class DoesNotFitError(Exception):
    """The device has less free memory than was asked for."""

    def __init__(self, device: str, wanted: int, free: int) -> None:
        super().__init__(f"{device}: {wanted} bytes wanted, {free} free")
        self.device = device
        self.wanted = wanted
        self.free = free


def start_ticks(pid: int) -> int | None:
    """Field 22 of /proc/PID/stat; None when the process is gone or a zombie (a zombie holds no memory)."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return None
    fields = stat[stat.rfind(b")") + 2 :].split()
    return None if fields[0] in (b"Z", b"X") else int(fields[19])


def claims(ledger: Path, device: str, ticks_of: Callable[[int], int | None] = start_ticks) -> tuple[Claim, ...]:
    """The living claims on a device, by pid. A device that nobody ever used has none."""
    found: list[Claim] = []
    for path, pid, ticks in _files(ledger / device):
        if ticks_of(pid) == ticks:
            with contextlib.suppress(OSError, ValueError):  # withdrawn in this moment
                found.append(Claim(device, pid, ticks, int(path.read_text())))
    return tuple(sorted(found, key=lambda claim: claim.pid))


def usage(ledger: Path) -> dict[str, tuple[Claim, ...]]:
    """The living claims of every device."""
    if not ledger.is_dir():
        return {}
    return {path.name: claims(ledger, path.name) for path in sorted(ledger.iterdir()) if path.is_dir()}


def free(ledger: Path, device: str, capacity: int) -> int:
    """Bytes that nobody holds."""
    return capacity - sum(claim.size for claim in claims(ledger, device))


def claim(ledger: Path, device: str, pid: int, size: int, *, capacity: int | None) -> None:
    """Make `size` bytes the claim of process `pid` on the device, in place of what it held there.

    Raises DoesNotFitError (and changes nothing) if a larger claim would exceed `capacity`; None does not check. A size of
    0 withdraws the claim.
    """
    ticks = start_ticks(pid)
    if ticks is None:
        raise ProcessLookupError(f"process {pid} is gone")
    folder = ledger / device
    folder.mkdir(parents=True, exist_ok=True)
    with _locked(folder):
        others = 0
        own = 0
        for path, other, other_ticks in _files(folder):
            if start_ticks(other) != other_ticks:
                path.unlink(missing_ok=True)
            elif other == pid:
                own = _size(path)
            else:
                others += _size(path)
        if capacity is not None and size > own and others + size > capacity:
            raise DoesNotFitError(device, size - own, capacity - others - own)
        path = folder / f"{pid}-{ticks}"
        if size == 0:
            path.unlink(missing_ok=True)
            return
        draft = folder / f".{pid}-{ticks}"
        draft.write_text(str(size))
        draft.replace(path)


def _files(folder: Path) -> Generator[tuple[Path, int, int], None, None]:
    try:
        names = os.listdir(folder)  # noqa: PTH208 - names are all that is needed
    except FileNotFoundError:
        return
    for name in names:
        pid, dash, ticks = name.partition("-")
        if dash and pid.isdecimal() and ticks.isdecimal():
            yield folder / name, int(pid), int(ticks)


def _size(path: Path) -> int:
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return 0


@contextlib.contextmanager
def _locked(folder: Path) -> Generator[None, None, None]:
    descriptor = os.open(folder / ".lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
