"""`/api/usage`: what is asked for, what is told, and how it is refused."""

import csv
import io
from typing import Any

import pytest
from msgspec.structs import replace

from admin_rig import ROW, Admin
from vllm_mm.domain.keys import Scope
from vllm_mm.domain.usage import Outcome, Usage

DAY = 86_400.0


@pytest.fixture
async def used(api: Admin) -> str:
    """Requests of two keys on two days; gives the id of the key that is called `=ci`."""
    key, _ = await api.services.keys.create("=ci", [Scope.INFER])
    rows = [
        replace(ROW, id="1", key=key.id, at=10 * DAY + 5, model="a", usage=Usage(10, 5, 4, 2), queued_s=0.5, total_s=2.5, load_s=0.25),
        replace(ROW, id="2", key=key.id, at=10 * DAY + 4000, model="b", outcome=Outcome.CUT, usage=Usage(1, 1), queued_s=None, load_s=None),
        replace(ROW, id="3", key="key_gone", at=11 * DAY, model="a", usage=Usage(100, 50)),
    ]  # fmt: skip
    await api.services.ledger.add(rows)
    return key.id


async def report(api: Admin, **params: Any) -> dict[str, Any]:
    answer = await api.client.get("/api/usage", params=params)
    assert answer.status_code == 200, answer.text
    return answer.json()


async def test_by_key_and_model(api: Admin, used: str) -> None:
    """The usual question; names beside ids; the total is the sum of the rows."""
    told = await report(api)
    assert told["group_by"] == ["key", "model"]
    assert [(r["key"], r["key_name"], r["model"], r["requests"]) for r in told["rows"]] == sorted(
        [(used, "=ci", "a", 1), (used, "=ci", "b", 1), ("key_gone", None, "a", 1)], key=lambda r: (r[0], r[2])
    )
    mine = next(r for r in told["rows"] if (r["key"], r["model"]) == (used, "a"))
    assert {k: mine[k] for k in mine if k.endswith(("tokens", "_s"))} == {
        "prompt_tokens": 10, "cached_tokens": 4, "completion_tokens": 5, "reasoning_tokens": 2,
        "total_s": 2.5, "queued_s": 0.5, "load_s": 0.25, "device_s": 2.0,
    }  # fmt: skip
    assert (mine["outcomes"], mine["cost"], mine["day"]) == ({"ok": 1}, None, None)
    total = told["total"]
    assert (total["requests"], total["prompt_tokens"], total["outcomes"], total["key"]) == (
        3,
        111,
        {"ok": 2, "cut": 1},
        None,
    )


async def test_by_time(api: Admin, used: str) -> None:
    """Days and hours in UTC; `from` and `to` take days, times and seconds, and tell which whole hours count."""
    assert [(r["day"], r["requests"]) for r in (await report(api, group_by="day"))["rows"]] == [
        ("1970-01-11", 2),
        ("1970-01-12", 1),
    ]
    told = await report(api, **{"group_by": "hour", "from": "1970-01-11T01:30Z", "to": "1970-01-12"})
    assert [r["hour"] for r in told["rows"]] == ["1970-01-11T01:00Z"]
    assert (told["from"], told["to"]) == ("1970-01-11T01:00Z", "1970-01-12T00:00Z")
    told = await report(api, **{"group_by": "", "from": str(10 * DAY), "to": str(10 * DAY + 1)})
    assert (told["total"]["requests"], told["to"]) == (1, "1970-01-11T01:00Z")
    assert (await report(api, **{"group_by": "", "from": "1970-01-11T01:00+01:00"}))["from"] == "1970-01-11T00:00Z"


async def test_of_one(api: Admin, used: str) -> None:
    """A key by its id or name, a model."""
    for key in (used, "=ci"):
        assert (await report(api, group_by="", key=key))["total"]["requests"] == 2
    assert (await report(api, group_by="", model="a"))["total"]["requests"] == 2


async def test_a_name_that_nothing_has_is_told(api: Admin, used: str) -> None:
    """A typing error looks like nobody's use otherwise. What was used is told by names that are gone, too."""
    unused, _ = await api.services.keys.create("frugal", [Scope.INFER])
    for known in ({"key": unused.id}, {"key": "frugal"}, {"key": "key_gone"}, {"key": used, "model": "a"}):
        assert (await report(api, group_by="", **known))["total"]["requests"] == (
            1 if known["key"] in {"key_gone", used} else 0
        )
    for params, told in (
        ({"key": "nobody"}, "no key 'nobody'"),
        ({"model": "no-such"}, "id 'no-such'"),
        ({"key": used, "model": "no-such"}, "'no-such'"),
    ):
        answer = await api.client.get("/api/usage", params=params)
        assert (answer.status_code, answer.json()["error"]["code"]) == (404, "not_found"), params
        assert told in answer.json()["error"]["message"]


async def test_as_a_table(api: Admin, used: str) -> None:
    """CSV with a column for each outcome; a key's name that a spreadsheet would run does not run."""
    answer = await api.client.get("/api/usage", params={"group_by": "key", "format": "csv", "key": used})
    assert answer.headers["content-type"] == "text/csv; charset=utf-8"
    (row,) = csv.DictReader(io.StringIO(answer.text))
    assert {k: row[k] for k in ("key", "key_name", "requests", "prompt_tokens", "cost", "ok", "cut", "timeout")} == {
        "key": used, "key_name": "'=ci", "requests": "2", "prompt_tokens": "11", "cost": "", "ok": "1", "cut": "1", "timeout": "0",
    }  # fmt: skip
    assert {o.value for o in Outcome} <= set(row)


@pytest.mark.parametrize(
    ("params", "param", "told"),
    [
        ({"group_by": "key,week"}, "group_by", "takes key, model, day, hour"),
        ({"from": "yesterday"}, "from", "a day (2026-01-31)"),
        ({"to": "nan"}, "to", "between the years 1970 and 9999"),
        ({"to": "1e300"}, "to", "between the years"),
        ({"from": "-1"}, "from", "between the years"),
    ],
)
async def test_what_cannot_be_understood_is_told(api: Admin, params: dict[str, str], param: str, told: str) -> None:
    """With what can."""
    answer = await api.client.get("/api/usage", params=params)
    assert answer.status_code == 422
    assert answer.json()["error"]["param"] == param
    assert told in answer.json()["error"]["message"]
