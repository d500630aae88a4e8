"""Stored responses (`/v1/responses/{id}`): which launch of which engine holds each, and whose it is.

They live in the memory of the engine that made them. So a request about one, or one that goes on from it, has to reach that launch
and no other; and work that an engine goes on with after its answer (`background`) keeps its lease.
"""

import json
import re
from collections import OrderedDict
from collections.abc import Callable, Iterable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Final, cast
from urllib.parse import quote

import msgspec

from vllm_mm.clock import Clock
from vllm_mm.domain.errors import (
    BadRequest,
    MMError,
    RequestCancelled,
    ResponseGone,
    ResponseOutOfReach,
    Unauthorized,
)
from vllm_mm.domain.keys import Key
from vllm_mm.domain.lifecycle import State
from vllm_mm.domain.scheduling import Ticket
from vllm_mm.domain.specs import ModelSpec
from vllm_mm.gateway.background import Background, Work, ask
from vllm_mm.gateway.ports import Headers, Leases, LeaseView, Rules
from vllm_mm.gateway.relay import Relay
from vllm_mm.gateway.rename import value_span
from vllm_mm.gateway.routes import RESPONSES
from vllm_mm.store.responses import StoredResponse

GONE: Final = -1
"""The generation of a launch that an earlier controller had, and this one has not."""
SILENCE: Final = 2.0
"""Seconds without an event after which an engine is asked whether more will come."""
HEAD: Final = 1 << 16
"""The id of an answer is looked for in so many first bytes."""
_HELD: Final = frozenset({State.READY, State.DRAINING, State.SUSPENDING, State.SLEEPING, State.WAKING})
"""A launch in these states has its memory still."""
_FALSE: Final = frozenset({"false", "0", "off", "f", "n", "no", "none"})
_CHUNK_SIZE: Final = re.compile(rb"(?:^|\r\n)[0-9A-Fa-f]{1,8}(?:;[^\r\n]*)?\r\n")
_OUTER: Final = frozenset({b'"response"'})


class Wish(msgspec.Struct):
    """What a request for a response says about the store; values of any type, for it is the engine that judges them."""

    previous_response_id: Any = None
    request_id: Any = None
    background: Any = None
    store: Any = True

    @property
    def stays(self) -> bool:
        """It may be stored. False is what engines take for it, so that an answer that is not stored is never remembered."""
        return str(self.store).lower() not in _FALSE

    @property
    def outlives(self) -> bool:
        """The engine may go on after its answer."""
        return self.background is not None and self.background is not False


_decode = msgspec.json.Decoder(Wish).decode


def read_wish(body: bytes | bytearray) -> Wish:
    """Of a body in which `sniff` found nothing wrong."""
    try:
        return _decode(body)
    except (msgspec.MsgspecError, RecursionError):  # what only Python's parser takes
        fields = cast("dict[str, object]", json.loads(body.decode()))
        return Wish(**{name: fields[name] for name in Wish.__struct_fields__ if name in fields})


@dataclass(frozen=True, slots=True)
class Held:
    """One response and who has it."""

    model: str
    generation: int
    key: str
    asked: str
    """The name that the client used for the model."""
    until: float
    """Monotonic seconds; then it is forgotten."""


class Book:
    """Responses by id: so many, and for so long."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._held: OrderedDict[str, Held] = OrderedDict()

    def __len__(self) -> int:
        return len(self._held)

    def add(self, response: str, held: Held, now: float) -> bool:
        """What another key has stays with that key: whoever names its own response like somebody else's learns nothing by it. False for that."""
        known = self.get(response, now)
        if known is not None and known.key != held.key:
            return False
        self._held.pop(response, None)
        self._held[response] = held
        while len(self._held) > self._limit:
            self._held.popitem(last=False)
        return True

    def get(self, response: str, now: float) -> Held | None:
        while self._held:  # all are kept equally long, so the oldest end first
            oldest = next(iter(self._held.values()))
            if oldest.until > now:
                break
            self._held.popitem(last=False)
        return self._held.get(response)


def _forget(_: StoredResponse) -> None:
    """Where nothing is kept over a restart."""


