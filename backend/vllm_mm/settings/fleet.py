"""The sections about what all models share: devices and memory, waiting and swapping, the life of engines."""

from typing import Annotated, Literal

from pydantic import BeforeValidator, Discriminator, Field, Tag

from vllm_mm.settings.fields import AutoSize, Section, Switch, Text
from vllm_mm.settings.units import Duration, Size


def _kind(value: object) -> str:
    return "list" if isinstance(value, list | tuple) else "word"


class DeviceConfig(Section):
    id: Text
    """Index or UUID of a GPU, `cpu`, or any name for a simulated device."""
    memory: AutoSize = None
    """Capacity; auto is what the device has. Simulated devices need one."""
    headroom: Size | None = None
    """Never given out; null means `device_headroom` (0 for simulated devices)."""
    simulated: Switch = False
    """A device that exists only for `sim` engines."""


def _device_list(value: object) -> object:
    """A list may name real devices by id alone: `[0, 1]`."""
    if isinstance(value, list | tuple):
        items: list[object] = list(value)  # pyright: ignore[reportUnknownArgumentType]  # isinstance cannot tell of what
        return [{"id": v} if isinstance(v, str | int) and not isinstance(v, bool) else v for v in items]
    return value


Devices = Annotated[
    Annotated[Literal["auto", "cpu"], Tag("word")] | Annotated[tuple[DeviceConfig, ...], Tag("list")],
    Discriminator(_kind),
    BeforeValidator(_device_list),
]


class HostMemoryConfig(Section):
    sleep_budget: AutoSize = None
    """Host RAM that sleeping engines may hold together; auto is half of the machine's memory, 0 turns sleep off."""


class QueueConfig(Section):
    max_size: int = Field(default=1000, ge=1)
    """Requests that may wait at the same time, over all models; the next one gets 503 with Retry-After."""
    max_wait: Duration = 30.0
    """How long a request waits for its model when it does not say so itself (`X-VLLM-MM-Wait`)."""
    request_timeout: Duration = 600.0
    """The longest that a request may take from arrival to its last byte."""
    on_teardown: Literal["retry", "wait"] = "retry"
    """A stream whose engine is being torn down: `retry` answers 503 with Retry-After, `wait` holds it for the next start."""
    workers: int = Field(default=4, ge=1, le=64)
    """Async workers that turn waiting tickets into leases."""
    cancel_unwanted_loads: Switch = False
    """Stop a load when everybody who waited for it has gone."""


class SwapConfig(Section):
    max_wait: Duration = 20.0
    """When the oldest waiter of a model that is not loaded is this old, room is made for it even from busy models."""
    min_dwell: Duration = 0.0
    """A model that became ready is not swapped out earlier than this, not even when it is idle. The scheduler knows what a swap
    costs, and needs none; `quantum` is what a busy model has."""
    quantum: Duration = 10.0
    """A model that became ready may serve this long although somebody has waited `max_wait` for another one."""
    placement: Literal["pack", "spread"] = "pack"
    """Of several devices with room, `pack` takes the one that the model fills best, so that large models find whole devices;
    `spread` takes the emptiest, so that models share no device while another one is free."""
    drain_timeout: Duration = 60.0
    """How long a model that has to go may finish its requests."""
    on_drain_timeout: Literal["preempt", "cut", "wait"] = "preempt"
    """Then: `preempt` freezes the streams and resumes them later where the engine can (else cuts), `cut` ends them with
    an error, `wait` goes on waiting."""


class TimeoutsConfig(Section):
    suspend: Duration = 120.0
    """An engine may take this long to fall asleep before it is stopped."""
    wake: Duration = 120.0
    """An engine may take this long to wake before it is stopped."""
    stop: Duration = 30.0
    """From the first signal until the whole process tree is gone; afterwards it is killed again and an alert is raised."""
    stop_grace: Duration = 10.0
    """From SIGTERM to SIGKILL."""
    health: Duration = 5.0
    """Between two health requests to a ready engine; after three without an answer it is restarted."""
    stuck: Duration = 60.0
    """With requests out and nothing coming from the engine for this long, one token is asked for; if that fails too, and
    the engine's own counters of tokens and cache stand still meanwhile, it hangs and is restarted."""
    worker: Duration = 10.0
    """With `server.workers`, how long a worker process may take to answer the controller before it is ended."""

    stream_stall: Duration | None = 300.0
    """A stream that has begun and gets nothing from its engine for this long, although the engine runs, is ended with an error, and
    one token is asked for to see whether the engine is of use; null means never. Before the first token there is no such limit."""


class WarmConfig(Section):
    """The processes that the `warm` launcher forks engines from."""

    idle_after: Duration | None = 1800.0
    """Time without a start after which such a process is ended and its memory given back; null means never."""
    preload: Switch = True
    """Make them when the server starts, so that the first start of a model is quick too; false makes them when first needed."""
    read_ahead: Size = 0
    """Bytes of the weights of models that are likely to be next which may be read into the system's page cache; 0 reads none."""
