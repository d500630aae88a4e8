"""From what is declared, learned and estimated to what is reserved."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import model_configs as known
from vllm_mm.domain.estimate import Estimate, estimate
from vllm_mm.domain.footprint import Learned, Parts, exceeds
from vllm_mm.domain.ledger import Device
from vllm_mm.domain.model_config import Setup
from vllm_mm.domain.sizing import Place, alone, footprint, place_for
from vllm_mm.domain.specs import GIB, DeviceWish
from vllm_mm.domain.weights import Checkpoint

GPU = Place(capacity=80 * GIB, usable=79 * GIB)
CHECKPOINT = Checkpoint(known.llama_tensors(known.LLAMA))


def llama(**setup: Any) -> Estimate:
    return estimate(known.LLAMA, CHECKPOINT, Setup(**setup))


def seen(*fixed: int, **more: int) -> Learned:
    found = Learned()
    for at, size in enumerate(fixed):
        found = found.launched(size, float(at), **more)
    return found


def test_an_estimate_where_nothing_else_is_known() -> None:
    known_ = llama()
    found = footprint(None, known_, {}, GPU)
    assert (found.per_device, found.source) == (known_.fixed + known_.wanted_kv(), "estimated")
    assert found.parts.total == found.per_device
    assert found.kv_tokens == 32_784


def test_a_model_alone_on_a_gpu_has_all_of_it() -> None:
    """As plain vLLM: 92 % of it, what is not weights and overhead is KV cache; less only where strangers or headroom want it."""
    found = footprint(None, llama(), {}, Place(80 * GIB, 79 * GIB, whole=True))
    assert found.per_device == int(80 * GIB * 0.92)
    assert found.parts.kv_cache == found.per_device - llama().fixed
    assert footprint(None, llama(), {}, Place(80 * GIB, 60 * GIB, whole=True)).per_device == 60 * GIB
    assert (
        footprint(None, llama(kv_cache=GIB), {}, Place(80 * GIB, 79 * GIB, whole=True)).per_device
        == llama().fixed + GIB
    )
    cpu = footprint(None, llama(gpu=False), {}, Place(80 * GIB, 79 * GIB, gpu=False, whole=True))
    assert cpu.parts.kv_cache == 5 * GIB, "whole GiB, and no more than it wants"


def test_a_share_that_somebody_asked_for_is_reserved() -> None:
    assert footprint(None, llama(), {}, Place(80 * GIB, 79 * GIB, share=0.5)).per_device == 40 * GIB
    assert footprint(None, llama(), {}, Place(80 * GIB, 79 * GIB, share=0.1)).per_device == llama().fixed


def test_less_kv_cache_where_there_is_not_room_for_what_is_wanted() -> None:
    small = Place(24 * GIB, 20 * GIB)
    found = footprint(None, llama(), {}, small)
    assert (found.per_device, found.notes) == (20 * GIB, ())
    assert llama().least_kv <= found.parts.kv_cache < llama().wanted_kv()
    cpu = footprint(None, llama(gpu=False), {}, Place(24 * GIB, 21 * GIB, gpu=False))
    assert cpu.parts.kv_cache % GIB == 0


def test_an_estimate_alone_refuses_only_what_cannot_be() -> None:
    """Weights that fit are tried, with a note; weights that do not are refused by the number; a measured size is believed."""
    tight = Place(18 * GIB, 17 * GIB)
    found = footprint(None, llama(), {}, tight)
    assert (found.per_device, found.source) == (17 * GIB, "estimated")
    assert "may not fit" in found.notes[0]
    assert found.parts.total == 17 * GIB
    assert footprint(None, llama(), {}, Place(10 * GIB, 9 * GIB)).per_device > 16 * GIB
    measured = footprint(None, llama(), {"0": seen(17 * GIB)}, tight)
    assert measured.per_device == 17 * GIB + llama().least_kv
    assert footprint(None, llama(), {}, Place(10 * GIB, 9 * GIB, whole=True)).per_device > 16 * GIB


def test_what_was_learned_takes_over() -> None:
    """Lower or higher than the estimate; of several device sets the largest; the spread is shown."""
    for fixed in (15 * GIB, 22 * GIB):
        found = footprint(None, llama(), {"0": seen(fixed, weights=14 * GIB), "1": seen(GIB)}, GPU)
        assert (found.source, found.samples, found.learned_at) == ("learned", 1, 0.0)
        assert found.parts == Parts(14 * GIB, llama().wanted_kv(), fixed - 14 * GIB)
    several = footprint(None, llama(), {"0": seen(10, 20, 30)}, GPU)
    assert (several.spread, several.samples, several.parts.fixed) == (10, 3, 30)
    unknown = footprint(
        None, estimate(None, None, Setup()), {"0": seen(5 * GIB)}, Place(80 * GIB, 79 * GIB, whole=True)
    )
    assert (unknown.per_device, unknown.source) == (int(80 * GIB * 0.92), "learned")


def test_a_model_of_which_nothing_is_known() -> None:
    """On a GPU what vLLM takes by itself; on the CPU a part of a small machine; the note says so."""
    nothing = estimate(None, None, Setup(), ("org/m is not here",))
    found = footprint(None, nothing, {}, GPU)
    assert (found.per_device, found.source) == (int(80 * GIB * 0.92), "estimated")
    assert found.notes[0] == "org/m is not here"
    assert "until its first launch" in found.notes[1]
    assert footprint(None, nothing, {}, Place(80 * GIB, 79 * GIB, share=0.25)).per_device == 20 * GIB
    assert footprint(None, nothing, {}, Place(0, 0)).notes == ("org/m is not here",)
    cpu = estimate(None, None, Setup(gpu=False))
    for capacity, kv in ((64, 4), (12, 3), (2, 1)):
        place = Place(capacity * GIB, capacity * GIB, gpu=False)
        assert footprint(None, cpu, {}, place).per_device == cpu.overhead + kv * GIB
    given_ = estimate(None, None, Setup(gpu=False, kv_cache=7 * GIB))
    assert footprint(None, given_, {}, Place(64 * GIB, 64 * GIB, gpu=False)).parts.kv_cache == 7 * GIB


def test_what_is_declared_counts_unless_launches_prove_it_wrong() -> None:
    found = footprint(30 * GIB, llama(), {}, GPU)
    assert (found.per_device, found.source) == (30 * GIB, "declared")
    assert found.parts.kv_cache == 30 * GIB - llama().fixed
    assert footprint(30 * GIB, llama(), {"0": seen(20 * GIB)}, GPU).source == "declared"
    proven = footprint(18 * GIB, llama(), {"0": seen(20 * GIB)}, GPU)
    assert (proven.per_device, proven.source) == (20 * GIB + llama().least_kv, "learned")
    assert "`memory` says 18.0 GiB" in proven.notes[0]
    given_ = footprint(18 * GIB, llama(kv_cache=2 * GIB), {"0": seen(20 * GIB)}, GPU)
    assert given_.per_device == 22 * GIB
    too_small = footprint(GIB, llama(), {}, GPU)
    assert (too_small.per_device, too_small.source) == (GIB, "declared")
    assert footprint(5, estimate(None, None, Setup()), {}, GPU).per_device == 5


def test_who_has_a_device_for_itself() -> None:
    """When all that may use one of its devices ask for no more than there are."""
    one, pair, first = DeviceWish(), DeviceWish(count=2), DeviceWish(ids=("0",))
    assert alone(one, [], ["0"])
    assert not alone(one, [one], ["0"])
    assert alone(one, [one], ["0", "1"])
    assert not alone(one, [pair], ["0", "1"])
    assert alone(first, [DeviceWish(ids=("1",))], ["0", "1"])
    assert not alone(first, [one], ["0", "1"])
    assert not alone(pair, [], ["0"])


def test_for_which_device_it_is_sized() -> None:
    """The smallest that is enough; the largest when none is; with ids the smallest of them, for it gets them all."""
    small, large = Device("0", 24 * GIB), Device("1", 80 * GIB)
    assert place_for(DeviceWish(), (large, small), 10 * GIB) is small
    assert place_for(DeviceWish(), (small, large), 30 * GIB) is large
    assert place_for(DeviceWish(), (small, large), 100 * GIB) is large
    assert place_for(DeviceWish(count=2, ids=("0", "1")), (small, large), 30 * GIB) is small
    assert place_for(DeviceWish(ids=("9",)), (small,), 1) is None
    assert place_for(DeviceWish(), (), 1) is None


def test_what_launches_teach() -> None:
    """Mean, spread and the largest, as of all samples; growth of a running engine raises the largest alone."""
    assert (Learned().spread, seen(5).spread) == (0.0, 0.0)
    found = seen(10, 20, 60, weights=7, kv_cache=9)
    assert (found.mean, found.largest, found.weights, found.kv_cache, found.at) == (30.0, 60, 7, 9, 2.0)
    assert found.spread == pytest.approx(26.4575, rel=1e-4)
    assert found.launched(30, 5.0).weights == 7, "a launch that does not tell takes nothing away"
    grown = found.grew(100, 9.0)
    assert (grown.largest, grown.mean, grown.count, grown.at) == (100, 30.0, 3, 9.0)
    assert found.grew(1, 9.0).largest == 60


def test_when_an_engine_uses_more_than_was_reserved() -> None:
    """Not by what readings breathe: 64 MiB, or 3 %."""
    reserved = {"0": 10 * GIB, "1": GIB, "2": GIB}
    used = {"0": int(10.2 * GIB), "1": GIB + 63 * 2**20, "3": GIB}
    assert exceeds(used, reserved) == {}
    assert exceeds({**used, "1": GIB + 65 * 2**20}, reserved) == {"1": GIB + 65 * 2**20}
    assert exceeds({**used, "0": 11 * GIB}, reserved) == {"0": 11 * GIB}


_SIZES = st.integers(0, 100 * GIB)


@given(
    st.none() | _SIZES, st.lists(_SIZES, max_size=3), _SIZES, _SIZES, st.booleans(), st.booleans(),
    st.none() | st.floats(0.01, 1.0), st.sampled_from([None, 0, GIB, 10 * GIB]), st.booleans(),
)  # fmt: skip
def test_a_footprint_is_whole(
    declared: int | None, fixed: list[int], capacity: int, gone: int, gpu: bool, whole: bool, share: float | None,
    kv: int | None, here: bool,
) -> None:  # fmt: skip
    """The parts are never negative and, where they are known, make up the sum; an estimate never exceeds a device that has room
    for the weights."""
    setup = Setup(gpu=gpu, kv_cache=kv)
    guess = estimate(known.LLAMA, CHECKPOINT, setup) if here else estimate(None, None, setup)
    place = Place(capacity, max(0, capacity - gone), gpu=gpu, whole=whole, share=share)
    found = footprint(declared, guess, {"0": seen(*fixed)} if fixed else {}, place)
    assert found.per_device >= 0
    assert min(found.parts.weights, found.parts.kv_cache, found.parts.overhead) >= 0
    if found.parts.total:
        assert found.parts.total == found.per_device
    if found.source == "estimated" and here and share is None and kv is None and guess.weights is not None:
        assert found.per_device <= max(place.usable, guess.fixed + guess.least_kv + GIB)
        if place.usable > guess.weights.size:
            assert found.per_device <= place.usable
