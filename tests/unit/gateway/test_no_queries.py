"""A request's way makes no query: keys, limits and models are in memory, and only the writer behind it talks to the database."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from sqlalchemy import event

from fakes import FakeClock
from plane import PlainLeases
from vllm_mm.api.openai import OpenAIApp
from vllm_mm.api.problems import explain
from vllm_mm.clock import RealClock
from vllm_mm.domain.catalog import Catalog
from vllm_mm.domain.errors import Unavailable
from vllm_mm.domain.keys import Limits, Scope
from vllm_mm.domain.launches import Address
from vllm_mm.domain.specs import ModelSpec
from vllm_mm.domain.usage import RequestRecord
from vllm_mm.gateway.forward import Gateway
from vllm_mm.gateway.identity import Keyring
from vllm_mm.gateway.limits import LimitBook
from vllm_mm.store.behind import WriteBehind
from vllm_mm.store.database import Database
from vllm_mm.store.keys import Keys
from vllm_mm.store.migrate import upgrade
from vllm_mm.store.usage import Ledger
from vllm_mm.store.usage_hours import UsageHours

REQUESTS = 100


@contextmanager
def statements(database: Database) -> Iterator[list[str]]:
    """Those that are sent meanwhile, but for what begins and ends a transaction."""
    found: list[str] = []

    def sent(_connection: Any, _cursor: Any, statement: str, *_: Any) -> None:
        if statement.split(maxsplit=1)[0] not in {"BEGIN", "COMMIT", "ROLLBACK"}:
            found.append(statement)

    event.listen(database.engine.sync_engine, "before_cursor_execute", sent)
    yield found
    event.remove(database.engine.sync_engine, "before_cursor_execute", sent)


@pytest.mark.parametrize(
    "limits",
    [None, Limits(concurrency=1000, requests_per_minute=1000, tokens_per_month=10**9)],
    ids=["plain", "limited"],
)
async def test_a_hundred_requests_make_no_query(tmp_path: Path, limits: Limits | None) -> None:
    """With good keys, with limits, with keys that nobody issued: zero statements but the writer's inserts into the ledger."""
    url = f"sqlite+aiosqlite:///{tmp_path}/state.db"
    await upgrade(url, None)
    database, clock = Database(url), FakeClock()
    try:
        store = Keys(database, clock, b"pepper")
        _, secret = await store.create("ada", {Scope.INFER}, limits=limits)
        book = LimitBook(clock, UsageHours(database, clock).spent)
        keys = Keyring(clock, pepper=b"pepper")
        keys.on_replace = book.use
        keys.replace(await store.all())
        await book.recall()
        rows = WriteBehind[RequestRecord](Ledger(database).add, RealClock(), name="requests", delay=0.01)
        rows.start()
        leases = PlainLeases(Catalog([ModelSpec("m")]), Address("/nowhere"))
        leases.fail = [Unavailable("Nothing is served here.") for _ in range(REQUESTS)]
        app = OpenAIApp(Gateway(leases, keys, rows.add, explain, clock, limits=book))
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://mm", timeout=60) as client:

            async def ask(number: int) -> int:
                key = secret if number % 2 else "mm-nobodys"
                answer = await client.post(
                    "/v1/completions", json={"model": "m", "prompt": "hi"}, headers={"x-api-key": key}
                )
                return answer.status_code

            with statements(database) as sent:
                answers = await asyncio.gather(*(ask(number) for number in range(REQUESTS)))
                assert await rows.flush(30.0)
        assert (answers.count(503), answers.count(401)) == (REQUESTS // 2, REQUESTS // 2)
        assert sent
        assert {statement.split()[:3][-1] for statement in sent} == {"requests"}
        assert all(statement.startswith("INSERT") for statement in sent)
        await rows.close()
    finally:
        await database.close()
