"""Usage: whatever was added up, deleted or interrupted, the sum of the parts is the whole."""

import asyncio
import random
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from fakes import FakeClock
from vllm_mm.domain.errors import BadRequest
from vllm_mm.domain.usage import NANO, Outcome, Price, RequestRecord, device_seconds
from vllm_mm.domain.usage import Usage as Tokens
from vllm_mm.settings import RetentionConfig
from vllm_mm.store import usage_hours
from vllm_mm.store.audit import Audit
from vllm_mm.store.database import Database
from vllm_mm.store.journal import Journal
from vllm_mm.store.retention import Retention
from vllm_mm.store.usage import HOUR, Ledger, Terms
from vllm_mm.store.usage_hours import DAY, GroupBy, UsageFilter, UsageHours, UsageSum

PRICES = {"a": Terms(2, Price(1.0, 3.0, 0.25)), "b": Terms(1, None)}
NOW = FakeClock().wall()


def rows(seed: int, count: int) -> list[RequestRecord]:
    """Requests of the last three days, of all kinds; the same for the same seed."""
    luck = random.Random(seed)
    found: list[RequestRecord] = []
    for number in range(count):
        leased = luck.random() < 0.8
        found.append(
            RequestRecord(
                id=f"req_{seed}_{number}", request_id="x", at=NOW - luck.random() * 3 * DAY * HOUR, route="/v1/completions",
                model=luck.choice(["a", "b", None]), asked=None, key=luck.choice(["k1", "k2", None]), stream=False,
                outcome=luck.choice([Outcome.OK, Outcome.CUT, Outcome.REFUSED]), status=200, error=None,
                queued_s=luck.random() if leased else None, ttft_s=None, total_s=1 + luck.random() * 10, bytes_in=1, bytes_out=1,
                usage=luck.choice([Tokens(), Tokens(luck.randrange(2**33), luck.randrange(99), luck.randrange(5), 3)]), generation=1,
                load_s=luck.random() if leased else None,
            )
        )  # fmt: skip
    return found


