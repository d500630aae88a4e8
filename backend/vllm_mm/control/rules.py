"""From the settings to what the engine layer works with."""

import contextlib
import os
import stat
import tempfile
from collections.abc import Mapping
from pathlib import Path

import psutil

from vllm_mm.domain.catalog import Catalog
from vllm_mm.domain.errors import ConfigError
from vllm_mm.domain.lifecycle import OnTimeout, Timeouts
from vllm_mm.domain.scheduling import Rules
from vllm_mm.engine.policy import OnTeardown, Places, Policy
from vllm_mm.settings import Settings
from vllm_mm.store.usage import Terms

RUN_PATH_BYTES = 40
"""Longest path of the directory of sockets: what is made inside has to fit into the 107 bytes of `sun_path`."""


ON_DRAIN_TIMEOUT = {"preempt": OnTimeout.FREEZE, "cut": OnTimeout.CUT, "wait": OnTimeout.WAIT}


def policy(settings: Settings) -> Policy:
    """What the engine layer needs of the settings."""
    return Policy(
        rules=Rules(
            settings.swap.max_wait, settings.swap.min_dwell, settings.swap.quantum, settings.swap.placement == "spread"
        ),
        drain_timeout=settings.swap.drain_timeout,
        on_drain_timeout=ON_DRAIN_TIMEOUT[settings.swap.on_drain_timeout],
        on_teardown=OnTeardown(settings.queue.on_teardown),
        max_queue=settings.queue.max_size,
        max_wait=settings.queue.max_wait,
        workers=settings.queue.workers,
        timeouts=Timeouts(
            suspend=settings.timeouts.suspend,
            wake=settings.timeouts.wake,
            stop=settings.timeouts.stop,
            grace=settings.timeouts.stop_grace,
            health=settings.timeouts.health,
            stuck=settings.timeouts.stuck,
        ),
        cancel_unwanted_loads=settings.queue.cancel_unwanted_loads,
        outlive_controller=settings.engines_outlive_controller,
        sleep_budget=sleep_budget(settings.host_memory.sleep_budget, psutil.virtual_memory().total),
    )


def terms(catalog: Catalog, model: str) -> Terms:
    """What usage is reckoned by; of a model that is gone meanwhile, one device and no price."""
    spec = catalog.get(model)
    return Terms() if spec is None else Terms(spec.devices.count, spec.price)


def sleep_budget(declared: int | None, memory: int) -> int:
    """Bytes of host memory for sleeping engines: what was declared, else half of the machine's `memory`."""
    return memory // 2 if declared is None else declared


def places(settings: Settings, owner: str, python: str, environment: Mapping[str, str]) -> Places:
    """Makes the directories. Raises ConfigError when one cannot be used, and says why."""
    data, cache = settings.paths.data_dir, settings.paths.cache_dir
    return Places(
        owner=owner,
        run=private(run_dir(data, owner)),
        logs=private(data / "logs"),
        cache=private(cache),
        sim_ledger=private(data / "sim"),
        python=python,
        environment=environment,
    )


def run_dir(data: Path, owner: str) -> Path:
    """In the data directory where its path is short enough for sockets, else in the system's temporary directory.
    The same one for every controller of this installation."""
    inside = data / "run"
    if len(os.fsencode(inside)) <= RUN_PATH_BYTES:
        return inside
    return Path(tempfile.gettempdir()) / f"vllm-mm-{owner[:12]}"


def spool_dir(settings: Settings, owner: str) -> Path:
    """Where rows are kept that the database does not take: not beside it, for its disk may be full. Made when there are such rows."""
    return settings.database.spool_dir or Path(tempfile.gettempdir()) / f"vllm-mm-{owner[:12]}-spool"


def leave(run: Path) -> None:
    """At the end of the server: takes the directory of sockets away when nothing is in it, as after an end in order."""
    with contextlib.suppress(OSError):  # engines were handed over, or it is gone already
        run.rmdir()


def private(path: Path) -> Path:
    """`path` as a directory that only we can enter."""
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        info = path.lstat()
    except OSError as error:
        raise ConfigError(
            f"the directory {path} cannot be used: {error.strerror}. Set paths.data_dir to one that can."
        ) from error
    if not stat.S_ISDIR(info.st_mode) or info.st_uid != os.geteuid():
        raise ConfigError(
            f"{path} is not a directory of ours (uid {os.geteuid()}). Remove it, or set paths.data_dir elsewhere."
        )
    if stat.S_IMODE(info.st_mode) & 0o077:
        try:
            path.chmod(0o700)
        except OSError as error:
            raise ConfigError(
                f"{path} can be read by others, and that cannot be changed: {error.strerror}. Set paths.data_dir elsewhere."
            ) from error
    return path
