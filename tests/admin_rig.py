"""The admin API over a whole engine layer with fakes for processes only: real manager, queue, database and journal."""

import asyncio
import contextlib
import os
import socket
import sqlite3
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import uvicorn
from fastapi import FastAPI

import vllm_mm
from fakes_engine import World, world
from vllm_mm.api.app import create_app
from vllm_mm.api.dependencies import Services
from vllm_mm.api.metrics import Metrics
from vllm_mm.api.signing import SignIns
from vllm_mm.clock import Clock, RealClock
from vllm_mm.control.configuration import CheckArguments, Configuration, no_check
from vllm_mm.control.declarations import Declarations
from vllm_mm.control.device_leases import DeviceLeases
from vllm_mm.control.in_force import InForce
from vllm_mm.control.profiles import Profiles
from vllm_mm.control.pulls import Pulls
from vllm_mm.control.schedules import Schedules
from vllm_mm.control.weights import Weights
from vllm_mm.domain.keys import Key, Scope, digest
from vllm_mm.domain.specs import ModelSpec
from vllm_mm.domain.usage import Outcome, RequestRecord, Usage
from vllm_mm.gateway.capture_book import CaptureBook
from vllm_mm.gateway.identity import Keyring
from vllm_mm.gateway.limits import LimitBook
from vllm_mm.settings import Settings, load, load_with_places
from vllm_mm.store import migrate
from vllm_mm.store.audit import Audit
from vllm_mm.store.database import Database
from vllm_mm.store.device_leases import DeviceLeaseStore
from vllm_mm.store.journal import Journal
from vllm_mm.store.keys import Keys
from vllm_mm.store.launches import Launches
from vllm_mm.store.models import Models
from vllm_mm.store.profiles import ActiveProfileStore
from vllm_mm.store.series import Series
from vllm_mm.store.sessions import Sessions
from vllm_mm.store.usage import Ledger
from vllm_mm.store.usage_hours import UsageHours

ADMIN, OPERATE, READ, INFER = "mm-admin", "mm-operate", "mm-read", "mm-infer"


SCOPES = {ADMIN: Scope.ADMIN, OPERATE: Scope.OPERATE, READ: Scope.READ, INFER: Scope.INFER}


ROW = RequestRecord(
    id="req_1", request_id="mine", at=1.0, route="/v1/chat/completions", model="a", asked="a", key="key_x", stream=True,
    outcome=Outcome.OK, status=200, error=None, queued_s=0.1, ttft_s=0.2, total_s=1.5, bytes_in=10, bytes_out=20,
    usage=Usage(3, 4, None), generation=1,
)  # fmt: skip


def keyring(clock: Clock) -> Keyring:
    """Four keys, one for each scope, named after it."""
    made = Keyring(clock)
    made.replace(
        Key(f"key_{scope}", f"ada-{scope}", digest(secret), frozenset({scope})) for secret, scope in SCOPES.items()
    )
    return made


@dataclass
class Admin:
    """The API and what it works on."""

    world: World
    services: Services
    database: Database
    app: FastAPI
    client: httpx.AsyncClient
    """With the administrator's key."""

    def as_(self, secret: str | None) -> httpx.AsyncClient:
        headers = {"Authorization": f"Bearer {secret}"} if secret else {}
        return httpx.AsyncClient(transport=httpx.ASGITransport(self.app), base_url="http://mm", headers=headers)


def settings(tmp: Path, **changes: Any) -> Settings:
    """Those of a fresh directory."""
    return load(overrides={"paths.data_dir": str(tmp / "data"), **changes}, cwd=tmp)


_BLANK: list[bytes] = []


async def blank_database(tmp: Path) -> bytes:
    """A migrated database without rows; the migration runs once in a test run."""
    if not _BLANK:
        path = tmp / "blank.db"
        await migrate.upgrade(f"sqlite+aiosqlite:///{path}", None)
        with contextlib.closing(sqlite3.connect(path)) as connection:
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        _BLANK.append(path.read_bytes())
    return _BLANK[0]


