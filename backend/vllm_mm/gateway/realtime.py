"""`/v1/realtime`: one coroutine per session, from the handshake to its row. Its lease lives and ends inside it."""

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final
from urllib.parse import parse_qsl, quote_plus

from vllm_mm.clock import Clock, Timer
from vllm_mm.domain.errors import (
    BadRequest,
    Forbidden,
    MMError,
    PayloadTooLarge,
    RequestCancelled,
    RequestCut,
    SessionExpired,
    ShuttingDown,
    Unauthorized,
    Unavailable,
    UnknownModel,
    UpgradeRefused,
    UpstreamDied,
)
from vllm_mm.domain.keys import Key, Right, Scope
from vllm_mm.domain.scheduling import Ticket
from vllm_mm.domain.specs import EngineKind
from vllm_mm.domain.usage import Outcome, RequestRecord
from vllm_mm.engine.exchange import UpstreamRequest
from vllm_mm.gateway import realtime_events as events
from vllm_mm.gateway.abilities import Abilities
from vllm_mm.gateway.head import Head, Names, priority, read_head, seconds_to_wait, wants_progress
from vllm_mm.gateway.identity import Keyring, require, require_model
from vllm_mm.gateway.limits import LimitBook, come_in, go_out, look
from vllm_mm.gateway.origins import allowed
from vllm_mm.gateway.ports import Explain, Gate, Headers, Leases, LeaseView, Record, Rules
from vllm_mm.gateway.progress import FIRST
from vllm_mm.gateway.realtime_session import RealtimeSession, SessionClient
from vllm_mm.gateway.relay import CLIENT_GONE, says_no_route
from vllm_mm.gateway.routes import REALTIME

if TYPE_CHECKING:
    from vllm_mm.gateway.traces import Traces

log = logging.getLogger(__name__)

SUBPROTOCOL: Final = b"realtime"
"""The one that OpenAI's clients offer beside the key."""
_KEY: Final = b"openai-insecure-api-key."
"""How a page in a browser, which cannot set headers, sends its key: as a subprotocol."""
_OURS: Final = frozenset({"model", "x-vllm-mm-wait", "x-vllm-mm-priority", "x-vllm-mm-progress"})
"""Parameters of the address that are for us; a page cannot set headers."""
_NO_ROUTE: Final = frozenset({403, 404, 405, 501})
"""How an engine may say that it has no such route; 403 is what servers on ASGI say."""
_CODES: Final[Sequence[tuple[type[BaseException], int]]] = (
    (ShuttingDown, 1001),
    (PayloadTooLarge, 1009),
    (BadRequest, 1008),
    (Unauthorized, 1008),
    (Forbidden, 1008),
    (UnknownModel, 1008),
    (SessionExpired, 1008),
    (RequestCancelled, 1008),
    (RequestCut, 1012),
    (Unavailable, 1013),
)


def close_code(error: BaseException) -> int:
    """RFC 6455, 7.4, and the registry of close codes: going away, too big, policy, restart, try again later, internal."""
    return next((code for kind, code in _CODES if isinstance(error, kind)), 1011)


