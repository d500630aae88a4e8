"""What the ranks of one engine hold on their devices, as claims in the shared ledger."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from vllm_mm.sim import ledger
from vllm_mm.sim.loading import rank_kv_cache, rank_weights
from vllm_mm.sim.options import Options
from vllm_mm.vocabulary.quantities import gib

NO_CACHE = "ValueError: No available memory for the cache blocks. Try increasing `gpu_memory_utilization` when initializing the engine."


class LoadError(Exception):
    """The load cannot go on; the message is vLLM's."""


@dataclass(frozen=True, slots=True)
class Rank:
    """One process that computes, and the device it computes on."""

    pid: int
    device: str


def ranks_of(options: Options, pids: Sequence[int]) -> tuple[Rank, ...]:
    """The ranks in order; with one device for several ranks, all of them share it."""
    devices = options.profile.device
    return tuple(Rank(pid, devices[index % len(devices)]) for index, pid in enumerate(pids))


class Memory:
    """The claims of all ranks. Without a ledger everything fits."""

    def __init__(self, options: Options, ranks: Sequence[Rank]) -> None:
        self._ledger = Path(options.profile.ledger) if options.profile.ledger else None
        self._capacity = options.profile.device_memory
        self._ranks = ranks
        self._weights = rank_weights(options)
        self._kv_cache = rank_kv_cache(options)
        self._overhead = options.profile.overhead
        self._share = options.memory_share
        self._residual = options.profile.sleep_residual

    def check_start(self) -> None:
        """vLLM's first look: as much free as is wanted in the end. Raises LoadError."""
        if self._ledger is None:
            return
        desired = self._weights + self._kv_cache + self._overhead
        if self._share is not None:
            desired = int(self._capacity * self._share)
        for rank in self._ranks:
            free = ledger.free(self._ledger, rank.device, self._capacity)
            if free < desired:
                raise LoadError(
                    f"ValueError: Free memory on device {rank.device} ({gib(free):.2f}/{gib(self._capacity):.2f} GiB) on startup "
                    f"is less than desired GPU memory utilization ({desired / self._capacity:.2f}, {gib(desired):.2f} GiB). "
                    "Decrease GPU memory utilization or reduce GPU memory used by other processes."
                )

    def load_weights(self) -> None:
        """Raises LoadError when a neighbour was faster."""
        try:
            self.hold(weights=True, kv_cache=False)
        except ledger.DoesNotFitError as error:
            raise LoadError(out_of_memory(error, self._capacity)) from None

    def load_kv_cache(self) -> None:
        """Raises LoadError when a neighbour was faster."""
        try:
            self.hold(weights=True, kv_cache=True)
        except ledger.DoesNotFitError:
            raise LoadError(NO_CACHE) from None

    def hold(self, *, weights: bool, kv_cache: bool) -> None:
        """Set the claim of each rank. Raises ledger.DoesNotFitError, and then changes nothing."""
        if self._ledger is None:
            return
        size = (self._weights if weights else 0) + (self._kv_cache if kv_cache else 0) + self._overhead
        if not (weights or kv_cache):
            size = min(self._residual, size + self._weights + self._kv_cache)
        before: list[tuple[Rank, int]] = []
        try:
            for rank in self._ranks:
                held = [c.size for c in ledger.claims(self._ledger, rank.device) if c.pid == rank.pid]
                ledger.claim(self._ledger, rank.device, rank.pid, size, capacity=self._capacity)
                before.append((rank, sum(held)))
        except ledger.DoesNotFitError:
            for rank, held in before:
                ledger.claim(self._ledger, rank.device, rank.pid, held, capacity=None)
            raise

    def out_of_memory(self, error: ledger.DoesNotFitError) -> str:
        """The message of a failed allocation."""
        return out_of_memory(error, self._capacity)


def out_of_memory(error: ledger.DoesNotFitError, capacity: int) -> str:
    """torch's message."""
    return (
        f"torch.OutOfMemoryError: CUDA out of memory. Tried to allocate {gib(error.wanted):.2f} GiB. {error.device} has a total "
        f"capacity of {gib(capacity):.2f} GiB of which {gib(max(0, error.free)):.2f} GiB is free."
    )


def check_max_model_len(options: Options) -> None:
    """Raises LoadError when one request of full length does not fit into the cache, or nothing does."""
    profile = options.profile
    if options.kv_cache_left is not None and options.kv_cache_left <= 0:
        raise LoadError(NO_CACHE)
    needed = options.max_model_len * profile.kv_bytes_per_token
    if profile.task == "generate" and needed > profile.kv_cache:
        raise LoadError(
            f"ValueError: To serve at least one request with the model's max seq len ({options.max_model_len}), "
            f"({gib(needed):.2f} GiB KV cache is needed, which is larger than the available KV cache memory "
            f"({gib(profile.kv_cache):.2f} GiB). Based on the available memory, the estimated maximum model length is "
            f"{profile.kv_cache // profile.kv_bytes_per_token}. Try increasing `gpu_memory_utilization` or decreasing "
            "`max_model_len` when initializing the engine."
        )
