"""The device ledger against a plain model of what is physically in use."""

from dataclasses import replace

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from vllm_mm.domain.residency import Device, Ledger

DEVICES = ("d0", "d1", "d2")
MODELS = tuple("abcdefgh")
sizes = st.dictionaries(st.sampled_from(DEVICES), st.integers(1, 100), min_size=1)
models = st.sampled_from(MODELS)
LEASES = ("lease:1", "lease:2")
leases = st.sampled_from(LEASES)


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
        self.leaving: dict[str, dict[str, int]] = {}
        """With what stays of each, asleep; nothing of one that stops."""
        self.facts = False
        """Whether something outside our doing may have overcommitted a device."""

    @initialize(capacities=st.lists(st.integers(20, 100), min_size=1, max_size=3))
    def build(self, capacities: list[int]) -> None:
        self.ledger = Ledger({d: Device(d, c) for d, c in zip(DEVICES, capacities, strict=False)})

    @rule(model=models, want=sizes)
    def reserve(self, model: str, want: dict[str, int]) -> None:
        fits = all(
            d in self.ledger.devices and not self.ledger.devices[d].problem and n <= self.ledger.free_after_leaving(d)
            for d, n in want.items()
        )
        try:
            self.ledger = self.ledger.reserve(model, want)
        except ValueError:
            assert model in self.promised or not fits
        else:
            assert model not in self.promised
            assert fits
            self.promised[model] = want

    @rule(lease=leases, device=st.sampled_from(DEVICES), size=st.integers(1, 50))
    def let(self, lease: str, device: str, size: int) -> None:
        try:
            self.ledger = self.ledger.let(lease, {device: size})
        except ValueError:
            return
        self.promised[lease] = {device: size}

    @rule(lease=leases)
    def end_the_lease(self, lease: str) -> None:
        """Whoever used the room may use it still: that is foreign use from now on."""
        self.facts = self.facts or lease in self.promised
        self.release(lease)

    @rule(device=st.sampled_from(DEVICES), problem=st.sampled_from(("", "it is lost")))
    def the_device_fails_or_is_well_again(self, device: str, problem: str) -> None:
        self.ledger = self.ledger.with_devices(
            [replace(d, problem=problem) if d.id == device else d for d in self.ledger.devices.values()]
        )

    @rule(model=st.sampled_from((*MODELS, *LEASES)))
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
            self.leaving[model] = {}

    @rule(model=models, share=st.integers(1, 6))
    def leave_to_sleep(self, model: str, share: int) -> None:
        stays = {d: n // share for d, n in self.promised.get(model, {}).items()}
        before = self.leaving.get(model)
        try:
            self.ledger = self.ledger.leave(model, stays)
        except ValueError:
            # Only what was promised away meanwhile is refused.
            assert before is not None
            assert any(
                n > before.get(d, 0) and n - before.get(d, 0) > self.ledger.free_after_leaving(d)
                for d, n in stays.items()
            )
        else:
            if model in self.promised:
                self.leaving[model] = {d: n for d, n in stays.items() if n}

    @rule(model=models)
    def fall_asleep_as_promised(self, model: str) -> None:
        if model in self.leaving:
            stays = self.leaving.pop(model)
            self.ledger = self.ledger.asleep(model, stays)
            kept = {d: stays.get(d, 0) for d in self.promised[model]}
            self.promised[model] = self.physical[model] = kept

    @rule(model=models)
    def stay(self, model: str) -> None:
        try:
            self.ledger = self.ledger.stay(model)
        except ValueError:
            planned = set(self.promised) - set(self.leaving) - {model}
            assert any(self.physical.get(m) != self.promised[m] for m in planned)
        else:
            self.leaving.pop(model, None)

    @rule(model=models)
    def release(self, model: str) -> None:
        self.ledger = self.ledger.release(model)
        for book in (self.physical, self.promised):
            book.pop(model, None)
        self.leaving.pop(model, None)

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
            before = self.ledger.foreign(device)
            fresh = [d for d in self.ledger.devices.values() if d.id != device]
            self.ledger = self.ledger.with_devices([*fresh, replace(old, foreign=foreign)])
            # What a borrower uses within its room is no news; whatever else strangers take is.
            self.facts = self.facts or self.ledger.foreign(device) > before

    @invariant()
    def what_the_ledger_says_is_what_happened(self) -> None:
        assert {m: r.device_bytes for m, r in self.ledger.reservations.items()} == self.promised
        assert {m: r.stays for m, r in self.ledger.reservations.items() if r.leaving} == self.leaving
        for d in self.ledger.devices:
            kept = sum(self.leaving.get(m, n).get(d, 0) for m, n in self.promised.items())
            usable = self.ledger.devices[d].capacity - self.ledger.foreign(d)
            assert self.ledger.free_after_leaving(d) == max(0, usable) - kept
            assert 0 <= self.ledger.free(d) <= max(0, self.ledger.free_after_leaving(d))

    @invariant()
    def what_borrowers_use_is_counted_once(self) -> None:
        """Never more of it is taken off than there is, or than was lent."""
        for d, device in self.ledger.devices.items():
            lent = sum(n.get(d, 0) for m, n in self.promised.items() if m in LEASES)
            assert device.foreign - lent <= self.ledger.foreign(d) <= device.foreign

    @invariant()
    def a_promise_that_is_broken_says_so(self) -> None:
        for model, want in self.promised.items():
            if model not in self.leaving and not self.ledger.reservations[model].begun:
                taken = any(self.ledger.devices[d].problem or self.ledger.free_after_leaving(d) < 0 for d in want)
                assert bool(self.ledger.broken(model)) == taken

    @invariant()
    def never_more_in_use_than_usable(self) -> None:
        for d, device in self.ledger.devices.items():
            held = sum(n.get(d, 0) for n in self.physical.values())
            assert held <= self.ledger.in_use(d)
            if not self.facts:
                assert held <= device.capacity - self.ledger.foreign(d)
                assert self.ledger.free_after_leaving(d) >= 0

    @invariant()
    def no_deadlock(self) -> None:
        """Once the leavers are gone, or asleep, every planned load begins, in either order, and then all of it fits."""
        if self.facts:
            return
        gone = self.ledger
        for model, stays in self.leaving.items():
            gone = gone.asleep(model, stays) if stays else gone.release(model)
        for order in (sorted(gone.reservations), sorted(gone.reservations, reverse=True)):
            book = gone
            for model in order:
                book = book.begin(model)
            assert all(book.in_use(d) <= device.capacity - book.foreign(d) for d, device in book.devices.items())

    def teardown(self) -> None:
        for model in (*MODELS, *LEASES):
            self.release(model)
        assert self.ledger.reservations == {}
        assert all(self.ledger.free(d) == device.usable for d, device in self.ledger.devices.items())


def test_the_books_are_always_right() -> None:
    """Conservation, no overcommitment by our own doing, no deadlock, nothing left at the end."""
    run_state_machine_as_test(Books, settings=SETTINGS)
