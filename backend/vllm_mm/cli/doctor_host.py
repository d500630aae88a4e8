"""What `doctor` looks at on the machine itself: the GPU's driver, environments with vLLM in them, what an earlier server left."""

import asyncio
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from vllm_mm.cli.checks import Finding, Status
from vllm_mm.cli.held import held
from vllm_mm.cli.output import count
from vllm_mm.clock import RealClock
from vllm_mm.domain.flags import Checked
from vllm_mm.domain.specs import EngineKind, ModelSpec
from vllm_mm.engine import procfs
from vllm_mm.engine.devices.gpus import DriverMissingError, NvmlSource
from vllm_mm.engine.flags import FlagBook
from vllm_mm.settings import Settings

_NVIDIA: Final = "0x10de"
_DISPLAY: Final = ("0x0300", "0x0302", "0x0380")
"""PCI classes of a graphics card, of one without a display, and of the rest."""
_VERSION: Final = re.compile(r"(?:Kernel Module(?: for \S+)?|Module)\s+(\d+(?:\.\d+)+)")
_PLACES: Final = (
    "{home}/*conda*/envs/*/bin/vllm", "{home}/*conda*/bin/vllm", "{home}/*forge*/envs/*/bin/vllm", "{home}/*forge*/bin/vllm",
    "/opt/*conda*/envs/*/bin/vllm", "/opt/*conda*/bin/vllm", "/opt/*/bin/vllm", "{home}/.virtualenvs/*/bin/vllm",
    "{home}/*venv*/bin/vllm", "{home}/*/.venv/bin/vllm", "{home}/*/venv/bin/vllm", "{home}/.local/bin/vllm",
    "{home}/.local/share/vllm-mm/*/bin/vllm", "{cwd}/.venv/bin/vllm", "{cwd}/venv/bin/vllm",
)  # fmt: skip
"""Where people make environments: conda and its relatives, virtualenvwrapper, a folder in a project, our own installer."""
MOST: Final = 5
"""Environments that are named."""


def arguments(settings: Settings, models: Iterable[ModelSpec]) -> Iterator[Finding]:
    """What engines say themselves of the arguments that they would be started with; nothing of engines that cannot be asked. The first
    time takes seconds."""
    asked = [spec for spec in models if spec.engine is EngineKind.VLLM and spec.args]

    async def ask() -> Checked:
        book = FlagBook(settings.paths.cache_dir / "flags", os.environ, RealClock())
        try:
            return await book.check(asked)
        finally:
            book.close()

    checked = asyncio.run(ask()) if asked else Checked()
    for model, name, what in checked.wrong:
        yield Finding(
            f"arguments of {model}", Status.FAIL, f"args.{name}: {what}", "correct it; until then it is not started"
        )
    for note in checked.notes:
        yield Finding(
            "arguments", Status.WARN, note, "they are taken as they are; a wrong one shows when the engine starts"
        )
    if asked and not checked.wrong and not checked.notes:
        yield Finding("arguments", Status.OK, f"taken by the engines of {', '.join(spec.id for spec in asked)}")


def gpu_driver(
    sys: Path = Path("/sys/bus/pci/devices"),
    proc: Path = Path("/proc/driver/nvidia/version"),
    source: Callable[[], object] = NvmlSource,
) -> Finding:
    """Whether the NVIDIA driver is there, and answers."""
    cards = _cards(sys)
    try:
        text = proc.read_text()
    except OSError:
        if cards:
            return Finding(
                "gpu driver", Status.WARN, f"{count(cards, 'NVIDIA GPU')} and no driver for it",
                "install NVIDIA's driver; in a container, start it with `--gpus all`",
            )  # fmt: skip
        return Finding("gpu driver", Status.OK, "no NVIDIA GPU here")
    found = _VERSION.search(text)
    version = found[1] if found else "of an unknown version"
    try:
        source()
    except DriverMissingError as error:
        advice = "a container needs `--gpus all`; after an update of the driver restart the machine; see what nvidia-smi says"
        return Finding("gpu driver", Status.FAIL, f"driver {version} is loaded, but {error}", advice)
    except (OSError, ImportError) as error:
        return Finding(
            "gpu driver", Status.FAIL, f"driver {version} is loaded, but: {error}", "see what nvidia-smi says"
        )
    return Finding("gpu driver", Status.OK, f"NVIDIA driver {version}")


