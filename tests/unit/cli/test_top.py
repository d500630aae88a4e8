"""`vllm-mm top`: what the screen shows, and what its keys do. Over a source that needs no server."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any

from textual.pilot import Pilot
from textual.widgets import DataTable, RichLog, Static

from vllm_mm.cli.top import Refused, Top, Unreachable, View, event_line


def model(name: str, state: str | None = None, *, pinned: bool = False, reason: str = "") -> dict[str, Any]:
    instance = None if state is None else {
        "state": state, "progress": {"phase": "", "percent": None, "elapsed_s": 1.0, "eta_s": None}, "devices": ["sim0"],
        "memory": {"reserved": {"sim0": 2**30}}, "in_flight": 1, "queued": 2, "reason": reason,
    }  # fmt: skip
    return {"id": name, "pinned": pinned, "instance": instance}


STATUS: Mapping[str, Any] = {
    "version": "1.2.3", "uptime_s": 5.0, "states": {"ready": 1}, "in_flight": 1, "queue": {"length": 2}, "alerts": ["look"],
}  # fmt: skip
DEVICE: Mapping[str, Any] = {
    "id": "sim0", "kind": "sim", "capacity": 24 * 2**30, "free": 2**30, "foreign": 0, "problem": "",
    "reservations": [{"model": "b", "bytes": 2**30}],
}  # fmt: skip
EVENT: Mapping[str, Any] = {
    "at": 0.0,
    "kind": "instance.ready",
    "model": "b",
    "cause": "test",
    "data": {"reason": "fits"},
}


class FakeSource:
    """Tells what it is given, and remembers what was asked for."""

    def __init__(self) -> None:
        self.models = [model("a"), model("b", "ready", reason="fits"), model("c", "sleeping", pinned=True)]
        self.acts: list[tuple[str, str]] = []
        self.error: Exception | None = None
        self.closed = False

    async def look(self) -> View:
        if self.error is not None:
            raise self.error
        entry = {"ticket": "req_1", "model": "b", "waited_s": 1.0, "eta_s": None, "key": "ci"}
        return View(STATUS, [DEVICE], self.models, [entry])

    async def act(self, model: str, act: str) -> str:
        self.acts.append((model, act))
        if act == "sleep":
            raise Refused("it has no sleep mode")
        return "starting"

    async def events(self) -> AsyncIterator[Mapping[str, Any]]:
        yield EVENT
        await asyncio.Event().wait()

    async def close(self) -> None:
        self.closed = True


async def until(pilot: Pilot[None], condition: Callable[[], object]) -> None:
    """Until the screen, or the source, is as expected."""
    async with asyncio.timeout(30):
        while not condition():
            await pilot.pause(0.01)


def rows(app: Top, name: str) -> list[list[str]]:
    table: DataTable[str] = app.query_one(f"#{name}", DataTable)
    return [[str(cell) for cell in table.get_row_at(n)] for n in range(table.row_count)]


async def test_the_screen_shows_all_of_it() -> None:
    """Devices with their reservations, models with their engines, who waits, and events; afterwards nothing is left open."""
    source = FakeSource()
    app = Top(source)
    async with app.run_test(size=(140, 40)) as pilot:
        await until(pilot, lambda: rows(app, "models") and app.query_one("#events", RichLog).lines)
        assert rows(app, "devices")[0][:2] == ["sim0", "sim"]
        assert "b 1.0 GiB" in rows(app, "devices")[0][5]
        assert [row[:2] for row in rows(app, "models")] == [["a", "stopped"], ["b", "ready"], ["c", "sleeping"]]
        assert rows(app, "models")[2][7] == "pinned"
        assert rows(app, "queue") == [["b", "1.0s", "", "ci"]]
        assert "alert: look" in str(app.query_one("#status", Static).content)
        assert "instance.ready" in app.query_one("#events", RichLog).lines[0].text
    assert source.closed


async def test_keys_act_on_the_model_under_the_cursor() -> None:
    """Each act once; `p` unpins what is pinned."""
    source = FakeSource()
    app = Top(source)
    async with app.run_test(size=(140, 40)) as pilot:
        await until(pilot, lambda: rows(app, "models"))
        for key in ("l", "u", "w", "d", "r", "p"):
            await pilot.press(key)
            await until(pilot, lambda: len(source.acts) == "luwdrp".index(key) + 1)  # noqa: B023  # it is over before the next
        await pilot.press("down", "down", "p")
        await until(pilot, lambda: len(source.acts) == 7)
    assert source.acts == [
        ("a", "start"), ("a", "stop"), ("a", "wake"), ("a", "drain"), ("a", "restart"), ("a", "pin"), ("c", "unpin"),
    ]  # fmt: skip


async def test_a_refusal_is_told() -> None:
    """With the server's own words."""
    source = FakeSource()
    app = Top(source)
    async with app.run_test(size=(140, 40)) as pilot:
        await until(pilot, lambda: rows(app, "models"))
        await pilot.press("s")
        await until(pilot, lambda: any("no sleep mode" in n.message for n in app._notifications))


async def test_the_cursor_stays_on_its_model() -> None:
    """Also when another one comes before it; what changed is another cell."""
    source = FakeSource()
    app = Top(source)
    async with app.run_test(size=(140, 40)) as pilot:
        await until(pilot, lambda: rows(app, "models"))
        await pilot.press("down")
        assert app.chosen == "b"
        source.models = [model("0"), *source.models]
        await app.look()
        assert app.chosen == "b"
        source.models[2] = model("b", "draining")
        await app.look()
        assert (app.chosen, rows(app, "models")[2][1]) == ("b", "draining")


async def test_a_server_that_is_away_is_looked_for_again() -> None:
    """What was shown stays; the first line says so."""
    source = FakeSource()
    app = Top(source, every=0.05)
    async with app.run_test(size=(140, 40)) as pilot:
        await until(pilot, lambda: rows(app, "models"))
        source.error = Unreachable("no server at http://x")
        await until(pilot, lambda: "no server at http://x" in str(app.query_one("#status", Static).content))
        assert len(rows(app, "models")) == 3
        source.error = None
        await until(pilot, lambda: "vllm-mm 1.2.3" in str(app.query_one("#status", Static).content))


async def test_without_a_model_keys_do_nothing() -> None:
    source = FakeSource()
    source.models = []
    app = Top(source)
    async with app.run_test(size=(140, 40)) as pilot:
        await until(pilot, lambda: rows(app, "devices"))
        await pilot.press("l", "p")
        await pilot.press("q")
    assert source.acts == []


def test_an_event_in_a_line() -> None:
    """Its time, kind, model, and the reason or what else is told."""
    assert event_line(EVENT).endswith("instance.ready  b  fits")
    assert event_line({**EVENT, "model": None, "data": {"count": 2, "code": "x"}}).endswith("instance.ready  count=2")
