"""How results are printed: JSON for programs, tables for people."""

import json
import os
import shutil
import sys
import time
from collections.abc import Sequence
from typing import Any

import typer

_GAP = "  "
NARROW = 6
"""Characters that a column of a table has at least, if it has so many."""
ID_WIDTH = 44
"""Characters of an id in a table that other columns share; `--json` has it whole."""


def print_json(value: Any) -> None:
    """Indented; text is left readable."""
    typer.echo(json.dumps(value, indent=2, ensure_ascii=False))


def json_line(value: Any) -> str:
    """One line, for what goes on."""
    return json.dumps(value, ensure_ascii=False)


def print_table(columns: Sequence[str], rows: Sequence[Sequence[object]], empty: str) -> None:
    """Aligned columns; `empty` when there are no rows. On a terminal it fits into the width, and states have a colour; in a
    pipe it is whole, plain text."""
    typer.echo(table(columns, rows, empty, terminal_width(), coloured=coloured()))


def table(
    columns: Sequence[str],
    rows: Sequence[Sequence[object]],
    empty: str,
    width: int | None = None,
    *,
    coloured: bool = False,
) -> str:
    """As `print_table` prints it. `width`: characters of a line; None has no bound."""
    if not rows:
        return empty
    cells = [[column.upper() for column in columns], *([_cell(value) for value in row] for row in rows)]
    widths = [max(len(row[i]) for row in cells) for i in range(len(columns))]
    if width is not None:
        widths = fitted(widths, [len(column) for column in columns], width)
    lines: list[str] = []
    for n, row in enumerate(cells):
        parts = [shortest(cell, size).ljust(size) for cell, size in zip(row, widths, strict=True)]
        parts[-1] = parts[-1].rstrip()
        if coloured and n:
            parts = [_toned(part) if columns[i] in _TONED else part for i, part in enumerate(parts)]
        lines.append(_GAP.join(parts).rstrip())
    return "\n".join(lines)


def fitted(widths: Sequence[int], least: Sequence[int], width: int) -> list[int]:
    """Widths of columns that fit beside each other: the widest give way, down to their heading and a few characters."""
    found = list(widths)
    floors = [min(w, max(low, NARROW)) for w, low in zip(widths, least, strict=True)]
    over = sum(found) + len(_GAP) * (len(found) - 1) - width
    while over > 0:
        room = [n for n in range(len(found)) if found[n] > floors[n]]
        if not room:
            break  # the terminal breaks the lines
        widest = max(room, key=lambda n: found[n])
        found[widest] -= 1
        over -= 1
    return found


def shortest(text: str, width: int) -> str:
    """The text, cut where it is longer."""
    return text if len(text) <= width else text[: max(0, width - 1)] + "…"


def terminal_width() -> int | None:
    """Of the terminal that is printed to; None where it is none."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def coloured() -> bool:
    """Whether colours are wanted: on a terminal, unless NO_COLOR is set (no-color.org) or it cannot show any."""
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


_TONED = frozenset({"state", "outcome", "status"})
"""Columns whose cells have a colour."""
_TONES = {
    "ready": "green", "ok": "green", "held": "green", "serves": "green",
    "starting": "yellow", "waking": "yellow", "draining": "yellow", "suspending": "yellow", "stopping": "yellow",
    "sleeping": "blue",
    "backoff": "red", "failed": "red",
}  # fmt: skip


def _toned(cell: str) -> str:
    colour = _TONES.get(cell.split(maxsplit=1)[0] if cell.strip() else "")
    return cell if colour is None else typer.style(cell, fg=colour)


def _cell(value: object) -> str:
    return "-" if value is None or value == "" else str(value)


def seconds(value: float | None) -> str | None:
    """`75.2` as `1m15s`; short ones with a decimal."""
    if value is None:
        return None
    if value < 10:
        return f"{value:.1f}s"
    minutes, rest = divmod(round(value), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}h{minutes:02}m" if hours else f"{minutes}m{rest:02}s" if minutes else f"{rest}s"


def count(number: int, thing: str) -> str:
    """`1 model`, `2 models`."""
    return f"{number} {thing}{'' if number == 1 else 's'}"


def size(value: float) -> str:
    """Bytes, for people."""
    if value < 2**20:
        return f"{value / 2**10:.1f} KiB" if value >= 2**10 else f"{value:.0f} B"
    return f"{value / 2**30:.1f} GiB" if value >= 2**27 else f"{value / 2**20:.1f} MiB"


def clock(moment: float) -> str:
    """Unix time as local time."""
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(moment))


def first_line(text: str, width: int = 100) -> str:
    """What fits into a table."""
    line = text.splitlines()[0] if text else ""
    return line if len(line) <= width else line[: width - 1] + "…"


def shortened(name: str) -> str:
    """An id that fits into a table: the beginning and the end of a long one, which are what tells models apart."""
    if len(name) <= ID_WIDTH:
        return name
    end = ID_WIDTH // 3
    return f"{name[: ID_WIDTH - end - 1]}…{name[-end:]}"
