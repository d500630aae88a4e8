"""From the command line to the exit code: the life of the API server process.

Exit codes are vLLM's: 2 for a bad argument, 1 for a load that failed or an address that is taken, 0 for a stop that was asked
for *and* for a core that died, -SIGTERM (143) for a TERM before the handlers are in place. A TERM during the load is swallowed.
A TERM with requests under way ends the core, answers nobody, and waits until the clients have gone.
"""

import os
import select
import signal
import socket
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from types import FrameType

from vllm_mm.sim.core import hang
from vllm_mm.sim.fork import fork_core
from vllm_mm.sim.imports import pay
from vllm_mm.sim.loading import Enter, Info, ready_steps, server_steps
from vllm_mm.sim.log import Log
from vllm_mm.sim.options import Options, parse_options

_PATIENCE = 600.0
"""Seconds that the server goes on waiting for a core that was ended by TERM during the load."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one simulated engine until it ends; returns the exit code."""
    options = parse_options(sys.argv[1:] if argv is None else argv, os.environ)
    pay(options.profile.imports)
    log = Log("APIServer")
    faults = options.profile.fault
    signal.signal(signal.SIGTERM, _swallow)
    for step in server_steps(options):
        if isinstance(step, Info):
            log.note(step.where, step.message)
        elif isinstance(step, Enter):
            if faults.hang_at == step.phase:
                hang()
            if faults.die_at == step.phase:
                log.trace(f"RuntimeError: simulated failure in phase {step.phase}")
                return faults.die_code
    try:
        listener = _bind(options)
    except OSError as error:
        log.trace(f"OSError: [Errno {error.errno}] {os.strerror(error.errno or 0)}")
        return 1
    pid, line = fork_core(options, listener)
    if (code := _wait_for_core(options, log, pid, line)) is not None:
        return code
    for info in ready_steps(options):
        log.note(info.where, info.message)
    # Only now: the core does without asyncio, and the imports take longer than everything else.
    from vllm_mm.sim.server import serve  # noqa: PLC0415

    return serve(options, log, listener, pid, line)


def _swallow(_signal: int, _frame: FrameType | None) -> None:
    """TERM during the load does nothing."""


def _bind(options: Options) -> socket.socket:
    """Bound but not listening: connections are refused until the engine is ready. Raises OSError."""
    if options.uds:
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        listener.bind(options.uds)
        Path(options.uds).chmod(0o666)
        return listener
    listener = socket.socket(socket.AF_INET6 if ":" in options.host else socket.AF_INET, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind((options.host, options.port))
    return listener


def _wait_for_core(options: Options, log: Log, pid: int, line: socket.socket) -> int | None:
    """None when it is ready, else the exit code."""
    select.select([line], [], [])
    if line.recv(1, socket.MSG_PEEK):
        _read_line(line)
        return None
    _, status = os.waitpid(pid, 0)
    code = os.waitstatus_to_exitcode(status)
    if options.profile.fault.exit_0:
        return 0
    if code == -signal.SIGTERM:
        deadline = time.monotonic() + _PATIENCE
        while (left := deadline - time.monotonic()) > 0:
            time.sleep(left)
    message = "Engine core initialization failed. See root cause above. "
    log.trace(f"RuntimeError: {message}Failed core proc(s): {{'EngineCore': {code}}}")
    return options.profile.fault.die_code


def _read_line(line: socket.socket) -> None:
    while line.recv(1) not in (b"\n", b""):
        pass
