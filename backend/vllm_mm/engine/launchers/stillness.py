"""Whether a process that was asked for something works on it. One that was stopped, or waits for what never comes, does not."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator
from pathlib import Path

from vllm_mm.clock import Clock
from vllm_mm.engine import procfs

_LOOKS = 5
"""Without a difference: a standstill."""


def movement(session: int) -> int:
    """Grows with everything that the processes of a session do: CPU time and page faults (proc(5), /proc/PID/stat), so reading
    a large library from a slow disk counts too. Changes when one of them begins or ends. Blocking, some milliseconds."""
    total = 0
    for pid in procfs.pids():
        try:
            data = Path(f"/proc/{pid}/stat").read_bytes()
        except OSError:
            continue
        fields = data[data.rfind(b")") + 1 :].split()
        if len(fields) > 14 and int(fields[3]) == session:
            # minflt, majflt, utime, stime; and those of its children that it has waited for.
            total += pid + sum(map(int, fields[7:15]))
    return total


async def until_still(session: int, clock: Clock, patience: float) -> None:
    """Returns when nothing of it moved for `patience` seconds. Looks are counted, not seconds: after a pause of the whole machine
    there was one."""
    seen, still = -1, 0
    while still < _LOOKS:
        await clock.sleep(patience / _LOOKS)
        now = await asyncio.to_thread(movement, session)
        still = still + 1 if now == seen else 0
        seen = now


@contextlib.asynccontextmanager
async def answered(session: int, clock: Clock, *, deadline: float, patience: float) -> AsyncGenerator[None]:
    """For the exchange with a process that leads `session`. Raises TimeoutError, with how long it was waited for, when the exchange
    takes longer than `deadline` seconds, or when nothing moved there for `patience` seconds."""
    loop = asyncio.get_running_loop()
    still = False

    async def watch() -> None:
        nonlocal still
        await until_still(session, clock, patience)
        still = True
        with contextlib.suppress(RuntimeError):  # the other limit was faster
            limit.reschedule(loop.time())

    try:
        async with asyncio.timeout(deadline) as limit:
            watching = loop.create_task(watch(), name=f"movement in session {session}")
            try:
                yield
            finally:
                watching.cancel()
    except TimeoutError:
        raise TimeoutError(
            f"and did nothing at all for {patience:g} s" if still else f"within {deadline:g} s"
        ) from None