class Realtime:
    """All sessions. `serve` is called once for each, by whoever holds the connection."""

    def __init__(
        self,
        leases: Leases,
        keys: Keyring,
        record: Record,
        explain: Explain,
        clock: Clock,
        rules: Rules,
        abilities: Abilities,
        names: Names,
        outcome_of: Callable[[BaseException], Outcome],
    ) -> None:
        self.rules: Final = rules
        self._leases = leases
        self._keys = keys
        self._record: Callable[[RequestRecord], None] = record
        self._explain = explain
        self._clock = clock
        self._abilities = abilities
        self._names = names
        self._outcome_of = outcome_of
        self.limits: Gate = LimitBook(clock)
        self.traces: Traces | None = None
        """Told of every session, if set."""
        self._running: dict[str, RealtimeSession] = {}

    @property
    def running(self) -> Sequence[RealtimeSession]:
        """Sessions under way, oldest first."""
        return tuple(self._running.values())

    def cancel(self, request_id: str, cause: str) -> bool:
        """End a session by its id (the client's or ours). False when there is none."""
        found = [s for s in self._running.values() if request_id in {s.id, s.own_id}]
        for session in found:
            session.stop(RequestCancelled(f"The session was ended by {cause}."))
        return bool(found)

    def revoked(self, key_id: str, told: MMError) -> None:
        """As `Gateway.revoked`, for sessions."""
        for session in self.running:
            if (
                session.key is not None
                and session.key.id == key_id
                and (not session.talks or self.rules.revoke_running)
            ):
                session.stop(told)

    def begin(self, client: SessionClient, query: bytes, headers: Headers) -> RealtimeSession:
        """A session for a handshake; `serve` answers it."""
        return RealtimeSession(client, query, headers, self._names.new(), self.rules, self._clock)

    async def serve(self, session: RealtimeSession) -> None:
        """From the handshake to the end, whatever happens, and leave exactly one row about it."""
        self._running[session.own_id] = session
        session.task = asyncio.current_task()
        try:
            if session.client.gone:
                session.client_gone()
            else:
                await self._run(session)
        except asyncio.CancelledError:
            if session.stopped is not None:
                self._failed(session, session.stopped)
            elif not session.over:
                self._failed(session, ShuttingDown("The server is shutting down. Connect again.", retry_after=5.0))
                raise
        except MMError as error:
            self._failed(session, error)
        except Exception as error:
            log.exception("session %s failed", session.id, extra={"request_id": session.id})
            self._failed(session, error)
        finally:
            del self._running[session.own_id]
            session.ended()
            if not session.status:
                session.status = CLIENT_GONE
            row = session.row(self._clock.now(), self._clock.wall())
            if session.entered:
                go_out(session, row, self.limits)
            self._record(row)
            if self.traces is not None:
                self.traces.done(session, row)

    # The stages

    async def _run(self, session: RealtimeSession) -> None:
        head = read_head(session.headers)
        session.id = self._names.given(head.request_id) or session.id
        offered = _offered(session.headers)
        session.key = key = self._identify(head, offered)
        try:
            require(key, Scope.INFER)
            asked, rest = self._query(session.query, head)
            wait = min(seconds_to_wait(head.wait, self.rules.max_wait), self.rules.request_timeout)
            urgency, tells = priority(head.priority), wants_progress(head.progress, default=key.progress)
        except MMError:
            await look(session, self.limits)
            raise
        if key.limits is not None:
            await come_in(session, key, self.limits)

        chosen = [(b"sec-websocket-protocol", SUBPROTOCOL)] if SUBPROTOCOL in offered else []
        session.client.accept([*session.own_headers(), *chosen])
        session.accepted, session.status = True, 101
        if asked is None:
            session.greet()
            name = await session.name()
        else:
            name = asked
        session.asked = name[:200]
        session.spec = spec = self._leases.catalog.resolve(name)
        require_model(key, spec, name)
        self._abilities.check(spec, REALTIME, key, self._leases)
        if spec.engine is not EngineKind.COMMAND:
            session.take_text_only()
            if asked is not None:
                session.first = events.update(name)
        now = self._clock.now()
        ticket = Ticket(
            session.own_id, spec.id, now, now + wait, key.id, urgency, stream=True, weight=key.weight,
            evicts=Right.EVICT in key.acts, loads=Right.LOAD in key.acts, live=True,
        )  # fmt: skip
        telling = _Progress(self._leases, self._clock, session, ticket, self.rules.progress) if tells else None
        try:
            await self._converse(session, ticket, head, rest, telling)
        finally:
            if telling is not None:
                telling.stop()

    async def _converse(
        self, session: RealtimeSession, ticket: Ticket, head: Head, rest: str, telling: "_Progress | None"
    ) -> None:
        for last in (False, True):
            try:
                async with self._leases.lease(ticket) as lease:
                    if telling is not None:
                        telling.stop()
                    session.leased_at, session.generation = lease.granted_at, lease.generation
                    session.ready_at = lease.ready_at
                    session.reason = lease.reason
                    lease.on_drain = session.on_drain
                    if not last:
                        session.watch()
                    request = self._request(session, lease, head, rest)
                    try:
                        await lease.converse(request, session, on_started=session.bind)
                    finally:
                        session.unbind()
                return
            except UpstreamDied as error:
                # Nothing was sent: another launch of the engine may take it, once.
                if last or error.sent or error.started or session.stopped is not None:
                    raise
            except UpgradeRefused as error:
                if error.status in _NO_ROUTE and says_no_route(error.body) and session.spec and session.key:
                    self._abilities.learn(session.spec, REALTIME, session.generation or 0)
                    raise self._abilities.refusal(session.spec, REALTIME, session.key, self._leases) from error
                raise

    def _request(self, session: RealtimeSession, lease: LeaseView, head: Head, rest: str) -> UpstreamRequest:
        spec, asked = session.spec, session.asked
        one_name = spec is not None and spec.engine is EngineKind.COMMAND
        if asked != lease.engine_name and spec is not None and asked not in spec.lora:
            session.rename(lease.engine_name if one_name or asked in spec.nicknames else None)
        query = rest
        if one_name:  # another server may want it there
            query = "&".join(filter(None, (f"model={quote_plus(lease.engine_name)}", rest)))
        target = REALTIME.path + (b"?" + query.encode() if query else b"")
        forward = [f for f in head.forward if not f[0].startswith(b"sec-websocket-") and f[0] != b"origin"]
        headers = [(b"x-request-id", session.id.encode()), *forward]
        if self.traces is not None:
            headers = self.traces.sent(session, headers)
        return UpstreamRequest(b"GET", target, headers)

    def _identify(self, head: Head, offered: Sequence[bytes]) -> Key:
        """By header, else by subprotocol. Raises Unauthorized, and Forbidden for a page of another origin."""
        origin = head.origin
        if origin is not None and origin.partition(b"://")[2] != head.host and not allowed(origin, self.rules):
            raise Forbidden(
                "A web page of another origin may not open a session here. Add the page's origin to cors.origins."
            )
        api_key = head.api_key
        if head.authorization is None and api_key is None and self.rules.subprotocol_keys:
            api_key = next((o.removeprefix(_KEY) for o in offered if o.startswith(_KEY)), None)
        return self._keys.identify(head.authorization, api_key, head.host, origin)

    def _query(self, query: bytes, head: Head) -> tuple[str | None, str]:
        """The model, if the address names it, and what is left of the address for the engine."""
        fields = parse_qsl(query.decode("latin-1"), keep_blank_values=True)
        ours = {name: value for name, value in fields if name in _OURS}
        for name in ("wait", "priority", "progress"):
            value = ours.get(f"x-vllm-mm-{name}")
            if value is not None and getattr(head, name) is None:
                setattr(head, name, value.encode("latin-1", "replace"))
        rest = "&".join(f"{quote_plus(n)}={quote_plus(v)}" for n, v in fields if n not in _OURS)
        return ours.get("model") or None, rest

    def _failed(self, session: RealtimeSession, error: BaseException) -> None:
        if session.over:
            return
        problem = self._explain(error)
        session.outcome, session.error = self._outcome_of(error), problem.message
        session.reason = problem.reason or session.reason
        session.refuse(problem, close_code(error))


class _Progress:
    """Events for a client that asked for them (X-VLLM-MM-Progress), while it waits for its model."""

    def __init__(self, leases: Leases, clock: Clock, session: RealtimeSession, ticket: Ticket, every: float) -> None:
        self._leases = leases
        self._clock = clock
        self._session = session
        self._ticket = ticket
        self._every = every
        self._timer: Timer | None = None
        self._arm(FIRST)

    def _arm(self, seconds: float) -> None:
        self._timer = self._clock.call_at(self._clock.now() + seconds, self._tell)

    def _tell(self) -> None:
        if self._timer is None or self._session.over:
            return
        try:
            wait = self._leases.wait_info(self._ticket)
        except MMError:
            wait = None
        self._session.client.send(events.progress(self._ticket.model, wait))
        self._arm(self._every)

    def stop(self) -> None:
        timer, self._timer = self._timer, None
        if timer is not None:
            timer.cancel()


def _offered(headers: Headers) -> Sequence[bytes]:
    """The subprotocols that the client offers."""
    return [o.strip() for name, value in headers if name == b"sec-websocket-protocol" for o in value.split(b",")]
