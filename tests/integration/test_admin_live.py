"""What streams, over a real socket: events and logs, catch-up, slow and leaving readers; and how fast an act answers."""

import asyncio
import json
import re
import time
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest

from admin_rig import ADMIN, Admin, admin, serving
from fakes_engine import model
from vllm_mm.api import live


@pytest.fixture
async def api(tmp_path: Path) -> AsyncIterator[Admin]:
    async with admin(tmp_path, model("a", 20), model("Qwen/Qwen2.5-7B", 20)) as made:
        yield made


@pytest.fixture
async def remote(api: Admin) -> AsyncIterator[httpx.AsyncClient]:
    async with serving(api.app) as url, httpx.AsyncClient(
        base_url=url, headers={"Authorization": f"Bearer {ADMIN}"}, timeout=10
    ) as client:  # fmt: skip
        yield client


async def events(answer: httpx.Response) -> AsyncIterator[dict[str, str]]:
    """Server-sent events as their fields."""
    fields: dict[str, str] = {}
    async for line in answer.aiter_lines():
        if not line and fields:
            yield fields
            fields = {}
        elif line and not line.startswith(":"):
            name, _, value = line.partition(": ")
            fields[name] = value


async def test_events_come_as_they_happen(api: Admin, remote: httpx.AsyncClient) -> None:
    """Each with its number, its kind and the whole event as JSON."""
    async with remote.stream("GET", "/api/events") as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        reading = events(answer)
        await api.world.ready("a")
        seen = [await anext(reading) for _ in range(3)]
    assert [e["event"] for e in seen] == ["swap.planned", "instance.starting", "instance.ready"]
    body = json.loads(seen[1]["data"])
    assert (body["seq"], body["kind"], body["model"], body["cause"]) == (
        int(seen[1]["id"]),
        "instance.starting",
        "a",
        "test",
    )


@pytest.mark.parametrize("how", ["after", "header"])
async def test_who_was_away_catches_up(api: Admin, remote: httpx.AsyncClient, how: str) -> None:
    """Everything since the number that it saw last, once, and then what is new."""
    for i in range(5):
        api.services.journal.emit("test.event", data={"i": i})
    seen = api.services.journal.last_seq - 3
    extra = {"params": {"after": seen}} if how == "after" else {"headers": {"Last-Event-ID": str(seen)}}
    async with remote.stream("GET", "/api/events", **extra) as answer:
        reading = events(answer)
        first = [json.loads((await anext(reading))["data"])["data"]["i"] for _ in range(3)]
        api.services.journal.emit("test.event", data={"i": 99})
        last = json.loads((await anext(reading))["data"])["data"]["i"]
    assert (first, last) == ([2, 3, 4], 99)


async def test_a_number_of_another_database_is_none(api: Admin, remote: httpx.AsyncClient) -> None:
    """Whoever has seen more than there ever was begins anew, with the tail."""
    for i in range(3):
        api.services.journal.emit("test.event", data={"i": i})
    ahead = {"Last-Event-ID": str(api.services.journal.last_seq + 1000)}
    async with remote.stream("GET", "/api/events", params={"tail": 2}, headers=ahead) as answer:
        reading = events(answer)
        first = [json.loads((await anext(reading))["data"])["data"]["i"] for _ in range(2)]
        api.services.journal.emit("test.event", data={"i": 99})
        last = json.loads((await anext(reading))["data"])["data"]["i"]
    assert (first, last) == ([1, 2], 99)


async def test_events_of_one_model(api: Admin, remote: httpx.AsyncClient) -> None:
    """`model` filters, by id or alias."""
    async with remote.stream("GET", "/api/events", params={"model": "Qwen/Qwen2.5-7B"}) as answer:
        api.services.journal.emit("test.event", model="a")
        api.services.journal.emit("test.event", model="Qwen/Qwen2.5-7B")
        assert json.loads((await anext(events(answer)))["data"])["model"] == "Qwen/Qwen2.5-7B"


async def test_a_wrong_event_number_is_refused(remote: httpx.AsyncClient) -> None:
    """422 before the stream begins."""
    assert (await remote.get("/api/events", headers={"Last-Event-ID": "x"})).status_code == 422


