"""A load on a terminal."""

from typing import Any

import pytest
from rich.console import Console

from vllm_mm.cli import loading


def instance(state: str, phase: str = "", percent: float | None = None, *, pending: bool = True) -> dict[str, Any]:
    progress = {"phase": phase, "percent": percent, "elapsed_s": 2.0, "eta_s": 6.0 if pending else None}
    return {"model": "m", "state": state, "reason": "room: n is busy", "pending": pending, "progress": progress}


class Server:
    """Gives one state after another."""

    def __init__(self, *states: dict[str, Any] | None) -> None:
        self._states = iter(states)

    def get(self, path: str) -> dict[str, Any]:
        assert path == "/api/models/m"
        return {"instance": next(self._states)}


def test_a_terminal_gets_a_bar_with_phase_percentage_and_time_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """What it shows is what the server says; it ends with the state."""
    monkeypatch.setattr(loading, "POLL", 0.0)
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    screen = Console(record=True, force_terminal=True, width=100)
    monkeypatch.setattr("rich.console.Console", lambda **_: screen)
    server = Server(instance("starting", "weights", 45.0), instance("ready", pending=False))
    last = loading.follow_load(server, instance("stopped"), 60, quiet=False)  # type: ignore[arg-type]
    assert last["state"] == "ready"
    assert "ready" in screen.export_text()


def test_lines_say_what_is_waited_for_and_never_twice(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """One line per change, on stderr."""
    monkeypatch.setattr(loading, "POLL", 0.0)
    weights = instance("starting", "weights", 45.0)
    server = Server(instance("stopped"), weights, weights, instance("ready", pending=False))
    loading.follow_load(server, instance("stopped"), 60, quiet=False)  # type: ignore[arg-type]
    assert capsys.readouterr().err.splitlines() == [
        "m: waiting: room: n is busy (about 6.0s left)", "m: weights (about 6.0s left)", "m: ready",
    ]  # fmt: skip


def test_a_load_that_came_to_nothing_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """The server shows no instance of it: there never was one."""
    monkeypatch.setattr(loading, "POLL", 0.0)
    server = Server(instance("stopped"), None)
    last = loading.follow_load(server, instance("stopped"), 60, quiet=True)  # type: ignore[arg-type]
    assert (last["state"], last["pending"]) == ("stopped", False)


def test_the_waiting_has_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """After the timeout the instance is given back as it is."""
    last = loading.follow_load(Server(), instance("starting", "weights"), 0.0, quiet=True)  # type: ignore[arg-type]
    assert last["pending"] is True
