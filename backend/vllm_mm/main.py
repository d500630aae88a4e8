"""The composition root: the only place where concrete classes meet. Everything else is handed what it works with."""

import asyncio
import contextlib
import fcntl
import logging
import os
import signal
import sys
import time
from collections.abc import AsyncGenerator, Coroutine, Generator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import uvicorn
import uvloop

from vllm_mm import __version__
from vllm_mm.api.app import create_app
from vllm_mm.api.dependencies import Services
from vllm_mm.api.metrics import Metrics
from vllm_mm.api.problems import explain
from vllm_mm.api.protocol import hot_protocol
from vllm_mm.cli.app import build
from vllm_mm.cli.options import ServeOptions
from vllm_mm.clock import Clock, RealClock
from vllm_mm.control import boot, declared, reload, rules
from vllm_mm.control.declarations import Declarations
from vllm_mm.control.desired import Keeper
from vllm_mm.control.idle import IdleWatch
from vllm_mm.control.readings import Readings
from vllm_mm.control.shutdown import hand_over, hurry, shutdown
from vllm_mm.domain.catalog import Catalog
from vllm_mm.domain.errors import ConfigError, MMError
from vllm_mm.domain.usage import RequestRecord
from vllm_mm.engine.devices import DeviceEntry, build_inventory
from vllm_mm.engine.instance import Tools, real_channels
from vllm_mm.engine.launchers.local import LocalLauncher, become_subreaper
from vllm_mm.engine.manager import ProcessManager
from vllm_mm.engine.queue import InferenceQueue
from vllm_mm.gateway.forward import Gateway
from vllm_mm.gateway.identity import Keyring
from vllm_mm.gateway.ports import Rules
from vllm_mm.settings import Settings, SettingsError, load
from vllm_mm.store.behind import WriteBehind
from vllm_mm.store.database import Database
from vllm_mm.store.journal import Journal
from vllm_mm.store.keys import Keys
from vllm_mm.store.launches import Launches
from vllm_mm.store.meta import installation
from vllm_mm.store.migrate import upgrade
from vllm_mm.store.models import Models
from vllm_mm.store.retention import Retention
from vllm_mm.store.usage import Ledger

log = logging.getLogger("vllm_mm")


def run() -> None:
    """The `vllm-mm` command."""
    build(serve)()


def serve(options: ServeOptions) -> int:
    """Run the server until it is told to stop; returns the exit code."""
    try:
        settings = _settings(options)
        _log_to_stderr(settings)
        with _alone(settings.paths.data_dir):
            return uvloop.run(_serve(settings, options))
    except SettingsError as error:
        print(error, file=sys.stderr)
    except ConfigError as error:
        print(f"vllm-mm: {error.message}", file=sys.stderr)
    return 1


def _settings(options: ServeOptions) -> Settings:
    return load(options.config, options.overrides(), os.environ)


def _log_to_stderr(settings: Settings) -> None:
    line = "%(asctime)s %(levelname)-7s %(name)s: %(message)s"
    if settings.log.format == "json":
        line = '{"at":"%(asctime)s","level":"%(levelname)s","logger":"%(name)s","message":"%(message)s"}'
    logging.basicConfig(level=settings.log.level.upper(), format=line, stream=sys.stderr)
    logging.getLogger("alembic").setLevel(logging.WARNING)
    logging.getLogger("httpx").setLevel(logging.WARNING)  # one line per health poll otherwise
    logging.getLogger("httpcore").setLevel(logging.WARNING)


@contextlib.contextmanager
def _alone(data_dir: Path) -> Generator[None]:
    """One controller per data directory. Raises ConfigError when there is another."""
    path = rules.private(data_dir) / "lock"
    with path.open("a+") as lock:
        end = time.monotonic() + 10.0  # the one before us may be handing its engines over
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except OSError as error:
                if time.monotonic() > end:
                    raise ConfigError(
                        f"another vllm-mm serves from {data_dir}. Stop it, or give this one its own --data-dir."
                    ) from error
                time.sleep(0.05)
        yield


