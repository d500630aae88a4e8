"""What goes wrong in callbacks of the event loop is in the log, unless it is none of the product's faults."""

import asyncio
import logging
import socket
from pathlib import Path

import anyio
import pytest
import uvloop

from vllm_mm.main.server import report


async def _cancelled_as_it_becomes_readable(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()
        async with await anyio.connect_unix(path) as stream:
            other, _ = listener.accept()
            with other:
                waiting = asyncio.ensure_future(stream.receive())
                await asyncio.sleep(0)
                await asyncio.sleep(0)
                other.send(b"x")
                waiting.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await waiting
                for _ in range(5):
                    await asyncio.sleep(0)


def test_a_cancelled_wait_for_a_socket_is_no_fault(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)

    async def run() -> None:
        asyncio.get_running_loop().set_exception_handler(report)
        await _cancelled_as_it_becomes_readable(tmp_path / "s")

    uvloop.run(run())
    told = [(r.levelname, r.getMessage()[:35]) for r in caplog.records if "Future" in r.getMessage() or r.exc_info]
    assert told == [("DEBUG", "a cancelled wait for a socket was a")]


def test_any_other_is_logged_with_its_trace(caplog: pytest.LogCaptureFixture) -> None:
    async def run() -> None:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(report)
        loop.call_soon(lambda: 1 // 0)
        settled: asyncio.Future[None] = loop.create_future()
        settled.set_result(None)
        loop.call_soon(lambda: settled.set_result(None))
        await asyncio.sleep(0.01)

    uvloop.run(run())
    found = [r.exc_info[0] for r in caplog.records if r.exc_info]
    assert found == [ZeroDivisionError, asyncio.InvalidStateError]
