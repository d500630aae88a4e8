"""Every route of the published OpenAPI with whatever its schema allows, and with what it does not: no 500, no hang, nothing left.

`MM_FUZZ_CASES=2000` for so many random cases of each operation.
"""

import asyncio
import json
import logging
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
import schemathesis
from hypothesis import given

from fuzzing import Level, bounded, healthy
from hard_cases import Case, running, sim

MODELS = {"m": sim(tokens_per_second=5000), "other": sim(task="embed")}
FEW = 3
"""Cases of each operation."""
UNSAFE = ("command", "executable", "launcher")
"""A model with these in it would start whatever a test makes up."""


def asked(case: Any) -> tuple[dict[str, Any], Any]:
    """The query and the body, without what would wait, follow for ever, or start a program."""
    query = {**dict(case.query or {}), "wait": "0", "follow": "false"}
    body = case.body
    if isinstance(body, dict):
        body = {key: value for key, value in body.items() if key not in UNSAFE}
        if "engine" in body:
            body["engine"] = "sim"
    return query, body


def operations(schema: Any, generation: Any) -> Iterator[tuple[str, Any]]:
    for found in schema.get_all_operations():
        operation = found.ok()
        yield operation.label, operation.as_strategy(generation_mode=generation)


def fuzz(url: str, schema: Any) -> int:
    """Each operation, with what is valid and with what is not; how many cases there were."""
    # A connection for each: what happens on one has to do with that request.
    limits = httpx.Limits(max_keepalive_connections=0)
    with httpx.Client(base_url=url, timeout=60, limits=limits) as client:
        count = sum(
            one_operation(client, label, strategy)
            for mode in (schemathesis.GenerationMode.POSITIVE, schemathesis.GenerationMode.NEGATIVE)
            for label, strategy in operations(schema, mode)
        )
        assert client.get("/health").status_code == 200
    return count


def one_operation(client: httpx.Client, label: str, strategy: Any) -> int:
    count = 0

    @bounded(FEW)
    @given(case=strategy)
    def one(case: Any) -> None:
        nonlocal count
        count += 1
        query, body = asked(case)
        headers = {k: v for k, v in dict(case.headers or {}).items() if isinstance(v, str) and v.isascii()}
        content = None
        if isinstance(body, bytes | str):
            content = body
        elif not isinstance(body, schemathesis.core.NotSet):
            content = json.dumps(body, default=str)
            headers.setdefault("content-type", "application/json")
        path = case.formatted_path
        try:
            answer = client.request(case.method, path, params=query, content=content, headers=headers)
        except (httpx.InvalidURL, UnicodeEncodeError, httpx.LocalProtocolError):
            return  # a request that this client cannot write
        except httpx.TransportError as error:
            raise AssertionError(f"{label} {path} {query} {headers} {content!r}: {error!r}") from error
        healthy(answer.status_code, f"{label} {path} {query} {content!r}", answer.content)
        if answer.status_code >= 400 and label not in {"GET /ready"} and case.method != "HEAD":
            assert answer.json()["error"]["message"], answer.text

    one()
    return count


async def test_no_request_of_the_admin_api_is_a_fault() -> None:
    """Nothing gets a 500 or no answer, each error has a message, and afterwards nothing more is open than before."""
    logging.getLogger("schemathesis").setLevel(logging.ERROR)
    async with running(MODELS, own_devices=True) as case:
        await case.ready(*MODELS)
        schema = schemathesis.openapi.from_dict((await case.client.get(f"{case.url}/openapi.json")).json())
        level = Level(case)
        await warm(case)
        await level.measure()
        count = await asyncio.to_thread(fuzz, case.url, schema)
        print(f"{count} cases")
        assert count > 100
        await tidy(case)
        await level.holds(spare=4)


async def warm(case: Case) -> None:
    for path in ("/api/status", "/api/models", "/api/requests", "/api/queue", "/metrics"):
        assert (await case.client.get(f"{case.url}{path}")).status_code == 200


async def tidy(case: Case) -> None:
    """Models, leases and keys that were made are gone, and what is running has settled."""
    for model in (await case.client.get(f"{case.url}/api/models")).json():
        if model["id"] not in MODELS:
            await case.client.delete(f"{case.url}/api/models/{model['id']}", params={"wait": "30"})
    for model in MODELS:
        await case.client.post(f"{case.url}/api/models/{model}/undrain", params={"wait": "30"})


pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")
