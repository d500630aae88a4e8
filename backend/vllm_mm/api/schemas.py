"""What the admin API says, as pydantic models (what it takes is in `inputs`): OpenAPI, and the dashboard's types, are made from these.

Times are seconds, moments are Unix seconds, memory is bytes.
"""

from typing import Any, Literal

from pydantic import ConfigDict

from vllm_mm.domain.device_leases import Stage as LeaseStage
from vllm_mm.domain.estimates import Stage
from vllm_mm.domain.lifecycle import State
from vllm_mm.domain.reasons import Reason
from vllm_mm.domain.request_rules import Kind, Level
from vllm_mm.domain.specs import EngineKind, LauncherKind, SleepMode, Source, Task
from vllm_mm.settings.described import Described


class Out(Described):
    model_config = ConfigDict(frozen=True, protected_namespaces=())


class ProgressOut(Out):
    """How far a load is."""

    phase: str
    percent: float | None
    """Of the phase; null where the engine gives none."""
    elapsed_s: float
    """Since the present state began."""
    eta_s: float | None
    """Until READY, from what loads took before; null when nothing is under way."""


class MemoryOut(Out):
    reserved: dict[str, int]
    """Per device."""
    used: int
    """What the process tree takes of the host's memory now."""


class InstanceOut(Out):
    """One model's engine, running or not."""

    id: str
    model: str
    state: State
    progress: ProgressOut
    reason: str
    devices: list[str]
    pid: int | None
    in_flight: int
    frozen: int
    """Of those in flight: requests that stand still in the sleeping engine and go on when it wakes."""
    queued: int
    since: float
    failures: int
    memory: MemoryOut
    generation: int
    """Counts launches; 0 when it never ran."""
    launcher: str
    """How its process came into being: `warm` (forked from a zygote) or `local`; empty without one."""
    pinned: bool
    pending: bool
    """Something is under way: a load, a drain, a stop, or a wish that waits for room."""
    drain_s: float
    """How long a drain would take, or the one under way still takes: until its last request ends, as likely sooner as later; at most
    `swap.drain_timeout`."""
    idle_s: float | None


class FootprintOut(Out):
    """Sizes in bytes on each device."""

    per_device: int
    """What is reserved."""
    source: Literal["declared", "learned", "estimated"]
    spread: int
    """Standard deviation of what its launches took; 0 unless learned from several."""
    weights: int
    kv_cache: int
    overhead: int
    """Runtime, activations, graphs. The three are 0 where only the sum is known."""
    kv_tokens: int | None
    """Tokens that the KV cache holds; null when that is not known."""
    kv_token_bytes: int | None
    """What one token takes in it."""
    samples: int
    """Launches that it was learned from."""
    learned_at: float | None
    notes: list[str]
    """What was assumed, and what is not counted."""


class DeviceWishOut(Out):
    count: int
    ids: list[str]


class IdleOut(Out):
    sleep_after: float | None
    stop_after: float | None


class StartLimitsOut(Out):
    stall: float
    deadline: float
    probe: float


class RetryOut(Out):
    backoff: float
    backoff_max: float
    max_failures: int
    stable_after: float


class SleepOut(Out):
    mode: SleepMode
    level: int
    keeps: int | None
    why_not: str
    """Why it is not put to sleep; empty when it can be."""


class ScheduleOut(Out):
    """Where a model is in its times of the week."""

    open: bool
    """One is open: it is to be ready."""
    keeps: bool
    """It is kept ready for that, and not put to sleep or stopped for being idle. False also when somebody stopped it."""
    changes_at: float | None
    """Unix time at which the open one ends, or the next one begins; null for one that never ends."""
    text: str
    """The same for people, in the time zone of the schedule."""


class RequestRuleOut(Out):
    kind: Kind
    """`default`: set where the client set nothing; `override`: set whatever it says; `limit`: the most that it may ask for."""
    path: list[str]
    """The field, and where in it."""
    value: Any
    """Null: a default that was taken back, a field that is removed, or no limit."""
    source: Level
    """`system` (`defaults`), `model`, or `alias` (the name, or LoRA adapter, itself)."""


class PriceOut(Out):
    """Of a million tokens."""

    prompt: float
    completion: float
    cached: float | None
    """Of the prompt, those in the prefix cache; null: as much as the others."""


class ModelOut(Out):
    """A model: what was declared, where, what it takes, and its engine."""

    id: str
    source: Source
    engine: EngineKind
    model: str | None
    executable: str
    launcher: LauncherKind
    args: dict[str, Any]
    env: dict[str, str]
    """Values that look like secrets are shown to administrators only."""
    command: list[str]
    sim: dict[str, Any]
    task: Task
    aliases: list[str]
    devices: DeviceWishOut
    memory: int | None
    kv_cache: int | None
    """Bytes on each device, where somebody said how much."""
    pinned: bool
    """As it is now: declared, or set by `pin` and `unpin`."""
    preload: bool
    schedule: list[str]
    """Times of the week in which it is kept ready."""
    schedule_now: ScheduleOut | None
    """How they stand; null for a model without any."""
    priority: int
    concurrency: int
    progress: bool
    """Clients of its streams see comments while they wait, also those that did not ask."""
    stream_usage: bool
    """Its engine is asked for the token counts of streams whose clients did not ask."""
    idle: IdleOut
    start: StartLimitsOut
    retry: RetryOut
    sleep: SleepOut
    request_defaults: dict[str, Any]
    request_overrides: dict[str, Any]
    request_limits: dict[str, Any]
    """These three are what the model itself says."""
    request_rules: dict[str, list[RequestRuleOut]]
    """What holds for requests, by the name that they ask for; names without rules are left out."""
    lora: dict[str, str]
    price: PriceOut | None
    fingerprint: str
    footprint: FootprintOut
    instance: InstanceOut | None
    """Null when it never ran."""