@contextlib.asynccontextmanager
async def admin(
    tmp: Path,
    *specs: ModelSpec,
    engines: Mapping[str, Any] | None = None,
    clock: Clock | None = None,
    check: CheckArguments = no_check,
    hub: str = "http://127.0.0.1:1",
    **changes: Any,
) -> AsyncIterator[Admin]:
    """`engines`: what `fakes_engine.world` takes; `check`: what engines say of arguments; `hub`: where weights come from; `changes`: settings by dotted key."""
    overrides = {"paths.data_dir": str(tmp / "data"), **changes}
    loaded = load_with_places(overrides=overrides, cwd=tmp)
    configured = loaded.settings
    configured.paths.data_dir.mkdir()
    (configured.paths.data_dir / "state.db").write_bytes(await blank_database(tmp))
    database = Database(configured.database_url)
    journal = await Journal.open(database, RealClock())
    async with world(*specs, **(engines or {})) as it:
        # The fakes' journal remembers; the real one tells the API.
        remembered = it.journal.emit

        def emit(kind: str, **rest: Any) -> Any:
            remembered(kind, **rest)
            return journal.emit(kind, **rest)

        it.journal.emit = emit  # type: ignore[method-assign]
        in_force, stored = InForce(it.manager, configured), Models(database)
        limits = LimitBook(it.clock, UsageHours(database, RealClock()).spent)
        keys = keyring(it.clock)
        keys.on_replace = limits.use
        environment = {
            "PATH": os.environ["PATH"], "HF_HOME": str(tmp / "hf"), "HF_ENDPOINT": hub,
            "PYTHONPATH": str(Path(vllm_mm.__file__).parents[1]),  # the code under test, which need not be the installed one
        }  # fmt: skip
        audit = Audit(database, RealClock())
        pulls = Pulls(environment, it.journal, RealClock())
        services = Services(
            manager=it.manager,
            queue=it.queue,
            in_force=in_force,
            configuration=Configuration(
                loaded,
                lambda: load_with_places(overrides=overrides, cwd=tmp),
                in_force,
                it.manager,
                stored,
                it.journal,
                it.clock,
                check,
                audit,
            ),
            declarations=Declarations(in_force, it.manager, it.queue, stored, RealClock(), check),
            pulls=pulls,
            weights=Weights(environment, lambda: it.manager.catalog, stored, pulls, it.journal, RealClock()),
            profiles=Profiles(in_force, it.manager, ActiveProfileStore(database), it.journal, it.clock, None, audit),
            journal=journal,
            launches=Launches(database, RealClock()),
            ledger=Ledger(database),
            keys=Keys(database, it.clock),
            keyring=keys,
            settings=configured,
            clock=clock or it.clock,
            version="1.2.3",
            started_at=RealClock().wall(),
            metrics=Metrics(it.manager, it.queue, "1.2.3"),
            device_leases=DeviceLeases(it.manager, DeviceLeaseStore(database), it.journal, it.clock),
            schedules=Schedules(it.manager, clock or it.clock, configured.timezone),
            captures=CaptureBook(configured.captures, configured.paths.data_dir, RealClock()),
            audit=audit,
            usage=UsageHours(database, RealClock()),
            series=Series(database, RealClock(), configured.series.kept),
            limits=limits,
            sign_ins=SignIns(configured.auth, b"pepper", keys, it.clock, Sessions(database)),
        )
        services.audit.start()
        app = create_app(services)
        following = asyncio.get_running_loop().create_task(services.metrics.follow(journal))
        lending = asyncio.get_running_loop().create_task(services.device_leases.run())
        made = Admin(it, services, database, app, httpx.AsyncClient())
        try:
            async with made.as_(ADMIN) as client:
                made.client = client
                yield made
        finally:
            await pulls.close()
            following.cancel()
            lending.cancel()
            await services.audit.close()
            await journal.close()
            await database.close()


@contextlib.asynccontextmanager
async def serving(app: FastAPI) -> AsyncIterator[str]:
    """The application on a real socket, for what streams; gives its URL."""
    config = uvicorn.Config(
        app, host="127.0.0.1", port=0, log_level="warning", lifespan="off", timeout_graceful_shutdown=2
    )
    server = uvicorn.Server(config)
    server.install_signal_handlers = lambda: None  # type: ignore[attr-defined]
    # With the protocol given, asyncio sets TCP_NODELAY on what it accepts; else each answer may wait 40 ms for an ACK.
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP) as sock:
        sock.bind(("127.0.0.1", 0))
        task = asyncio.get_running_loop().create_task(server.serve(sockets=[sock]))
        while not server.started:
            await asyncio.sleep(0.005)
        try:
            yield f"http://127.0.0.1:{sock.getsockname()[1]}"
        finally:
            server.should_exit = True
            await task
