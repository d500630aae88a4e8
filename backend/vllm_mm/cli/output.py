"""How results are printed: JSON for programs, tables for people."""

import json
import time
from collections.abc import Sequence
from typing import Any

import typer

ID_WIDTH = 44
"""Characters of an id in a table that other columns share; `--json` has it whole."""


def print_json(value: Any) -> None:
    """Indented; text is left readable."""
    typer.echo(json.dumps(value, indent=2, ensure_ascii=False))


def print_table(columns: Sequence[str], rows: Sequence[Sequence[object]], empty: str) -> None:
    """Aligned columns, plain text, the same on a terminal and in a pipe; `empty` when there are no rows."""
    if not rows:
        typer.echo(empty)
        return
    cells = [[column.upper() for column in columns], *([_cell(value) for value in row] for row in rows)]
    widths = [max(len(row[i]) for row in cells) for i in range(len(columns))]
    for row in cells:
        typer.echo("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


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
