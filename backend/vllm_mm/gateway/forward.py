"""One coroutine per request: who, what, lease, exchange, row. The lease and the accounting live and end inside it."""

import asyncio
import logging
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from vllm_mm.clock import Clock, Timer
from vllm_mm.domain.body_edits import splice
from vllm_mm.domain.errors import (
    Forbidden,
    MMError,
    RateLimited,
    RequestCancelled,
    RequestCut,
    ShuttingDown,
    Unauthorized,
    UnknownRoute,
    UnsupportedEncoding,
    UpstreamDied,
    UpstreamTimeout,
)
from vllm_mm.domain.keys import Key, Right, Scope
from vllm_mm.domain.scheduling import Ticket
from vllm_mm.domain.specs import EngineKind, ModelSpec
from vllm_mm.domain.usage import Outcome
from vllm_mm.engine.exchange import UpstreamRequest
from vllm_mm.engine.gathering import Outbox
from vllm_mm.gateway.abilities import Abilities
from vllm_mm.gateway.again import may_go_again
from vllm_mm.gateway.asked_usage import Fingerprints, ask, may_ask
from vllm_mm.gateway.captures import Capture, Captures
from vllm_mm.gateway.compressed import coding_of, plain
from vllm_mm.gateway.head import Head, Names, priority, read_head, seconds_to_wait, wants_progress, wants_timings
from vllm_mm.gateway.identity import Keyring, require, require_model
from vllm_mm.gateway.limits import LimitBook, come_in, count_running, go_out, look
from vllm_mm.gateway.origins import allowed
from vllm_mm.gateway.outcomes import outcome_of
from vllm_mm.gateway.ports import Client, Explain, Gate, Headers, Leases, LeaseView, Record, Rules
from vllm_mm.gateway.progress import Comments
from vllm_mm.gateway.realtime import Realtime
from vllm_mm.gateway.refusals import refusal
from vllm_mm.gateway.relay import CLIENT_GONE, Call, Relay
from vllm_mm.gateway.rename import model_edit
from vllm_mm.gateway.responses import ResponseRelay, Responses
from vllm_mm.gateway.routes import CANCEL, GETS, RESPONSES
from vllm_mm.gateway.rules import about_streams, apply_rules
from vllm_mm.gateway.sniff import sniff
from vllm_mm.gateway.stall import stalled

if TYPE_CHECKING:
    from vllm_mm.gateway.traces import Traces

log = logging.getLogger(__name__)

_BOM: Final = b"\xef\xbb\xbf"


