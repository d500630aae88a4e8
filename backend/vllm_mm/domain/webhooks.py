"""Webhooks: which events a hook wants, what is sent, and how it is signed."""

import hashlib
import hmac
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any, Final

from vllm_mm.domain.events import Event

FAILED: Final = "failed"
"""A model failed: it is not started any more, or only after a pause."""
BACK: Final = "back"
"""A model that had failed is ready again, or a device that was out of use is well."""
OVER_BUDGET: Final = "over_budget"
"""A key has used up a budget."""
NAMES: Final = (FAILED, BACK, OVER_BUDGET)
_FAILURES: Final = frozenset({"instance.failed", "instance.backoff", "alert.device"})


@dataclass(frozen=True, slots=True)
class Hook:
    """Where to send what."""

    name: str
    """Of the hook, for people: without what may be secret in its address."""
    url: str
    events: tuple[str, ...]
    """Names of `NAMES`, or kinds of events, in which `*` stands for anything."""
    secret: str = ""

    def wants(self, event: Event, names: Sequence[str]) -> str | None:
        """By which of its `events`; None when it does not. `names`: what `Namer` calls the event."""
        return next((e for e in self.events if e in names or (e not in NAMES and fnmatchcase(event.kind, e))), None)


class Namer:
    """Calls events by names. It remembers who failed, so that it has to be told of every event, in order."""

    def __init__(self, failing: Iterable[str] = ()) -> None:
        """`failing`: who is known to have failed before."""
        self._failing = set(failing)

    @property
    def failing(self) -> tuple[str, ...]:
        """Models that have failed and are not back; the empty text stands for a device."""
        return tuple(sorted(self._failing))

    def __call__(self, event: Event) -> tuple[str, ...]:
        about = event.model or ""
        if event.kind in _FAILURES:
            first = event.model is None or about not in self._failing
            self._failing.add(about)
            # Each pause of a model that fails again and again is no news; that it is given up is.
            return (FAILED,) if first or event.kind == "instance.failed" else ()
        if event.kind == "device.well":
            return (BACK,)
        if event.kind == "instance.ready" and about in self._failing:
            self._failing.discard(about)
            return (BACK,)
        return (OVER_BUDGET,) if event.kind.endswith("over_budget") else ()


@dataclass(frozen=True, slots=True)
class Delivery:
    """One event on its way to one hook. Made to be kept: what is sent again is what was to be sent at first."""

    id: str
    hook: str
    event: str
    """By which of the hook's `events`."""
    seq: int
    """The number of the event."""
    body: str
    made_at: float
    """Unix time."""


def number(hook: str, event: Event) -> str:
    """The id of the delivery of that event to that hook: the same whenever it is made, so that a receiver knows it again."""
    return f"dlv_{hashlib.sha256(f'{event.seq} {event.at!r} {hook}'.encode()).hexdigest()[:16]}"


@dataclass(frozen=True, slots=True)
class Place:
    """How far the events were delivered, for the next controller: it begins behind `seq`."""

    seq: int
    """The oldest event of which something may still wait, less one."""
    done: Mapping[str, int] = field(default_factory=dict[str, int])
    """By hook: what it was sent, or was not to be sent, up to which event."""
    failing: tuple[str, ...] = ()
    """What `Namer` knew after the event `seq`."""


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A delivery that was given up."""

    delivery: Delivery
    reason: str
    attempts: int
    at: float
    """Unix time."""


def body(delivery: str, name: str, event: Event) -> str:
    """JSON, as it is sent."""
    told: Mapping[str, Any] = {
        "id": delivery, "event": name, "seq": event.seq, "at": event.at, "kind": event.kind, "model": event.model,
        "cause": event.cause, "data": dict(event.data),
    }  # fmt: skip
    return json.dumps(told, ensure_ascii=False, separators=(",", ":"), default=str)


def signature(secret: str, timestamp: int, text: bytes) -> str:
    """`sha256=` and HMAC-SHA256, in hex, of the timestamp, a dot and the body. The timestamp is signed so that an old request
    cannot be sent again later: receivers refuse one that is some minutes old."""
    made = hmac.new(secret.encode(), b"%d.%b" % (timestamp, text), hashlib.sha256)
    return f"sha256={made.hexdigest()}"


def headers(delivery: Delivery, secret: str, timestamp: int) -> dict[str, str]:
    """Of a request; without a secret it is not signed."""
    found = {
        "Content-Type": "application/json",
        "User-Agent": "vllm-mm",
        "X-VLLM-MM-Event": delivery.event,
        "X-VLLM-MM-Delivery": delivery.id,
        "X-VLLM-MM-Timestamp": str(timestamp),
    }
    return (
        found if not secret else {**found, "X-VLLM-MM-Signature": signature(secret, timestamp, delivery.body.encode())}
    )


def final(status: int) -> bool:
    """Whether another try of what was answered so would come to the same: the receiver does not want it."""
    return 300 <= status < 500 and status not in {408, 425, 429}