class ResponseRelay(Relay):
    """Also looks for the id in the head of the answer."""

    wish: Wish | None = None
    on_created: Callable[[str], None] | None = None
    _looking = False
    _in_chunks = False
    _seen = b""
    _look_at = 1

    def head(self, status: int, headers: Headers, *, chunked: bool, length: int | None) -> None:
        self._looking = status == 200 and self.on_created is not None
        self._in_chunks = chunked and self.raw
        super().head(status, headers, chunked=chunked, length=length)

    def data(self, chunk: bytes) -> None:
        if self._looking:
            self._look(chunk)
        super().data(chunk)

    def end(self) -> None:
        if self._looking:
            self._look_at = 0
            self._look(b"")
        super().end()

    def _look(self, chunk: bytes) -> None:
        self._seen += chunk
        size = len(self._seen)
        if size < self._look_at:
            return
        self._look_at = 2 * size  # tiny pieces must not make it look again for each
        self.created = id_in(_CHUNK_SIZE.sub(b"", self._seen) if self._in_chunks else self._seen)
        if self.created is not None or size > HEAD:
            self._looking, self._seen = False, b""
        if self.created is not None and self.on_created is not None:
            self.on_created(self.created)


def id_in(head: bytes) -> str | None:
    """The id of the response whose JSON, or whose first event, begins so; None while it is not in there."""
    text = head if head.lstrip().startswith(b"{") else head.partition(b"data:")[2]
    span = value_span(text, b'"id"', _OUTER)
    if span is None:
        return None
    try:
        return msgspec.json.decode(text[slice(*span)], type=str)
    except msgspec.MsgspecError:
        return None


