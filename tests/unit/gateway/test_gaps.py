"""Percentiles of the times between tokens: exact for streams of usual length, close for long ones, in bounded memory."""

import math
from itertools import accumulate

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vllm_mm.domain.usage import GAP_BOUNDS, Gaps
from vllm_mm.gateway.gaps import FINE, FULL, Stamps


def add(stamps: Stamps, moment: float) -> None:
    stamps.times.append(moment)
    if len(stamps.times) >= FULL:
        stamps.fold()


def of(gaps: list[float]) -> Gaps:
    stamps = Stamps()
    for moment in accumulate(gaps, initial=100.0):
        add(stamps, moment)
    found = stamps.gaps()
    assert found is not None
    return found


def rank(gaps: list[float], share: float) -> float:
    return sorted(gaps)[math.ceil(share * len(gaps)) - 1]


@given(st.lists(st.floats(0, 100), min_size=1, max_size=200))
def test_percentiles(gaps: list[float]) -> None:
    """The smallest gap that so many percent do not exceed; each is counted once, below its bound."""
    found = of(gaps)
    for share, value in ((0.5, found.p50), (0.95, found.p95), (0.99, found.p99)):
        assert value == pytest.approx(rank(gaps, share), abs=1e-9)
    assert sum(found.counts) == len(gaps)
    assert len(found.counts) == len(GAP_BOUNDS) + 1
    assert found.total == pytest.approx(sum(gaps), abs=1e-6)


def test_bounds_belong_to_what_is_below() -> None:
    """As Prometheus counts them."""
    assert of([1.0]).counts[GAP_BOUNDS.index(1.0)] == 1
    assert of([61.0]).counts[-1] == 1


@settings(max_examples=5)
@given(st.integers(1, 3))
def test_long_streams(times: int) -> None:
    """However long: a bounded part is held, and the percentiles are right to one part in a hundred."""
    gaps = [0.01 + (n * 7919 % 1000) / 10_000 for n in range(FULL * times + 7)]
    stamps = Stamps()
    for moment in accumulate(gaps, initial=5.0):
        add(stamps, moment)
        assert len(stamps.times) < FULL
    found = stamps.gaps()
    assert found is not None
    for share, value in ((0.5, found.p50), (0.95, found.p95), (0.99, found.p99)):
        assert value == pytest.approx(rank(gaps, share), rel=1.5 / FINE)
    assert sum(found.counts) == len(gaps)
