"""The making of the engine core process and its workers, and its load."""

import os
import signal
import socket
import time
from typing import NoReturn

from vllm_mm.sim.core import EngineCore, end_workers, hang
from vllm_mm.sim.loading import Enter, Info, Progress, Wait, core_steps
from vllm_mm.sim.log import Log
from vllm_mm.sim.memory import LoadError, Memory, check_max_model_len, ranks_of
from vllm_mm.sim.options import Options
from vllm_mm.sim.profile import Profile
from vllm_mm.sim.title import set_title


def fork_core(options: Options, listener: socket.socket) -> tuple[int, socket.socket]:
    """Start the engine core; returns its pid and the API server's end of the line."""
    ours, theirs = socket.socketpair()
    pid = os.fork()
    if pid:
        theirs.close()
        return pid, ours
    status = 1
    try:
        ours.close()
        listener.close()
        status = _run(options, theirs)
    except BaseException:
        import traceback  # noqa: PLC0415 - only for a fault of our own

        os.write(2, traceback.format_exc().encode())
    finally:
        os._exit(status)


def _run(options: Options, line: socket.socket) -> int:
    set_title("VLLM::EngineCore", keep_environment=not options.profile.fault.wipe_environment)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # Until it is ready the core dies of SIGTERM, and the API server goes on waiting for it.
    signal.signal(signal.SIGTERM, signal.SIG_IGN if options.profile.fault.ignore_term else signal.SIG_DFL)
    if options.profile.fault.leave_session:
        os.setsid()
    log = Log("EngineCore")
    workers = _fork_workers(options, line)
    memory = Memory(options, ranks_of(options, workers or [os.getpid()]))
    try:
        _load(options, log, memory)
    except LoadError as error:
        log.alarm("core.py:1482", f"EngineCore failed to start.\nTraceback (most recent call last):\n{error}")
        log.trace(str(error))
        end_workers(workers)
        return 1
    return EngineCore(options, log, memory, workers, line).serve()


def _fork_workers(options: Options, line: socket.socket) -> list[int]:
    """With several ranks, a process for each; they live `worker_linger` longer than a core that is killed."""
    if options.tensor_parallel_size == 1:
        return []
    alive, keep = os.pipe()
    pids: list[int] = []
    for rank in range(options.tensor_parallel_size):
        pid = os.fork()
        if pid == 0:
            os.close(keep)
            line.close()
            _work(rank, alive, options.profile)
        pids.append(pid)
    os.close(alive)
    return pids


def _work(rank: int, alive: int, profile: Profile) -> NoReturn:
    try:
        set_title(f"VLLM::Worker_TP{rank}", keep_environment=not profile.fault.wipe_environment)
        os.read(alive, 1)
        time.sleep(profile.worker_linger)
    finally:
        os._exit(0)


def _load(options: Options, log: Log, memory: Memory) -> None:
    """Raises LoadError."""
    faults = options.profile.fault
    since = time.monotonic()

    def elapsed() -> float:
        nonlocal since
        before, since = since, time.monotonic()
        return since - before

    for step in core_steps(options, elapsed):
        match step:
            case Info(where, message):
                log.note(where, message)
            case Progress(text, end):
                log.progress(text, end=end)
            case Wait(seconds):
                if seconds > 0:
                    time.sleep(seconds)
            case Enter(phase):
                if faults.hang_at == phase:
                    hang()
                if faults.die_at == phase:
                    raise LoadError(f"RuntimeError: simulated failure in phase {phase}")
                if phase == "init":
                    memory.check_start()
                elif phase == "weights":
                    if faults.exit_0:
                        os._exit(0)
                    memory.load_weights()
                elif phase == "kv_cache":
                    check_max_model_len(options)
                    memory.load_kv_cache()