class Responses:
    """The gateway's part about stored responses."""

    def __init__(self, leases: Leases, clock: Clock, rules: Rules) -> None:
        self._leases = leases
        self._clock = clock
        self._rules = rules
        self._book = Book(rules.responses)
        self.background: Final = Background(clock)
        self.remember: Callable[[StoredResponse], None] = _forget
        """Takes what is to be known after a restart, at once and without failing."""

    def restore(self, known: Iterable[StoredResponse]) -> None:
        """What an earlier controller knew, the oldest first; to be called when its engines were adopted or ended."""
        now, wall = self._clock.now(), self._clock.wall()
        for row in known:
            held = Held(row.model, row.generation, row.key, row.asked, now + row.until - wall)
            # Launches are counted anew for an engine that was not adopted: its number may come again.
            self._book.add(row.id, held if self._is_there(held) else replace(held, generation=GONE), now)

    # A new response

    def begin(self, relay: Relay, spec: ModelSpec, key: Key) -> None:
        """Before it waits for a lease. Raises ResponseGone for a `previous_response_id` whose engine is gone."""
        if not isinstance(relay, ResponseRelay):
            return
        wish = relay.wish = read_wish(relay.call.body)
        now = self._clock.now()
        if isinstance(wish.request_id, str):
            known = self._book.get(wish.request_id, now)
            if known is not None and known.key != key.id:
                raise BadRequest("This `request_id` is taken. Send another, or none.", param="request_id")
        if isinstance(wish.previous_response_id, str):
            self._previous(wish.previous_response_id, spec, key)

    def _previous(self, response: str, spec: ModelSpec, key: Key) -> Held:
        held = self._find(response, key, "previous_response_id")
        if held.model != spec.id:
            raise ResponseGone(
                f"The response `{response}` is held by the engine of `{held.asked}`, and `{spec.id}` cannot see it. Ask "
                f"`{held.asked}`, or send the whole conversation as `input`.",
                param="previous_response_id",
            )
        if not self._is_there(held):
            raise self._gone(response, held, "previous_response_id")
        return held

    def lease(self, relay: Relay, ticket: Ticket) -> AbstractAsyncContextManager[LeaseView]:
        """That of the gateway; one that may outlive its request where the engine goes on behind the answer."""
        lease = self._leases.lease(ticket)
        if isinstance(relay, ResponseRelay) and relay.wish is not None and relay.wish.outlives:
            return _Kept(lease, relay, self.background, relay.call.arrived + self._rules.request_timeout)
        return lease

    def granted(self, relay: Relay, lease: LeaseView, key: Key) -> None:
        """It has its lease. Raises ResponseGone when that is on another launch than the previous response is on."""
        if not isinstance(relay, ResponseRelay) or relay.wish is None:
            return
        previous = relay.wish.previous_response_id
        if isinstance(previous, str):
            held = self._find(previous, key, "previous_response_id")
            if held.generation != lease.generation:
                raise self._gone(previous, held, "previous_response_id")
        if relay.wish.stays:
            until = self._clock.now() + self._rules.responses_age
            held = Held(lease.model, lease.generation, key.id, relay.asked or lease.model, until)
            relay.on_created = lambda response: self._created(response, held)

    def _created(self, response: str, held: Held) -> None:
        now = self._clock.now()
        if self._book.add(response, held, now):
            until = self._clock.wall() + held.until - now
            self.remember(StoredResponse(response, held.model, held.generation, held.key, held.asked, until))

    # A request about one

    def find(self, response: str, key: Key) -> tuple[Held, ModelSpec]:
        """Raises ResponseGone, or ResponseOutOfReach while its engine is there and cannot be asked."""
        held = self._find(response, key, "response_id")
        spec = self._leases.catalog.get(held.model)
        if spec is None or not self._is_there(held):
            raise self._gone(response, held, "response_id")
        return held, spec

    async def end_when_over(self, relay: Relay, response: str, held: Held) -> None:
        """Ends `relay`, which waits for events of the response, when none can come any more: vLLM lets who asks for those beyond the last, or
        of a response that was cancelled, wait for ever."""
        target = f"{RESPONSES.name}/{quote(response, safe='')}".encode()
        seen, over = -1, False
        while True:
            await self._clock.sleep(SILENCE)
            size = relay.meter.size
            if size != seen:
                seen, over = size, False
                continue
            status = await self._status(relay, target, held)
            if relay.meter.size != seen:
                continue
            if over and status is not None:
                relay.stop(
                    BadRequest(
                        f"No more events of `{response}` will come: it is {status}. `starting_after` has to be the number of one before the "
                        "last.",
                        param="starting_after",
                    )
                )
                return
            over = status is not None  # once more: the last events may be on their way

    async def _status(self, relay: Relay, target: bytes, held: Held) -> str | None:
        """What the engine says the response is, when it is done with it; None else, and where it cannot be asked."""
        now = self._clock.now()
        ticket = Ticket(f"{relay.own_id}-status", held.model, now, now, held.key)
        try:
            async with self._leases.look(ticket, held.generation) as lease:
                return None if lease is None else (await ask(lease, b"GET", target)).over
        except (MMError, TimeoutError):
            return None

    def unreachable(self, response: str, held: Held) -> MMError:
        """Why there was no lease to look at it."""
        if not self._is_there(held):
            return self._gone(response, held, "response_id")
        state = self._leases.describe(held.model).state.value
        return ResponseOutOfReach(
            f"The engine of `{held.asked}`, which holds `{response}`, is {state}, and to look at a response wakes nothing. Ask "
            "again when the model is ready: a request to it makes it so, if it is not about to stop.",
            retry_after=5.0,
        )

    def not_given_back(self, response: str, held: Held) -> ResponseGone:
        """Its engine has no route for it."""
        return ResponseGone(
            f"The engine of `{held.asked}` does not give `{response}` back: it has no such route, or none for an id like this.",
            param="response_id",
        )

    def _find(self, response: str, key: Key, param: str) -> Held:
        held = self._book.get(response, self._clock.now())
        if held is None or held.key != key.id or not key.may_use(held.model):
            shown = response if len(response) <= 100 else f"{response[:100]}..."
            raise ResponseGone(
                f"No response `{shown}` of this key is known here. Responses are known for {self._rules.responses_age:g} s "
                "(limits.responses_age), the latest of them, and not those made with `store: false`.",
                param=param,
            )
        return held

    def _is_there(self, held: Held) -> bool:
        if self._leases.catalog.get(held.model) is None:
            return False
        now = self._leases.describe(held.model)
        return now.generation == held.generation and now.state in _HELD

    def _gone(self, response: str, held: Held, param: str) -> ResponseGone:
        ended = self._leases.ending(held.model, held.generation)
        when = "was stopped"
        if ended is not None:
            at = datetime.fromtimestamp(ended.at).astimezone()
            when += f" at {at:%H:%M} ({ended.reason})"
        return ResponseGone(
            f"The engine that held `{response}` {when}; responses live only as long as their engine. Send the conversation "
            "again as `input`.",
            param=param,
        )


class _Kept:
    """`async with` around a lease that is kept, behind its request, while the engine works on what that began."""

    def __init__(
        self,
        inner: AbstractAsyncContextManager[LeaseView],
        relay: ResponseRelay,
        background: Background,
        deadline: float,
    ) -> None:
        self._inner = inner
        self._relay = relay
        self._background = background
        self._deadline = deadline
        self._lease: LeaseView | None = None

    async def __aenter__(self) -> LeaseView:
        self._lease = await self._inner.__aenter__()
        return self._lease

    async def __aexit__(self, *error: Any) -> None:
        relay = self._relay
        if self._lease is None or relay.created is None:
            await self._inner.__aexit__(*error)
            return
        work = Work(relay.created, relay.key.id if relay.key is not None else "", self._deadline)
        if isinstance(relay.stopped, RequestCancelled | Unauthorized):  # a client that merely left may come back
            work.end("its request was cancelled, or its key revoked")
        self._background.follow(self._inner, self._lease, work)
