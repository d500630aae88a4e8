"""Running the server: one controller per data directory, the listening socket, the signals, and the order of the end."""

import asyncio
import contextlib
import errno
import logging
import os
import signal
import socket
import sys
from collections.abc import Callable, Generator, Mapping
from dataclasses import replace
from typing import Any, Final

import uvicorn
import uvloop

from vllm_mm import __version__
from vllm_mm.api.app import create_app
from vllm_mm.api.protocol import hot_protocol
from vllm_mm.cli.options import ServeOptions
from vllm_mm.control.files import raise_limit
from vllm_mm.control.shutdown import hand_over, hurry, shutdown
from vllm_mm.domain.errors import ConfigError, MMError
from vllm_mm.gateway.memory import settle
from vllm_mm.main.accepting import make_protocol
from vllm_mm.main.alone import alone
from vllm_mm.main.assembly import Server, assemble, gateway_rules
from vllm_mm.main.logs import log_to_stderr
from vllm_mm.main.setup import Setup
from vllm_mm.main.workers import Workers
from vllm_mm.settings import Loaded, Settings, SettingsError, load_with_places

log = logging.getLogger("vllm_mm")

WORKERS_UP: Final = 60.0
"""Seconds for all workers to serve, before the server says that it serves without them."""


def serve(options: ServeOptions) -> int:
    """Run the server until it is told to stop; returns the exit code."""
    try:
        loaded = _load(options)
        settings = loaded.settings
        log_to_stderr(settings.log.level, settings.log.format)
        raise_limit(settings.limits.connections)
        with alone(settings.paths.data_dir):
            return uvloop.run(_serve(loaded, options))
    except SettingsError as error:
        print(error, file=sys.stderr)
    except MMError as error:
        print(f"vllm-mm: {error.message}", file=sys.stderr)
    except OSError as error:
        if error.errno not in {errno.ENOSPC, errno.EDQUOT}:
            raise
        where = f" ({error.filename})" if error.filename else ""
        print(
            f"vllm-mm: no room on the disk{where}: free some, then start again; `vllm-mm doctor` looks", file=sys.stderr
        )
    return 1


def _load(options: ServeOptions) -> Loaded:
    return load_with_places(options.config, options.overrides(), os.environ)


