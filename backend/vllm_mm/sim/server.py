"""The API server after the load: listen, serve, watch the core, stop."""

import asyncio
import contextlib
import os
import signal
import socket
import time

from vllm_mm.sim.app import App
from vllm_mm.sim.client import Engine
from vllm_mm.sim.log import Log
from vllm_mm.sim.options import Options
from vllm_mm.sim.service import Service
from vllm_mm.sim.web import WebServer

_BACKLOG = 2048
_KILL_CORE_AFTER = 5.0
"""Seconds from TERM to KILL for a core that does not go."""


def serve(options: Options, log: Log, listener: socket.socket, core: int, line: socket.socket) -> int:
    """Until the end of the process; returns the exit code, which is 0 in every case."""
    code = asyncio.run(_Server(options, log, listener, core, line).run())
    with contextlib.suppress(ChildProcessError):
        os.waitpid(core, 0)
    return code


class _Server:
    def __init__(self, options: Options, log: Log, listener: socket.socket, core: int, line: socket.socket) -> None:
        self._options = options
        self._log = log
        self._listener = listener
        self._core = core
        self._line = line
        self._stop = asyncio.Event()
        self._idle = asyncio.Event()

    async def run(self) -> int:
        loop = asyncio.get_running_loop()
        self._ignore_term(self._options.profile.fault.ignore_term)
        loop.add_signal_handler(signal.SIGINT, self._on_term)
        engine = await Engine.connect(self._line)
        service = Service(
            self._options, self._log, engine, self._options.profile.fault, self._stop.set, self._ignore_term
        )
        app = App(service)
        for line in ("Available routes are:", *app.describe()):
            self._log.note("launcher.py:195", line)
        web = WebServer(app, keep_alive=self._options.keep_alive, on_idle=self._idle.set)
        self._log.server(f"Started server process [{os.getpid()}]")
        self._log.server("Waiting for application startup.")
        server = await loop.create_server(web.connection, sock=self._listener, backlog=_BACKLOG)
        self._log.server("Application startup complete.")
        watchdog = loop.create_task(self._watch(engine))
        await self._stop.wait()
        watchdog.cancel()
        if not engine.dead:
            await self._stop_core(engine)
        server.close()
        self._log.server("Shutting down")
        web.close()
        if web.connections:
            self._log.server("Waiting for connections to close. (CTRL+C to force quit)")
        await self._idle.wait()
        self._log.server("Waiting for application shutdown.")
        self._log.server("Application shutdown complete.")
        return 0

    def _on_term(self) -> None:
        if not self._stop.is_set():
            self._log.note("launcher.py:250", "[shutdown] API server: shutdown triggered")
            self._stop.set()

    def _ignore_term(self, ignore: bool) -> None:
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, (lambda: None) if ignore else self._on_term)

    async def _watch(self, engine: Engine) -> None:
        """Notices a dead core at the next of its looks, as vLLM's watchdog does."""
        period = self._options.profile.watchdog
        begun = time.monotonic()
        await engine.gone.wait()
        if period > 0:
            await asyncio.sleep(period - (time.monotonic() - begun) % period)
        self._log.alarm("core_client.py:700", "Engine core proc EngineCore died unexpectedly, shutting down client.")
        self._stop.set()

    async def _stop_core(self, engine: Engine) -> None:
        timeout = self._options.shutdown_timeout
        mode = "drain" if timeout else "abort"
        self._log.note(
            "launcher.py:267", f"[shutdown] API server: stopping engine client mode={mode} timeout={timeout:g}s"
        )
        if timeout:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(engine.drain(), timeout)
        engine.stopping = True
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._core, signal.SIGTERM)
            try:
                await asyncio.wait_for(engine.gone.wait(), _KILL_CORE_AFTER)
            except TimeoutError:
                os.kill(self._core, signal.SIGKILL)
        self._log.note("launcher.py:274", "[shutdown] API server: engine client stopped")
