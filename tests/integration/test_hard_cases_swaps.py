"""Hard cases of sharing a device: order, bounds, leases, drains, and what does not have to wait (docs/hard-cases.md)."""

import asyncio
import time
from collections import Counter

import httpx

from hard_cases import Case, kill, running, sim

ONE = "12GiB"
"""Room for one model of 10 GiB."""


async def test_alternating_requests_are_collated_by_model() -> None:
    """A B A A C A B C within a second, room for one: three swaps serve them all, not seven."""
    async with running({m: sim() for m in "abc"}, memory=ONE) as it:
        tasks: list[asyncio.Task[httpx.Response]] = []
        for model in "abaacabc":
            tasks.append(asyncio.create_task(it.complete(model)))
            await asyncio.sleep(0.01)
        began = time.monotonic()
        answers = await asyncio.gather(*tasks)
        assert [a.status_code for a in answers] == [200] * 8, [a.text for a in answers]
        assert await it.starts() == 3
        assert time.monotonic() - began < 4, "a model that became idle was not swapped out at once"
        text = (await it.client.get(f"{it.url}/metrics")).text
        counted = sum(
            float(line.rsplit(" ", 1)[1])
            for line in text.splitlines()
            if 'kind="start"' in line and "swaps_total" in line
        )
        assert counted == await it.starts()
        await it.quiet()


async def test_a_busy_model_gives_way_at_the_aging_bound_and_no_stream_is_cut() -> None:
    """Overlapping streams keep A busy without a gap, one request wants B: B is served `max_wait` + drain after it came, at
    the latest; A's streams end whole, or were told to retry before their first byte."""
    async with running(
        {"a": sim(), "b": sim()}, memory=ONE, swap={"max_wait": "1s", "min_dwell": "0s", "drain_timeout": "5s"}
    ) as it:
        await it.ready("a")
        over, seen = asyncio.Event(), Counter[str]()

        async def customer(delay: float) -> None:
            await asyncio.sleep(delay)
            while not over.is_set():
                status, body = await it.streamed("a", tokens=240)
                if status == 200:
                    assert body.endswith(b"data: [DONE]\n\n")
                    assert b'"error"' not in body
                else:
                    assert status == 503, body
                    await asyncio.sleep(0.1)
                seen[str(status)] += 1

        customers = [asyncio.create_task(customer(i * 0.2)) for i in range(3)]
        await it.in_flight("a", 3)
        began = time.monotonic()
        answer = await it.complete("b")
        took = time.monotonic() - began
        over.set()
        await asyncio.gather(*customers)
        assert answer.status_code == 200
        assert 0.9 < took < 1.0 + 0.6 + 3.0, took  # the bound, the longest stream, a stop and a start
        assert seen["200"] >= 3
        await it.written()
        assert "lease.revoked" not in it.events()
        [victims] = [
            d for (d,) in it.serving.rows("select data from events where kind = 'swap.planned' and model = 'b'")
        ]
        assert "max_wait" in victims


async def test_a_model_that_still_starts_holds_its_memory() -> None:
    """A is starting when B is asked for, and both do not fit: B waits for its turn instead of starting beside it."""
    async with running({"a": sim(startup="700ms"), "b": sim()}, memory=ONE) as it:
        first = asyncio.create_task(it.complete("a"))
        await it.until("a", "starting")
        second = asyncio.create_task(it.complete("b"))
        most = 0
        while not (first.done() and second.done()):
            most = max(most, len(it.launches()))
            await asyncio.sleep(0.02)
        assert (first.result().status_code, second.result().status_code) == (200, 200)
        assert most == 1
        assert await it.starts() == 2


async def test_the_least_recently_used_victim_is_not_cut_in_the_middle() -> None:
    """A generates a long answer, and was used before B was: B, which is idle, goes for C. With A alone in the way, A
    finishes first."""
    async with running(
        {"a": sim(), "b": sim(), "c": sim()}, memory="22GiB", swap={"max_wait": "500ms", "min_dwell": "0s"}
    ) as it:
        await it.ready("a", "b")
        long = asyncio.create_task(it.streamed("a", tokens=1200))
        await it.in_flight("a", 1)
        assert (await it.complete("b")).status_code == 200
        assert (await it.complete("c")).status_code == 200
        assert await it.state("b") == "stopped"
        assert not long.done()
        b = asyncio.create_task(it.complete("b"))
        status, body = await long
        assert (status, body[-14:]) == (200, b"data: [DONE]\n\n")
        assert (await b).status_code == 200


