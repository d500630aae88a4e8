"""What a request used and how it ended: the one row that each request leaves."""

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

import msgspec


class Outcome(StrEnum):
    """How a request ended. Exactly one per request."""

    OK = "ok"
    UPSTREAM_ERROR = "upstream_error"
    """The engine answered with an error status of its own; relayed as it was."""
    BAD_REQUEST = "bad_request"
    REFUSED = "refused"
    """401, 403, 404 or 429: never queued."""
    QUEUE_FULL = "queue_full"
    WAIT_EXPIRED = "wait_expired"
    START_FAILED = "start_failed"
    TORN_DOWN = "torn_down"
    CLIENT_GONE = "client_gone"
    UPSTREAM_DIED = "upstream_died"
    CUT = "cut"
    TIMEOUT = "timeout"
    SHUTDOWN = "shutdown"
    INTERNAL = "internal"


class Usage(msgspec.Struct, frozen=True):
    """Tokens as the engine counted them; None where it did not say."""

    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    cached_tokens: int | None = None
    """Of the prompt's tokens, those that were in the engine's prefix cache."""
    reasoning_tokens: int | None = None
    """Of the completion's tokens, those of reasoning; engines count them where they have a reasoning parser."""


NANO: Final = 1_000_000_000
"""Costs are added up as whole billionths of the currency's unit: their sums are exact, in whatever order."""


@dataclass(frozen=True, slots=True)
class Price:
    """What a model's tokens cost: units of any currency for a million."""

    prompt: float = 0.0
    completion: float = 0.0
    cached: float | None = None
    """Those of the prompt that were in the prefix cache; None: as much as the others."""

    def cost(self, usage: Usage) -> int | None:
        """In billionths; None where the engine said nothing of its tokens."""
        if usage.prompt_tokens is None and usage.completion_tokens is None:
            return None
        prompt, cached = usage.prompt_tokens or 0, usage.cached_tokens or 0
        each = self.prompt if self.cached is None else self.cached
        millions = (prompt - cached) * self.prompt + cached * each + (usage.completion_tokens or 0) * self.completion
        return round(millions * (NANO // 1_000_000))


GAP_BOUNDS: Final = (
    0.001, 0.0025, 0.005, 0.01, 0.015, 0.02, 0.03, 0.04, 0.05, 0.075, 0.1, 0.15, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0,
)  # fmt: skip
"""Seconds: the upper bounds by which gaps are counted."""


@dataclass(frozen=True, slots=True)
class Gaps:
    """The times between the pieces of one stream that had tokens in them (inter-token latency), in seconds."""

    p50: float
    p95: float
    p99: float
    total: float = field(default=0.0, compare=False)
    """All of them added up. This and the counts are for the metrics; the database does not keep them."""
    counts: tuple[int, ...] = field(default=(), compare=False)
    """How many there were up to each of GAP_BOUNDS and above the one before, and above the last."""


# Not a dataclass: to make a frozen one of those takes ten times as long, and one is made for every request.
class RequestRecord(msgspec.Struct, frozen=True):
    """The ledger's row. Times in seconds; durations are None for stages that were not reached."""

    id: str
    """Ours; never repeats."""
    request_id: str
    """What the client saw in `X-Request-Id`: its own id if it gave one, and then it may repeat."""
    at: float
    """Unix time of arrival."""
    route: str
    model: str | None
    asked: str | None
    """The name that the client used: the model's id or an alias."""
    key: str | None
    """The key's id, never its secret."""
    stream: bool
    outcome: Outcome
    status: int
    """The HTTP status that the client saw, or 499 if it left before there was one."""
    error: str | None
    queued_s: float | None
    ttft_s: float | None
    """Arrival to the first token of a stream; to the first byte of the body of any other answer."""
    total_s: float
    bytes_in: int
    bytes_out: int
    usage: Usage
    generation: int | None
    """Which launch of the instance served it."""
    frozen_s: float = 0.0
    """For so long it stood still in its sleeping engine, while another model had its memory."""
    reason: str | None = None
    """Why it had to wait, was refused or was cut, as a code of `domain.reasons`; None when nothing was in its way."""
    retried: bool = False
    """It was sent to an engine a second time, because the first could not have begun to work on it."""
    gaps: Gaps | None = None
    """None for an answer without two pieces."""
    load_s: float | None = None
    """Of `queued_s`, the part until its engine was ready; None where it never had a lease."""
    device_s: float | None = None
    """`device_seconds`; the ledger fills it in when the row is written, as it does with `cost`."""
    cost: float | None = None
    """What its tokens cost by the model's price at that time, in units of its currency; None for a model without one."""


def device_seconds(record: RequestRecord, devices: int) -> float:
    """The seconds for which the request had its lease, without those for which it stood still, times the model's devices.

    Each request counts whole: of two that run at the same time in one engine for a second, each has one second of each device.
    """
    if record.queued_s is None:
        return 0.0
    return max(0.0, record.total_s - record.queued_s - record.frozen_s) * devices