def expected(all_rows: Sequence[RequestRecord], group_by: Sequence[GroupBy]) -> dict[tuple[Any, ...], dict[str, Any]]:
    """What a report has to say, reckoned from the rows themselves."""
    found: dict[tuple[Any, ...], dict[str, Any]] = {}
    for row in all_rows:
        hour = int(row.at // HOUR)
        names = {
            GroupBy.KEY: row.key or "",
            GroupBy.MODEL: row.model or "",
            GroupBy.DAY: hour // DAY,
            GroupBy.HOUR: hour,
        }
        total = found.setdefault(
            tuple(names[g] for g in group_by), {"outcomes": Counter(), "n": Counter(), "s": Counter(), "cost": None}
        )
        total["outcomes"][row.outcome.value] += 1
        u = row.usage
        total["n"].update(
            requests=1, prompt_tokens=u.prompt_tokens or 0, cached_tokens=u.cached_tokens or 0,
            completion_tokens=u.completion_tokens or 0, reasoning_tokens=u.reasoning_tokens or 0,
        )  # fmt: skip
        terms = PRICES.get(row.model or "", Terms())
        total["s"].update(
            total_s=row.total_s, queued_s=row.queued_s or 0.0, load_s=row.load_s or 0.0,
            device_s=device_seconds(row, terms.devices if row.model else 1),
        )  # fmt: skip
        cost = terms.price.cost(u) if terms.price is not None else None
        if cost is not None:
            total["cost"] = (total["cost"] or 0) + cost
    return found


async def agree(usage: UsageHours, all_rows: Sequence[RequestRecord], group_by: Sequence[GroupBy]) -> None:
    """The report says what the rows say: counts and money exactly, times but for the order of adding."""
    report = await usage.report(group_by)
    wanted = expected(all_rows, group_by)
    assert len(report) == len(wanted)
    for names, line in zip(sorted(wanted), report, strict=True):
        total = wanted[names]
        assert line.outcomes == dict(total["outcomes"])
        assert {name: getattr(line, name) for name in total["n"]} == dict(total["n"])
        assert line.cost_nano == total["cost"]
        for name, seconds in total["s"].items():
            assert getattr(line, name) == pytest.approx(seconds), name


ALL = [GroupBy.KEY, GroupBy.MODEL, GroupBy.DAY, GroupBy.HOUR]
ACTS = st.lists(st.sampled_from(["add", "roll up", "prune", "break", "report"]), min_size=3, max_size=9)


@given(acts=ACTS, seed=st.integers(0, 1000))
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_the_sum_of_the_parts_is_the_whole(blank: bytes, acts: list[str], seed: int) -> None:
    """Whatever is added, added up, deleted or broken off in between, in whatever order: each request counts once."""

    async def run(url: str) -> None:
        database, clock = Database(url), FakeClock()
        ledger, usage = Ledger(database, lambda m: PRICES[m]), UsageHours(database, clock)
        journal = await Journal.open(database, clock)
        retention = Retention(
            database, journal, Audit(database, clock), usage,
            RetentionConfig(requests=DAY * HOUR, max_requests=4, usage=None), clock,
        )  # fmt: skip
        known: list[RequestRecord] = []
        for number, act in enumerate(acts):
            if act == "add":
                more = rows(seed + number, 7)
                await ledger.add(more)
                await ledger.add(more[:3])  # a batch whose fate was unknown
                known += more
            elif act == "roll up":
                await usage.roll_up()
            elif act == "prune":
                await retention._requests(clock.wall())
            elif act == "break":
                await broken_off(usage)
            for group_by in ([], [GroupBy.KEY, GroupBy.DAY], ALL):
                if known:
                    await agree(usage, known, group_by)
        task = asyncio.create_task(journal.close())
        while not task.done():
            await clock.advance(0.1)
            await asyncio.sleep(0.001)
        await database.close()

    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(usage_hours, "STEP", 3)
        patch.setattr("vllm_mm.store.retention.STEP", 2)
        (Path(folder) / "state.db").write_bytes(blank)
        asyncio.run(run(f"sqlite+aiosqlite:///{folder}/state.db"))


async def broken_off(usage: UsageHours) -> None:
    """The sums are written, and then the process dies before the mark is."""

    async def dies(*_args: Any) -> None:
        raise RuntimeError("killed")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(usage_hours, "write_meta", dies)
        try:
            await usage.roll_up()
        except RuntimeError:
            return


async def test_sums_outlive_their_rows(database: Database) -> None:
    """By every group, on every database: before, between and after adding up and deleting, and for new rows behind that."""
    clock = FakeClock()
    ledger, usage = Ledger(database, lambda m: PRICES[m]), UsageHours(database, clock)
    known = rows(1, 60)
    await ledger.add(known)
    await agree(usage, known, ALL)
    assert await usage.roll_up() == 60
    assert await usage.roll_up() == 0
    await agree(usage, known, ALL)
    await broken_off(usage)
    journal = await Journal.open(database, clock)
    config = RetentionConfig(requests=1.0, max_requests=None, usage=None)
    retention = Retention(database, journal, Audit(database, clock), usage, config, clock)
    assert (await retention.prune())["requests"] == 59
    assert len((await ledger.recent()).records) == 1, "the newest stays, or row numbers would begin again"
    more = rows(2, 20)
    await ledger.add(more)
    for group_by in ([], [GroupBy.MODEL], [GroupBy.DAY, GroupBy.KEY], ALL):
        await agree(usage, [*known, *more], group_by)
    await broken_off(usage)
    await agree(usage, [*known, *more], ALL)
    await usage.roll_up()
    await agree(usage, [*known, *more], ALL)
    closing = asyncio.create_task(journal.close())
    while not closing.done():
        await clock.advance(0.1)
        await asyncio.sleep(0.001)


async def test_rows_that_come_meanwhile_are_not_deleted(database: Database) -> None:
    """Old rows that were written after the adding up, as those that had to wait for a database that was away, are for the next round."""
    clock = FakeClock()
    ledger, usage = Ledger(database, lambda m: PRICES[m]), UsageHours(database, clock)
    journal = await Journal.open(database, clock)
    retention = Retention(
        database, journal, Audit(database, clock), usage, RetentionConfig(requests=1.0, max_requests=None, usage=None), clock
    )  # fmt: skip
    known = rows(5, 10)
    await ledger.add(known)
    roll_up = usage.roll_up

    async def and_then_more() -> int:
        count = await roll_up()
        await ledger.add(rows(6, 10))
        return count

    usage.roll_up = and_then_more  # type: ignore[method-assign]
    assert await retention._requests(clock.wall()) == 10
    usage.roll_up = roll_up  # type: ignore[method-assign]
    await agree(usage, [*known, *rows(6, 10)], ALL)
    closing = asyncio.create_task(journal.close())
    while not closing.done():
        await clock.advance(0.1)
        await asyncio.sleep(0.001)


async def test_a_report_is_restricted(database: Database) -> None:
    """By key, by model, by hours of which the last is not included; names and times as people read them."""
    ledger, usage = Ledger(database), UsageHours(database, FakeClock())
    base = replace(rows(1, 1)[0], model="a", key="k1", outcome=Outcome.OK, at=10 * DAY * HOUR + 30.0)
    await ledger.add([
        replace(base, id="1"), replace(base, id="2", key="k2", at=base.at + HOUR),
        replace(base, id="3", model="b", at=base.at + DAY * HOUR),
    ])  # fmt: skip
    first = 10 * DAY
    for _ in range(2):  # as rows, and as sums
        assert [line.requests for line in await usage.report((), UsageFilter(key="k1"))] == [2]
        assert [line.requests for line in await usage.report((), UsageFilter(model="b"))] == [1]
        assert [line.requests for line in await usage.report((), UsageFilter(since=first + 1))] == [2]
        assert [line.requests for line in await usage.report((), UsageFilter(until=first + 1))] == [1]
        assert await usage.report((), UsageFilter(key="nobody")) == [UsageSum()]
        assert await usage.report([GroupBy.KEY], UsageFilter(key="nobody")) == []
        lines = await usage.report([GroupBy.DAY, GroupBy.HOUR])
        assert [(line.day, line.hour, line.key) for line in lines] == [
            ("1970-01-11", "1970-01-11T00:00Z", None), ("1970-01-11", "1970-01-11T01:00Z", None), ("1970-01-12", "1970-01-12T00:00Z", None),
        ]  # fmt: skip
        await usage.roll_up()
    assert await usage.prune((first + 1) * HOUR + 5.0) == 1
    assert [line.requests for line in await usage.report()] == [2]


async def test_energy_is_by_model_and_hour(database: Database) -> None:
    """Added up beside the requests; also of a model that nobody asked for; not by key."""
    usage = UsageHours(database, FakeClock())
    base = replace(rows(1, 1)[0], model="a", key="k1", outcome=Outcome.OK, at=10 * DAY * HOUR + 30.0)
    await Ledger(database).add([base])
    first = 10 * DAY
    await usage.add_energy({(first, "a"): 100.0, (first + 1, "b"): 7.0})
    await usage.add_energy({(first, "a"): 50.0})
    lines = await usage.report([GroupBy.MODEL, GroupBy.DAY])
    assert [(line.model, line.requests, line.energy_j) for line in lines] == [("a", 1, 150.0), ("b", 0, 7.0)]
    assert [line.energy_j for line in await usage.report()] == [157.0]
    assert [line.energy_j for line in await usage.report((), UsageFilter(since=first + 1))] == [7.0]
    assert [line.energy_j for line in await usage.report((), UsageFilter(until=first + 1, model="a"))] == [150.0]
    assert [line.energy_j for line in await usage.report([GroupBy.KEY])] == [None]
    assert [line.energy_j for line in await usage.report((), UsageFilter(key="k1"))] == [None]
    await usage.prune((first + 1) * HOUR)
    assert [line.energy_j for line in await usage.report((), UsageFilter(model="a"))] == [None]


async def test_a_report_without_end_is_refused(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """With what to ask instead; it is never cut off in silence."""
    await Ledger(database).add(rows(3, 40))
    monkeypatch.setattr(usage_hours, "MOST_ROWS", 5)
    with pytest.raises(BadRequest, match=r"more than 5 lines\. Ask for a shorter time"):
        await UsageHours(database, FakeClock()).report(ALL)


async def test_a_report_does_not_see_half_of_a_step(database: Database) -> None:
    """While rows are being added up, a reader has the sums of before or of after, and each request once."""
    ledger, usage = Ledger(database, lambda m: PRICES[m]), UsageHours(database, FakeClock())
    known = rows(4, 30)
    await ledger.add(known)
    inside, go_on = asyncio.Event(), asyncio.Event()
    write = usage_hours.write_meta

    async def slowly(*args: Any) -> None:
        await write(*args)
        inside.set()
        await go_on.wait()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(usage_hours, "write_meta", slowly)
        rolling = asyncio.create_task(usage.roll_up())
        await inside.wait()
        await agree(usage, known, ALL)
        go_on.set()
        await rolling
    await agree(usage, known, ALL)


async def test_a_round_that_fails_is_made_up_for(database: Database, caplog: pytest.LogCaptureFixture) -> None:
    """A database that is away for one round does not end the adding up."""
    clock = FakeClock()
    usage = UsageHours(database, clock)
    rounds: list[int] = []

    async def roll_up() -> int:
        rounds.append(1)
        if len(rounds) == 1:
            raise OSError("gone")
        return 0

    usage.roll_up = roll_up  # type: ignore[method-assign]
    task = asyncio.create_task(usage.run())
    await clock.advance(usage_hours.INTERVAL * 2 + 1)
    assert len(rounds) == 3
    assert "usage cannot be added up now: gone" in caplog.text
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


def test_money_is_told_in_units() -> None:
    """Billionths are for adding up."""
    assert (UsageSum(cost_nano=5 * NANO // 2).cost, UsageSum().cost) == (2.5, None)
