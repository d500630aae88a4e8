"""A load, watched: a moving bar on a terminal, a line per phase elsewhere."""

import sys
import time
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import typer

from vllm_mm.cli.output import seconds
from vllm_mm.cli.server import Server, model_path

POLL = 0.25
"""Seconds between two looks."""

Instance: TypeAlias = Mapping[str, Any]


def follow_load(server: Server, instance: Instance, timeout: float, *, quiet: bool) -> Instance:
    """Wait until nothing is under way any more, or `timeout` seconds passed; returns the instance as it is then."""
    if quiet:
        return _poll(server, instance, timeout, lambda _: None)
    if sys.stderr.isatty():
        return _bar(server, instance, timeout)
    return _poll(server, instance, timeout, _Lines().show)


def _poll(server: Server, instance: Instance, timeout: float, show: Callable[[Instance], None]) -> Instance:
    model, end = instance["model"], time.monotonic() + timeout
    while True:
        show(instance)
        if not instance["pending"] or time.monotonic() >= end:
            return instance
        time.sleep(POLL)
        found: Instance | None = server.get(model_path(model))["instance"]
        # A load that came to nothing before there was an engine leaves none.
        instance = found or {**instance, "state": "stopped", "pending": False}


def describe(instance: Instance) -> str:
    """Where a load is, in a few words."""
    progress = instance["progress"]
    if instance["state"] == "starting" and progress["phase"]:
        return str(progress["phase"])
    if instance["pending"] and instance["state"] in {"stopped", "sleeping", "failed", "backoff"}:
        return f"waiting: {instance['reason']}"
    return str(instance["state"])


class _Lines:
    """One line whenever something changed, for logs and pipes."""

    def __init__(self) -> None:
        self._last = ""

    def show(self, instance: Instance) -> None:
        what = describe(instance)
        if what == self._last:
            return
        self._last = what
        eta = seconds(instance["progress"]["eta_s"])
        typer.echo(
            f"{instance['model']}: {what}{f' (about {eta} left)' if eta and instance['pending'] else ''}", err=True
        )


def _bar(server: Server, instance: Instance, timeout: float) -> Instance:
    from rich.console import Console  # noqa: PLC0415  # only for people at a terminal
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn  # noqa: PLC0415  # as above

    columns = (
        TextColumn("{task.fields[model]}"),
        BarColumn(bar_width=24),
        TextColumn("{task.fields[what]}"),
        TimeElapsedColumn(),
        TextColumn("{task.fields[left]}"),
    )
    with Progress(*columns, console=Console(stderr=True)) as progress:
        task = progress.add_task("", total=100, model=instance["model"], what="", left="")

        def show(now: Instance) -> None:
            told, ready = now["progress"], now["state"] == "ready"
            percent, eta = told["percent"], told["eta_s"]
            whole = 100.0 * told["elapsed_s"] / (told["elapsed_s"] + eta) if eta and now["state"] == "starting" else 0.0
            what = describe(now) + (f" {percent:.0f}%" if percent is not None else "")
            left = f"about {seconds(eta)} left" if eta and now["pending"] else ""
            progress.update(task, completed=100 if ready else whole, what=what, left=left)

        return _poll(server, instance, timeout, show)
