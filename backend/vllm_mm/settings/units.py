"""Sizes and durations as people write them: `24GiB`, `16 GB`, `250ms`, `1h30m`, or plain numbers (bytes, seconds)."""

from typing import Annotated, TypeAlias

from pydantic import BeforeValidator, WithJsonSchema

from vllm_mm.vocabulary.quantities import parse_duration, parse_size


def format_duration(seconds: float) -> str:
    """The shortest exact text for `seconds`: 90 -> `1m30s`."""
    millis = round(seconds * 1000)
    parts: list[str] = []
    for unit, size in (("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1000), ("ms", 1)):
        count, millis = divmod(millis, size)
        if count:
            parts.append(f"{count}{unit}")
    return "".join(parts) or "0s"


def format_size(size: int) -> str:
    """The shortest exact text for `size` bytes: 1073741824 -> `1GiB`."""
    for unit, factor in (("TiB", 2**40), ("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if size and size % factor == 0:
            return f"{size // factor}{unit}"
    return f"{size}B"


Size: TypeAlias = Annotated[
    int,
    BeforeValidator(parse_size),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "integer", "minimum": 0},
                {"type": "string", "pattern": r"^\s*[0-9]+(\.[0-9]+)?\s*([kKmMgGtT]i?[bB]?|[bB])?\s*$"},
            ],
            "description": 'Bytes: a number, or text such as "24GiB" or "16 GB".',
        }
    ),
]
"""Bytes."""

Duration: TypeAlias = Annotated[
    float,
    BeforeValidator(parse_duration),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "number", "minimum": 0},
                {"type": "string", "pattern": r"^\s*([0-9]+(\.[0-9]+)?\s*(ms|s|m|h|d)?\s*)+$"},
            ],
            "description": 'Seconds: a number, or text such as "250ms", "30s", "5m" or "1h30m".',
        }
    ),
]
"""Seconds."""
