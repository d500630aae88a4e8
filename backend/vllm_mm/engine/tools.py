"""What every instance works with; put together in `main`, or by a test."""

from collections.abc import Callable
from dataclasses import dataclass

from vllm_mm.clock import Clock
from vllm_mm.engine.ports import Address, Inventory, Journal, Launcher, LaunchStore
from vllm_mm.engine.wire import ControlChannel, InferenceChannel


@dataclass(frozen=True, slots=True)
class Tools:
    """Shared by all instances."""

    launcher: Launcher
    inventory: Inventory
    store: LaunchStore
    journal: Journal
    clock: Clock
    inference: Callable[[Address, int], InferenceChannel]
    control: Callable[[Address, float], ControlChannel]


def real_channels() -> tuple[Callable[[Address, int], InferenceChannel], Callable[[Address, float], ControlChannel]]:
    """The channels of the product; tests of the actor put others in their place."""
    return (
        lambda address, limit: InferenceChannel(address, limit=limit),
        lambda address, timeout: ControlChannel(address, timeout=timeout),
    )
