"""`/api/series`: lines with gaps, marks, and bounds that are told."""

from typing import Any

import pytest

from admin_rig import Admin
from vllm_mm.api import series as module
from vllm_mm.domain.series import HELD, Kind, Row, start_of

MODEL, DEVICE = Kind.MODEL, Kind.DEVICE


@pytest.fixture
async def begin(api: Admin) -> int:
    """An hour ago, with samples of the first minute but for the third ten seconds."""
    begin = start_of(api.services.clock.wall() - 3600, 900)
    rows = [
        Row(10, MODEL, "a", begin + n * 10, {"s": 10.0, "tokens": n * 10.0, "ttft.4": 2.0, "max.oldest": float(n)})
        for n in (0, 1, 3, 4)
    ]
    rows.append(Row(10, MODEL, "b", begin, {"s": 10.0, "tokens": 70.0}))
    rows.append(Row(10, DEVICE, "0", begin, {"s": 10.0, f"{HELD}a": 80.0, f"{HELD}b": 40.0, "free": 20.0}))
    await api.services.series.add(rows)
    return begin


async def ask(api: Admin, **params: Any) -> dict[str, Any]:
    answer = await api.client.get("/api/series", params={k.rstrip("_"): v for k, v in params.items()})
    assert answer.status_code == 200, answer.text
    return answer.json()


async def test_lines_with_gaps(api: Admin, begin: int) -> None:
    """One value for each time; null where nothing is known, and never what may have been in between."""
    told = await ask(api, metric="tokens,ttft_p50", model="a", from_=begin, to=begin + 60, step=10)
    assert (told["since"], told["step"], told["at"]) == (begin, 10, [begin + n * 10 for n in range(6)])
    tokens, ttft = told["lines"]
    assert (tokens["metric"], tokens["model"], tokens["device"], tokens["unit"]) == ("tokens", "a", None, "tokens/s")
    assert tokens["values"] == [0.0, 1.0, None, 3.0, 4.0, None]
    assert ttft["values"] == [0.075, 0.075, None, 0.075, 0.075, None]
    assert told["marks"] == []


async def test_lines_of_all_models_and_of_devices(api: Admin, begin: int) -> None:
    told = await ask(api, metric="tokens,memory,free", from_=begin, to=begin + 10, step=10)
    assert [(x["metric"], x["model"], x["device"], x["values"]) for x in told["lines"]] == [
        ("tokens", "a", None, [0.0]),
        ("tokens", "b", None, [7.0]),
        ("memory", "a", "0", [8.0]),
        ("memory", "b", "0", [4.0]),
        ("free", None, "0", [2.0]),
    ]
    only = await ask(api, metric="memory", model="b", device="0", from_=begin, to=begin + 10, step=10)
    assert [(x["model"], x["values"]) for x in only["lines"]] == [("b", [4.0])]
    assert (await ask(api, metric="memory", device="1", from_=begin, to=begin + 10))["lines"] == []


async def test_without_times_it_is_the_last_hour(api: Admin, begin: int) -> None:
    told = await ask(api, metric="oldest")
    assert told["step"] == 10
    assert 360 <= len(told["at"]) <= 361
    told = await ask(api, metric="oldest", from_="15m")
    assert 90 <= len(told["at"]) <= 91


async def test_marks_say_what_was_done_and_why(api: Admin, begin: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Loads with the scheduler's reason and who has to go, sleeps, stops and failures; the latest where there are many."""
    journal = api.services.journal
    journal.emit("swap.planned", model="a", cause="request req_1", data={"reason": "cold: it waits", "victims": ["b"]})
    journal.emit("request.cancelled", model="a")
    journal.emit("instance.stopped", model="b", cause="evicted for a")
    journal.emit("instance.failed", model="c", cause="crash: it died")
    await journal.flush()
    told = await ask(api, metric="tokens", marks=True, from_=begin, to="2100-01-01")
    assert [(m["kind"], m["model"], m["reason"], m["victims"]) for m in told["marks"]] == [
        ("load", "a", "cold: it waits", ["b"]),
        ("stop", "b", "evicted for a", []),
        ("failed", "c", "crash: it died", []),
    ]
    assert not told["marks_left_out"]
    told = await ask(api, metric="tokens", marks=True, from_=begin, to="2100-01-01", model="b")
    assert [m["model"] for m in told["marks"]] == ["b"]
    monkeypatch.setattr(module, "MARKS", 2)
    told = await ask(api, metric="tokens", marks=True, from_=begin, to="2100-01-01")
    assert ([m["kind"] for m in told["marks"]], told["marks_left_out"]) == (["stop", "failed"], True)


@pytest.mark.parametrize(
    ("params", "part"),
    [
        ({"metric": "speed"}, "not 'speed'"),
        ({"metric": ","}, "at least one"),
        ({"metric": "tokens", "from": "yesterday"}, "not 'yesterday'"),
        ({"metric": "tokens", "from": "nan"}, "1970"),
        ({"metric": "tokens", "from": "1e300"}, "1970"),
        ({"metric": "tokens", "from": "2026-01-02", "to": "2026-01-01T00:00Z"}, "before `to`"),
        ({"metric": "tokens", "from": "1000", "to": "90000000", "step": "1"}, "longer step"),
    ],
)
async def test_what_is_refused_is_told(api: Admin, params: dict[str, str], part: str) -> None:
    answer = await api.client.get("/api/series", params=params)
    assert answer.status_code in {400, 422}
    assert part in answer.json()["error"]["message"]


async def test_an_answer_is_bounded(api: Admin, begin: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_POINTS", 10)
    answer = await api.client.get(
        "/api/series", params={"metric": "tokens,requests,oldest,queued", "from": begin, "to": begin + 100, "step": 10}
    )  # fmt: skip
    assert answer.status_code == 200
    await api.services.series.add([Row(10, MODEL, f"m{n}", begin, {"s": 10.0}) for n in range(50)])
    answer = await api.client.get("/api/series", params={"metric": "tokens", "from": begin, "to": begin + 100, "step": 10})  # fmt: skip
    assert "too many points" in answer.json()["error"]["message"]
