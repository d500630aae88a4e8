"""What goes in comes out: launches, footprints, starts, models, keys, and the ledger."""

import asyncio
import inspect
from dataclasses import replace
from pathlib import Path

import pytest
from msgspec import structs
from sqlalchemy import update

from fakes import FakeClock
from vllm_mm.domain.errors import Conflict
from vllm_mm.domain.estimates import Kind
from vllm_mm.domain.footprint import Learned
from vllm_mm.domain.keys import Limits, Right, Scope, digest
from vllm_mm.domain.launches import Address, LaunchRecord
from vllm_mm.domain.limits import Spent
from vllm_mm.domain.sleep import Experience, Trial
from vllm_mm.domain.specs import SleepMode, SleepSpec
from vllm_mm.domain.usage import Outcome, Price, RequestRecord, Usage
from vllm_mm.engine import ports
from vllm_mm.settings import RetentionConfig
from vllm_mm.store.audit import Audit
from vllm_mm.store.database import Database
from vllm_mm.store.journal import Journal
from vllm_mm.store.keys import Keys
from vllm_mm.store.launches import Launches
from vllm_mm.store.migrate import upgrade
from vllm_mm.store.models import Models
from vllm_mm.store.retention import INTERVAL, STARTS_KEPT, STEP, Retention
from vllm_mm.store.routes import MissingRoute, MissingRoutes
from vllm_mm.store.tables import Sleep
from vllm_mm.store.usage import Filter, Ledger, Terms
from vllm_mm.store.usage_hours import UsageHours

LAUNCH = LaunchRecord(
    model="Qwen/Q", generation=3, token="t" * 32, pid=4_000_000, start_ticks=2**40, boot_id="b", address=Address("/s"),
    workdir=Path("/w"), log=Path("/l"), fingerprint="f" * 16, device_bytes={"0": 2**36}, started_at=1.5, launcher="warm",
)  # fmt: skip
REQUEST = RequestRecord(
    id="req_1", request_id="mine", at=86_400 * 20_000 + 5.0, route="/v1/chat/completions", model="a", asked="alias", key="key_1", stream=True,
    outcome=Outcome.OK, status=200, error=None, queued_s=0.1, ttft_s=0.2, total_s=1.5, bytes_in=10, bytes_out=2**40,
    usage=Usage(3, 4, 1), generation=2, load_s=0.05,
)  # fmt: skip


@pytest.mark.parametrize(("protocol", "implementation"), [(ports.LaunchStore, Launches), (ports.Journal, Journal)])
def test_the_engines_protocols_are_met(protocol: type, implementation: type) -> None:
    """The store cannot import the engine, so this holds its methods to the engine's protocol, argument by argument."""
    for name, wanted in inspect.getmembers(protocol, inspect.isfunction):
        if name.startswith("_"):
            continue
        have = getattr(implementation, name)
        assert inspect.iscoroutinefunction(have) == inspect.iscoroutinefunction(wanted), name
        shapes = [
            [(p.name, p.kind, p.default) for p in inspect.signature(f).parameters.values()] for f in (wanted, have)
        ]
        assert shapes[0] == shapes[1], name


