"""The device ledger against a plain model of what is physically in use."""

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from vllm_mm.domain.residency import Device, Ledger

DEVICES = ("d0", "d1", "d2")
MODELS = tuple("abcdefgh")
sizes = st.dictionaries(st.sampled_from(DEVICES), st.integers(1, 100), min_size=1)
models = st.sampled_from(MODELS)


SETTINGS = settings(
    max_examples=100,
    stateful_step_count=30,
    deadline=None,
    derandomize=True,
    print_blob=True,
    database=None,
    suppress_health_check=list(HealthCheck),
)


class Books(RuleBasedStateMachine):
    """`physical` is what processes really hold: from `begin` to `release`, whatever the ledger says."""

    def __init__(self) -> None:
        super().__init__()
        self.ledger = Ledger({})
        self.physical: dict[str, dict[str, int]] = {}
        self.promised: dict[str, dict[str, int]] = {}
        self.leaving: set[str] = set()
        self.facts = False
        """Whether something outside our doing may have overcommitted a device."""

    @initialize(capacities=st.lists(st.integers(20, 100), min_size=1, max_size=3))
    def build(self, capacities: list[int]) -> None:
        self.ledger = Ledger({d: Device(d, c) for d, c in zip(DEVICES, capacities, strict=False)})

    @rule(model=models, want=sizes)
    def reserve(self, model: str, want: dict[str, int]) -> None:
        fits = all(d in self.ledger.devices and n <= self.ledger.free_after_leaving(d) for d, n in want.items())
        try:
            self.ledger = self.ledger.reserve(model, want)
        except ValueError:
            assert model in self.promised or not fits
        else:
            assert model not in self.promised
            assert fits
            self.promised[model] = want

    @rule(model=models)
    def begin(self, model: str) -> None:
        if self.ledger.fits_now(model):
            self.ledger = self.ledger.begin(model)
            self.physical[model] = self.promised[model]
        else:
            try:
                self.ledger.begin(model)
            except ValueError:
                return
            raise AssertionError("began without the memory")

    @rule(model=models)
    def leave(self, model: str) -> None:
        self.ledger = self.ledger.leave(model)
        if model in self.promised:
            self.leaving.add(model)

    @rule(model=models)
    def stay(self, model: str) -> None:
        try:
            self.ledger = self.ledger.stay(model)
        except ValueError:
            planned = set(self.promised) - self.leaving - {model}
            assert any(self.physical.get(m) != self.promised[m] for m in planned)
        else:
            self.leaving.discard(model)

    @rule(model=models)
    def release(self, model: str) -> None:
        self.ledger = self.ledger.release(model)
        for book in (self.physical, self.promised):
            book.pop(model, None)
        self.leaving.discard(model)

    @rule(model=models, share=st.integers(1, 4))
    def fall_asleep_and_shrink(self, model: str, share: int) -> None:
        if model in self.physical and model not in self.leaving and self.physical[model] == self.promised[model]:
            small = {d: max(1, n // share) for d, n in self.physical[model].items()}
            self.ledger = self.ledger.resize(model, small)
            self.physical[model] = self.promised[model] = small

    @rule(model=models, factor=st.integers(1, 4))
    def grow_to_wake(self, model: str, factor: int) -> None:
        if model in self.physical and model not in self.leaving:
            big = {d: n * factor for d, n in self.physical[model].items()}
            try:
                self.ledger = self.ledger.grow(model, big)
            except ValueError:
                return
            self.promised[model] = big

    @rule(foreign=st.integers(0, 30), device=st.sampled_from(DEVICES))
    def others_use_the_device(self, foreign: int, device: str) -> None:
        if device in self.ledger.devices:
            old = self.ledger.devices[device]
            self.facts = self.facts or foreign > old.foreign
            fresh = [d for d in self.ledger.devices.values() if d.id != device]
            self.ledger = self.ledger.with_devices([*fresh, Device(device, old.capacity, foreign=foreign)])

    @invariant()
    def what_the_ledger_says_is_what_happened(self) -> None:
        assert {m: r.device_bytes for m, r in self.ledger.reservations.items()} == self.promised
        assert {m for m, r in self.ledger.reservations.items() if r.leaving} == self.leaving
        for d in self.ledger.devices:
            kept = sum(n.get(d, 0) for m, n in self.promised.items() if m not in self.leaving)
            assert self.ledger.free_after_leaving(d) == self.ledger.devices[d].usable - kept
            assert 0 <= self.ledger.free(d) <= max(0, self.ledger.free_after_leaving(d))

    @invariant()
    def never_more_in_use_than_usable(self) -> None:
        for d, device in self.ledger.devices.items():
            held = sum(n.get(d, 0) for n in self.physical.values())
            assert held <= self.ledger.in_use(d)
            if not self.facts:
                assert held <= device.usable
                assert self.ledger.free_after_leaving(d) >= 0

    @invariant()
    def no_deadlock(self) -> None:
        """Once the leavers are gone every planned load begins, in either order, and then all of it fits."""
        if self.facts:
            return
        gone = self.ledger
        for model in self.leaving:
            gone = gone.release(model)
        for order in (sorted(gone.reservations), sorted(gone.reservations, reverse=True)):
            book = gone
            for model in order:
                book = book.begin(model)
            assert all(book.in_use(d) <= device.usable for d, device in book.devices.items())

    def teardown(self) -> None:
        for model in MODELS:
            self.release(model)
        assert self.ledger.reservations == {}
        assert all(self.ledger.free(d) == device.usable for d, device in self.ledger.devices.items())


def test_the_books_are_always_right() -> None:
    """Conservation, no overcommitment by our own doing, no deadlock, nothing left at the end."""
    run_state_machine_as_test(Books, settings=SETTINGS)