async def test_a_reader_that_left_is_forgotten(
    api: Admin, remote: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its subscription goes; nothing is kept for it."""
    monkeypatch.setattr(live, "LOOK_EVERY", 0.02)
    async with remote.stream("GET", "/api/events") as answer:
        await anext(answer.aiter_lines())
        assert len(api.services.journal._listeners) == 2  # the metrics listen too
    await until(lambda: len(api.services.journal._listeners) == 1)


async def test_silence_is_filled_with_comments(
    api: Admin, remote: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So that nothing in between closes the connection."""
    monkeypatch.setattr(live, "LOOK_EVERY", 0.02)
    monkeypatch.setattr(live, "KEEP_ALIVE", 0.04)
    async with remote.stream("GET", "/api/events") as answer:
        async for line in answer.aiter_lines():
            if line == ": keep-alive":
                return


async def test_streams_end_at_shutdown(api: Admin, remote: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stream that would go on for ever does not hold the server back."""
    monkeypatch.setattr(live, "LOOK_EVERY", 0.02)
    async with remote.stream("GET", "/api/events") as answer:
        api.services.closing.set()
        assert [line async for line in answer.aiter_lines() if line] == [": events"]


async def test_logs_as_text_and_as_events(api: Admin, remote: httpx.AsyncClient) -> None:
    """The last `tail` lines of the engine's log, in either form."""
    await api.world.ready("a")
    for i in range(5):
        api.world.processes["a"].log(f"line {i}")
    assert (await remote.get("/api/models/a/logs?tail=2")).text == "line 3\nline 4\n"
    answer = await remote.get("/api/models/a/logs?tail=1", headers={"Accept": "text/event-stream"})
    assert re.fullmatch(r'id: \w+\.1\.\d+\ndata: "line 4"\n\n', answer.text), answer.text
    assert (await remote.get("/api/models/Qwen/Qwen2.5-7B/logs")).text == ""


async def test_logs_can_be_followed_over_a_restart(
    api: Admin, remote: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The tail, then what comes, then the lines of the next launch from its first on."""
    monkeypatch.setattr(live, "LOOK_EVERY", 0.02)
    await api.world.ready("a")
    api.world.processes["a"].log("old")
    async with remote.stream("GET", "/api/models/a/logs?follow=1&tail=1") as answer:
        lines = answer.aiter_lines()
        assert await anext(lines) == "old"
        api.world.processes["a"].log("new")
        assert await anext(lines) == "new"
        await api.world.manager.stop("a", "test")
        await api.world.clock.advance(1.0)
        await api.world.ready("a")
        api.world.processes["a"].log("of the next launch")
        assert await anext(lines) == "of the next launch"


async def test_a_slow_reader_of_logs_loses_lines_and_is_told(
    api: Admin, remote: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its queue is bounded; the engine and everybody else do not notice."""
    monkeypatch.setattr(live, "BEHIND", 10)
    await api.world.ready("a")
    async with remote.stream("GET", "/api/models/a/logs?follow=1&tail=0") as answer:
        lines = answer.aiter_lines()
        await until(lambda: bool(api.world.processes["a"]._followers[1:]))
        for i in range(100):  # at one go: the reader cannot run in between
            api.world.processes["a"].log(f"line {i}")
        told = await anext(lines)
        rest = [await anext(lines) for _ in range(11)]
    assert told == "[89 lines left out here: this reader was too slow]"
    assert rest == [f"line {i}" for i in range(89, 100)]


async def test_logs_can_be_searched(api: Admin, remote: httpx.AsyncClient) -> None:
    """By a part of a line, by level and by age, from all lines that are kept; `tail` counts those that are found. Also of what
    comes. What is no level or no time is refused with what is one."""
    await api.world.ready("a")
    for i in range(300):
        api.world.processes["a"].log(f"INFO line {i}")
    for line in ("ERROR it broke", "Traceback", "INFO 11-30 10:00:00 of long ago"):
        api.world.processes["a"].log(line)
    assert (await remote.get("/api/models/a/logs?search=LINE%201&tail=2")).text == "INFO line 198\nINFO line 199\n"
    assert (await remote.get("/api/models/a/logs?level=warn")).text == "ERROR it broke\nTraceback\n"
    assert "long ago" in (await remote.get("/api/models/a/logs?since=3650d&search=ago")).text
    for query, told in (("level=loud", "use one of debug, info"), ("since=soon", "how long ago, such as 10m")):
        answer = await remote.get(f"/api/models/a/logs?{query}")
        assert (answer.status_code, told in answer.text) == (422, True), answer.text
    async with remote.stream("GET", "/api/models/a/logs?follow=1&tail=0&level=error") as answer:
        lines = answer.aiter_lines()
        await until(lambda: bool(api.world.processes["a"]._followers[1:]))
        for line in ("INFO not this", "ERROR this"):
            api.world.processes["a"].log(line)
        assert await anext(lines) == "ERROR this"


async def test_a_slow_reader_of_log_events_is_told_by_an_event(
    api: Admin, remote: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`dropped` with how many, in their place. What does not fit the search costs no room."""
    monkeypatch.setattr(live, "BEHIND", 10)
    await api.world.ready("a")
    query = "/api/models/a/logs?follow=1&tail=0&search=line"
    async with remote.stream("GET", query, headers={"Accept": "text/event-stream"}) as answer:
        await until(lambda: bool(api.world.processes["a"]._followers[1:]))
        for i in range(100):
            api.world.processes["a"].log(f"line {i}")
            api.world.processes["a"].log("something else")
        reading = events(answer)
        told, first = await anext(reading), await anext(reading)
    assert (told["event"], json.loads(told["data"])) == ("dropped", {"count": 89})
    assert first["data"] == '"line 89"'


async def test_a_reader_of_logs_that_was_away_catches_up(
    api: Admin, remote: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From the number of the line that it saw last: those since, once; all of a launch that it has not seen; and it is told of
    those that are not there any more."""
    await api.world.ready("a")
    log = api.world.processes["a"].log

    async def read(last: str, *, wish: str = "") -> list[tuple[str, str]]:
        headers = {"Accept": "text/event-stream", **({"Last-Event-ID": last} if last else {})}
        answer = await remote.get(f"/api/models/a/logs?tail=1{wish}", headers=headers)
        found = re.findall(r"^(?:event: (\w+)|id: (\S+))\ndata: (.*)$", answer.text, re.MULTILINE)
        return [(event or number, data) for event, number, data in found]

    log("one")
    ((number, line),) = await read("")
    assert line == '"one"'
    for text in ("two", "three"):
        log(text)
    assert [data for _, data in await read(number)] == ['"two"', '"three"']
    assert [data for _, data in await read(number, wish="&search=three")] == ['"three"']
    last = (await read(number))[-1][0]
    assert await read(last) == []
    assert [data for _, data in await read("nonsense")] == ['"three"']
    monkeypatch.setattr(api.world.processes["a"], "tail", lambda lines: ("three",)[:lines])
    assert await read(number) == [("dropped", '{"count": 1}'), (last, '"three"')]
    await api.world.manager.stop("a", "test")
    await api.world.clock.advance(1.0)
    await api.world.ready("a")
    api.world.processes["a"].lines.clear()
    for text in ("of the next", "launch"):
        api.world.processes["a"].log(text)
    assert [data for _, data in await read(last)] == ['"of the next"', '"launch"']


async def test_a_reader_of_all_logs_takes_in_models_that_start_later(api: Admin, remote: httpx.AsyncClient) -> None:
    """Each line with its model in front, from the first of a launch on."""
    await api.world.ready("a")
    async with remote.stream("GET", "/logs/stream") as answer:
        lines = answer.aiter_lines()
        await until(lambda: bool(api.world.processes["a"]._followers[1:]))
        api.world.processes["a"].log("one")
        seen = [await anext(lines)]
        while seen[-1] != "[a] one":
            seen.append(await anext(lines))
        await api.world.manager.stop("a", "test")
        await api.world.clock.advance(1.0)
        await api.world.ready("Qwen/Qwen2.5-7B")
        api.world.processes["Qwen/Qwen2.5-7B"].log("two")
        while (line := await anext(lines)) != "[Qwen/Qwen2.5-7B] two":
            assert line.startswith("["), line


async def test_a_start_answers_at_once_while_traffic_runs_on(api: Admin, remote: httpx.AsyncClient) -> None:
    """Requests on another model are in flight all the while. The median is compared with that of /health in the same
    seconds, so that a busy machine does not count."""
    await api.world.ready("a")
    stop = asyncio.Event()

    async def traffic() -> int:
        served = 0
        while not stop.is_set():
            async with api.world.manager.lease(api.world.ticket("a")):
                await asyncio.sleep(0.005)
            served += 1
        return served

    running = [asyncio.ensure_future(traffic()) for _ in range(4)]
    took: dict[str, list[float]] = {"/health": [], "/api/models/Qwen/Qwen2.5-7B/start": []}
    for _ in range(11):
        for path, times in took.items():
            began = time.perf_counter()
            answer = await remote.request("GET" if path == "/health" else "POST", path)
            times.append(time.perf_counter() - began)
            assert answer.status_code in {200, 202}
    stop.set()
    assert all(served > 1 for served in await asyncio.gather(*running))
    idle, start = (sorted(times)[5] for times in took.values())
    assert start - idle < 0.05, took


async def until(condition: object, seconds: float = 5.0) -> None:
    assert callable(condition)
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        await asyncio.sleep(0.01)
