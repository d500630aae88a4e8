"""What the server is made of: the only place where concrete classes meet. Everything else is handed what it works with."""

import asyncio
import contextlib
import logging
import os
import sys
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from vllm_mm import __version__
from vllm_mm.api.dependencies import Services
from vllm_mm.api.ledger_metrics import LedgerMetrics
from vllm_mm.api.metrics import Metrics
from vllm_mm.api.openai import OpenAIApp
from vllm_mm.api.problems import explain
from vllm_mm.api.signing import SignIns
from vllm_mm.api.webhook_metrics import WebhookMetrics
from vllm_mm.api.worker_metrics import WorkerMetrics
from vllm_mm.clock import Clock, RealClock
from vllm_mm.control import boot, declared, rules
from vllm_mm.control.arguments import Arguments
from vllm_mm.control.background import Background
from vllm_mm.control.configuration import Configuration
from vllm_mm.control.declarations import Declarations
from vllm_mm.control.desired import Keeper
from vllm_mm.control.device_leases import DeviceLeases
from vllm_mm.control.energy import EnergyMeter
from vllm_mm.control.idle import IdleWatch
from vllm_mm.control.in_force import InForce
from vllm_mm.control.profiles import Profiles
from vllm_mm.control.pulls import Pulls
from vllm_mm.control.readahead import ReadAhead
from vllm_mm.control.readings import Readings
from vllm_mm.control.schedules import Schedules
from vllm_mm.control.series import Sampler
from vllm_mm.control.warmup import Warmup
from vllm_mm.control.weights import Weights
from vllm_mm.domain.audit import Entry
from vllm_mm.domain.catalog import Catalog
from vllm_mm.domain.events import Event
from vllm_mm.domain.keys import Key
from vllm_mm.domain.running import Listing, together
from vllm_mm.domain.series import Row
from vllm_mm.domain.usage import RequestRecord
from vllm_mm.engine.devices import DeviceEntry, build_inventory
from vllm_mm.engine.flags import FlagBook
from vllm_mm.engine.guard import guarded
from vllm_mm.engine.instance import Tools, real_channels
from vllm_mm.engine.launchers.local import LocalLauncher, become_subreaper
from vllm_mm.engine.launchers.pool import ZygotePool
from vllm_mm.engine.launchers.warm import WarmLauncher
from vllm_mm.engine.lending.messages import Learned
from vllm_mm.engine.lending.office import Office
from vllm_mm.engine.manager import ProcessManager
from vllm_mm.engine.queue import InferenceQueue
from vllm_mm.gateway.abilities import Abilities
from vllm_mm.gateway.capture_book import CaptureBook
from vllm_mm.gateway.forward import Gateway
from vllm_mm.gateway.identity import Keyring
from vllm_mm.gateway.limits import LimitBook
from vllm_mm.gateway.ports import Rules
from vllm_mm.gateway.underway import under_way
from vllm_mm.main.ears import Ears
from vllm_mm.main.hooks import webhooks_of
from vllm_mm.main.traces import Tracer, provider_of
from vllm_mm.settings import Loaded, Settings
from vllm_mm.store.audit import Audit
from vllm_mm.store.behind import WriteBehind
from vllm_mm.store.database import Database
from vllm_mm.store.device_leases import DeviceLeaseStore
from vllm_mm.store.journal import Journal
from vllm_mm.store.keys import Keys
from vllm_mm.store.launches import Launches
from vllm_mm.store.meta import installation
from vllm_mm.store.migrate import upgrade
from vllm_mm.store.models import Models
from vllm_mm.store.profiles import ActiveProfileStore
from vllm_mm.store.responses import StoredResponse, StoredResponses
from vllm_mm.store.retention import Retention
from vllm_mm.store.routes import MissingRoute, MissingRoutes
from vllm_mm.store.secret import FILE as SECRET_FILE
from vllm_mm.store.secret import server_secret
from vllm_mm.store.series import Series
from vllm_mm.store.sessions import Sessions
from vllm_mm.store.sole import sole
from vllm_mm.store.spool import Spool
from vllm_mm.store.usage import Ledger
from vllm_mm.store.usage_hours import UsageHours