class TestLaunches:
    async def test_a_launch_is_remembered_whole(self, database: Database) -> None:
        """Everything that identifies a process, exactly; also from another connection after a crash."""
        store = Launches(database, FakeClock())
        other = replace(LAUNCH, model="b", address=Address(None, "127.0.0.1", 5), pid=0)
        await store.save(LAUNCH)
        await store.save(other)
        assert await Launches(database, FakeClock()).all() == [LAUNCH, other]

    async def test_one_row_for_each_model(self, database: Database) -> None:
        """A later launch takes the place of the earlier one, and forgetting the earlier one leaves it alone."""
        store = Launches(database, FakeClock())
        await store.save(LAUNCH)
        later = replace(LAUNCH, generation=4, token="u")
        await store.save(later)
        await store.forget(LAUNCH.model, 3)
        assert await store.all() == [later]
        await store.forget(LAUNCH.model, 4)
        await store.forget(LAUNCH.model, 4)
        assert await store.all() == []

    async def test_footprints(self, database: Database) -> None:
        """By fingerprint and device set; the latest counts; sizes beyond 32 bits."""
        store = Launches(database, FakeClock())
        large = Learned().launched(2**40, 1.0, weights=2**39, kv_cache=2**38).launched(2**41, 2.0)
        await store.learn("f", "0", Learned().launched(1, 0.5))
        await store.learn("f", "0", large)
        await store.learn("f", "0,1", Learned().launched(5, 3.0))
        assert await store.footprints() == {("f", "0"): large, ("f", "0,1"): Learned().launched(5, 3.0)}

    async def test_sleeps(self, database: Database) -> None:
        """By fingerprint and level; the latest counts; what a later version knows is left alone."""
        store = Launches(database, FakeClock())
        light = Experience(SleepSpec(), Trial(2, "it lies"), {"0": 2**40, "1": 5})
        deep = Experience(SleepSpec(SleepMode.ALWAYS, 2, 2**35))
        await store.slept("f", Experience(SleepSpec()))
        for known in (light, deep):
            await store.slept("f", known)
        await store.slept("g", deep)
        assert await store.sleeps() == {("f", 1): light, ("f", 2): deep, ("g", 2): deep}
        async with database.write() as connection:
            await connection.execute(update(Sleep).where(Sleep.fingerprint == "g").values(mode="newer"))
        assert set(await store.sleeps()) == {("f", 1), ("f", 2)}

    async def test_times(self, database: Database) -> None:
        """The recent good starts, with their phases in order: failures and old ones do not count."""
        store = Launches(database, FakeClock())
        for i in range(15):
            await store.record_start("a", i, 0.0, 1000.0, {}, "ready", "")
        for i, seconds in enumerate([10, 11, 12, 11, 10, 11, 500, 11, 11, 12] * 2):
            await store.record_start("a", 15 + i, 100.0, 100.0 + seconds, {"weights": 1.0, "compile": 2.0}, "ready", "")
        await store.record_start("a", 40, 100.0, None, {"weights": 2.5}, "failed", "out of memory", "local")
        await store.record_start("b", 1, 5.0, 30.0, {"spawn": 1.0}, "ready", "")
        await store.record_start("b", 2, 5.0, 7.5, {"fork": 1.0, "weights": 1.0}, "ready", "")
        await store.record_start("c", 1, 5.0, None, {}, "failed", "")
        await store.took("b", Kind.STOP, [0.5, 0.25])
        await store.took("b", Kind.STOP, [0.25, 0.75])
        times = await store.times()
        assert set(times) == {"a", "b"}
        assert times["a"].seconds(Kind.START) == tuple([10, 11, 12, 11, 10, 11, 500, 11, 11, 12] * 2)
        assert times["a"].samples[Kind.START][0].phases == (("weights", 1.0), ("compile", 2.0))
        assert (times["b"].start, times["b"].expect(Kind.WARM), times["b"].expect(Kind.START)) == (Kind.WARM, 2.5, 25.0)
        assert times["b"].seconds(Kind.STOP) == (0.25, 0.75)
        latest, before = await store.starts("a", limit=2)
        assert (latest.generation, latest.ready_at, latest.phases, latest.outcome, latest.reason, latest.launcher) == (
            40, None, {"weights": 2.5}, "failed", "out of memory", "local",
        )  # fmt: skip
        assert before.ready_at == 112.0


class TestModels:
    async def test_models(self, database: Database) -> None:
        """Put, put again (the time of making stays), delete."""
        store = Models(database)
        await store.put("b", {"memory": "1GiB", "args": {"x": [1, None]}}, by="ada", now=1.0)
        await store.put("a", {}, by="ada", now=2.0)
        again = await store.put("b", {"memory": "2GiB"}, by="bob", now=3.0)
        assert (again.created_at, again.updated_at, again.updated_by) == (1.0, 3.0, "bob")
        stored = await store.all()
        assert [(m.id, m.declaration) for m in stored] == [("b", {"memory": "2GiB"}), ("a", {})]
        assert stored[0] == again
        assert await store.delete("b")
        assert not await store.delete("b")


