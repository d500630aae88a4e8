"""Limits of keys on a running server: never passed by a crowd, and given back on every way out, with one process and with several."""

import asyncio
import contextlib
import json
import os
import re
import signal
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

import httpx
import pytest

from hard_cases import Case, running, sim, until

KEYS = {"auth": {"mode": "keys"}}
CROWD = 200
BODY = {"model": "m", "prompt": "hi", "max_tokens": 30, "ignore_eos": True, "stream": True}


def become_admin(case: Case) -> None:
    """With the token that the first start prints."""
    found = re.search(r"shown this once: (mm-\S+)", case.serving.log)
    assert found is not None
    case.client.headers["authorization"] = f"Bearer {found[1]}"


async def made(case: Case, **limits: float) -> dict[str, Any]:
    answer = await case.client.post(f"{case.url}/api/keys", json={"name": "limited", "limits": limits})
    assert answer.status_code == 201, answer.text
    return answer.json()


async def used(case: Case, key: Mapping[str, Any]) -> dict[str, Any]:
    return (await case.get(f"/api/keys/{key['id']}"))["used"]


async def free(case: Case, key: Mapping[str, Any], what: str) -> None:
    """Until nothing of the key is under way."""

    async def there() -> bool:
        return (await used(case, key))["concurrency"] == 0

    await until(there, f"the place of a request that {what} to be given back")


async def ask(case: Case, key: Mapping[str, Any], **more: Any) -> httpx.Response:
    headers = {"authorization": f"Bearer {key['secret']}"}
    return await case.client.post(f"{case.url}/v1/completions", json={**BODY, **more}, headers=headers)


async def crowd(case: Case, key: Mapping[str, Any], size: int = CROWD) -> list[httpx.Response]:
    return await asyncio.gather(*(ask(case, key) for _ in range(size)))


def ledger(case: Case, key: Mapping[str, Any], columns: str) -> list[tuple[Any, ...]]:
    return case.serving.rows(f"select {columns} from requests where key = '{key['id']}'")  # noqa: S608  # our own words


def at_once(case: Case, key: Mapping[str, Any]) -> int:
    """The most that had a lease at the same time, by the ledger; a millisecond off each end, for its clocks are read one after the
    other."""
    leased = [row for row in ledger(case, key, "at, queued_s, total_s") if row[1] is not None]
    moments = sorted(
        [(at + queued + 0.001, 1) for at, queued, _ in leased] + [(at + total - 0.001, -1) for at, _, total in leased]
    )
    now = most = 0
    for _, change in moments:
        now += change
        most = max(most, now)
    return most


async def rows_of(case: Case, key: Mapping[str, Any], count: int) -> None:
    async def there() -> bool:
        return len(ledger(case, key, "id")) == count

    await until(there, f"{count} rows of the ledger")


def check_told(answers: list[httpx.Response], what: str, limit: int) -> None:
    """Good or refused, each answer says how the key stands; a refusal says when to come again."""
    for answer in answers:
        assert answer.status_code in {200, 429}, answer.text
        assert answer.headers[f"x-ratelimit-limit-{what}"] == str(limit)
        assert 0 <= int(answer.headers[f"x-ratelimit-remaining-{what}"]) <= limit
        assert re.fullmatch(r"(\d+h)?(\d+m)?[\d.]+s|\d+ms", answer.headers[f"x-ratelimit-reset-{what}"])
        if answer.status_code == 429:
            assert 1 <= int(answer.headers["retry-after"]) <= 60
            assert answer.json()["error"]["code"] == "rate_limit_exceeded"
            assert answer.json()["error"]["type"] == "rate_limit_error"


@pytest.mark.parametrize("workers", [1, 2])
async def test_a_crowd_never_passes_a_limit(workers: int) -> None:
    """200 at once: never more at the same time than allowed, exactly as many a minute, no more tokens than allowed; afterwards nothing is held."""
    async with running({"m": sim()}, server={"workers": workers}, **KEYS) as case:
        become_admin(case)
        await case.ready("m")

        few = await made(case, concurrency=5)
        answers = await crowd(case, few)
        assert {a.status_code for a in answers} == {200, 429}
        assert {a.headers["x-vllm-mm-limit-concurrency"] for a in answers} == {"5"}
        await free(case, few, "was one of many")
        await rows_of(case, few, CROWD)
        assert 1 <= at_once(case, few) <= 5
        assert set(ledger(case, few, "model, asked")) == {("m", "m")}  # those that were refused, too
        assert (await ask(case, few)).status_code == 200

        minute = await made(case, requests_per_minute=20)
        began = time.monotonic()
        answers = await crowd(case, minute, 40)
        let_in = sum(a.status_code == 200 for a in answers)
        assert let_in == 20 or (let_in > 20 and time.monotonic() - began >= 60)  # then the first do not count any more
        check_told(answers, "requests", 20)
        await free(case, minute, "was one of twenty")
        assert (await used(case, minute))["requests_per_minute"] <= 20

        if workers > 1:
            return
        tokens = await made(case, tokens_per_minute=1000)
        answers = await crowd(case, tokens, 40)
        check_told(answers, "tokens", 1000)
        assert any(a.status_code == 200 for a in answers)
        await free(case, tokens, "used tokens")
        assert 0 < (await used(case, tokens))["tokens_per_minute"] <= 1000

        anthropic = {"model": "m", "max_tokens": 2000, "messages": [{"role": "user", "content": "hi"}]}
        headers = {"authorization": f"Bearer {tokens['secret']}"}
        answer = await case.client.post(f"{case.url}/v1/messages", json=anthropic, headers=headers)
        assert (answer.status_code, answer.json()["type"], answer.json()["error"]["type"]) == (
            429,
            "error",
            "rate_limit_error",
        )


