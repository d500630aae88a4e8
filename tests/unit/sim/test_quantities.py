"""Sizes, durations and rates as text."""

import math
import re

import pytest

from vllm_mm.vocabulary.quantities import (
    parse_bandwidth,
    parse_count,
    parse_duration,
    parse_fraction,
    parse_rate,
    parse_size,
)


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("5GiB", 5 * 2**30),
        ("1.5 MiB", 3 * 2**19),
        ("2GB", 2 * 10**9),
        ("512", 512),
        ("1k", 1000),
        ("1Ki", 1024),
        (" 7 b ", 7),
        ("0", 0),
    ],
)
def test_sizes(text: str, size: int) -> None:
    """Powers of 1024 for KiB and Ki, of 1000 for kB and k, as in the configuration; no unit means bytes."""
    assert parse_size(text) == size


@pytest.mark.parametrize(
    ("text", "seconds"), [("3s", 3), ("250ms", 0.25), ("2m", 120), ("1h", 3600), ("4", 4), ("1h30m", 5400), (1.5, 1.5)]
)
def test_durations(text: str, seconds: float) -> None:
    """No unit means seconds."""
    assert parse_duration(text) == pytest.approx(seconds)


@pytest.mark.parametrize(
    ("text", "rate"), [("2GiB/s", 2**31), ("1MB/s", 10**6), ("unlimited", math.inf), ("0", math.inf)]
)
def test_bandwidths(text: str, rate: float) -> None:
    """0 and unlimited take no time."""
    assert parse_bandwidth(text) == rate


@pytest.mark.parametrize(
    ("text", "rate"),
    [(75, 75), (1e-5, 1e-5), ("75", 75), ("12.5", 12.5), ("10/s", 10), ("inf", math.inf), ("0", math.inf)],
)
def test_rates(text: str, rate: float) -> None:
    """Events a second."""
    assert parse_rate(text) == rate


def test_counts_and_fractions() -> None:
    """Plain numbers."""
    assert parse_count("12") == 12
    assert parse_fraction("0.25") == 0.25


@pytest.mark.parametrize(
    ("parse", "text"),
    [
        (parse_size, "five"), (parse_size, "5XB"), (parse_size, "-1"), (parse_size, ""), (parse_duration, "3 parsecs"),
        (parse_bandwidth, "2GiB/h"), (parse_rate, "5GiB"), (parse_count, "0"), (parse_count, "1.5"), (parse_count, 1.5), (parse_rate, True), (parse_fraction, -1), (parse_bandwidth, None), (parse_fraction, "1s"),
    ],
)  # fmt: skip
def test_nonsense_is_a_value_error_that_shows_it(parse, text: object) -> None:
    """The message quotes what was given."""
    with pytest.raises(ValueError, match=re.escape(repr(text))):
        parse(text)