class TestKeys:
    async def test_a_secret_is_seen_once(self, database: Database, tmp_path: Path) -> None:
        """The answer has it; the database has its digest only."""
        store = Keys(database, FakeClock())
        key, secret = await store.create("ada", {Scope.INFER}, models={"b", "a"}, expires_at=5.0)
        assert secret.startswith("mm-")
        assert len(secret) >= 46
        assert key.digest == digest(secret)
        assert await store.all() == [key]
        assert not any(secret.encode() in p.read_bytes() for p in tmp_path.iterdir())

    async def test_no_models_is_not_all_models(self, database: Database) -> None:
        """None stands for all; an empty set for none; both survive the database."""
        store = Keys(database, FakeClock())
        await store.create("all", {Scope.INFER})
        await store.create("none", {Scope.INFER}, models=())
        everything, nothing = sorted(await store.all(), key=lambda k: k.name)
        assert everything.models is None
        assert nothing.models == frozenset()

    async def test_revoking(self, database: Database) -> None:
        """At once and for ever; the first time stands; an unknown id is told."""
        clock = FakeClock()
        store = Keys(database, clock)
        key, _ = await store.create("a", {Scope.READ})
        revoked = await store.revoke(key.id)
        assert revoked is not None
        assert not revoked.active(clock.wall())
        clock.time += 10
        assert await store.revoke(key.id) == revoked
        assert await store.all() == [revoked]
        assert await store.revoke("key_nope") is None

    async def test_the_first_start_makes_an_admin(self, database: Database) -> None:
        """One secret, at one of two simultaneous starts, and never again, not even when the key was revoked."""
        store = Keys(database, FakeClock())
        given = await asyncio.gather(store.ensure_admin(), Keys(database, FakeClock()).ensure_admin())
        secrets = [s for s in given if s is not None]
        assert len(secrets) == 1
        (key,) = await store.all()
        assert key.digest == digest(secrets[0])
        assert key.allows(Scope.ADMIN)
        assert key.allows(Scope.INFER)
        await store.revoke(key.id)
        assert await store.ensure_admin() is None

    async def test_every_field_comes_back(self, database: Database) -> None:
        """What a key may, how much, and since when; limits that limit nothing are none."""
        store = Keys(database, FakeClock(), b"pepper")
        limits = Limits(concurrency=2, tokens_per_month=10**12, device_seconds_per_day=1.5)
        key, secret = await store.create(
            "ada",
            {Scope.INFER},
            models={"a*"},
            acts={Right.LOAD},
            weight=2.5,
            progress=True,
            limits=limits,
            expires_at=9.0,
        )
        plain, _ = await store.create("bob", {Scope.READ}, limits=Limits())
        assert sorted(await store.all(), key=lambda k: k.name) == [key, plain]
        assert (key.limits, plain.limits, key.prefix) == (limits, None, secret[:11])
        assert key.digest == digest(secret, b"pepper") != digest(secret)

    async def test_editing_changes_what_is_named(self, database: Database) -> None:
        """And nothing else; neither its secret nor its id can be edited, and a revoked one not at all."""
        store = Keys(database, FakeClock())
        key, _ = await store.create("ada", {Scope.INFER})
        edited = await store.edit(key.id, {"weight": 3.0, "limits": Limits(concurrency=1), "digest": "x", "id": "y"})
        assert edited == replace(key, weight=3.0, limits=Limits(concurrency=1))
        assert await store.edit(key.id, {"limits": Limits()}) == replace(key, weight=3.0)
        assert await store.edit("key_nope", {"weight": 1.0}) is None
        await store.revoke(key.id)
        with pytest.raises(Conflict, match="revoked, for ever"):
            await store.edit(key.id, {"weight": 1.0})
        with pytest.raises(Conflict, match="revoked, for ever"):
            await store.rotate(key.id, 5.0)

    async def test_rotating(self, database: Database) -> None:
        """Another secret for the same key; the one of before stays for so long, but at most one of them."""
        clock = FakeClock()
        store = Keys(database, clock)
        key, first = await store.create("ada", {Scope.INFER})
        rotated = await store.rotate(key.id, 60.0)
        assert rotated is not None
        after, second = rotated
        assert (after.id, after.digest, after.old_digest) == (key.id, digest(second), digest(first))
        assert (after.old_until, after.prefix) == (clock.wall() + 60.0, second[:11])
        again = await store.rotate(key.id, 0.0)
        assert again is not None
        assert (again[0].digest, again[0].old_digest, again[0].old_until) == (digest(again[1]), None, None)
        assert await store.all() == [again[0]]
        assert await store.rotate("key_nope", 0.0) is None

    async def test_keys_move_to_a_server_with_the_same_secret(self, database: Database, tmp_path: Path) -> None:
        """As they are, all or none; to one with another secret not at all, for nobody could use them there."""
        store = Keys(database, FakeClock(), b"pepper")
        one, _ = await store.create("one", {Scope.INFER})
        two, _ = await store.create("two", {Scope.READ}, limits=Limits(concurrency=1))
        url = f"sqlite+aiosqlite:///{tmp_path}/other.db"
        await upgrade(url, None)
        other = Database(url)
        try:
            there = Keys(other, FakeClock(), b"pepper")
            await there.add([two], store.mark)
            with pytest.raises(Conflict, match=r"is here already\. Nothing was imported"):
                await there.add([one, two], store.mark)
            assert await there.all() == [two]
            await there.add([one], store.mark)
            assert {k.id for k in await there.all()} == {one.id, two.id}
            with pytest.raises(Conflict, match="another server's secret"):
                await Keys(other, FakeClock(), b"salt").add([one], store.mark)
            assert not await there.of_another_secret()
            assert await Keys(other, FakeClock(), b"salt").of_another_secret()
        finally:
            await other.close()

    async def test_a_fresh_database_belongs_to_nobodys_secret(self, database: Database) -> None:
        """There is nothing to warn of."""
        assert not await Keys(database, FakeClock(), b"salt").of_another_secret()

    async def test_no_admin_where_there_are_keys(self, database: Database) -> None:
        """Somebody made a key on the machine before the first start: nothing is printed."""
        store = Keys(database, FakeClock())
        await store.create("own", {Scope.ADMIN})
        assert await store.ensure_admin() is None


