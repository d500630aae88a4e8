"""Time series: coarse rows say what the fine ones said, and what is not known is not made up."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vllm_mm.domain.series import (
    HELD,
    MAX,
    STEPS,
    TTFT_BOUNDS,
    Kind,
    Metric,
    Plan,
    Row,
    Totals,
    kind_of,
    merged,
    of_engine,
    of_model,
    plan,
    points,
    quantile,
    read,
    rolled,
    start_of,
    unit_of,
)

KEPT = {10: 6 * 3600.0, 60: 7 * 86_400.0, 900: 365 * 86_400.0}
NOW = 1_700_000_000.0
NAMES = ["s", "tokens", "ttft.3", "ttft.4", f"{MAX}oldest", "held:a"]

# Whole numbers: their sums are exact, in whatever order.
fine_rows = st.lists(
    st.builds(
        Row,
        st.just(10),
        st.sampled_from(Kind),
        st.sampled_from(["a", "b"]),
        st.integers(0, 500).map(lambda n: n * 10),
        st.dictionaries(st.sampled_from(NAMES), st.integers(0, 1000).map(float)),
    ),
    max_size=40,
)


def told(rows: list[Row], kind: Kind, subject: str, name: str) -> tuple[float, float]:
    """The sum and the highest of what rows say under a name."""
    values = [r.values[name] for r in rows if (r.kind, r.subject) == (kind, subject) and name in r.values]
    return sum(values), max(values, default=0.0)


@given(fine_rows)
def test_rolled_up_sums_are_the_sums_of_what_was_rolled_up(rows: list[Row]) -> None:
    """Of every number of every subject, also when it is rolled up in two steps; of the highest, the highest."""
    minutes = rolled(rows, 60)
    quarters = rolled(minutes, 900)
    assert quarters == rolled(rows, 900)
    for coarse in (minutes, quarters):
        for kind in Kind:
            for subject in ("a", "b"):
                for name in NAMES:
                    kept = 1 if name.startswith(MAX) else 0
                    assert told(coarse, kind, subject, name)[kept] == told(rows, kind, subject, name)[kept]
    assert all(r.at % 900 == 0 and r.step == 900 for r in quarters)
    assert len({(r.kind, r.subject, r.at) for r in quarters}) == len(quarters)


def test_a_row_is_of_the_step_that_its_time_lies_in() -> None:
    assert [start_of(t, 60) for t in (0.0, 59.9, 60.0, 119)] == [0, 0, 60, 60]
    assert merged([]) == {}
    assert merged([{"max.oldest": 3.0, "s": 1.0}, {"max.oldest": 2.0, "s": 1.0}]) == {"max.oldest": 3.0, "s": 2.0}


def test_gauges_are_means_over_the_time_for_which_they_were_known() -> None:
    values = {"s": 10.0, "queued": 25.0, "kv": 2.0, "kv_s": 4.0, "tokens": 50.0, "max.oldest": 7.0}
    assert read(Metric.QUEUED, values) == {"": 2.5}
    assert read(Metric.KV, values) == {"": 0.5}
    assert read(Metric.TOKENS, values) == {"": 5.0}
    assert read(Metric.OLDEST, values) == {"": 7.0}
    assert read(Metric.REQUESTS, values) == {"": 0.0}


def test_what_is_not_known_is_not_told() -> None:
    assert read(Metric.KV, {"s": 10.0}) == {}
    assert read(Metric.OLDEST, {"s": 10.0}) == {}
    assert read(Metric.TTFT_P50, {"s": 10.0}) == {}
    assert read(Metric.MEMORY, {"s": 10.0, "free": 5.0}) == {}


def test_memory_is_told_by_model() -> None:
    values = {"s": 2.0, f"{HELD}org/a": 20.0, f"{HELD}b": 4.0, "free": 6.0}
    assert read(Metric.MEMORY, values) == {"org/a": 10.0, "b": 2.0}
    assert read(Metric.FREE, values) == {"": 3.0}


@pytest.mark.parametrize(
    ("counts", "share", "expected"),
    [
        ({"x.0": 4}, 0.5, 0.5),
        ({"x.1": 4}, 0.5, 1.5),
        ({"x.0": 1, "x.1": 1}, 0.5, 1.0),
        ({"x.0": 1, "x.1": 1}, 1.0, 2.0),
        ({"x.0": 1, "x.2": 3}, 0.95, 2.0),  # above the last bound: that it is
        ({}, 0.5, None),
    ],
)
def test_quantiles(counts: dict[str, float], share: float, expected: float | None) -> None:
    assert quantile(share, (1, 2), counts, "x") == expected


def test_a_sample_of_a_model_is_what_has_changed_since_the_one_before() -> None:
    ttft, itl = [0] * (len(TTFT_BOUNDS) + 1), list(Totals().itl)
    before = Totals(3, 40, tuple(ttft), tuple(itl))
    ttft[2], itl[-1] = 2, 9
    values = of_model(5.0, before, Totals(5, 90, tuple(ttft), tuple(itl)), queued=3, oldest=1.5, in_flight=2)
    assert values == {
        "s": 5.0, "requests": 2.0, "queued": 15.0, "in_flight": 10.0, "max.oldest": 1.5, "ttft.2": 2.0,
        f"itl.{len(itl) - 1}": 9.0,
    }  # fmt: skip
    assert read(Metric.TTFT_P95, values)[""] <= TTFT_BOUNDS[2]


def test_what_an_engine_tells_of_itself() -> None:
    """Several engines behind one address count together; a name that only begins alike is another; without them nothing is known."""
    text = """# HELP vllm:kv_cache_usage_perc KV-cache usage.
