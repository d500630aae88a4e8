"""Exit codes, and the way out with a message."""

from enum import IntEnum
from typing import NoReturn

import typer


class Exit(IntEnum):
    """Scripts rely on these."""

    DONE = 0
    FAILED = 1
    USAGE = 2
    UNREACHABLE = 3
    REFUSED = 4
    NOT_FOUND = 5
    INTERRUPTED = 130
    """Ctrl-C, as shells say it (128 and the number of the signal)."""


def fail(message: str, code: Exit = Exit.FAILED) -> NoReturn:
    """Say why on stderr and leave."""
    typer.echo(f"vllm-mm: {message}", err=True)
    raise typer.Exit(code)