async def leave_mid_stream(case: Case, key: Mapping[str, Any]) -> None:
    headers = {"authorization": f"Bearer {key['secret']}"}
    body = {**BODY, "max_tokens": 4000}
    async with case.client.stream("POST", f"{case.url}/v1/completions", json=body, headers=headers) as answer:
        assert answer.status_code == 200
        chunks = answer.aiter_raw()  # kept: without it the stream is closed
        await anext(chunks)
        assert (await used(case, key))["concurrency"] == 1


async def leave(case: Case, key: Mapping[str, Any], model: str) -> None:
    """While it waits for its model, or for its first token."""
    asking = asyncio.create_task(ask(case, key, model=model, prompt="hi " * 500))

    async def there() -> bool:
        return (await used(case, key))["concurrency"] == 1

    await until(there, f"a request for {model} to be let in")
    asking.cancel()


async def leave_in_body(case: Case, key: Mapping[str, Any]) -> None:
    _, writer = await asyncio.open_connection("127.0.0.1", case.serving.port)
    writer.write(
        b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 1000\r\nauthorization: Bearer "
        + key["secret"].encode()
        + b"\r\n\r\n{"
    )
    await writer.drain()
    writer.close()


async def ended(case: Case, key: Mapping[str, Any], end: Callable[[], Awaitable[object]]) -> None:
    """A stream that ends from outside: with an error, never as if it were whole."""
    headers = {"authorization": f"Bearer {key['secret']}"}
    body = {**BODY, "max_tokens": 4000}
    text = b""
    async with case.client.stream("POST", f"{case.url}/v1/completions", json=body, headers=headers) as answer:
        assert answer.status_code == 200
        chunks = answer.aiter_raw()
        text += await anext(chunks)
        await end()
        with contextlib.suppress(httpx.RemoteProtocolError):
            async for chunk in chunks:
                text += chunk
    assert b"error" in text
    assert b"[DONE]" not in text


async def test_a_place_is_given_back_on_every_way_out() -> None:
    """Done, refused, wrong, left in the body, in the queue, before the first token and in the middle; crashed, cut: with one
    place, the next request is let in after each. Budgets count what was used, and go on after a restart."""
    models = {"m": sim(), "slow": sim(startup="30s"), "prefill": sim(prefill_tokens_per_second=2)}
    async with running(models, own_devices=True, **KEYS) as case:
        become_admin(case)
        await case.ready("m", "prefill")
        key = await made(case, concurrency=1, tokens_per_day=10**9)

        async def cut() -> None:
            await case.client.post(f"{case.url}/api/models/m/stop", params={"force": True})

        async def crash() -> None:
            os.kill((await case.instance("m"))["pid"], signal.SIGKILL)

        ways: dict[str, Callable[[], Awaitable[object]]] = {
            "was answered": lambda: ask(case, key),
            "was for no model": lambda: ask(case, key, model="nope"),
            "was refused by its engine": lambda: ask(case, key, max_tokens=-1),
            "left in its body": lambda: leave_in_body(case, key),
            "left in the middle": lambda: leave_mid_stream(case, key),
            "left in the queue": lambda: leave(case, key, "slow"),
            "left before its first token": lambda: leave(case, key, "prefill"),
            "was cut": lambda: ended(case, key, cut),
        }
        for what, go in ways.items():
            await go()
            await free(case, key, what)
        await case.ready("m")
        await ended(case, key, crash)
        await free(case, key, "lost its engine")
        await case.client.post(f"{case.url}/api/models/slow/stop", params={"force": True})
        await case.ready("m")

        before = (await used(case, key))["tokens_per_day"]
        assert (await ask(case, key)).status_code == 200
        await free(case, key, "was answered")
        now = await used(case, key)
        assert now["tokens_per_day"] - before >= 30
        assert now["device_seconds_per_day"] > 0
        await case.quiet()

        assert await case.serving.stop() == 0  # now all rows are written
        counted = sum(
            (prompt or 0) + (answer or 0) for prompt, answer in ledger(case, key, "prompt_tokens, completion_tokens")
        )
        await case.serving.start()
        again = await used(case, key)
        assert again["tokens_per_day"] == counted > 0
        assert again["concurrency"] == 0


