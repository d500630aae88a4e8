"""One realtime session under way: the frames between client and engine, and all that its ledger row will say."""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, Protocol

from vllm_mm.clock import Clock, Timer
from vllm_mm.domain.errors import BadRequest, MMError, RequestCut, SessionExpired
from vllm_mm.domain.reasons import Reason
from vllm_mm.domain.usage import Outcome, RequestRecord, Usage
from vllm_mm.engine.exchange import TEXT, Frame, Session
from vllm_mm.gateway import realtime_events as events
from vllm_mm.gateway.limits import told
from vllm_mm.gateway.ports import Headers, Problem, Rules
from vllm_mm.gateway.routes import REALTIME

if TYPE_CHECKING:
    from vllm_mm.domain.keys import Key
    from vllm_mm.domain.limits import Standing
    from vllm_mm.domain.specs import ModelSpec

HELD: Final = 4 * 1024**2
"""Bytes held for an engine that is not there yet; the client is read no further then."""
UNNAMED: Final = 64
"""Events that may come before the one that names the model..."""
UNNAMED_SIZE: Final = 1024**2
"""...and their bytes."""


class SessionClient(Protocol):
    """The client's end of one session. No call waits."""

    @property
    def gone(self) -> bool:
        """The client closed its connection."""
        ...

    def refuse(self, problem: Problem, headers: Headers) -> None:
        """Answer the handshake with an error."""
        ...

    def accept(self, headers: Headers) -> None:
        """Answer the handshake: from now on there are frames."""
        ...

    def send(self, frame: Frame) -> None: ...

    def close(self, code: int | None, reason: str) -> None:
        """Say goodbye and close. None: without a code."""
        ...

    def pause(self) -> None:
        """Read no more from the client: the engine is slow, or not there yet."""
        ...

    def resume(self) -> None: ...