class DeletedOut(Out):
    id: str
    instance: InstanceOut | None
    """The engine on its way out; null when none ran."""


class StartOut(Out):
    generation: int
    started_at: float
    ready_at: float | None
    phases: dict[str, float]
    outcome: str
    """`ready`, `failed`, `cancelled`; `adopted`: a controller took over what an earlier one had started, with no `ready_at`."""
    reason: str
    launcher: str
    """How its process came into being: `warm` (forked from a zygote) or `local`; empty when there never was one."""


class HistoryOut(Out):
    starts: list[StartOut]


class ReservationOut(Out):
    model: str
    bytes: int
    """What it may use, or was promised; of a leaver, what it holds."""
    in_use: bool
    """False while it is only promised: the load has not begun."""
    leaving: bool


class ForeignProcessOut(Out):
    pid: int
    name: str
    bytes: int | None
    """Null where the driver does not tell."""


class DeviceOut(Out):
    id: str
    kind: str
    name: str
    capacity: int
    headroom: int
    foreign: int
    """In use by processes that are not ours."""
    free: int
    problem: str
    """Why nothing new is placed on it; empty when it is well."""
    foreign_processes: list[ForeignProcessOut]
    """Whose the foreign use is, where that is known; on the host's memory only the largest."""
    reservations: list[ReservationOut]


class EvictedOut(Out):
    model: str
    wanted: bool
    """It comes back when the lease ends."""


class DeviceLeaseOut(Out):
    """Device memory for something that is not an engine of this server."""

    id: str
    device: str
    bytes: int
    stage: LeaseStage
    reason: str
    """What it waits for, or why it ended."""
    note: str
    by: str
    asked_at: float
    held_at: float | None
    ends_at: float | None
    """Null until it is held."""
    ended_at: float | None
    evicted: list[EvictedOut]


class QueueEntryOut(Out):
    ticket: str
    model: str
    key: str | None
    waited_s: float
    position: int
    deadline_in_s: float
    eta_s: float | None
    at_latest_s: float | None
    """Kept nine times of ten."""
    reason: Reason | None
    """Why it waits, as a code; null until the scheduler has looked at it."""
    why: str
    """The same as a sentence."""


class QueueOut(Out):
    length: int
    max_size: int
    oldest_s: float
    entries: list[QueueEntryOut]


class QueueSummaryOut(Out):
    length: int
    oldest_s: float


class AccuracyOut(Out):
    """How forecasts of READY turned out: the latest hundred."""

    compared: int
    typical_error_s: float | None
    """Whichever way; null before the first comparison."""
    typical_ratio: float | None
    """By how much of the longer of the two the other fell short: 0 is exact, 0.5 is twice or half."""
    kept_at_latest: float | None
    """The share that was there within `at_latest_s`; nine of ten is what is aimed at."""


class HostMemoryOut(Out):
    """The host's memory for engines that sleep."""

    budget: int | None
    """Bytes for all of them; null sets no bound, 0 turns sleep off."""
    held: dict[str, int]
    """Bytes by model: of those that sleep, are about to, or wake."""
    leaving: dict[str, int]
    """Bytes by model: of those that were told to stop and are not gone yet."""
    used: int
    """The sum of both, which the budget bounds."""
    free: int
    """Bytes of the host's memory that could be used now without swapping, as the system tells; whoever uses the rest."""


class StatusOut(Out):
    version: str
    started_at: float
    uptime_s: float
    models: int
    states: dict[State, int]
    """Instances by state; models that never ran count as stopped."""
    in_flight: int
    queue: QueueSummaryOut
    forecasts: dict[Stage, AccuracyOut]
    """By when they were made: when somebody began to wait, and when the load was decided."""
    host_memory: HostMemoryOut
    alerts: list[str]


class EventOut(Out):
    """The `data` of a server-sent event of `/api/events`; its `id` is `seq`, its `event` is `kind`."""

    seq: int
    at: float
    kind: str
    model: str | None
    cause: str
    data: dict[str, Any]


class HealthOut(Out):
    status: Literal["ok"]


class ReadyOut(Out):
    ready: bool
    reasons: list[str]


class ErrorBody(Out):
    message: str
    type: str
    param: str | None
    code: str
    reason: str = ""
    """Finer than `code`, where the scheduler or the state of a model had to do with it: see docs/scheduling.md."""


class ErrorOut(Out):
    """Every refusal; the message says what to do."""

    error: ErrorBody


REFUSALS: dict[int | str, dict[str, Any]] = {
    401: {"model": ErrorOut, "description": "No key, or one that nobody issued."},
    403: {"model": ErrorOut, "description": "A key without the scope."},
    404: {"model": ErrorOut, "description": "There is no such thing."},
    409: {"model": ErrorOut, "description": "Contradicts what is going on; the message says what that is."},
    422: {"model": ErrorOut, "description": "The request is wrong; `param` says where."},
}
"""For the documentation of every route."""