class TestLedger:
    async def test_what_keys_have_spent(self, database: Database) -> None:
        """Tokens, and seconds on devices, of each key in a time; what never had a lease spent none, and keys without requests are not
        there. It is the same whether or not the rows were added up."""
        ledger, hours = Ledger(database, lambda _: Terms(2)), UsageHours(database, FakeClock())
        asked = structs.replace(
            REQUEST, key="k", at=3600.0, queued_s=1.0, total_s=5.0, frozen_s=1.5, usage=Usage(10, 5, None)
        )
        await ledger.add(
            [
                structs.replace(asked, id="1"), structs.replace(asked, id="2", at=7199.0, usage=Usage(None, 7, None)), structs.replace(asked, id="3", at=7200.0),
                structs.replace(asked, id="4", at=3599.0), structs.replace(asked, id="5", queued_s=None, usage=Usage()),
                structs.replace(asked, id="6", key="other"), structs.replace(asked, id="7", key=None),
            ]
        )  # fmt: skip
        for _ in range(2):
            assert await hours.spent(3600.0, 7200.0) == {"k": Spent(22, 10.0), "other": Spent(15, 5.0)}
            assert await hours.spent(10_800.0, 14_400.0) == {}
            await hours.roll_up()

    async def test_a_request_comes_back_whole(self, database: Database) -> None:
        """Every field, with and without the stages that were not reached; with what it cost by then."""
        ledger = Ledger(database, lambda model: {"a": Terms(2, Price(1.0, 2.0))}[model])
        bare = structs.replace(
            REQUEST, id="req_2", model=None, asked=None, key=None, stream=False, outcome=Outcome.REFUSED, status=401,
            error="no key", queued_s=None, ttft_s=None, usage=Usage(), generation=None,
        )  # fmt: skip
        await ledger.add([REQUEST, bare])
        await ledger.add([])
        written = await ledger.get("req_1")
        assert written is not None
        assert (written.device_s, written.cost) == (pytest.approx(2 * 1.4), 0.000_011)
        assert written == structs.replace(REQUEST, device_s=written.device_s, cost=written.cost)
        assert await ledger.get("req_2") == structs.replace(bare, device_s=0.0)
        assert await ledger.get("req_3") is None

    async def test_text_that_no_database_takes(self, database: Database) -> None:
        """The name that a client asked for may be anything that JSON can say."""
        ledger = Ledger(database)
        await ledger.add([structs.replace(REQUEST, asked="a\0b\ud800c", error="ü\0")])
        written = await ledger.get("req_1")
        assert written is not None
        assert (written.asked, written.error) == ("a\ufffdb?c", "ü\ufffd")

    async def test_a_batch_may_be_written_twice(self, database: Database) -> None:
        """One row for each request id, also when a batch whose fate was unknown is written again, and within a batch."""
        ledger = Ledger(database)
        await ledger.add([REQUEST, REQUEST])
        await ledger.add([REQUEST, structs.replace(REQUEST, id="req_2")])
        assert [r.id for r in (await ledger.recent()).records] == ["req_2", "req_1"]

    async def test_pages_do_not_shift(self, database: Database) -> None:
        """Paging through while rows are added shows each row once."""
        ledger = Ledger(database)
        await ledger.add([structs.replace(REQUEST, id=f"r{i}") for i in range(10)])
        seen: list[str] = []
        page = await ledger.recent(limit=4)
        while True:
            seen += [r.id for r in page.records]
            if page.next is None:
                break
            await ledger.add([structs.replace(REQUEST, id=f"new{len(seen)}")])
            page = await ledger.recent(limit=4, before=page.next)
        assert seen == [f"r{i}" for i in reversed(range(10))]

    async def test_filters(self, database: Database) -> None:
        """By model, key, outcome and time; `until` is not included."""
        ledger = Ledger(database)
        t = REQUEST.at
        await ledger.add(
            [
                structs.replace(REQUEST, id="1", model="a", key="k1", at=t),
                structs.replace(REQUEST, id="2", model="b", key="k1", at=t + 1),
                structs.replace(REQUEST, id="3", model="a", key="k2", at=t + 2, outcome=Outcome.CUT),
            ]
        )

        async def ids(where: Filter) -> list[str]:
            return sorted(r.id for r in (await ledger.recent(where)).records)

        assert await ids(Filter(model="a")) == ["1", "3"]
        assert await ids(Filter(key="k1")) == ["1", "2"]
        assert await ids(Filter(outcome=Outcome.CUT)) == ["3"]
        assert await ids(Filter(since=t + 1)) == ["2", "3"]
        assert await ids(Filter(until=t + 1)) == ["1"]
        assert await ids(Filter(model="a", key="k1", since=t, until=t + 9)) == ["1"]


