"""Quantities as people write them: `24GiB`, `16 GB`, `250ms`, `1h30m`, `2GiB/s`, or plain numbers (bytes, seconds)."""

import math
import re

_SIZE_UNITS = {
    "": 1, "b": 1,
    "k": 10**3, "kb": 10**3, "m": 10**6, "mb": 10**6, "g": 10**9, "gb": 10**9, "t": 10**12, "tb": 10**12,
    "ki": 2**10, "kib": 2**10, "mi": 2**20, "mib": 2**20, "gi": 2**30, "gib": 2**30, "ti": 2**40, "tib": 2**40,
}  # fmt: skip
_NUMBER = r"[0-9]+(?:\.[0-9]+)?"
_SIZE = re.compile(rf"({_NUMBER})\s*([a-z]*)", re.IGNORECASE)

_TIME_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_TIME_PART = rf"({_NUMBER})\s*(ms|s|m|h|d)"
_TIME = re.compile(rf"{_TIME_PART}(?:\s*{_TIME_PART})*", re.IGNORECASE)


def parse_size(value: object) -> int:
    """Bytes. Units of 1000 (`KB MB GB TB`) and of 1024 (`KiB MiB GiB TiB`), in any case. Raises ValueError."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise ValueError(f'expected a size such as "24GiB" or a number of bytes, {_not(value)}')  # noqa: TRY004  # pydantic reports ValueError only
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
        raise ValueError(f'expected a duration such as "30s" or a number of seconds, {_not(value)}')  # noqa: TRY004  # as above
    if isinstance(value, str):
        text = value.strip()
        if re.fullmatch(_NUMBER, text):
            return float(text)
        if _TIME.fullmatch(text) is None:
            raise ValueError(f'{value!r} is not a duration; write it like "250ms", "30s", "5m", "1h30m" or as seconds')
        parts = re.findall(_TIME_PART, text, re.IGNORECASE)
        return sum(float(number) * _TIME_UNITS[unit.lower()] for number, unit in parts)
    if not math.isfinite(value) or value < 0:
        raise ValueError(f"a duration cannot be {value!r}")
    return float(value)


def parse_bandwidth(value: object) -> float:
    """Bytes a second; `unlimited` (or 0) is infinity: the transfer takes no time. Raises ValueError."""
    if _unlimited(value):
        return math.inf
    try:
        size = parse_size(value.strip().removesuffix("/s") if isinstance(value, str) else value)
    except ValueError:
        raise ValueError(f'{value!r} is not a bandwidth; write it like "2GiB/s", or unlimited') from None
    return float(size) if size else math.inf


def parse_rate(value: object) -> float:
    """Events a second; `unlimited` (or 0) is infinity. Raises ValueError."""
    if _unlimited(value):
        return math.inf
    number = _plain(value.strip().removesuffix("/s") if isinstance(value, str) else value)
    if number is None:
        raise ValueError(f"{value!r} is not a rate (events a second); write it like 75, or unlimited")
    return number or math.inf


def parse_count(value: object) -> int:
    """A whole number of at least 1. Raises ValueError."""
    number = _plain(value)
    if number is None or number < 1 or number != int(number):
        raise ValueError(f"{value!r} is not a whole number of at least 1")
    return int(number)


def parse_fraction(value: object) -> float:
    """A number of at least 0. Raises ValueError."""
    number = _plain(value)
    if number is None:
        raise ValueError(f"{value!r} is not a number of at least 0")
    return number


def _plain(value: object) -> float | None:
    """A number of at least 0 without a unit; None when it is something else."""
    if isinstance(value, str):
        return float(value) if re.fullmatch(_NUMBER, value.strip()) else None
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or value < 0:
        return None
    return float(value)


def _not(value: object) -> str:
    """What was there instead, in the words of YAML and JSON."""
    if value is None:
        return "not null; leave the key out for its default"
    return f"not {str(value).lower() if isinstance(value, bool) else repr(value)}"


def _unlimited(value: object) -> bool:
    return isinstance(value, str) and value.strip().lower() in {"unlimited", "inf"}


def gib(size: float) -> float:
    """Bytes in GiB, for log lines."""
    return size / 2**30