class _Uvicorn(uvicorn.Server):
    """Signals are ours: the engines have to end, or be handed over, in the right order."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.up = asyncio.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.up.set()

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None]:
        yield


def report(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """What goes wrong in callbacks of the loop is logged, but for one thing that is no fault: anyio, below httpx, waits for a
    unix socket by a bare `Future.set_result`; on uvloop that is called once more when the wait is cancelled in the turn in
    which the socket becomes readable."""
    late = isinstance(context.get("exception"), asyncio.InvalidStateError)
    if late and "Future.set_result" in repr(context.get("handle")):
        log.debug("a cancelled wait for a socket was answered: %s", context.get("message"))
    else:
        loop.default_exception_handler(context)


async def _serve(loaded: Loaded, options: ServeOptions) -> int:
    settings = loaded.settings
    asyncio.get_running_loop().set_exception_handler(report)
    # Bound before anything else: a port that is taken must not cost an earlier controller's engines.
    with _bind(settings.server.host, settings.server.port) as listener:
        port, several = listener.getsockname()[1], settings.server
        async with (
            Workers.running(several.workers, listener, several.shutdown_grace) as workers,
            assemble(loaded, lambda: _load(options)) as server,
        ):
            uv = _Uvicorn(_uvicorn_config(settings, server))
            end = _End(server, uv, workers)
            end.listen()
            serving = asyncio.create_task(uv.serve([listener] if workers is None else []))
            up = asyncio.create_task(uv.up.wait())
            await asyncio.wait({serving, up}, return_when=asyncio.FIRST_COMPLETED)
            up.cancel()
            if workers is not None and server.office is not None:
                workers.attach(server.office, lambda: _setup(server), lambda: make_protocol(uv), _teller(server))
                if not await workers.serving(server.office, WORKERS_UP):
                    log.error("not all workers serve yet: %s", server.office.problem())
            settle()
            _announce(server, port)
            await serving
            if workers is not None:
                await workers.ended()
            return await end.finish()


def _setup(server: Server) -> Setup:
    """For a worker that is about to begin. Connections are so many for all together."""
    settings = server.settings
    rules = gateway_rules(settings)
    share = -(-rules.connections // settings.server.workers)
    return Setup(
        rules=replace(rules, connections=share), pepper=server.pepper, open_to_all=settings.auth.mode == "none", any_host=settings.auth.force,
        keep_alive=settings.server.keep_alive, grace=settings.server.shutdown_grace,
        log_level=settings.log.level, log_form=settings.log.format, missing=tuple(server.missing),
        captures=settings.captures, captured=settings.paths.data_dir / "captures",
        traces=settings.traces,
    )  # fmt: skip


def _teller(server: Server) -> Callable[[str, Mapping[str, Any]], object]:
    return lambda kind, data: server.journal.emit(kind, data=data)


def _bind(host: str, port: int) -> socket.socket:
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server((host, port), family=family, backlog=2048)
    except OSError as error:
        raise ConfigError(
            f"cannot listen on {host}:{port}: {error.strerror or error}. Choose another with --host and --port."
        ) from error


def _uvicorn_config(settings: Settings, server: Server) -> uvicorn.Config:
    return uvicorn.Config(
        create_app(server.services),
        http=hot_protocol(server.gateway),
        ws="none",
        lifespan="off",
        access_log=False,
        log_config=None,
        log_level="warning",
        server_header=False,
        timeout_keep_alive=int(settings.server.keep_alive),
        timeout_graceful_shutdown=int(settings.server.shutdown_grace) + 5,
    )


def _announce(server: Server, port: int) -> None:
    for note in server.notes:
        log.info("%s", note)
    if server.admin_secret is not None:
        print(
            f"\n  Admin token, shown this once: {server.admin_secret}\n"
            "  Keep it: export VLLM_MM_TOKEN=... for the command line, or use it as an API key.\n",
            flush=True,
        )
    names = ", ".join(spec.id for spec in server.manager.catalog) or "no models yet: add some to vllm-mm.yaml"
    print(f"vllm-mm {__version__} serves on http://{server.settings.server.host}:{port} ({names})", flush=True)


class _End:
    """SIGTERM and SIGINT end the server in order, a second one hurries; SIGUSR2 hands the engines over; SIGHUP reloads."""

    def __init__(self, server: Server, uv: _Uvicorn, workers: Workers | None) -> None:
        self._server = server
        self._uv = uv
        self._workers = workers
        self._handing_over = False
        self._stopping: asyncio.Task[bool] | None = None
        self._reloads: set[asyncio.Task[None]] = set()

    def listen(self) -> None:
        loop = asyncio.get_running_loop()
        for name in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(name, self._stop)
        loop.add_signal_handler(signal.SIGUSR2, self._hand_over)
        loop.add_signal_handler(signal.SIGHUP, self._reload)

    def _stop(self) -> None:
        if self._stopping is not None:
            log.info("a second signal: ending the engines at once")
            hurry(self._server.manager)
            self._uv.force_exit = True
            if self._workers is not None:
                self._workers.kill()
            return
        grace = self._server.settings.server.shutdown_grace
        log.info("ending: requests in flight have %.0f s (another signal hurries)", grace)
        self._server.services.closing.set()
        self._stopping = asyncio.create_task(shutdown(self._server.manager, self._server.clock, grace))
        self._finish_connections()

    def _hand_over(self) -> None:
        log.info("handing the engines over to the next controller")
        self._handing_over = True
        self._server.services.closing.set()
        self._finish_connections()

    def _finish_connections(self) -> None:
        self._uv.should_exit = True
        if self._workers is not None:
            self._workers.drain()

    def _reload(self) -> None:
        task = asyncio.create_task(self._apply())
        self._reloads.add(task)  # the loop itself keeps no task
        task.add_done_callback(self._reloads.discard)

    async def _apply(self) -> None:
        try:
            await self._server.services.configuration.reload("SIGHUP", actor="signal")
        except MMError as error:
            log.error("the configuration was not reloaded: %s", error.message)  # noqa: TRY400  # the message says it all

    async def finish(self) -> int:
        """After the last connection closed."""
        if self._handing_over:
            await hand_over(self._server.manager)
            return 0
        if self._stopping is None:
            self._stopping = asyncio.create_task(shutdown(self._server.manager, self._server.clock, 0.0))
        if await self._stopping:
            return 0
        log.error("some processes could not be ended; see the events")
        return 1
