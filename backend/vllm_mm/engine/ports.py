"""What the engine layer needs from its neighbours: launching, remembering, telling. Implemented elsewhere, wired in main."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from vllm_mm.domain.estimates import Kind, Times
from vllm_mm.domain.events import Event
from vllm_mm.domain.footprint import Learned
from vllm_mm.domain.launches import Address, LaunchRecord
from vllm_mm.domain.residency import Device, gib
from vllm_mm.domain.sleep import Experience
from vllm_mm.domain.specs import LauncherKind

OWNER_VARIABLE = "MM_ENGINE_OWNER"
"""Environment variable of every engine process: which installation (data directory) started it."""
LAUNCH_VARIABLE = "MM_ENGINE_LAUNCH"
"""Environment variable of every engine process: the token of its launch. Children keep it, whatever they rename themselves to."""


@dataclass(frozen=True, slots=True)
class LaunchPlan:
    """One launch, ready to be executed."""

    model: str
    generation: int
    token: str
    argv: tuple[str, ...]
    env: Mapping[str, str]
    """The whole environment of the process, the two marker variables included."""
    address: Address
    workdir: Path
    """0700, short, of this launch only: socket, TMPDIR; deleted after the reaping."""
    log: Path
    fingerprint: str
    device_bytes: Mapping[str, int] = field(default_factory=dict[str, int])
    launcher: LauncherKind = LauncherKind.AUTO


@dataclass(frozen=True, slots=True)
class ExitStatus:
    """How a leader ended. `code` is None for an adopted engine (not our child, so nobody tells)."""

    code: int | None
    signal: int | None = None

    def __str__(self) -> str:
        if self.signal is not None:
            return f"killed by signal {self.signal}"
        return "exited" if self.code is None else f"exited with code {self.code}"


@dataclass(frozen=True, slots=True)
class Loss:
    """A process of a launch, other than the leader, without which its engine cannot serve (see `parts`), has ended."""

    pid: int
    name: str
    """Its title, such as `VLLM::EngineCore`."""
    status: ExitStatus
    """`code` is None where it cannot be known any more."""

    def __str__(self) -> str:
        how = f", {self.status}" if self.status != ExitStatus(code=None) else ""
        return f"{self.name} (pid {self.pid}{how})"


@dataclass(frozen=True, slots=True)
class SweepReport:
    """What an end of a launch took: orphans are processes of it, other than the leader, that had to be killed."""

    orphans: tuple[tuple[int, str], ...] = ()
    """(pid, name) of each."""
    survivors: tuple[int, ...] = ()
    """Still there at the deadline (uninterruptible sleep); empty means that the whole tree is gone and reaped."""


class EngineProcess(Protocol):
    """A launched or adopted engine. Its log goes to a file that this tails, so that an engine can outlive its controller."""

    @property
    def launcher(self) -> str:
        """How it came into being: `local` or `warm`, also when an earlier controller started it; empty when nobody knows."""
        ...

    @property
    def record(self) -> LaunchRecord: ...

    def follow(self, on_line: Callable[[str], None]) -> Callable[[], None]:
        """Call `on_line` for each log line from now on (also for carriage-return progress lines); returns the way to stop."""
        ...

    def tail(self, lines: int) -> tuple[str, ...]:
        """The last lines, oldest first."""
        ...

    @property
    def written(self) -> int:
        """Log lines that came since this controller reads them. While `on_line` is called, its line is the last of them."""
        ...

    def read_log(self) -> None:
        """Take in now what it has written, instead of some hundredths of a second later."""
        ...

    def rss(self) -> int:
        """Bytes of memory that the whole tree uses now (proportional set size where it can be read)."""
        ...

    @property
    def pids(self) -> Collection[int]:
        """Of the whole tree, at the latest `rss`."""
        ...

    async def exited(self) -> ExitStatus:
        """Returns when the leader is gone (pidfd: at once). Leaves the rest of the tree as it is. May be awaited often."""
        ...

    async def lost(self) -> Loss:
        """Returns when a process of the launch without which it cannot serve is gone (pidfd: at once), though the leader may
        live. Never returns for an end after `stop` or `close` was called, nor for helpers that come and go."""
        ...

    async def take_stock(self) -> None:
        """Look now for the processes that `lost` is about; otherwise that is done once a second."""
        ...

    async def stop(self, *, graceful: bool, grace: float, deadline: float) -> SweepReport:
        """End the whole tree: TERM to the leader and up to `grace` s if `graceful`, then KILL for everything that the
        session, the process group, the parent links or the launch token show, until nothing is left or `deadline` s
        passed; reap; delete the workdir. Safe to call when everything is gone already, and again."""
        ...

    async def close(self) -> None:
        """Let go of it without touching it (hand-over to the next controller): stop tailing, close the pidfd."""
        ...


class Launcher(Protocol):
    """Makes processes from plans, and finds again those of an earlier controller."""

    async def start(self, plan: LaunchPlan) -> EngineProcess:
        """Raises OSError (with a filename) when the executable cannot be run."""
        ...

    def distrust(self, plan: LaunchPlan, reason: str) -> bool:
        """A start of this plan that was not `local` failed for no reason that was recognised: start it `local` from now on,
        until what it depends on changes. True when a start at once would now be another kind of start."""
        ...

    def vindicate(self, plan: LaunchPlan) -> None:
        """A `local` start of the plan failed just as well: it was not the launcher's fault."""
        ...

    async def adopt(self, record: LaunchRecord) -> EngineProcess | None:
        """The running engine of `record`, or None when it is not provably that one."""
        ...

    async def sweep(self, record: LaunchRecord, deadline: float) -> SweepReport:
        """Kill whatever is left of a launch that is not adopted. Never touches a process that is not provably of it."""
        ...

    async def sweep_unknown(self, keep: frozenset[str], deadline: float) -> SweepReport:
        """Kill every process that carries our owner mark and a launch token that is not in `keep` (boot only)."""
        ...


