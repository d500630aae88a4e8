"""A request that is not over yet, as it is listed: `RequestRecord` is what becomes of it."""

from collections.abc import Sequence
from enum import StrEnum

import msgspec


class Stage(StrEnum):
    """How far it is."""

    ARRIVES = "arrives"
    """Its model is not known yet, or its key has to wait for its turn."""
    WAITS = "waits"
    """For its model: the queue says why."""
    PROMPT = "prompt"
    """Its engine has it, and nothing of the answer has come."""
    ANSWERS = "answers"
    """The answer is on its way to the client."""


class Running(msgspec.Struct, frozen=True):
    """One request under way. Times are in seconds after its arrival, None for what it has not reached."""

    id: str
    """Ours."""
    request_id: str
    """The client's own, or ours."""
    at: float
    """Unix time of arrival."""
    route: str
    model: str | None
    """None while it is not known which one is asked for."""
    asked: str | None
    """The name that the client used."""
    key: str | None
    """The key's id."""
    stream: bool
    stage: Stage
    queued_s: float | None
    """Until it had its lease."""
    load_s: float | None
    """Until its engine was ready, where that came after it."""
    ttft_s: float | None
    """Until the first token of a stream, or the first byte of another answer."""
    total_s: float
    """Until now."""
    frozen_s: float
    """For so long it has stood still in its engine."""
    frozen: bool
    """It stands still now: another model has the memory."""
    bytes_in: int
    bytes_out: int
    """Of the answer, so far."""
    generation: int | None
    """Which launch of the instance serves it."""
    retried: bool
    """It was sent to an engine a second time."""
    ending: bool
    """It was told to end, and is about to."""


class Listing(msgspec.Struct, frozen=True):
    """Those under way, the oldest first, of which there may be more than were asked for."""

    requests: list[Running]
    total: int


def together(listings: Sequence[Listing], most: int) -> Listing:
    """Those of several processes as one."""
    rows = sorted((row for listing in listings for row in listing.requests), key=lambda row: (row.at, row.id))
    return Listing(rows[:most], sum(listing.total for listing in listings))