vllm:kv_cache_usage_perc{engine="0",model_name="a b"} 0.25
vllm:kv_cache_usage_perc{engine="1",model_name="a b"} 0.75
vllm:generation_tokens_total{engine="0"} 10.0
vllm:generation_tokens_total{engine="1"} 2.0
vllm:generation_tokens_total_created{engine="1"} 1e9
vllm:kv_cache_usage_perc{engine="2"} nonsense
"""
    assert of_engine(text) == (0.5, 12.0)
    assert of_engine("") == (None, None)
    assert of_engine("llamacpp:tokens_predicted_total 5\n") == (None, None)


@pytest.mark.parametrize(
    ("ago", "span", "step", "expected"),
    [
        (900, 900, None, Plan(10, 10)),
        (3600, 3600, None, Plan(10, 10)),
        (6 * 3600, 6 * 3600, None, Plan(60, 60)),
        (86_400, 86_400, None, Plan(300, 60)),
        (7 * 86_400, 7 * 86_400, None, Plan(1800, 900)),
        (86_400, 900, None, Plan(60, 60)),  # rows of ten seconds are gone
        (30 * 86_400, 900, None, Plan(900, 900)),
        (900, 900, 1, Plan(10, 10)),
        (900, 900, 45, Plan(50, 10)),
        (86_400, 86_400, 10, Plan(60, 60)),
        (3600, 3600, 1000, Plan(1800, 900)),
        (900 * 86_400, 900 * 86_400, None, Plan(3 * 86_400, 900)),  # nothing is left of the beginning
        (5 * 86_400, 900, 900, Plan(900, 900)),
    ],
)
def test_what_an_answer_is_made_of(ago: float, span: float, step: int | None, expected: Plan) -> None:
    assert plan(NOW - ago, NOW - ago + span, step, KEPT, NOW, 400) == expected


@given(st.floats(60, 4e7), st.floats(0, 4e7))
def test_without_a_step_there_are_never_more_points_than_wanted(span: float, ago: float) -> None:
    since = NOW - ago - span
    chosen = plan(since, since + span, None, KEPT, NOW, 400)
    first = start_of(since, chosen.step)
    assert len(range(first, int(since + span) + 1, chosen.step)) <= 401
    assert chosen.step % chosen.source == 0
    assert chosen.source in STEPS


def test_points_are_put_together_and_gaps_are_gaps() -> None:
    rows = [
        Row(10, Kind.MODEL, "a", 0, {"s": 10.0, "tokens": 100.0}),
        Row(10, Kind.MODEL, "a", 20, {"s": 10.0, "tokens": 300.0}),
        Row(60, Kind.MODEL, "a", 120, {"s": 60.0, "tokens": 60.0}),
        Row(10, Kind.MODEL, "b", 0, {"s": 10.0}),
        Row(10, Kind.DEVICE, "a", 0, {"s": 10.0, "tokens": 7.0, f"{HELD}m": 10.0}),
    ]
    assert points(rows, Metric.TOKENS, 60) == {("a", ""): {0: 20.0, 120: 1.0}, ("b", ""): {0: 0.0}}
    assert points(rows, Metric.MEMORY, 60) == {("a", "m"): {0: 1.0}}


@pytest.mark.parametrize("metric", Metric)
def test_every_metric_has_a_kind_and_a_unit(metric: Metric) -> None:
    told: Any = unit_of(metric)
    assert told
    assert (kind_of(metric) is Kind.DEVICE) == (metric in {Metric.MEMORY, Metric.FOREIGN, Metric.FREE})