class LaunchStore(Protocol):
    """The `instances` table. Every call is one short transaction."""

    async def save(self, record: LaunchRecord) -> None:
        """Insert or replace the row of (model)."""
        ...

    async def forget(self, model: str, generation: int) -> None: ...

    async def all(self) -> Sequence[LaunchRecord]: ...

    async def footprints(self) -> Mapping[tuple[str, str], Learned]:
        """What launches took, by (spec fingerprint, device set)."""
        ...

    async def learn(self, fingerprint: str, devices: str, known: Learned) -> None: ...

    async def sleeps(self) -> Mapping[tuple[str, int], Experience]:
        """What sleeps taught, by spec fingerprint and level of sleep."""
        ...

    async def slept(self, fingerprint: str, known: Experience) -> None: ...

    async def record_start(
        self, model: str, generation: int, started_at: float, ready_at: float | None,
        phases: Mapping[str, float], outcome: str, reason: str, launcher: str = "",
    ) -> None:  # fmt: skip
        """The history of starts; estimates of load time come from it."""
        ...

    async def took(self, model: str, kind: Kind, seconds: Sequence[float]) -> None:
        """What is remembered of a kind that is no start, newest last."""
        ...

    async def times(self) -> Mapping[str, Times]:
        """How long things took lately, by model."""
        ...


class Journal(Protocol):
    """Numbers events, hands them to listeners at once, and persists them behind."""

    def emit(
        self, kind: str, *, model: str | None = None, cause: str = "", data: Mapping[str, Any] | None = None
    ) -> Event: ...


@dataclass(frozen=True, slots=True)
class ForeignProcess:
    """A process that is not ours and uses memory of a device. `size` in bytes; None where the driver does not tell."""

    device: str
    pid: int
    name: str
    size: int | None

    def __str__(self) -> str:
        return f"{self.name} (pid {self.pid}{'' if self.size is None else f', {gib(self.size)}'})"


class Inventory(Protocol):
    """The devices and what is used on them."""

    def devices(self) -> Sequence[Device]:
        """The latest readings; cheap, no I/O."""
        ...

    def foreign_processes(self) -> Sequence[ForeignProcess]:
        """Who else was seen on the devices at the latest reading."""
        ...

    def age(self) -> float:
        """Seconds since the latest reading."""
        ...

    async def refresh(self, deadline: float = 5.0) -> Sequence[Device]:
        """A new reading; the last one where it takes longer than `deadline` seconds."""
        ...

    def use(self, pids: Collection[int]) -> Mapping[str, int]:
        """Bytes that these processes together held on each device at the latest reading. Devices on which that cannot be told
        (the host's memory; drivers in containers) are left out. Cheap, no I/O."""
        ...

    async def wait_free(self, device_bytes: Mapping[str, int], before: Mapping[str, int], deadline: float) -> bool:
        """After a stop: wait until the use seen on each device fell by about what the instance held (or below `before`).
        False at the deadline (seconds). Devices that cannot be observed count as free once the tree is reaped."""
        ...

    async def held(self, token: str) -> Mapping[str, int]:
        """Bytes that the processes of the launch `token` hold on each device now; nothing for a device where that cannot be
        known. Raises OSError when the devices cannot be read."""
        ...