@dataclass(slots=True)
class Server:
    """The running product, made by `assemble`."""

    settings: Settings
    clock: Clock
    manager: ProcessManager
    queue: InferenceQueue
    journal: Journal
    keyring: Keyring
    services: Services
    gateway: Gateway
    models: Models
    admin_secret: str | None
    notes: tuple[str, ...]


@contextlib.asynccontextmanager
async def assemble(settings: Settings) -> AsyncGenerator[Server]:
    """Everything but the listening socket; engines of an earlier controller are settled when it begins."""
    clock = RealClock()
    data_dir = rules.private(settings.paths.data_dir)
    migration = await upgrade(settings.database_url, data_dir / "backups" if settings.database.backup else None, clock)
    if migration.changed and migration.before is not None:
        log.info("the database is now at revision %s; the copy of before is %s", migration.after, migration.backup)
    async with contextlib.AsyncExitStack() as stack:
        database = Database(settings.database_url)
        stack.push_async_callback(database.close)
        owner = await installation(database)
        places = rules.places(settings, owner, sys.executable, dict(os.environ))
        journal = await Journal.open(database, clock)
        stack.push_async_callback(journal.close)
        inventory = build_inventory(
            _devices(settings), headroom=settings.device_headroom, owner=owner, ledger_dir=places.sim_ledger, clock=clock
        )
        launches = Launches(database, clock)
        become_subreaper()
        launcher = LocalLauncher(owner, clock)
        inference, control = real_channels()
        tools = Tools(launcher, inventory, launches, journal, clock, inference, control)
        policy, models = rules.policy(settings), Models(database)
        manager = ProcessManager(await _catalog(settings, models), tools, policy, places)
        queue = InferenceQueue(manager, clock, policy)
        manager.attach(queue)
        await manager.load_memory()
        adopted, swept = await boot.adopt_or_sweep(
            manager, launcher, launches, journal, adopt=settings.engines_outlive_controller
        )
        if adopted or swept:
            log.info("engines of an earlier controller: adopted %s, ended %s", adopted or "none", swept or "none")
        queue.start()
        stack.push_async_callback(queue.close)

        keys = Keys(database, clock)
        keyring = Keyring(clock, open_to_all=settings.auth.mode == "none")
        admin_secret = await keys.ensure_admin() if settings.auth.mode == "keys" else None
        keyring.replace(await keys.all())
        metrics = Metrics(manager, queue, __version__)
        ledger = Ledger(database)
        rows = WriteBehind[RequestRecord](ledger.add, clock, name="requests")
        rows.start()
        stack.push_async_callback(rows.close)

        def record(row: RequestRecord) -> None:
            metrics.observe_request(row)
            rows.add(row)

        gateway = Gateway(manager, keyring, record, explain, clock, _gateway_rules(settings))
        services = Services(
            manager=manager, queue=queue, declarations=Declarations(manager, queue, models, settings, clock), journal=journal,
            launches=launches, ledger=ledger, keys=keys, keyring=keyring, settings=settings, clock=clock,
            version=__version__, started_at=clock.wall(), metrics=metrics,
            checks=(rows.problem,),
        )  # fmt: skip
        background: list[Coroutine[Any, Any, None]] = [
            Keeper(manager, clock).run(),
            IdleWatch(manager, clock).run(),
            Readings(manager, inventory, launches, clock).run(),
            Retention(database, journal, settings.retention, clock).run(),
            metrics.follow(journal),
        ]
        tasks = [asyncio.create_task(work) for work in background]
        stack.push_async_callback(_cancel, tasks)
        yield Server(
            settings, clock, manager, queue, journal, keyring, services, gateway, models, admin_secret, inventory.notes
        )