log = logging.getLogger("vllm_mm")


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
    missing: Sequence[MissingRoute]
    """What engines were known not to have when it began."""
    office: Office | None
    """Who lends leases to workers; None where there are none."""
    pepper: bytes
    """The server's secret (`store.secret`)."""


@contextlib.asynccontextmanager
async def assemble(loaded: Loaded, read: Callable[[], Loaded]) -> AsyncGenerator[Server]:
    """Everything but the listening socket; engines of an earlier controller are settled when it begins. `read` reads the
    configuration again."""
    settings = loaded.settings
    clock = RealClock()
    data_dir = rules.private(settings.paths.data_dir)
    async with contextlib.AsyncExitStack() as stack:
        hold = await stack.enter_async_context(sole(settings.database_url, data_dir, clock, log.warning))
        backups = data_dir / "backups" if settings.database.backup else None
        migration = await upgrade(settings.database_url, backups, clock)
        if migration.changed and migration.before is not None:
            log.info("the database is now at revision %s; the copy of before is %s", migration.after, migration.backup)
        database = Database(settings.database_url)
        stack.push_async_callback(database.close)
        owner = await installation(database)
        places = rules.places(settings, owner, sys.executable, dict(os.environ))
        stack.callback(rules.leave, places.run)
        spool = rules.spool_dir(settings, owner)
        journal = await Journal.open(database, clock, spool=Spool(spool / "events.jsonl", Event))
        stack.push_async_callback(journal.close)
        inventory = build_inventory(
            _devices(settings),
            headroom=settings.device_headroom,
            owner=owner,
            ledger_dir=places.sim_ledger,
            clock=clock,
        )
        launches = Launches(database, clock)
        if not settings.engines_outlive_controller:
            stack.enter_context(guarded(owner))
        become_subreaper()
        pool = ZygotePool(
            owner, clock, logs=places.logs, tmp=places.cache / "zygotes", idle_after=settings.warm.idle_after,
            tell=lambda kind, data: journal.emit(kind, data=data),
        )  # fmt: skip
        launcher = WarmLauncher(
            LocalLauncher(owner, clock, log_size=settings.log.engine_size, log_files=settings.log.engine_files),
            pool,
            lambda kind, model, data: journal.emit(kind, model=model, data=data),
        )
        stack.push_async_callback(launcher.close)
        inference, control = real_channels()
        tools = Tools(launcher, inventory, launches, journal, clock, inference, control)
        policy, models = rules.policy(settings), Models(database)
        manager = ProcessManager(await read_catalog(settings, models), tools, policy, places)
        queue = InferenceQueue(manager, clock, policy)
        manager.attach(queue)
        await manager.load_memory()
        in_force = InForce(manager, settings)
        adopted, swept = await boot.adopt_or_sweep(
            manager, launcher, launches, journal, adopt=settings.engines_outlive_controller
        )
        if adopted or swept:
            log.info("engines of an earlier controller: adopted %s, ended %s", adopted or "none", swept or "none")
        device_leases = DeviceLeases(manager, DeviceLeaseStore(database), journal, clock)
        await device_leases.recover()
        queue.start()
        stack.push_async_callback(queue.close)

        configured = settings.auth.secret
        pepper = server_secret(data_dir, configured.get_secret_value() if configured is not None else None)
        keys = Keys(database, clock, pepper)
        if await keys.of_another_secret():
            log.error(
                "the keys in the database were hashed with another secret than this server has (auth.secret, %s): none of them is "
                "good. Bring that one back, or make keys anew with `vllm-mm keys create NAME --scope admin --local`",
                data_dir / SECRET_FILE,
            )
        keyring = Keyring(
            clock,
            pepper=pepper,
            open_to_all=settings.auth.mode == "none",
            any_host=settings.auth.force,
            origins=(o.encode() for o in settings.cors.origins),
        )
        admin_secret = await keys.ensure_admin() if settings.auth.mode == "keys" else None
        ledger = Ledger(database, lambda model: rules.terms(manager.catalog, model))
        usage = UsageHours(database, clock)
        limits = LimitBook(clock, usage.spent)
        limits.on_over_budget = lambda key, refusal: journal.emit(
            "key.over_budget", cause=f"key {key}",
            data={"key": key, "limit": refusal.limit.value, "reason": refusal.message, "again_in_s": refusal.retry_after},
        )  # fmt: skip
        listeners: list[Callable[[Sequence[Key]], None]] = [limits.use]

        def use_keys(known: Sequence[Key]) -> None:
            for listener in listeners:
                listener(known)

        keyring.on_replace = use_keys
        keyring.replace(await keys.all())
        await limits.recall()
        metrics = Metrics(manager, queue, __version__, launcher.view)
        rows = WriteBehind[RequestRecord](
            ledger.add, clock, name="requests", limit=settings.database.spool,
            spool=Spool(spool / "requests.jsonl", RequestRecord),
        )  # fmt: skip
        rows.start()
        metrics.registry.register(LedgerMetrics(rows))
        stack.push_async_callback(rows.close)

        series = Series(database, clock, settings.series.kept)
        samples = WriteBehind[Row](series.add, clock, name="time series")
        samples.start()
        stack.push_async_callback(samples.close)

        audit = Audit(database, clock, limit=settings.database.spool, spool=Spool(spool / "audit.jsonl", Entry))
        audit.start()
        stack.push_async_callback(audit.close)
        profiles = Profiles(in_force, manager, ActiveProfileStore(database), journal, clock, settings.timezone, audit)
        await profiles.restore()  # before anything is loaded

        routes = MissingRoutes(database)
        learned = WriteBehind[MissingRoute](routes.add, clock, name="routes of engines")
        learned.start()
        stack.push_async_callback(learned.close)
        missing = await routes.all()

        def remember(row: MissingRoute) -> None:
            learned.add(row)
            if office is not None:
                office.learned(Learned(row.fingerprint, row.route, row.generation))

        abilities = Abilities(missing, remember)

        def record(row: RequestRecord) -> None:
            metrics.observe_request(row)
            rows.add(row)

        def taught(row: MissingRoute) -> None:
            abilities.taught(row)
            learned.add(row)

        office = None
        if settings.server.workers > 1:
            office = Office(
                manager, clock, settings.server.workers, Ears(record, taught), settings.timeouts.worker, limits
            )
            listeners.append(office.use_keys)
            office.use_keys(keyring.keys)
            metrics.registry.register(WorkerMetrics(office))
        sign_ins = SignIns(settings.auth, pepper, keyring, clock, Sessions(database))
        await sign_ins.recall()
        background = Background()
        schedules = Schedules(manager, clock, settings.timezone)
        ahead = ReadAhead(manager, settings.warm.read_ahead, places.environment, clock)
        captures = CaptureBook(settings.captures, rules.private(data_dir / "captures"), clock)
        captures.tell(journal)
        stack.push_async_callback(captures.close)
        gateway = Gateway(
            manager, keyring, record, explain, clock, gateway_rules(settings), abilities, captures.start(), limits
        )
        if (provider := provider_of(settings.traces, __version__)) is not None:
            gateway.traces = gateway.realtime.traces = tracer = Tracer(provider, clock)
            stack.push_async_callback(asyncio.to_thread, tracer.close)
        stack.push_async_callback(gateway.responses.background.close)
        stored = StoredResponses(database, clock, settings.limits.responses)
        gateway.responses.restore(await stored.all())
        made = WriteBehind[StoredResponse](stored.add, clock, name="stored responses")
        made.start()
        stack.push_async_callback(made.close)
        gateway.responses.remember = made.add

        async def cancel(request: str, cause: str) -> bool:
            here = gateway.cancel(request, cause)
            return (office is not None and await office.cancel(request, cause)) or here

        async def running(most: int) -> Listing:
            theirs: Sequence[Listing] = () if office is None else await office.running(most)
            return together([under_way(gateway, most), *theirs], most)

        flags = FlagBook(places.cache / "flags", places.environment, clock)
        stack.callback(flags.close)
        arguments = Arguments(manager, flags.check, journal, clock)
        manager.objection = arguments.objection
        pulls = Pulls(places.environment, journal, clock)
        stack.push_async_callback(pulls.close)
        weights = Weights(places.environment, lambda: manager.catalog, models, pulls, journal, clock)
        configuration = Configuration(loaded, read, in_force, manager, models, journal, clock, flags.check, audit)
        webhooks, poster = await webhooks_of(settings, database, clock)
        stack.push_async_callback(poster.close)
        if webhooks.any:
            metrics.registry.register(WebhookMetrics(webhooks))
        services = Services(
            manager=manager, queue=queue, in_force=in_force, configuration=configuration, profiles=profiles, pulls=pulls, weights=weights,
            declarations=Declarations(in_force, manager, queue, models, clock, flags.check), journal=journal,
            launches=launches, ledger=ledger, keys=keys, keyring=keyring, settings=settings, clock=clock,
            version=__version__, started_at=clock.wall(), metrics=metrics, device_leases=device_leases, schedules=schedules,
            captures=captures, data_plane=OpenAIApp(gateway), sign_ins=sign_ins, limits=limits, audit=audit, usage=usage, series=series, webhooks=webhooks, cancel=cancel, running=running, written=lambda: rows.flush(1.0), launchers=launcher.view, read_ahead=ahead.view, checks=(rows.problem, audit.writer.problem, background.problem, *(() if hold is None else (hold.problem,)), *(() if office is None else (office.problem,))),
        )  # fmt: skip
        background.start("the configuration file", configuration.watch())
        background.start("arguments of engines", arguments.run())
        if hold is not None:
            background.start("the lock on the database", hold.run())
        background.start("profiles", profiles.run())
        background.start("what is kept ready", Keeper(manager, clock).run())
        background.start("leases on device memory", device_leases.run())
        background.start("schedules", schedules.run())
        background.start("idle times", IdleWatch(manager, clock, schedules.is_open).run())
        background.start("readings", Readings(manager, inventory, launches, clock).run())
        background.start("retention", Retention(database, journal, audit, usage, settings.retention, clock).run())
        background.start("usage", usage.run())
        if settings.series.enabled:
            background.start("samples", Sampler(manager, queue, metrics.totals, samples.add, clock).run())
        background.start("time series", series.run(samples.flush))
        energy = EnergyMeter(inventory.energy, lambda: manager.ledger, usage.add_energy, clock)
        background.start("energy", energy.run())
        background.start("captures", captures.run())
        background.start("metrics of events", metrics.follow(journal))
        background.start("reading ahead", ahead.run())
        if webhooks.any:
            background.start("webhooks", webhooks.run(journal))
        if settings.warm.preload:
            background.start("zygotes", Warmup(manager, launcher, places, clock).run())
        stack.push_async_callback(background.close)
        yield Server(
            settings, clock, manager, queue, journal, keyring, services, gateway, models, admin_secret, inventory.notes,
            missing, office, pepper,
        )  # fmt: skip


