"""`top`: devices, models, the queue and events on one screen, and keys that act on the model under the cursor.

The screen knows nothing of HTTP: it asks a `Source`. `cli.top_server` is the one that talks to a server.
"""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol, cast

from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal
from textual.widgets import DataTable, Footer, RichLog, Static

from vllm_mm.cli.output import clock, count, first_line, seconds, shortened, size

EVERY = 1.0
"""Seconds between two looks at the server."""
EVENTS_KEPT = 500


class Unreachable(Exception):
    """There is no server, or it does not answer; the text says so."""


class Refused(Exception):
    """The server says no; the text says why."""


@dataclass(frozen=True, slots=True)
class View:
    """One look at the server, as the admin API tells it."""

    status: Mapping[str, Any]
    devices: Sequence[Mapping[str, Any]] = ()
    models: Sequence[Mapping[str, Any]] = ()
    queue: Sequence[Mapping[str, Any]] = ()


class Source(Protocol):
    """Where it comes from."""

    async def look(self) -> View:
        """Raises Unreachable or Refused."""
        ...

    async def act(self, model: str, act: str) -> str:
        """Do it, without waiting for its end; how the model is now. Raises Unreachable or Refused."""
        ...

    def events(self) -> AsyncIterator[Mapping[str, Any]]:
        """The latest, and then what comes. Raises Unreachable or Refused."""
        ...

    async def close(self) -> None: ...


@dataclass(slots=True)
class _Table:
    """Rows by key, so that the cursor stays on what it was on."""

    columns: tuple[str, ...]
    rows: dict[str, tuple[str, ...]] = field(default_factory=dict[str, tuple[str, ...]])

    def show(self, widget: "DataTable[str]", rows: Mapping[str, tuple[str, ...]]) -> None:
        """Change what is another than before."""
        if list(rows) == list(self.rows):
            for key, row in rows.items():
                for column, before, now in zip(self.columns, self.rows[key], row, strict=True):
                    if before != now:
                        widget.update_cell(key, column, now, update_width=True)
        else:
            under = self.key_at(widget.cursor_row)
            widget.clear()
            for key, row in rows.items():
                widget.add_row(*row, key=key)
            if under in rows:
                widget.move_cursor(row=list(rows).index(under), animate=False)
        self.rows = dict(rows)

    def key_at(self, row: int) -> str:
        """Of that line; empty where there is none."""
        keys = list(self.rows)
        return keys[row] if 0 <= row < len(keys) else ""


class Top(App[None]):
    """The screen. Its exit leaves nothing behind."""

    CSS = """
    #status { height: auto; padding: 0 1; }
    #devices { height: auto; max-height: 8; }
    #models { height: 2fr; }
    #below { height: 1fr; }
    #queue { width: 1fr; }
    #events { width: 2fr; border-left: solid $surface-lighten-2; }
    """
    TITLE = "vllm-mm"
    ENABLE_COMMAND_PALETTE = False
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("l", "act('start')", "load"),
        Binding("u", "act('stop')", "unload"),
        Binding("s", "act('sleep')", "sleep"),
        Binding("w", "act('wake')", "wake"),
        Binding("p", "pin", "pin/unpin"),
        Binding("d", "act('drain')", "drain"),
        Binding("r", "act('restart')", "restart"),
        Binding("q", "quit", "quit"),
    ]

    def __init__(self, source: Source, *, every: float = EVERY) -> None:
        super().__init__()
        self._source = source
        self._every = every
        self._view: View | None = None
        self._tables = {
            "devices": _Table(("device", "kind", "memory", "free", "others", "reserved", "state")),
            "models": _Table(("model", "state", "devices", "memory", "running", "waiting", "for", "pinned", "reason")),
            "queue": _Table(("model", "waited", "eta", "key")),
        }

    def compose(self) -> ComposeResult:
        yield Static("...", id="status", markup=False)
        yield DataTable[str](id="devices", cursor_type="none")
        yield DataTable[str](id="models", cursor_type="row")
        with Horizontal(id="below"):
            yield DataTable[str](id="queue", cursor_type="none")
            yield RichLog(id="events", max_lines=EVENTS_KEPT, wrap=False, markup=False)
        yield Footer()

    def on_mount(self) -> None:
        for name, made in self._tables.items():
            for column in made.columns:
                self._widget(name).add_column(column, key=column)
        self._widget("models").focus()
        self.set_interval(self._every, self._look_soon)
        self._look_soon()
        self.run_worker(self._follow(), exclusive=True, group="events", exit_on_error=False)

    async def on_unmount(self) -> None:
        await self._source.close()

    def _widget(self, name: str) -> "DataTable[str]":
        return cast("DataTable[str]", self.query_one(f"#{name}", DataTable))

    # What is shown

    def _look_soon(self) -> None:
        self.run_worker(self.look(), exclusive=True, group="look", exit_on_error=False)

    async def look(self) -> None:
        """Once, now."""
        try:
            self._view = view = await self._source.look()
        except (Unreachable, Refused) as error:
            self._tell(f"{error} (trying again)")
            return
        self._tell(_summary(view.status))
        for name, rows in (("devices", _devices(view)), ("models", _models(view)), ("queue", _queue(view))):
            self._tables[name].show(self._widget(name), rows)

    def _tell(self, text: str) -> None:
        self.query_one("#status", Static).update(text)

    async def _follow(self) -> None:
        log = self.query_one("#events", RichLog)
        while True:
            try:
                async for event in self._source.events():
                    log.write(event_line(event))
            except (Unreachable, Refused):
                pass  # the status line tells it
            await asyncio.sleep(self._every)

    # What is done

    @property
    def chosen(self) -> str:
        """The model under the cursor; empty without one."""
        return self._tables["models"].key_at(self._widget("models").cursor_row)

    def action_act(self, act: str) -> None:
        """Ask for it; the answer comes as a notice."""
        if model := self.chosen:
            self.run_worker(self._act(model, act), group="acts", exit_on_error=False)

    def action_pin(self) -> None:
        """One that is pinned is unpinned."""
        model = self.chosen
        if model and self._view is not None:
            pinned = next((m["pinned"] for m in self._view.models if m["id"] == model), False)
            self.action_act("unpin" if pinned else "pin")

    async def _act(self, model: str, act: str) -> None:
        try:
            told = await self._source.act(model, act)
        except (Unreachable, Refused) as error:
            self.notify(str(error), title=f"{act} {model}", severity="error", markup=False)
            return
        self.notify(told, title=f"{act} {model}", markup=False)
        await self.look()