class Gateway:
    """The data plane behind the protocol: `serve` is called once per request, by whoever holds the connection."""

    def __init__(
        self,
        leases: Leases,
        keys: Keyring,
        record: Record,
        explain: Explain,
        clock: Clock,
        rules: Rules | None = None,
        abilities: Abilities | None = None,
        captures: Captures | None = None,
        limits: Gate | None = None,
    ) -> None:
        self.leases: Final = leases
        self.keys: Final = keys
        self.rules: Final = rules or Rules()
        self.clock: Final = clock
        self._now = clock.now
        self._record = record
        self._explain = explain
        self._abilities = abilities or Abilities()
        self._captures = captures
        self.limits: Final = limits or LimitBook(clock)
        self._captured: dict[Relay, Capture] = {}
        self.traces: Traces | None = None
        """Told of every request, if set."""
        self.responses: Final = Responses(leases, clock, self.rules)
        self._names = Names()
        self._fingerprints = Fingerprints()
        self.realtime: Final = Realtime(
            leases, keys, record, explain, clock, self.rules, self._abilities, self._names, outcome_of
        )
        self.realtime.limits = self.limits
        keys.on_revoked = self.revoked
        keys.on_changed = lambda known: count_running((*self.running, *self.realtime.running), known, self.limits)
        self.outbox: Final = Outbox(lambda flush: asyncio.get_running_loop().call_soon(flush))
        """Of the clients' connections."""
        self._running: dict[str, Relay] = {}
        self._sweep: Timer | None = None

    @property
    def running(self) -> Sequence[Relay]:
        """Requests under way, oldest first."""
        return tuple(self._running.values())

    def cancel(self, request_id: str, cause: str) -> bool:
        """End a request by its id (the client's or ours). False when there is none."""
        found = [r for r in self._running.values() if request_id in {r.id, r.own_id} and not r.over]
        for relay in found:
            relay.stop(RequestCancelled(f"The request was cancelled by {cause}."))
        return self.realtime.cancel(request_id, cause) or bool(found)

    def revoked(self, key_id: str) -> None:
        """That key is not good any more: what waits for it is refused, and what runs is cut where `Rules.revoke_running` says so, also in
        the background."""
        told = Unauthorized("The API key of this request was revoked. Ask for a new one.")
        for relay in self.running:
            if relay.key is None or relay.key.id != key_id or relay.stopped is not None:
                continue
            if relay.over:
                relay.stopped = (
                    told if self.rules.revoke_running else None
                )  # for what it may have begun in the background
            elif relay.exchange is None or self.rules.revoke_running:
                relay.stop(told)
        if self.rules.revoke_running:
            self.responses.background.revoked(key_id)
        self.realtime.revoked(key_id, told)

    def new_id(self, headers: Headers) -> str:
        """The id of an answer that is not a model's: the client's own if it gave a harmless one."""
        return self._names.given(read_head(headers).request_id) or self._names.new()

    def admits(self, headers: Headers) -> bool:
        """Whether somebody with a good key asks: only then is a large body taken in."""
        head = read_head(headers)
        try:
            self.keys.identify(head.authorization, head.api_key, head.host, head.origin)
        except MMError:  # no key, or a page that may not
            return False
        return True

    async def serve(self, call: Call, client: Client) -> None:
        """Answer one request, whatever happens, and leave exactly one row about it."""
        kind = ResponseRelay if call.route is RESPONSES else Relay
        relay = kind(call, client, self._names.new(), self._now)
        self._running[relay.own_id] = relay
        if self._sweep is None:
            self._sweep = self.clock.call_at(self._now() + 1.0, self._overdue)
        try:
            if client.gone:
                self._gone(relay)
            else:
                await self._forward(relay)
        except asyncio.CancelledError:
            if self._cancelled(relay):
                raise
        except MMError as error:
            await self._refused(relay, error)
        except Exception as error:
            log.exception("request %s failed", relay.id, extra={"request_id": relay.id})
            self._failed(relay, error)
        finally:
            del self._running[relay.own_id]
            relay.ended()
            row = relay.row(self._now(), self.clock.wall())
            if relay.entered:
                go_out(relay, row, self.limits)
            self._record(row)
            if self.traces is not None:
                self.traces.done(relay, row)
            if self._captures is not None and relay in self._captured:
                self._captures.done(self._captured.pop(relay), row)

    # The stages

    async def _forward(self, relay: Relay) -> None:
        call = relay.call
        head = read_head(call.headers)
        given = self._names.given(head.request_id)
        if given is not None:
            relay.id = given
        if head.origin is not None and allowed(head.origin, self.rules):
            relay.origin = head.origin
        relay.key = key = self.keys.identify(head.authorization, head.api_key, head.host, head.origin)
        if call.refused is not None:
            raise call.refused
        require(key, Scope.INFER)
        if call.subject:
            if key.limits is not None:
                await come_in(relay, key, self.limits)
            await (self._ask(relay, head, key) if call.route in GETS.values() else self._look(relay, head, key))
            return
        upload = call.upload
        coding = coding_of(head.encoding)
        if coding is not None:
            if upload is not None:
                raise UnsupportedEncoding("Send the form uncompressed: it is passed on as it comes.")
            call.body = await plain(call.body, coding, self.rules.body)
        if upload is not None:
            upload.on_fail = relay.stop
        if call.body.startswith(_BOM):  # JSON may not have it, and engines take it all the same
            call.body = call.body[len(_BOM) :]
        if key.limits is not None:
            try:
                await come_in(relay, key, self.limits, call.body)
            except RateLimited:
                if upload is None:
                    self._meant(relay)
                raise
        options, asks = False, ()
        if upload is None:
            name, relay.stream, options = sniff(call.body)
        else:
            name, relay.stream = await upload.named()
        relay.asked = name if len(name) <= 200 else name[:200]  # no model has a longer id; the ledger keeps no novels
        relay.spec = spec = self.leases.catalog.resolve(name)
        require_model(key, spec, name)
        if self._captures is not None and self._captures.wants(key, spec):
            self._captured[relay] = self._captures.watch(relay)
        self._abilities.check(spec, call.route, key, self.leases)
        ruled = spec.request_rules.get(name)
        if ruled is not None and upload is None:  # a form is passed on as it is
            relay.edits, relay.rules = await apply_rules(ruled, call.route.path, call.body)
            if relay.edits and call.route is RESPONSES:  # what it says about the store is read from the body
                call.body, relay.edits = b"".join(splice(call.body, relay.edits)), ()
        if relay.stream and call.route.asks_usage and may_ask(spec) and not (ruled and about_streams(ruled)):
            asks = await ask(call.body, options=options)
            relay.edits = (*relay.edits, *asks)
        store = self.responses if call.route is RESPONSES else None
        if store is not None:
            store.begin(relay, spec, key)
        wait = min(seconds_to_wait(head.wait, self.rules.max_wait), self.rules.request_timeout)
        ticket = Ticket(
            relay.own_id, spec.id, call.arrived, call.arrived + wait, key.id, priority(head.priority), relay.stream,
            key.weight, Right.EVICT in key.acts, Right.LOAD in key.acts,
        )  # fmt: skip
        comments = None
        if wants_timings(head.timings, default=self.rules.timings):
            relay.timings, relay.trailers = True, head.trailers and relay.client.raw
            relay.raw = False  # there is something behind the engine's last chunk
        if wants_progress(head.progress, default=spec.progress or key.progress) and relay.stream:
            comments = Comments(self.leases, self.clock, relay, ticket, self.rules.progress)
            relay.raw = False  # comments may have to go between the engine's events
        try:
            for last in (False, True):
                relay.exchange = None
                relay.queued = True
                try:
                    async with self.leases.lease(ticket) if store is None else store.lease(relay, ticket) as lease:
                        if comments is not None:
                            comments.leased(lease)
                        relay.lease = lease
                        relay.leased_at, relay.ready_at = lease.granted_at, lease.ready_at
                        relay.generation = lease.generation
                        relay.reason = lease.reason
                        if asks:
                            relay.counts = self._fingerprints.taker(lease)
                        if store is not None:
                            store.granted(relay, lease, key)
                        try:
                            await lease.exchange(self._request(relay, head, lease), relay, on_started=relay.bind)
                        finally:
                            relay.frozen_s += lease.frozen_s(self._now())
                            relay.lease = None
                            if relay.exchange is not None and relay.exchange.sent_again:
                                relay.retried = True
                    break
                except UpstreamDied as error:
                    if last or not await may_go_again(relay, error, self.leases, self.clock, wait):
                        raise
                    relay.retried = True
                    end = min(self._now() + wait, call.arrived + self.rules.request_timeout)
                    ticket = replace(ticket, deadline=end)
                    if comments is not None:
                        comments.waits_again()
        finally:
            if comments is not None:
                comments.stop()
        self._answered(relay)

    async def _ask(self, relay: Relay, head: Head, key: Key) -> None:
        """A harmless GET for the model that its subject names, which is loaded for it like for any other request."""
        call, clock = relay.call, self._now
        relay.asked = call.subject[:200]
        relay.spec = spec = self.leases.catalog.resolve(call.subject)
        if not key.may_use(spec.id):
            raise Forbidden(f"The key `{key.name}` may not use the model `{spec.id}`. Ask for a key that lists it.")
        wait = min(seconds_to_wait(head.wait, self.rules.max_wait), self.rules.request_timeout)
        ticket = Ticket(
            relay.own_id, spec.id, call.arrived, call.arrived + wait, key.id, priority(head.priority), False, key.weight,
            Right.EVICT in key.acts, Right.LOAD in key.acts,
        )  # fmt: skip
        relay.queued = True
        async with self.leases.lease(ticket) as lease:
            relay.lease = lease
            relay.leased_at, relay.ready_at, relay.generation = lease.granted_at, lease.ready_at, lease.generation
            try:
                await lease.exchange(self._request(relay, head, lease), relay, on_started=relay.bind)
            finally:
                relay.frozen_s += lease.frozen_s(clock())
                relay.lease = None
        if relay.no_route:
            raise UnknownRoute(f"The engine of {spec.id} has no {call.route.name}.")
        self._answered(relay)

    async def _look(self, relay: Relay, head: Head, key: Key) -> None:
        """What is about a stored response goes to the launch that holds it, beside the queue; nothing is woken or started."""
        call = relay.call
        held, relay.spec = self.responses.find(call.subject, key)
        relay.asked = held.asked
        relay.stream = b"stream=true" in call.query.lower()
        ticket = Ticket(relay.own_id, held.model, call.arrived, call.arrived, key.id, stream=relay.stream)
        async with self.leases.look(ticket, held.generation) as lease:
            if lease is None:
                raise self.responses.unreachable(call.subject, held)
            relay.leased_at, relay.generation = lease.granted_at, lease.generation
            watching = None
            if relay.stream:
                watching = asyncio.ensure_future(self.responses.end_when_over(relay, call.subject, held))
            try:
                await lease.exchange(self._request(relay, head, lease), relay, on_started=relay.bind)
            finally:
                if watching is not None:
                    watching.cancel()
        if relay.no_route:
            raise self.responses.not_given_back(call.subject, held)
        self._answered(relay)
        if call.route is CANCEL and relay.outcome is Outcome.OK:
            for other in self._running.values():  # vLLM sends nothing more to them, and does not end them
                if other is not relay and other.stream and call.subject in {other.call.subject, other.created}:
                    other.stop(RequestCut(f"The response `{call.subject}` was cancelled."))

    def _request(self, relay: Relay, head: Head, lease: LeaseView) -> UpstreamRequest:
        call, spec, asked = relay.call, relay.spec, relay.asked
        edits = relay.edits
        if asked != lease.engine_name and spec is not None and asked is not None and asked not in spec.lora:
            relay.rename()
            if _knows_one_name(spec) or asked in spec.nicknames:
                if call.upload is not None:
                    call.upload.rename(lease.engine_name)
                elif call.body:
                    edits = (*edits, model_edit(call.body, lease.engine_name))
        body = splice(call.body, edits) if edits else (call.body,)
        headers = [(b"x-request-id", relay.id.encode()), *head.forward]
        target = call.path + b"?" + call.query if call.query else call.path
        if self.traces is not None:
            headers = self.traces.sent(relay, headers)
        relay.request = request = UpstreamRequest(call.route.method, target, headers, body, call.upload)
        return request

    def _meant(self, relay: Relay) -> None:
        """The model that it asked for, which nobody looks for any more: the books tell whose requests ran into limits."""
        with suppress(MMError):
            name, relay.stream, _ = sniff(relay.call.body)
            relay.asked = name[:200]
            relay.spec = self.leases.catalog.resolve(name)

    # The ends

    def _answered(self, relay: Relay) -> None:
        """The engine's answer was relayed to its end, or is held because it says that it has no such route."""
        if relay.no_route and relay.spec is not None and relay.key is not None:
            spec, route = relay.spec, relay.call.route
            self._abilities.learn(spec, route, relay.generation or 0)
            raise self._abilities.refusal(spec, route, relay.key, self.leases)
        if relay.muted:
            problem = refusal(relay.muted, relay.meter.tail())
            relay.outcome, relay.error = Outcome.UPSTREAM_ERROR, problem.message[:500]
            relay.refuse(problem)
        elif relay.status >= 400:
            relay.outcome = Outcome.UPSTREAM_ERROR
            relay.error = relay.meter.tail()[:500].decode("utf-8", "replace")
        elif relay.events and relay.meter.error_event():
            relay.outcome, relay.error = Outcome.UPSTREAM_ERROR, "the engine ended its event stream with an error"
        else:
            relay.outcome = Outcome.OK

    async def _refused(self, relay: Relay, error: MMError) -> None:
        try:
            await look(relay, self.limits)
        except asyncio.CancelledError:
            if self._cancelled(relay):
                raise
        else:
            self._failed(relay, error)

    def _failed(self, relay: Relay, error: Exception) -> None:
        if relay.client.gone:
            self._gone(relay)
            return
        problem = self._explain(error)
        outcome = outcome_of(error)
        relay.outcome = Outcome.CUT if relay.head_sent and outcome is Outcome.REFUSED else outcome
        relay.error = problem.message
        relay.reason = problem.reason or relay.reason
        relay.refuse(problem)

    def _cancelled(self, relay: Relay) -> bool:
        """True when somebody else's cancellation has to go on."""
        if relay.client.gone:
            self._gone(relay)
            return True
        if relay.stopped is not None:
            self._failed(relay, relay.stopped)
            return False
        self._failed(relay, ShuttingDown("The server is shutting down. Send the request again.", retry_after=5.0))
        return True

    def _gone(self, relay: Relay) -> None:
        relay.outcome, relay.error = Outcome.CLIENT_GONE, "the client closed its connection"
        if not relay.head_sent:
            relay.status = CLIENT_GONE

    def _overdue(self) -> None:
        """Once a second while anything runs: no timer per request."""
        self._sweep = None
        if not self._running:
            return
        limit = self._now() - self.rules.request_timeout
        for relay in tuple(self._running.values()):
            if self.rules.stall is not None and relay.lease is not None and relay.stopped is None:
                stalled(relay, relay.lease, self.rules.stall, self._now())
            if relay.call.arrived <= limit and relay.stopped is None:
                seconds = f"{self.rules.request_timeout:g}"
                relay.stop(
                    UpstreamTimeout(
                        f"The request took longer than {seconds} s (queue.request_timeout). Ask for less, or raise it."
                    )
                )
        self._sweep = self.clock.call_at(self._now() + 1.0, self._overdue)


def _knows_one_name(spec: ModelSpec) -> bool:
    """vLLM and the simulator are started with all aliases (`--served-model-name`); other servers know their own name."""
    return spec.engine is EngineKind.COMMAND
