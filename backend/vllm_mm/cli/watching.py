"""Printing the same thing again while it changes: on a terminal in its place, elsewhere below each other."""

import sys
import time
from collections.abc import Callable

import typer

from vllm_mm.cli.exits import Exit

EVERY = 1.0
"""Seconds between two looks."""
_HOME = "\x1b[H"
_REST = "\x1b[J"
_LINE = "\x1b[K"
_ENTER, _LEAVE = "\x1b[?1049h\x1b[?25l", "\x1b[?25h\x1b[?1049l"
"""The terminal's other screen, without a cursor; what stood there is back afterwards."""


def watch(render: Callable[[], str], *, every: float = EVERY) -> None:
    """Show what `render` gives, again and again, until Ctrl-C (exit code 130). Where there is no terminal, only what is new."""
    terminal = sys.stdout.isatty()
    before: str | None = None
    if terminal:
        typer.echo(_ENTER, nl=False)
    try:
        while True:
            text = render()
            if terminal:
                lines = text.replace("\n", f"{_LINE}\n")
                typer.echo(f"{_HOME}{lines}{_LINE}\n{_REST}", nl=False)
            elif text != before:
                typer.echo(text if before is None else f"\n{text}")
            before = text
            time.sleep(every)
    except KeyboardInterrupt:
        raise typer.Exit(Exit.INTERRUPTED) from None
    finally:
        if terminal:
            typer.echo(_LEAVE, nl=False)