def _cards(sys: Path) -> int:
    found = 0
    for device in sys.glob("*"):
        try:
            kind, vendor = (device / "class").read_text().strip(), (device / "vendor").read_text().strip()
        except OSError:
            continue
        found += vendor == _NVIDIA and kind.startswith(_DISPLAY)
    return found


def environments(environ: Mapping[str, str], cwd: Path) -> Sequence[Path]:
    """Programs called `vllm` in environments on this machine, whether or not they are on the PATH."""
    home = environ.get("HOME", "/nonexistent")
    patterns = [place.format(home=home, cwd=cwd) for place in _PLACES]
    patterns += [f"{environ[name]}/bin/vllm" for name in ("VIRTUAL_ENV", "CONDA_PREFIX") if environ.get(name)]
    try:  # conda writes all of its environments down
        known = (Path(home) / ".conda" / "environments.txt").read_text().splitlines()
    except OSError:
        known = []
    patterns += [f"{line.strip()}/bin/vllm" for line in known if line.strip().startswith("/")]
    found: dict[Path, None] = {}
    for pattern in patterns:
        for path in sorted(Path("/").glob(pattern.lstrip("/"))):
            if path.is_file() and os.access(path, os.X_OK):
                found.setdefault(path)
    return tuple(found)


def other_environments(missing: bool, used: Sequence[Path], environ: Mapping[str, str], cwd: Path) -> Iterator[Finding]:
    """One finding at most, about environments with vLLM that no model uses. `missing`: a model wants `vllm`, and there is none
    on the PATH. `used`: the programs that models start."""
    there = {path.resolve() for path in used}
    found = [path for path in environments(environ, cwd) if path.resolve() not in there]
    if not found:
        return
    shown = ", ".join(map(str, found[:MOST])) + (f" and {len(found) - MOST} more" if len(found) > MOST else "")
    if missing:
        yield Finding("environments", Status.WARN, f"vLLM is at {shown}", f"set `executable: {found[0]}` to use it")
    else:
        yield Finding("environments", Status.OK, f"vLLM is also at {shown}; `executable` of a model names another one")


def orphans(settings: Settings, owner: str | None) -> Finding:
    """Processes of engines that an earlier server started and that no server owns now. `owner` as of `owner_of`."""
    if owner is None:
        return Finding("orphans", Status.OK, "no server has run here before")
    mine: list[int] = []
    for pid in procfs.pids():
        marks = procfs.read_marks(pid)
        if pid != os.getpid() and marks is not None and marks.owner == owner and marks.launch:
            mine.append(pid)
    if held(settings.paths.data_dir):
        return Finding(
            "orphans", Status.OK, f"none: the engines that run ({count(len(mine), 'pid')}) are the running server's"
        )
    if not mine:
        return Finding("orphans", Status.OK, "none")
    shown = " ".join(map(str, sorted(mine)[:20]))
    return Finding(
        "orphans", Status.WARN, f"engines of an earlier server still run, without one (pids {shown})",
        "start the server: it adopts those that are well and ends the others; or end them: `kill " + shown + "`",
    )  # fmt: skip


def owner_of(settings: Settings) -> str | None:
    """The mark of this installation's engines; None where no server has run yet."""
    return asyncio.run(_owner(settings))


async def _owner(settings: Settings) -> str | None:
    from vllm_mm.domain.errors import MMError  # noqa: PLC0415  # SQLAlchemy takes its time
    from vllm_mm.store import migrate  # noqa: PLC0415  # as above
    from vllm_mm.store.database import Database  # noqa: PLC0415  # as above
    from vllm_mm.store.meta import known_installation  # noqa: PLC0415  # as above

    try:
        if await migrate.current(settings.database_url) is None:
            return None
    except MMError:
        return None  # `database` tells of it
    database = Database(settings.database_url)
    try:
        return await known_installation(database)
    except MMError:
        return None
    finally:
        await database.close()
