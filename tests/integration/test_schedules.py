"""Times of the week on the product as it runs. Its clock is the real one, so the times are chosen around now."""

import asyncio
import time
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from cli_rig import Cli
from hard_cases import Case, running, sim, until

SOON = 15
"""Seconds until a full minute of the machine's time zone: enough for the server to be up before."""
AHEAD = 3
"""Seconds before a time begins at which it has to be declared to be seen to begin."""


def around_now() -> str:
    """From an hour ago to an hour from now, in UTC."""
    now = datetime.now(UTC)
    return f"{now - timedelta(hours=1):%H:%M}-{now + timedelta(hours=1):%H:%M}"


def minutes_begin_soon(monkeypatch: pytest.MonkeyPatch) -> int:
    """Move the machine's own time zone, as servers see it from now on, so that a full minute begins in `SOON` seconds. How many
    seconds it is behind UTC."""
    behind = (int(time.time()) + SOON) % 60
    monkeypatch.setenv("TZ", f"TST0:00:{behind:02}")  # POSIX: west of Greenwich by so many seconds
    return behind


def about_to_begin(behind: int) -> tuple[str, int]:
    """The next time that can begin there, and when it does in Unix time."""
    there = int(time.time()) + AHEAD - behind
    minute = -(-there // 60) * 60
    begins = datetime.fromtimestamp(minute, UTC)
    return f"{begins:%H:%M}-{begins + timedelta(hours=1):%H:%M}", minute + behind


async def times(it: Case, model: str) -> dict[str, Any]:
    return (await it.get(f"/api/models/{model}"))["schedule_now"]


async def test_an_open_time_keeps_a_model_ready_and_it_comes_back_when_it_had_to_go() -> None:
    """It is loaded without a request, is not stopped for being idle while another one is, says until when and why, and goes
    for a request of another model as anybody who is not pinned: then it is back on its own."""
    idle = {"idle": {"stop_after": "1s"}}
    kept = sim(model={**idle, "schedule": [around_now()]})
    models = {"kept": kept, "other": sim(model=idle)}
    async with running(models, memory="12GiB", timezone="UTC") as it:
        await it.until("kept", "ready")
        shown = await times(it, "kept")
        assert (shown["open"], shown["keeps"]) == (True, True)
        assert 3500 < shown["changes_at"] - time.time() <= 3600
        ends = datetime.fromtimestamp(shown["changes_at"], UTC)
        assert shown["text"] == f"open until {ends:%a %Y-%m-%d %H:%M} (UTC): that is why it is kept ready"
        assert (await it.get("/api/models/other"))["schedule_now"] is None
        await asyncio.sleep(3.0)
        instance = await it.instance("kept")
        assert (instance["state"], instance["generation"]) == ("ready", 1), "it was stopped for being idle"
        assert instance["idle_s"] > 2.0

        assert (await it.complete("other", wait=20)).status_code == 200
        assert await it.state("kept") == "stopped"
        back = await it.until("kept", "ready")
        assert back["generation"] == 2
        await it.written()
        causes = {c for k, c, _ in it.serving.rows("select kind, cause, model from events where model = 'kept'") if k == "instance.starting"}  # fmt: skip
        assert causes == {"schedule"}


async def test_a_time_that_begins_starts_its_model_and_a_stop_holds_until_the_next(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    """Nothing before it; a start within some seconds after it. What an operator stops stays stopped, and that is told too."""
    behind = minutes_begin_soon(monkeypatch)
    async with running({}) as it:
        schedule, begins = about_to_begin(behind)
        made = await it.client.post(f"{it.url}/api/models", json={"id": "a", **sim(model={"schedule": [schedule]})})
        assert made.status_code == 201, made.text
        before = made.json()["schedule_now"]
        assert (before["open"], before["keeps"], before["changes_at"]) == (False, False, begins)
        assert before["text"].startswith("none is open; the next one begins ")
        assert before["text"].endswith(f" {schedule[:5]} (TST), and it is made ready then")
        assert await it.state("a") == "stopped"
        await it.until("a", "ready", seconds=begins - time.time() + 15)
        assert time.time() >= begins
        after = await times(it, "a")
        assert (after["open"], after["keeps"], after["changes_at"]) == (True, True, begins + 3600)

        await it.act("a", "stop", wait=10)
        stopped = await times(it, "a")
        assert (stopped["open"], stopped["keeps"]) == (True, False)
        assert "somebody stopped it" in stopped["text"]
        shown = await Cli(tmp_path, it.url)("show", "a")
        assert f"schedule now: {stopped['text']}" in shown.output.splitlines()
        await until(lambda: time.time() > begins + 5, "two more looks at the times", 10.0)
        assert await it.state("a") == "stopped"