class TestRetention:
    async def test_old_rows_go(self, database: Database) -> None:
        """By age and by count, in steps; what is young enough and few enough stays."""
        clock = FakeClock()
        now = clock.wall()
        journal = await Journal.open(database, clock)
        ledger = Ledger(database)
        await ledger.add([structs.replace(REQUEST, id=f"o{i}", at=now - 100) for i in range(STEP + 5)])
        await ledger.add([structs.replace(REQUEST, id=f"n{i}", at=now - 5) for i in range(20)])
        config = RetentionConfig(events=50.0, max_events=None, requests=50.0, max_requests=15)
        done = await Retention(
            database, journal, Audit(database, clock), UsageHours(database, clock), config, clock
        ).prune()
        assert done == {"events": 0, "requests": STEP + 5 + 5, "starts": 0, "usage": 0, "audit": 0}
        assert [r.id for r in (await ledger.recent()).records] == [f"n{i}" for i in reversed(range(5, 20))]
        keep = RetentionConfig(events=None, max_events=None, requests=None, max_requests=None)
        assert await Retention(
            database, journal, Audit(database, clock), UsageHours(database, clock), keep, clock
        ).prune() == {
            "events": 0,
            "requests": 0,
            "starts": 0,
            "usage": 0,
            "audit": 0,
        }
        await close(journal, clock)

    async def test_a_round_that_fails_is_made_up_for(
        self, database: Database, caplog: pytest.LogCaptureFixture
    ) -> None:
        """A database that is away for one round does not end the tidying."""
        clock = FakeClock()
        journal = await Journal.open(database, clock)
        retention = Retention(
            database, journal, Audit(database, clock), UsageHours(database, clock), RetentionConfig(), clock
        )
        rounds: list[bool] = []

        async def prune() -> dict[str, int]:
            rounds.append(True)
            if len(rounds) == 1:
                raise OSError("gone")
            return {}

        retention.prune = prune
        task = asyncio.create_task(retention.run())
        await clock.advance(INTERVAL * 2 + 1)
        assert len(rounds) == 3
        assert "cannot delete old rows now: gone" in caplog.text
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await close(journal, clock)

    async def test_the_history_of_starts_is_bounded(self, database: Database) -> None:
        """The newest of each model stay."""
        clock = FakeClock()
        launches = Launches(database, clock)
        journal = await Journal.open(database, clock)
        for i in range(STARTS_KEPT + 3):
            await launches.record_start("a", i, 1.0, 2.0, {}, "ready", "")
        await launches.record_start("b", 1, 1.0, 2.0, {}, "ready", "")
        assert (
            await Retention(
                database, journal, Audit(database, clock), UsageHours(database, clock), RetentionConfig(), clock
            ).prune()
        )["starts"] == 3
        assert (await launches.starts("a", 500))[-1].generation == 3
        assert len(await launches.starts("b")) == 1
        await close(journal, clock)


async def close(journal: Journal, clock: FakeClock) -> None:
    await journal.close()


async def test_missing_routes_are_kept_once_and_bounded(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """The latest word on a route counts, and only so many are kept."""
    routes = MissingRoutes(database)
    assert await routes.all() == []
    await routes.add([MissingRoute("f1", "/v1/embeddings", 1), MissingRoute("f2", "/v1/embeddings", 1)])
    await routes.add([MissingRoute("f1", "/v1/embeddings", 7)])
    assert list(await routes.all()) == [
        MissingRoute("f2", "/v1/embeddings", 1),
        MissingRoute("f1", "/v1/embeddings", 7),
    ]
    monkeypatch.setattr("vllm_mm.store.routes.KEPT", 2)
    await routes.add([MissingRoute("f3", "/score", 1)])
    assert [r.fingerprint for r in await routes.all()] == ["f1", "f3"]