async def read_catalog(settings: Settings, models: Models) -> Catalog:
    """The models of the configuration and of the database; what no longer fits is left out, with a warning."""
    stored = {m.id: m.declaration for m in await models.all()}
    good, bad = declared.usable(settings, stored)
    for model, reason in bad.items():
        log.warning("the model %r, made over the API, is left out: %s", model, reason)
    return declared.catalog(settings, good)


def _devices(settings: Settings) -> Literal["auto", "cpu"] | Sequence[DeviceEntry]:
    if isinstance(settings.devices, str):
        return settings.devices
    return [DeviceEntry(d.id, d.memory, d.headroom, d.simulated) for d in settings.devices]


def gateway_rules(settings: Settings) -> Rules:
    return Rules(
        max_wait=settings.queue.max_wait, request_timeout=settings.queue.request_timeout, body=settings.limits.body,
        upload=settings.limits.upload, upload_held=settings.limits.upload_held,
        header=settings.limits.header, header_timeout=settings.limits.header_timeout,
        body_timeout=settings.limits.body_timeout, body_rate=settings.limits.body_rate, send_timeout=settings.limits.send_timeout,
        keep_alive=settings.server.keep_alive, connections=settings.limits.connections,
        origins=frozenset(o.encode() for o in settings.cors.origins),
        responses=settings.limits.responses, responses_age=settings.limits.responses_age, preflight=settings.cors.max_age,
        session_message=settings.realtime.max_message, session_idle=settings.realtime.idle_timeout,
        session_length=settings.realtime.max_session, session_unnamed=settings.realtime.model_timeout,
        drain=settings.swap.drain_timeout, subprotocol_keys=settings.auth.subprotocol_keys,
        revoke_running=settings.auth.revoke_running,
        timings=settings.server.timings, stall=settings.timeouts.stream_stall,
    )  # fmt: skip
