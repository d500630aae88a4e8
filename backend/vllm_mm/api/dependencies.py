"""What the routes of the admin API work with, and who may use them."""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, MutableMapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, TypeAlias

from fastapi import Depends, Query, Request
from fastapi.routing import APIRoute

from vllm_mm.api.metrics import Metrics
from vllm_mm.api.signing import SignIns
from vllm_mm.clock import Clock
from vllm_mm.control.configuration import Configuration
from vllm_mm.control.declarations import Declarations
from vllm_mm.control.device_leases import DeviceLeases
from vllm_mm.control.in_force import InForce
from vllm_mm.control.profiles import Profiles
from vllm_mm.control.pulls import Pulls
from vllm_mm.control.readahead import ReadAheadView
from vllm_mm.control.schedules import Schedules
from vllm_mm.control.webhooks import Webhooks
from vllm_mm.control.weights import Weights
from vllm_mm.domain.errors import Forbidden
from vllm_mm.domain.keys import Key, Right, Scope
from vllm_mm.domain.running import Listing
from vllm_mm.domain.specs import ModelSpec
from vllm_mm.engine.launchers.warm import WarmView
from vllm_mm.engine.manager import ProcessManager
from vllm_mm.engine.queue import InferenceQueue
from vllm_mm.gateway.capture_book import CaptureBook
from vllm_mm.gateway.identity import Keyring
from vllm_mm.gateway.limits import LimitBook
from vllm_mm.settings import Settings
from vllm_mm.store.audit import Audit
from vllm_mm.store.journal import Journal
from vllm_mm.store.keys import Keys
from vllm_mm.store.launches import Launches
from vllm_mm.store.series import Series
from vllm_mm.store.usage import Ledger
from vllm_mm.store.usage_hours import UsageHours

Message: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[Message]]
Send: TypeAlias = Callable[[Message], Awaitable[None]]

ROW_MAX = 2**63 - 1
"""The largest number that the database can look for."""
WAIT_MAX = 600.0
"""The longest `?wait=`, in seconds."""


async def _nothing_runs(_request: str, _cause: str) -> bool:
    return False


async def _nobody_runs(_most: int) -> Listing:
    return Listing([], 0)


async def _nothing_waits() -> None:
    """There is no writer."""


@dataclass(frozen=True, slots=True)
class Services:
    """Everything that the API is made of; built once, in `main`."""

    manager: ProcessManager
    queue: InferenceQueue
    in_force: InForce
    configuration: Configuration
    declarations: Declarations
    profiles: Profiles
    pulls: Pulls
    weights: Weights
    journal: Journal
    launches: Launches
    ledger: Ledger
    keys: Keys
    keyring: Keyring
    settings: Settings
    clock: Clock
    version: str
    started_at: float
    """Unix time."""
    metrics: Metrics
    device_leases: DeviceLeases
    schedules: Schedules
    captures: CaptureBook
    audit: Audit
    usage: UsageHours
    series: Series
    sign_ins: SignIns
    limits: LimitBook
    """How much keys use."""
    webhooks: Webhooks = field(default_factory=Webhooks.none)
    refusals: deque[float] = field(default_factory=deque[float])
    """When acts were refused lately (`auditing`)."""
    launchers: Callable[[], WarmView] = WarmView
    """What the launchers did, and which zygotes there are."""
    read_ahead: Callable[[], ReadAheadView] = ReadAheadView
    """Which weights are in the page cache."""
    checks: Sequence[Callable[[], str | None]] = ()
    """More reasons for `/ready`: each says what is wrong, or None."""
    cancel: Callable[[str, str], Awaitable[bool]] = _nothing_runs
    """Ends a request or session by its id (the client's or ours), with who wanted it; False when none runs."""
    running: Callable[[int], Awaitable[Listing]] = _nobody_runs
    """The requests and sessions under way in all processes, that many of the oldest."""
    written: Callable[[], Awaitable[object]] = _nothing_waits
    """Waits a moment for the rows of requests that are over."""
    data_plane: Callable[[Message, Receive, Send], Awaitable[None]] | None = None
    """The routes of models as an ASGI application, for what is sent there from here."""
    closing: asyncio.Event = field(default_factory=asyncio.Event)
    """Set at shutdown: streams that would go on for ever end."""


def services(request: Request) -> Services:
    found: Services = request.app.state.services
    return found


def caller(request: Request) -> Key:
    """Whose request it is. Raises Unauthorized, and Forbidden for what another page may have made a browser send."""
    return services(request).sign_ins.caller(request)


def require(key: Key, scope: Scope) -> Key:
    """`key`, if it may. Raises Forbidden."""
    if not key.allows(scope):
        raise Forbidden(
            f"The key `{key.name}` may not do this: it lacks the scope `{scope.value}`. "
            f"`vllm-mm keys create NAME --scope {scope.value}` makes one that may."
        )
    return key


def require_act(key: Key, *acts: Right) -> Key:
    """`key`, if it has these rights. Raises Forbidden."""
    for act in acts:
        if not key.may(act):
            others = [right.value for right in Right if right is not act and not key.may(right)]
            denied = " ".join(f"--deny {name}" for name in others or ["none"])
            raise Forbidden(
                f"The key `{key.name}` may not do this: it lacks the right `{act.value}`. An administrator can give it that: "
                f"`vllm-mm keys edit {key.id} {denied}` names all that it lacks from then on."
            )
    return key


def allowed(scope: Scope, *acts: Right) -> Callable[[Request], Awaitable[Key]]:
    """A dependency: the caller's key, which has the scope and these rights."""

    async def check(request: Request) -> Key:
        return require_act(require(caller(request), scope), *acts)

    return check


async def _the(request: Request) -> Services:
    return services(request)  # async: FastAPI would run a plain function in a thread, for each request


def operation_id(route: APIRoute) -> str:
    """Operations in the OpenAPI document are called as their functions are."""
    return route.name


The = Annotated[Services, Depends(_the)]
Reader = Annotated[Key, Depends(allowed(Scope.READ))]
Operator = Annotated[Key, Depends(allowed(Scope.OPERATE))]
Admin = Annotated[Key, Depends(allowed(Scope.ADMIN))]
MayReadLogs = Annotated[Key, Depends(allowed(Scope.READ, Right.LOGS))]
MayReadCaptures = Annotated[Key, Depends(allowed(Scope.ADMIN, Right.CAPTURE))]
MayLoad = Annotated[Key, Depends(allowed(Scope.OPERATE, Right.LOAD, Right.EVICT))]
MayReplay = Annotated[Key, Depends(allowed(Scope.OPERATE, Right.CAPTURE))]
MayEvict = Annotated[Key, Depends(allowed(Scope.OPERATE, Right.EVICT))]
Wait = Annotated[
    float | None,
    Query(ge=0, le=WAIT_MAX, description="Seconds to wait for the settled state; without it the answer comes at once."),
]


def resolve(the: Services, name: str) -> ModelSpec:
    """The model of that id or alias. Raises UnknownModel."""
    return the.manager.catalog.get(name) or the.manager.catalog.resolve(name)


def cause(key: Key) -> str:
    """How an act of `key` is named in events and reasons."""
    return f"operator {key.name}"