async def _cancel(tasks: list[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()
    for result in await asyncio.gather(*tasks, return_exceptions=True):
        if isinstance(result, Exception):
            log.error("a background task had failed", exc_info=result)


async def _catalog(settings: Settings, models: Models) -> Catalog:
    stored = {m.id: m.declaration for m in await models.all()}
    good, bad = declared.usable(settings, stored)
    for model, reason in bad.items():
        log.warning("the model %r, made over the API, is left out: %s", model, reason)
    return declared.catalog(settings, good)


def _devices(settings: Settings) -> Literal["auto", "cpu"] | Sequence[DeviceEntry]:
    if isinstance(settings.devices, str):
        return settings.devices
    return [DeviceEntry(d.id, d.memory, d.headroom, d.simulated) for d in settings.devices]


def _gateway_rules(settings: Settings) -> Rules:
    return Rules(
        max_wait=settings.queue.max_wait, request_timeout=settings.queue.request_timeout, body=settings.limits.body,
        header=settings.limits.header, header_timeout=settings.limits.header_timeout,
        keep_alive=settings.server.keep_alive, connections=settings.limits.connections,
        origins=frozenset(o.encode() for o in settings.cors.origins),
    )  # fmt: skip


class _Uvicorn(uvicorn.Server):
    """Signals are ours: the engines have to end, or be handed over, in the right order."""

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None]:
        yield


async def _serve(settings: Settings, options: ServeOptions) -> int:
    async with assemble(settings) as server:
        uv = _Uvicorn(
            uvicorn.Config(
                create_app(server.services), http=hot_protocol(server.gateway), host=settings.server.host,
                port=settings.server.port, lifespan="off", access_log=False, log_config=None, server_header=False,
                timeout_keep_alive=int(settings.server.keep_alive), backlog=2048,
                timeout_graceful_shutdown=int(settings.server.shutdown_grace) + 5, ws="none",
            )  # fmt: skip
        )
        end = _End(server, uv, options)
        end.listen()
        serving = asyncio.create_task(uv.serve())
        await _until_started(uv, serving)
        if uv.started:
            _announce(server, uv)
        await serving
        return await end.finish()


async def _until_started(uv: _Uvicorn, serving: asyncio.Task[None]) -> None:
    """uvicorn exits the process when it cannot bind; here that becomes an error like any other."""
    while not uv.started and not serving.done():
        await asyncio.sleep(0.005)
    if serving.done() and not serving.cancelled() and isinstance(serving.exception(), SystemExit):
        raise ConfigError(
            f"cannot listen on {uv.config.host}:{uv.config.port}: the port is taken or not allowed. Choose another with --port."
        )


def _announce(server: Server, uv: _Uvicorn) -> None:
    port = uv.servers[0].sockets[0].getsockname()[1]
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

    def __init__(self, server: Server, uv: _Uvicorn, options: ServeOptions) -> None:
        self._server = server
        self._uv = uv
        self._options = options
        self._handing_over = False
        self._stopping: asyncio.Task[bool] | None = None
        self._reloading: asyncio.Task[None] | None = None

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
            return
        grace = self._server.settings.server.shutdown_grace
        log.info("ending: requests in flight have %.0f s (another signal hurries)", grace)
        self._server.services.closing.set()
        self._stopping = asyncio.create_task(shutdown(self._server.manager, self._server.clock, grace))
        self._uv.should_exit = True

    def _hand_over(self) -> None:
        log.info("handing the engines over to the next controller")
        self._handing_over = True
        self._server.services.closing.set()
        self._uv.should_exit = True

    def _reload(self) -> None:
        self._reloading = asyncio.create_task(self._apply())

    async def _apply(self) -> None:
        try:
            settings = _settings(self._options)
            catalog = await _catalog(settings, self._server.models)
        except (SettingsError, MMError) as error:
            log.error("the configuration was not reloaded: %s", error)  # noqa: TRY400  # the message says it all
            return
        diff = await reload.apply(self._server.manager, catalog, "reload")
        self._server.services.declarations.use(settings)
        log.info("reloaded: %s", diff)

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


if __name__ == "__main__":
    run()
