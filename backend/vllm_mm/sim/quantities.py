"""Sizes, durations and rates as text: "5GiB", "2GiB/s", "250ms"."""

import math
import re

_NUMBER = re.compile(r"\s*([0-9]+(?:\.[0-9]*)?|\.[0-9]+)\s*([A-Za-z]*)\s*")
_SIZES = {
    "": 1, "b": 1,
    "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12,
    "kib": 2**10, "mib": 2**20, "gib": 2**30, "tib": 2**40,
    "k": 2**10, "m": 2**20, "g": 2**30, "t": 2**40,
}  # fmt: skip
_SECONDS = {"": 1.0, "us": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0}


def parse_size(text: str) -> int:
    """Bytes. Units: B, kB, MB, GB, TB (powers of 1000), KiB, MiB, GiB, TiB (powers of 1024; K, M, G, T for short).

    Raises ValueError.
    """
    match = _NUMBER.fullmatch(text)
    unit = _SIZES.get(match[2].lower()) if match else None
    if match is None or unit is None:
        raise ValueError(f"{text!r} is not a size; write for example 5GiB or 512MiB")
    return round(float(match[1]) * unit)


def parse_duration(text: str) -> float:
    """Seconds. Units: us, ms, s (the default), m, h. Raises ValueError."""
    match = _NUMBER.fullmatch(text)
    unit = _SECONDS.get(match[2].lower()) if match else None
    if match is None or unit is None:
        raise ValueError(f"{text!r} is not a duration; write for example 3s, 250ms or 2m")
    return float(match[1]) * unit


def parse_bandwidth(text: str) -> float:
    """Bytes a second; `unlimited` (or 0) is infinity: the transfer takes no time. Raises ValueError."""
    if text.strip().lower() in {"unlimited", "inf"}:
        return math.inf
    try:
        size = parse_size(text.strip().removesuffix("/s"))
    except ValueError:
        raise ValueError(f"{text!r} is not a bandwidth; write for example 2GiB/s, or unlimited") from None
    return float(size) if size else math.inf


def parse_rate(text: str) -> float:
    """Events a second; `unlimited` (or 0) is infinity. Raises ValueError."""
    if text.strip().lower() in {"unlimited", "inf"}:
        return math.inf
    match = _NUMBER.fullmatch(text.strip().removesuffix("/s"))
    if match is None or match[2]:
        raise ValueError(f"{text!r} is not a rate; write for example 75, or unlimited")
    return float(match[1]) or math.inf


def parse_count(text: str) -> int:
    """A whole number of at least 1. Raises ValueError."""
    if not text.strip().isdecimal() or int(text) < 1:
        raise ValueError(f"{text!r} is not a whole number of at least 1")
    return int(text)


def parse_fraction(text: str) -> float:
    """A number of at least 0. Raises ValueError."""
    match = _NUMBER.fullmatch(text)
    if match is None or match[2]:
        raise ValueError(f"{text!r} is not a number of at least 0")
    return float(match[1])


def gib(size: float) -> float:
    """Bytes in GiB, for log lines."""
    return size / 2**30