async def test_a_worker_that_dies_holds_no_place() -> None:
    """What it had let in is given back with it; a key that is revoked ends its streams in every worker within a moment."""
    async with running({"m": sim()}, server={"workers": 2}, **KEYS) as case:
        become_admin(case)
        await case.ready("m")
        key = await made(case, concurrency=1)
        headers = {"authorization": f"Bearer {key['secret']}"}
        body = {**BODY, "max_tokens": 4000}
        async with case.client.stream("POST", f"{case.url}/v1/completions", json=body, headers=headers) as answer:
            assert answer.status_code == 200
            chunks = answer.aiter_raw()
            await anext(chunks)
            for pid in case.serving.left():
                if b"vllm_mm.main.worker" in Path(f"/proc/{pid}/cmdline").read_bytes():
                    os.kill(pid, signal.SIGKILL)
        await free(case, key, "was in a worker that died")

        async def served() -> bool:
            try:
                return (await ask(case, key)).status_code == 200
            except httpx.TransportError:
                return False

        await until(served, "the workers to be there again")

        async def revoke() -> None:
            gone = await case.client.delete(f"{case.url}/api/keys/{key['id']}")
            assert json.loads(gone.text)["active"] is False

        await ended(case, key, revoke)
        assert (await ask(case, key)).status_code == 401


async def test_new_limits_count_what_runs_and_every_refusal_tells_them() -> None:
    """Streams of a key in two workers count from the moment at which it gets a limit. What is refused before it is let in, wherever
    that is, tells how its key stands; whose key is not good is told nothing."""
    config: dict[str, Any] = {"server": {"workers": 2}, "limits": {"body": "1MiB"}, **KEYS}
    async with running({"m": sim(tokens_per_second=20)}, **config) as case, contextlib.AsyncExitStack() as streams:
        become_admin(case)
        await case.ready("m")
        key = await made(case)
        headers = {"authorization": f"Bearer {key['secret']}"}
        body = {**BODY, "max_tokens": 4000}
        chunks: list[AsyncIterator[bytes]] = []  # one that nobody has any more is closed, and its connection with it
        for _ in range(3):
            stream = case.client.stream("POST", f"{case.url}/v1/completions", json=body, headers=headers)
            answer = await streams.enter_async_context(stream)
            assert answer.status_code == 200
            chunks.append(answer.aiter_raw())
            await anext(chunks[-1])
        changed = await case.client.patch(
            f"{case.url}/api/keys/{key['id']}", json={"limits": {"concurrency": 3, "requests_per_minute": 1000}}
        )
        assert changed.status_code == 200, changed.text

        async def counted() -> bool:
            return (await used(case, key))["concurrency"] == 3

        await until(counted, "the streams under way to count")
        assert (await ask(case, key)).status_code == 429

        async def early(method: str, path: str, **more: Any) -> httpx.Response:
            return await case.client.request(method, f"{case.url}{path}", **{"headers": headers, **more})

        refusals = [
            (413, await early("POST", "/v1/completions", content=b" " * (1 << 20) + b"{}")),
            (405, await early("GET", "/v1/completions")),
            (404, await early("GET", "/v1/completionz")),
            (404, await early("POST", "/upstream/nobody/v1/completions", json={})),
            (404, await early("POST", "/upstream/m/sleep")),
            (404, await early("GET", "/v1/models/nobody")),
            (415, await early("POST", "/v1/completions", content=b"x", headers={**headers, "content-encoding": "x"})),
        ]
        await streams.aclose()
        await free(case, key, "was left")
        refusals += [(404, await ask(case, key, model="nobody")), (400, await ask(case, key, model=5))]
        for status, answer in refusals:
            assert answer.status_code == status, answer.text
            assert answer.headers["x-ratelimit-limit-requests"] == "1000", answer.request.url
            assert answer.headers["x-vllm-mm-limit-concurrency"] == "3"
        for answer in (await early("GET", "/v1/completions", headers={}), await early("GET", "/v1/models", headers={})):
            assert "x-ratelimit-limit-requests" not in answer.headers
        assert (await ask(case, key, max_tokens=1)).status_code == 200
