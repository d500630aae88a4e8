"""The making of the engine core process, and its load."""

import os
import signal
import socket
import time

from vllm_mm.sim.core import EngineCore, hang
from vllm_mm.sim.loading import Enter, Info, Progress, Wait, core_steps
from vllm_mm.sim.log import Log
from vllm_mm.sim.memory import LoadError, Memory, check_max_model_len, ranks_of
from vllm_mm.sim.options import Options
from vllm_mm.sim.title import set_title
from vllm_mm.sim.workers import Workers, fork_workers


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
    workers = fork_workers(options, line)
    memory = Memory(options, ranks_of(options, workers.pids or [os.getpid()]))
    try:
        _load(options, log, memory, workers)
    except LoadError as error:
        log.alarm("core.py:1482", f"EngineCore failed to start.\nTraceback (most recent call last):\n{error}")
        log.trace(str(error))
        workers.end()
        return 1
    return EngineCore(options, log, memory, workers, line).serve()


def _load(options: Options, log: Log, memory: Memory, workers: Workers) -> None:
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
                if seconds > 0 and workers.dead(seconds):
                    workers.shut_down(log)
                    raise LoadError("RuntimeError: Executor failed.")
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