async def test_stops_elsewhere_do_not_touch_a_ready_model() -> None:
    """Unloading A, whose engine ignores SIGTERM for seconds, and its long drain, delay no request to B."""
    async with running(
        {"a": sim("ignore_term"), "b": sim()}, own_devices=True, timeouts={"stop_grace": "1500ms", "health": "100ms"}
    ) as it:
        await it.ready("a", "b")
        stream = asyncio.create_task(it.streamed("a", tokens=300))
        await it.in_flight("a", 1)
        began = time.monotonic()
        assert (await it.act("a", "stop")).status_code == 202
        assert time.monotonic() - began < 0.5
        worst, states = 0.0, set[str]()
        while (state := await it.state("a")) != "stopped":
            states.add(state)
            sent = time.monotonic()
            answer = await it.complete("b")
            assert answer.status_code == 200
            worst = max(worst, time.monotonic() - sent)
        assert states == {"draining", "stopping"}
        assert worst < 0.5, worst
        assert (await stream)[1].endswith(b"data: [DONE]\n\n")
        assert time.monotonic() - began > 1.5


async def test_orders_during_a_drain() -> None:
    """While A drains: a stream is told to retry, another request waits; undrain takes it back, at once and whole; a second
    stop is no error; a forced stop cuts and says so; a start during the drain brings it back."""
    async with running({"a": sim()}) as it:
        await it.ready("a")
        await _undrained(it)
        await _forced(it)
        await _started_again(it)
        assert await it.outcomes(7) == {"ok": 5, "torn_down": 1, "cut": 1}


async def _undrained(it: Case) -> None:
    stream = asyncio.create_task(it.streamed("a", tokens=400))
    await it.in_flight("a", 1)
    assert (await it.act("a", "drain")).json()["state"] == "draining"
    async with it.stream("a") as refused:
        assert refused.status_code == 503
        assert 1 <= int(refused.headers["retry-after"]) <= 60
    waiting = asyncio.create_task(it.complete("a"))
    await it.until_queued(1)
    assert (await it.act("a", "undrain")).status_code == 202
    assert (await waiting).status_code == 200
    assert not stream.done()
    assert (await stream)[1].endswith(b"data: [DONE]\n\n")


async def _forced(it: Case) -> None:
    stream = asyncio.create_task(it.streamed("a", tokens=1800))
    await it.in_flight("a", 1)
    for _ in range(2):
        assert (await it.act("a", "stop")).status_code == 202
    assert await it.state("a") == "draining"
    assert (await it.act("a", "stop", force=True, wait=10)).json()["state"] == "stopped"
    try:
        await stream
    except httpx.RemoteProtocolError:
        pass
    else:
        raise AssertionError("a stream that was cut ended as if it were whole")


async def _started_again(it: Case) -> None:
    await it.ready("a")
    stream = asyncio.create_task(it.streamed("a", tokens=300))
    await it.in_flight("a", 1)
    await it.act("a", "stop")
    await it.act("a", "start")
    assert (await it.complete("a")).status_code == 200
    assert (await stream)[1].endswith(b"data: [DONE]\n\n")
    await it.until("a", "ready")
    status, body = await it.streamed("a", tokens=4)
    assert status == 200
    assert body.endswith(b"data: [DONE]\n\n")


async def test_a_crash_while_others_wait_for_its_room() -> None:
    """The victim dies in its drain, the load it made room for goes on; the stream it carried is told; then the model that
    was started for it dies in its load, and the first one is served again."""
    async with running(
        {"a": sim(), "b": sim("die_at:weights")}, memory=ONE, swap={"max_wait": "200ms", "min_dwell": "0s"}
    ) as it:
        [leader] = await it.ready("a")
        stream = asyncio.create_task(it.streamed("a", tokens=1800))
        await it.in_flight("a", 1)
        wanted = asyncio.create_task(it.complete("b"))
        await it.until("a", "draining")
        kill(leader)
        answer = await wanted
        assert answer.status_code == 503
        assert "weights" in answer.text
        try:
            await stream
        except httpx.RemoteProtocolError:
            pass
        else:
            raise AssertionError("a stream whose engine died ended as if it were whole")
        assert (await it.complete("a")).status_code == 200
        assert await it.outcomes(3) == {"ok": 1, "start_failed": 1, "upstream_died": 1}
        await it.quiet()


