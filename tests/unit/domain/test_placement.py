"""Placement against brute force: every set of devices and every set of victims is tried, and the answer has to be the best."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, combinations
from typing import TypeVar

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from vllm_mm.domain.lifecycle import State
from vllm_mm.domain.residency import Device, Ledger, NoPlacement, Placement, Resident, place
from vllm_mm.domain.specs import DeviceWish

T = TypeVar("T")
NOW, DWELL = 100.0, 5.0


@dataclass(frozen=True)
class Case:
    """A small fleet, and what is asked of it."""

    ledger: Ledger
    residents: tuple[Resident, ...]
    wish: DeviceWish
    need: int
    busy: bool
    spread: bool
    closed: frozenset[str]

    def place(self) -> Placement | NoPlacement:
        return place(
            self.ledger, self.wish, self.need, self.residents, NOW, min_dwell=DWELL, drain_busy=self.busy,
            closed=self.closed, spread=self.spread,
        )  # fmt: skip


@st.composite
def cases(draw: st.DrawFn) -> Case:
    devices = [
        Device(
            f"d{i}", draw(st.integers(10, 40)), headroom=draw(st.integers(0, 3)), foreign=draw(st.sampled_from((0, 0, 5))),
            kind=draw(st.sampled_from(("gpu", "gpu", "sim"))), problem=draw(st.sampled_from(("", "", "", "lost"))),
        )
        for i in range(draw(st.integers(1, 4)))
    ]  # fmt: skip
    ledger = Ledger({d.id: d for d in devices})
    residents: list[Resident] = []
    for i in range(draw(st.integers(0, 5))):
        on = draw(st.lists(st.sampled_from(devices), min_size=1, max_size=2, unique=True))
        held = {d.id: draw(st.integers(1, 20)) for d in on}
        if any(ledger.free(d) < n for d, n in held.items()):
            continue
        name = f"m{i}"
        ledger = ledger.adopt(name, held)
        if draw(st.integers(0, 5)) == 0:
            ledger = ledger.leave(name)
        ready = draw(st.sampled_from((State.READY, State.READY, State.SLEEPING, State.STARTING)))
        residents.append(
            Resident(
                name, ready, leases=draw(st.sampled_from((0, 0, 2))), pinned=draw(st.integers(0, 5)) == 0,
                last_used=float(i), ready_since=draw(st.sampled_from((0.0, 98.0))), priority=draw(st.integers(0, 1)),
            )
        )  # fmt: skip
    ids = draw(st.lists(st.sampled_from([d.id for d in devices]), max_size=2, unique=True))
    wish = DeviceWish(ids=tuple(ids)) if draw(st.booleans()) else DeviceWish(count=draw(st.integers(1, 3)))
    closed = frozenset(draw(st.lists(st.sampled_from([d.id for d in devices]), max_size=1)))
    return Case(
        ledger, tuple(residents), wish, draw(st.integers(1, 30)), draw(st.booleans()), draw(st.booleans()), closed
    )


def subsets(of: Sequence[T]) -> Iterator[tuple[T, ...]]:
    return chain.from_iterable(combinations(of, n) for n in range(len(of) + 1))


def sets_of_devices(case: Case) -> list[tuple[str, ...]]:
    """All that the wish allows and that are in use and open."""
    open_ = [d for d in case.ledger.devices.values() if not d.problem and d.id not in case.closed]
    if case.wish.ids:
        return [case.wish.ids] if set(case.wish.ids) <= {d.id for d in open_} else []
    return [
        tuple(d.id for d in some) for some in combinations(open_, case.wish.count) if len({d.kind for d in some}) == 1
    ]


def candidates(case: Case) -> list[Resident]:
    """Who may go, as the words of `place` say."""
    return [
        r
        for r in case.residents
        if not r.pinned
        and r.state in {State.READY, State.SLEEPING}
        and not case.ledger.reservations[r.model].leaving
        and (case.busy or not r.leases)
        and (r.state is not State.READY or r.ready_since is None or r.ready_since + DWELL <= NOW)
    ]


def fits(case: Case, devices: Sequence[str], victims: Sequence[Resident]) -> bool:
    gone = case.ledger
    for victim in victims:
        gone = gone.leave(victim.model)
    return all(gone.free_after_leaving(d) >= case.need for d in devices)


@settings(
    max_examples=300, deadline=None, derandomize=True, database=None, suppress_health_check=[HealthCheck.too_slow]
)  # fmt: skip
@given(cases())
def test_the_answer_is_the_best_of_all_that_there_are(case: Case) -> None:
    """There is a placement exactly when brute force finds one. It uses allowed devices that are well and open, evicts only
    who may go, as few of the busy as possible and then as few as possible; and what it decides can be reserved."""
    found = case.place()
    there = sets_of_devices(case)
    ways = [v for v in subsets(candidates(case)) if any(fits(case, devices, v) for devices in there)]
    if isinstance(found, NoPlacement):
        assert ways == []
        return
    by_model = {r.model: r for r in case.residents}
    victims = [by_model[m] for m in found.victims]
    asked = set(case.wish.ids) if case.wish.ids else None
    assert asked is None or set(found.device_bytes) == asked
    assert set(found.device_bytes) in [set(devices) for devices in there]
    assert set(found.device_bytes.values()) == {case.need}
    assert set(victims) <= set(candidates(case))
    assert fits(case, list(found.device_bytes), victims)

    def costs(way: Sequence[Resident]) -> tuple[int, int]:
        return sum(r.leases > 0 for r in way), len(way)

    assert costs(victims) == min(map(costs, ways))
    ledger = case.ledger
    for victim in found.victims:
        ledger = ledger.leave(victim)
    ledger.reserve("new", found.device_bytes)


@settings(
    max_examples=200, deadline=None, derandomize=True, database=None, suppress_health_check=[HealthCheck.too_slow]
)  # fmt: skip
@given(cases())
def test_of_several_fits_the_tightest_is_taken_or_the_widest(case: Case) -> None:
    """Without victims: first one that need not wait for leavers, then packed or spread, as it is set."""
    found = case.place()
    free = [devices for devices in sets_of_devices(case) if fits(case, devices, ())]
    if isinstance(found, NoPlacement) or not free:
        return
    assert found.victims == ()

    def rank(devices: Sequence[str]) -> tuple[bool, int]:
        left = sum(case.ledger.free_after_leaving(d) for d in devices)
        return any(case.ledger.free(d) < case.need for d in devices), -left if case.spread else left

    assert rank(tuple(found.device_bytes)) == min(map(rank, free))