def _summary(status: Mapping[str, Any]) -> str:
    states = ", ".join(f"{number} {state}" for state, number in status["states"].items()) or "no models"
    alerts = "".join(f"\nalert: {alert}" for alert in status["alerts"][:3])
    return (
        f"vllm-mm {status['version']}, up {seconds(status['uptime_s'])}: {states}; "
        f"{count(status['in_flight'], 'request')} in flight, {status['queue']['length']} waiting{alerts}"
    )


def _devices(view: View) -> dict[str, tuple[str, ...]]:
    return {
        d["id"]: (
            d["id"], d["kind"], size(d["capacity"]), size(d["free"]), size(d["foreign"]),
            ", ".join(f"{shortened(r['model'])} {size(r['bytes'])}" for r in d["reservations"]),
            first_line(d["problem"], 40) or "well",
        )
        for d in view.devices
    }  # fmt: skip


def _models(view: View) -> dict[str, tuple[str, ...]]:
    rows: dict[str, tuple[str, ...]] = {}
    for model in view.models:
        instance = model["instance"]
        pinned = "pinned" if model["pinned"] else ""
        if instance is None:
            rows[model["id"]] = (shortened(model["id"]), "stopped", "", "", "", "", "", pinned, "")
            continue
        progress, reserved = instance["progress"], sum(instance["memory"]["reserved"].values())
        percent = f" {progress['percent']:.0f}%" if progress["percent"] is not None else ""
        phase = f" ({progress['phase']}{percent})" if progress["phase"] else ""
        rows[model["id"]] = (
            shortened(model["id"]), f"{instance['state']}{phase}", ",".join(instance["devices"]),
            size(reserved) if reserved else "", str(instance["in_flight"]), str(instance["queued"]),
            seconds(progress["elapsed_s"]) or "", pinned, first_line(instance["reason"], 60),
        )  # fmt: skip
    return rows


def _queue(view: View) -> dict[str, tuple[str, ...]]:
    return {
        e["ticket"]: (shortened(e["model"]), seconds(e["waited_s"]) or "", seconds(e["eta_s"]) or "", e["key"] or "")
        for e in view.queue[:100]
    }


def event_line(event: Mapping[str, Any]) -> str:
    """In a few words."""
    data = event["data"]
    reason = data.get("reason") or ", ".join(f"{k}={v}" for k, v in data.items() if k not in {"generation", "code"})
    parts = (clock(event["at"])[11:], event["kind"], event["model"] or "", first_line(str(reason), 120))
    return "  ".join(part for part in parts if part)