async def test_streams_wait_for_the_next_start_where_that_is_set() -> None:
    """`on_teardown: wait`: a stream that meets a drain is held and served by the next launch, not refused."""
    async with running({"a": sim()}, queue={"on_teardown": "wait"}) as it:
        await it.ready("a")
        first = asyncio.create_task(it.streamed("a", tokens=200))
        await it.in_flight("a", 1)
        await it.act("a", "stop")
        second = asyncio.create_task(it.streamed("a"))
        for status, body in await asyncio.gather(first, second):
            assert status == 200
            assert body.endswith(b"data: [DONE]\n\n")
        assert await it.starts() == 2


async def test_a_drain_has_an_end_and_the_cut_is_told() -> None:
    """A stream longer than `drain_timeout`: `cut` ends it with an error event and without [DONE], its row says cut, and the
    other model comes; `wait` lets it finish, however long the other one waits, and says so in the events."""
    swap = {"max_wait": "200ms", "min_dwell": "0s", "drain_timeout": "500ms"}
    async with running({"a": sim(), "b": sim()}, memory=ONE, swap={**swap, "on_drain_timeout": "cut"}) as it:
        await it.ready("a")
        got = bytearray()
        stream = asyncio.create_task(_read(it, "a", 3600, got))
        await it.in_flight("a", 1)
        began = time.monotonic()
        assert (await it.complete("b")).status_code == 200
        assert time.monotonic() - began < 8  # long before the end of the stream
        assert await stream is False
        assert b'"error"' in got
        assert b"[DONE]" not in got
        assert await it.outcomes(2) == {"cut": 1, "ok": 1}
    async with running({"a": sim(), "b": sim()}, memory=ONE, swap={**swap, "on_drain_timeout": "wait"}) as it:
        await it.ready("a")
        got = bytearray()
        stream = asyncio.create_task(_read(it, "a", 600, got))
        await it.in_flight("a", 1)
        assert (await it.complete("b")).status_code == 200
        assert await stream is True
        assert got.endswith(b"data: [DONE]\n\n")
        await it.written()
        assert "alert.drain_overdue" in it.events("a")


async def _read(it: Case, model: str, tokens: int, into: bytearray) -> bool:
    """Whether the stream came to a clean end."""
    try:
        async with it.stream(model, tokens=tokens) as answer:
            async for chunk in answer.aiter_bytes():
                into.extend(chunk)
    except httpx.RemoteProtocolError:
        return False
    return True


async def test_opposite_orders_at_once_come_to_rest() -> None:
    """Starts, stops, sleeps, wakes and requests for three models that need the same room, at once and again and again:
    everybody is answered, two are never there together, nothing is held at the end, and each can be served."""
    async with running({m: sim() for m in "abc"}, memory=ONE, swap={"max_wait": "300ms", "min_dwell": "0s"}) as it:
        over, most = asyncio.Event(), 0
        codes: Counter[int] = Counter()

        async def order(model: str, acts: list[str]) -> None:
            for act in acts * 3:
                codes[(await it.act(model, act)).status_code] += 1
                await asyncio.sleep(0.05)

        async def ask(model: str) -> None:
            for _ in range(4):
                codes[(await it.complete(model, wait=20)).status_code] += 1

        async def watch() -> None:
            nonlocal most
            while not over.is_set():
                most = max(most, len(it.launches()))
                await asyncio.sleep(0.02)

        watching = asyncio.create_task(watch())
        async with asyncio.timeout(60):
            await asyncio.gather(
                order("a", ["start", "stop", "sleep", "start"]), order("b", ["start", "restart", "stop"]),
                order("c", ["start", "sleep", "wake", "drain", "undrain"]), *(ask(m) for m in "abcabc"),
            )  # fmt: skip
        over.set()
        await watching
        assert set(codes) <= {200, 202, 409, 503}, codes
        assert codes[200] > 0, codes
        assert most == 1
        for model in "abc":
            assert (await it.complete(model)).status_code == 200
        await it.quiet()
