"""Engines as times: words of a configuration, and decoding in batches."""

import pytest

from vllm_mm.domain.specs import GIB
from vllm_mm.virtual.engine import Decoder, EngineTimes, VirtualModel, from_profile, times


def test_times_are_given_in_words() -> None:
    """Over what there is; unknown keys and values that are none are named."""
    base = EngineTimes(load=1.0, wake=9.0)
    found = times({"load": "1m30s", "decode": 50, "asleep": "1GiB", "sleeps": False}, base)
    assert (found.load, found.wake, found.decode, found.asleep, found.sleeps) == (90.0, 9.0, 50.0, GIB, False)
    for given, told in (
        ({"lod": 1}, "lod is unknown; known are load"),
        ({"load": "soon"}, "load: 'soon'"),
        ({"sleeps": 1}, "true or false"),
    ):
        with pytest.raises(ValueError, match=told):
            times(given, base)


def test_a_simulated_profile_is_a_load_a_wake_and_a_pace() -> None:
    """The sum of its phases, as the simulated engine takes them."""
    profile = {
        "weights": "15GiB", "load_bandwidth": "3GiB/s", "startup": "3s", "compile": "2s", "sleep_bandwidth": "5GiB/s",
        "tokens_per_second": 75, "sleep_residual": "1GiB",
    }  # fmt: skip
    found = from_profile(profile, EngineTimes(stop=0.5))
    assert (found.load, found.wake, found.sleep, found.decode, found.stop) == (10.0, 3.0, 3.0, 75.0, 0.5)
    assert (found.asleep, found.host) == (GIB, 15 * GIB)
    assert VirtualModel("m", 20, found).host_bytes == 15 * GIB
    assert VirtualModel("m", 20).host_bytes == 20


def test_a_sequence_alone_takes_prompt_and_tokens() -> None:
    """100 tokens in at 100/s, then 50 out at 10/s."""
    decoder = Decoder(EngineTimes(prefill=100, decode=10), 5.0)
    assert decoder.due() is None
    assert decoder.admit(5.0, 100) == 6.0
    decoder.join(6.0, 1, 50)
    assert decoder.due() == pytest.approx(11.0)
    assert decoder.finished(10.9) == []
    assert decoder.finished(11.0) == [1]


def test_sequences_share_the_pace_and_prompts_stop_it() -> None:
    """With two, a step takes twice as long (slowdown 1); a prompt of 2 s holds both up."""
    decoder = Decoder(EngineTimes(prefill=100, decode=10, batch_slowdown=1.0), 0.0)
    decoder.join(0.0, 1, 10)
    assert decoder.due() == pytest.approx(1.0)
    decoder.join(0.5, 2, 10)  # the first has 5 left, at half the pace
    assert decoder.due() == pytest.approx(1.5)
    assert decoder.admit(0.5, 200) == pytest.approx(2.5)
    assert decoder.due() == pytest.approx(3.5)
    assert decoder.finished(3.5) == [1]
    assert decoder.due() == pytest.approx(4.0)  # 5 left, alone again
    assert decoder.finished(4.0) == [2]


def test_unlimited_rates_take_no_time() -> None:
    """Infinity is a number here."""
    decoder = Decoder(EngineTimes(prefill=float("inf"), decode=float("inf")), 0.0)
    assert decoder.admit(1.0, 10_000) == pytest.approx(1.0, abs=1e-3)
    decoder.join(1.0, 1, 1000)
    assert decoder.due() == pytest.approx(1.0, abs=1e-3)
