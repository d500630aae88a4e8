"""What the controller and a worker say to each other. Both are of one version: `Hello` proves it."""

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from vllm_mm.domain import errors
from vllm_mm.domain.errors import MMError
from vllm_mm.domain.keys import Key
from vllm_mm.domain.launches import Address
from vllm_mm.domain.limits import Refusal, Standing
from vllm_mm.domain.reasons import Reason
from vllm_mm.domain.running import Listing
from vllm_mm.domain.scheduling import Ticket
from vllm_mm.domain.usage import RequestRecord

VERSION: Final = 2
LARGEST: Final = 64 * 1024**2
"""Bytes of one message; a longer one is a fault."""


class _Message(msgspec.Struct, frozen=True, array_like=True, tag=True):
    pass


# From a worker.


class Hello(_Message, frozen=True):
    """The first message."""

    version: int
    number: int


class Serves(_Message, frozen=True):
    """It accepts connections."""


class Ask(_Message, frozen=True):
    """A request needs a lease."""

    ticket: Ticket


class Drop(_Message, frozen=True):
    """It does not any more."""

    ticket: str


class Back(_Message, frozen=True):
    """So many leases are not needed any more."""

    model: str
    epoch: int
    count: int


class Ack(_Message, frozen=True):
    """The message with that number was obeyed."""

    number: int


class Enter(_Message, frozen=True):
    """A request of a key with limits that is expected to use so many tokens wants to be let in."""

    place: str
    key: str
    tokens: int


class Runs(_Message, frozen=True):
    """A request that runs, and whose key has limits since."""

    place: str
    key: str


class Look(_Message, frozen=True):
    """How does a key stand? Answered by `Entered`; nobody is let in."""

    place: str
    key: str


class Leave(_Message, frozen=True):
    """It is over, and used so many tokens, where that is known."""

    place: str
    tokens: int | None
    device_seconds: float


class Follow(_Message, frozen=True):
    """Somebody is told how the wait of this ticket goes; or not any more."""

    ticket: str
    model: str
    on: bool


class Use(_Message, frozen=True):
    """A lease was used for `worked` seconds; `arrived` is None where it was asked for."""

    model: str
    arrived: float | None
    worked: float


class Report(_Message, frozen=True):
    """What happened since the last one."""

    rows: list[RequestRecord]
    uses: list[Use]
    reads: dict[str, int]
    """By model: how often something came from the engine, since the worker began."""
    lost: int
    """Rows that there was no room for, since the last report."""


class Suspect(_Message, frozen=True):
    """So many of its streams were given up, for nothing came from that launch of the engine, which has to prove itself."""

    model: str
    generation: int
    count: int


class Learned(_Message, frozen=True):
    """An engine has no such route. Also from the controller, which tells what the others learned."""

    fingerprint: str
    route: str
    generation: int


class Cancelled(_Message, frozen=True):
    """The answer to `Cancel`: whether there was such a request. Rows of requests that ended before came before it."""

    number: int
    found: bool


class Listed(_Message, frozen=True):
    """The answer to `List`."""

    number: int
    listing: Listing


# From the controller.


class Setup(_Message, frozen=True):
    """What the worker is made of; understood by `main` alone."""

    content: bytes


class Models(_Message, frozen=True):
    """The catalog, pickled: from the controller only, to a child of its own that runs the same program."""

    catalog: bytes


class States(_Message, frozen=True):
    """The state of instances and the launch they are in, by model."""

    states: dict[str, tuple[str, int]]


class Keys(_Message, frozen=True):
    """All keys."""

    keys: list[Key]


class Entered(_Message, frozen=True):
    """A request is let in, or not; and how its key stands."""

    place: str
    refusal: Refusal | None
    standing: Standing | None


class Lent(_Message, frozen=True):
    """The ticket has its lease, and `count - 1` more are lent."""

    ticket: str
    model: str
    epoch: int
    count: int
    keep: bool
    generation: int
    engine_name: str
    address: Address
    limit: int
    """Connections that are kept for reuse."""
    reason: str | None
    ready_at: float = 0.0
    """When the engine became ready; monotonic seconds, the same for all processes of a machine."""


class Refused(_Message, frozen=True):
    """The ticket gets no lease."""

    ticket: str
    kind: str
    content: dict[str, Any]


class Recall(_Message, frozen=True):
    """What is not used has to come back, now and until more is lent to keep."""

    number: int
    model: str


class Freeze(_Message, frozen=True):
    """Its requests stand still, or go on."""

    number: int
    model: str
    stands: bool


class Revoke(_Message, frozen=True):
    """All its leases were taken away."""

    number: int
    model: str
    epoch: int
    died: bool
    reason: str


class Wait(_Message, frozen=True):
    """How the wait of a ticket goes."""

    ticket: str
    position: int
    phase: str
    percent: float | None
    eta_s: float | None


class Cancel(_Message, frozen=True):
    """A request, by its id, is not to go on."""

    number: int
    request: str
    cause: str


class List(_Message, frozen=True):
    """Which requests are under way is wanted: so many of the oldest."""

    number: int
    most: int


class End(_Message, frozen=True):
    """Accept no more, finish what runs, then end."""


Up = (
    Hello
    | Serves
    | Ask
    | Drop
    | Back
    | Ack
    | Follow
    | Report
    | Suspect
    | Learned
    | Cancelled
    | Listed
    | Enter
    | Runs
    | Look
    | Leave
)
Down = (
    Setup
    | Models
    | States
    | Keys
    | Learned
    | Lent
    | Refused
    | Recall
    | Freeze
    | Revoke
    | Wait
    | Cancel
    | List
    | End
    | Entered
)

_KINDS: Final[Mapping[str, type[MMError]]] = {
    name: kind for name, kind in vars(errors).items() if isinstance(kind, type) and issubclass(kind, MMError)
}


def refused(ticket: str, error: MMError) -> Refused:
    """An error on its way; one of a kind that the other side may not know goes as the nearest that it does."""
    kind = next(k.__name__ for k in type(error).__mro__ if _KINDS.get(k.__name__) is k)
    return Refused(ticket, kind, vars(error))


def error_of(refusal: Refused) -> MMError:
    """The error again."""
    kind, content = _KINDS.get(refusal.kind, MMError), dict(refusal.content)
    error = kind.__new__(kind)
    MMError.__init__(error, str(content.pop("message", "")))
    reason = content.pop("reason", None)
    error.reason = Reason(reason) if reason is not None else None
    for name, value in content.items():
        setattr(error, name, value)
    return error