class RealtimeSession:
    """Takes the client's frames (from whoever holds its connection) and the engine's (SessionSink)."""

    def __init__(
        self, client: SessionClient, query: bytes, headers: Headers, own_id: str, rules: Rules, clock: Clock
    ) -> None:
        self.client: Final = client
        self.query: Final = query
        self.headers: Final = headers
        """Names in lower case."""
        self.arrived: Final = clock.now()
        self.id = self.own_id = own_id
        self.task: asyncio.Task[None] | None = None
        self.key: Key | None = None
        self.spec: ModelSpec | None = None
        self.asked: str | None = None
        self.accepted = False
        self.over = False
        """The client was told of the end, or is gone."""
        self.status = 0
        self.outcome: Outcome | None = None
        self.error: str | None = None
        self.reason: str | None = None
        self.leased_at: float | None = None
        self.ready_at = 0.0
        self.entered = False
        """It came by the limits of its key, and has to leave there."""
        self.standing: Standing | None = None
        self.generation: int | None = None
        self.stopped: MMError | None = None
        """Why it has to end although nothing failed."""
        self.first: Frame | None = None
        """What the engine is told before all else."""
        self.size_in = self.size_out = 0
        self.usage = Usage()
        self._rules = rules
        self._clock = clock
        self._upstream: Session | None = None
        self._open = False
        """The engine takes frames."""
        self._named: asyncio.Future[str] | None = None
        self._held: deque[Frame] = deque()
        self._held_size = 0
        self._from_client = events.Messages()
        self._from_engine = events.Messages()
        self._taken: Callable[[Frame], None] = self._pass_up
        """The way for frames under the engine's own name."""
        self._to_engine = self._taken
        self._to_client: Callable[[Frame], None] = self._pass_down
        self._greeted = False
        """The client had a `session.created`: the engine's is not for it."""
        self._begun = False
        """The engine has sent something."""
        self._client_full = self._engine_full = False
        self._active = self.arrived
        self._timers: dict[str, Timer] = {}

    @property
    def talks(self) -> bool:
        """It has its engine."""
        return self._upstream is not None

    # The client's side

    async def name(self) -> str:
        """The model, from the session event that says it; what comes before is held. Raises BadRequest and SessionExpired."""
        self._named = asyncio.get_running_loop().create_future()
        seconds = self._rules.session_unnamed
        late = f"No session.update with a `model` came within {seconds:g} s (realtime.model_timeout)."
        self._arm("unnamed", seconds, lambda: self.stop(SessionExpired(late)))
        try:
            return await self._named
        finally:
            self._disarm("unnamed")
            self._named = None

    def greet(self) -> None:
        """Say `session.created` in the engine's place: vLLM's clients name the model only after it."""
        self._greeted = True
        self.client.send(events.created(self._clock.wall()))

    def from_client(self, frame: Frame) -> None:
        """A frame of the client."""
        if self.over:
            return
        self._active = self._clock.now()
        self.size_in += len(frame.data)
        if self._open:
            self._to_engine(frame)
            return
        self._held.append(frame)
        self._held_size += len(frame.data)
        named = self._named
        if named is not None and not named.done():
            self._look_for_name(frame, named)
        elif self._held_size > HELD:
            self.client.pause()

    def _look_for_name(self, frame: Frame, named: asyncio.Future[str]) -> None:
        event = self._from_client.feed(frame)
        wish = None if event is None else events.wish(event)
        if wish is not None and wish.refused is not None:
            # Nobody else would answer it before there is an engine.
            while self._held.pop().opcode != TEXT:
                pass
            self._held_size = sum(len(f.data) for f in self._held)
            message, code = wish.refused
            self.client.send(events.failed(Problem(400, message, code)))
        elif wish is not None and wish.model is not None:
            named.set_result(wish.model)
            return
        if len(self._held) > UNNAMED or self._held_size > UNNAMED_SIZE:
            named.set_exception(
                BadRequest(
                    f"More than {UNNAMED} events or {UNNAMED_SIZE} bytes came before a session.update that names the model. "
                    "Send it first, or name the model in the address: /v1/realtime?model=NAME."
                )
            )

    def client_closed(self, code: int | None, reason: str) -> None:
        """The client said goodbye, and was answered."""
        if self.over:
            return
        self.over = True
        self.outcome = Outcome.OK
        if self._upstream is not None and self._open:
            self._upstream.close(code, reason)
        elif self.task is not None:
            self.task.cancel()

    def client_failed(self, reason: str) -> None:
        """What the client sent is no WebSocket, or too large; it was told."""
        self.over = True
        self.outcome, self.error = Outcome.BAD_REQUEST, reason
        if self.task is not None:
            self.task.cancel()

    def client_gone(self) -> None:
        """The connection is lost."""
        if self.over:
            return  # after a goodbye the engine is told of it, within its time
        self.over = True
        self.outcome, self.error = Outcome.CLIENT_GONE, "the client closed its connection"
        if self._upstream is not None:
            self._upstream.abort(RequestCut("the client closed its connection"))
        if self.task is not None:
            self.task.cancel()

    def client_full(self, full: bool) -> None:
        """The client reads more slowly than it is sent to, or has caught up."""
        self._client_full = full
        if self._upstream is not None:
            (self._upstream.pause if full else self._upstream.resume)()

    # The engine's side (SessionSink)

    def bind(self, upstream: Session) -> None:
        self._upstream = upstream
        if self._client_full:
            upstream.pause()

    def unbind(self) -> None:
        """The lease's exchange is over."""
        self._upstream = None
        self._open = False

    def opened(self) -> None:
        self._open = True
        if self.first is not None:
            self._to_engine(self.first)
        held, self._held, self._held_size = self._held, deque(), 0
        for frame in held:
            self._to_engine(frame)
        if not self._engine_full:
            self.client.resume()

    def frame(self, frame: Frame) -> None:
        if self.over:
            return
        self._active = self._clock.now()
        if not self._begun:
            self._begun = True
            if frame.opcode == TEXT and frame.fin and events.is_created(frame.data):
                if not self._greeted:
                    self._to_client(frame)
                return
        event = self._from_engine.feed(frame)
        if event is not None and (used := events.used(event)) is not None:
            self.usage = events.added(self.usage, used)
        self._to_client(frame)

    def full(self, full: bool) -> None:
        self._engine_full = full
        (self.client.pause if full else self.client.resume)()

    def closed(self, code: int | None, reason: str) -> None:
        if self.over:
            return
        self.over = True
        if code in {None, 1000, 1001}:
            self.outcome = Outcome.OK
        else:
            self.outcome, self.error = (
                Outcome.UPSTREAM_ERROR,
                f"the engine closed the session with {code} {reason}".strip(),
            )
        self.client.close(code, reason)

    def rename(self, engine_name: str | None) -> None:
        """The client sees the name that it asked for. `engine_name`: what the engine is told instead, if it knows one name only."""
        if self.asked is not None:
            self._to_client = events.Renamed(self.asked, self._pass_down).feed
        if engine_name is not None:
            self._to_engine = events.Renamed(engine_name, self._taken).feed

    def take_text_only(self) -> None:
        """Its engine ends a session in which a message of bytes comes: such a message is refused here, and the session goes on."""
        self._to_engine = self._taken = events.TextOnly(self.client.send, self._pass_up).feed

    def _pass_up(self, frame: Frame) -> None:
        if self._upstream is not None:
            self._upstream.send(frame)

    def _pass_down(self, frame: Frame) -> None:
        self.size_out += len(frame.data)
        self.client.send(frame)

    # Its ends

    def watch(self) -> None:
        """From now on it may be silent only for so long, and get only so old. The wait for its model does not count."""
        self._active = self._clock.now()
        oldest, idle = self._rules.session_length, self._rules.session_idle
        old = f"The session is {oldest:g} s old, which is the longest that one may last (realtime.max_session). Connect again."
        self._arm("old", oldest, lambda: self.stop(SessionExpired(old)))
        self._arm("idle", idle, self._look_at_idle)

    def _look_at_idle(self) -> None:
        idle = self._rules.session_idle
        left = self._active + idle - self._clock.now()
        if left > 0:
            self._arm("idle", left, self._look_at_idle)
        else:
            self.stop(SessionExpired(f"Nothing was said for {idle:g} s (realtime.idle_timeout). Connect again."))

    def on_drain(self, drains: bool) -> None:
        """Its engine is to go, and waits for it; or stays after all."""
        self._disarm("drain")
        if drains:
            cut = RequestCut(
                f"The model's engine is to make room, restart or stop, and waited {self._rules.drain:g} s "
                "(swap.drain_timeout) for this session. Connect again.", retry_after=5.0, reason=Reason.CUT,
            )  # fmt: skip
            self._arm("drain", self._rules.drain, lambda: self.stop(cut))

    def stop(self, error: MMError) -> None:
        """End it with `error`, wherever it is."""
        if self.stopped is not None or self.over:
            return
        self.stopped = error
        if self._upstream is not None:
            self._upstream.abort(error)
        elif self._named is not None and not self._named.done():
            self._named.set_exception(error)
        elif self.task is not None:
            self.task.cancel()

    def refuse(self, problem: Problem, code: int) -> None:
        """Tell the client that it went wrong, if nobody has told it."""
        if self.over:
            return
        self.over = True
        if not self.accepted:
            self.status = problem.status
            self.client.refuse(problem, self.own_headers())
            return
        self.client.send(events.failed(problem))
        self.client.close(code, problem.message)

    def own_headers(self) -> Headers:
        """Of the answer to the handshake."""
        limits = [] if self.standing is None else told(self.standing)
        return [(b"x-request-id", self.id.encode()), *limits]

    def ended(self) -> None:
        """The last call."""
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()
        self._held.clear()
        self.unbind()

    def _arm(self, name: str, seconds: float, due: Callable[[], object]) -> None:
        self._disarm(name)
        self._timers[name] = self._clock.call_at(self._clock.now() + seconds, due)

    def _disarm(self, name: str) -> None:
        timer = self._timers.pop(name, None)
        if timer is not None:
            timer.cancel()

    # The ledger

    def row(self, now: float, wall: float) -> RequestRecord:
        """Without a time to the first token: that would be the time until somebody spoke."""
        arrived = self.arrived
        return RequestRecord(
            id=self.own_id, request_id=self.id, at=wall - (now - arrived), route=REALTIME.name,
            model=None if self.spec is None else self.spec.id, asked=self.asked, key=None if self.key is None else self.key.id,
            stream=True, outcome=self.outcome or Outcome.INTERNAL, status=self.status, error=self.error,
            queued_s=None if self.leased_at is None else self.leased_at - arrived,
            ttft_s=None, total_s=now - arrived,
            bytes_in=self.size_in, bytes_out=self.size_out, usage=self.usage, generation=self.generation, reason=self.reason,
            load_s=None if self.leased_at is None else max(0.0, min(self.ready_at, self.leased_at) - arrived),
        )  # fmt: skip
