"""Sizes and durations as people write them: `24GiB`, `16 GB`, `250ms`, `1h30m`, or plain numbers (bytes, seconds)."""

import math
import re
from typing import Annotated, TypeAlias

from pydantic import BeforeValidator, WithJsonSchema

_SIZE_UNITS = {
    "": 1, "b": 1,
    "k": 10**3, "kb": 10**3, "m": 10**6, "mb": 10**6, "g": 10**9, "gb": 10**9, "t": 10**12, "tb": 10**12,
    "ki": 2**10, "kib": 2**10, "mi": 2**20, "mib": 2**20, "gi": 2**30, "gib": 2**30, "ti": 2**40, "tib": 2**40,
}  # fmt: skip
_SIZE = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*([a-z]*)", re.IGNORECASE)

_TIME_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_TIME_PART = r"([0-9]+(?:\.[0-9]+)?)\s*(ms|s|m|h|d)"
_TIME = re.compile(rf"{_TIME_PART}(?:\s*{_TIME_PART})*", re.IGNORECASE)


def parse_size(value: object) -> int:
    """Bytes. Units of 1000 (`KB MB GB TB`) and of 1024 (`KiB MiB GiB TiB`), in any case. Raises ValueError."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise ValueError(f'expected a size such as "24GiB" or a number of bytes, not {value!r}')  # noqa: TRY004  # pydantic reports ValueError only
    if isinstance(value, str):
        match = _SIZE.fullmatch(value.strip())
        factor = _SIZE_UNITS.get(match[2].lower()) if match else None
        if match is None or factor is None:
            raise ValueError(f'{value!r} is not a size; write it like "24GiB", "16 GB" or as a number of bytes')
        number = float(match[1]) * factor if "." in match[1] else int(match[1]) * factor
    else:
        number = value
    if not math.isfinite(number) or number < 0:
        raise ValueError(f"a size cannot be {value!r}")
    return round(number)


def parse_duration(value: object) -> float:
    """Seconds. Units `ms s m h d`, which may be put together (`1h30m`). Raises ValueError."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise ValueError(f'expected a duration such as "30s" or a number of seconds, not {value!r}')  # noqa: TRY004  # as above
    if isinstance(value, str):
        text = value.strip()
        if re.fullmatch(r"[0-9]+(\.[0-9]+)?", text):
            return float(text)
        if _TIME.fullmatch(text) is None:
            raise ValueError(f'{value!r} is not a duration; write it like "250ms", "30s", "5m", "1h30m" or as seconds')
        parts = re.findall(_TIME_PART, text, re.IGNORECASE)
        return sum(float(number) * _TIME_UNITS[unit.lower()] for number, unit in parts)
    if not math.isfinite(value) or value < 0:
        raise ValueError(f"a duration cannot be {value!r}")
    return float(value)


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
