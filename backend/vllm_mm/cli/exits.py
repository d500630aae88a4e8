"""Exit codes, and the way out with a message."""

from collections.abc import Callable
from enum import IntEnum
from typing import NoReturn, TypeVar

import typer

T = TypeVar("T")


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


def understood(option: str, text: str, parse: Callable[[str], T]) -> T:
    """The value of an option, such as a size or a duration; what `parse` refuses with a ValueError is wrong usage."""
    try:
        return parse(text)
    except ValueError as error:
        fail(f"{option}: {error}", Exit.USAGE)
