"""The data plane inside uvicorn's own HTTP protocol: POSTs to our routes go from parser to gateway and back to the
transport, without ASGI in between; everything else is served as by any uvicorn.

Subclasses `HttpToolsProtocol` of uvicorn 0.54.0 (pinned) and leans on these of its inner workings: the parser callbacks,
`cycle`, `pipeline`, `flow`, `tasks`, `_start_asgi_task`, and that `shutdown` closes a connection whose `cycle` is
complete and else sets `cycle.keep_alive` to False.
"""

import asyncio
import functools
from typing import Any, Final, cast

import httptools
from uvicorn.config import Config
from uvicorn.server import ServerState

from vllm_mm.api.cycle import HotCycle
from vllm_mm.api.framing import Body, Fault, check_head, end_by_reset, head_too_large, unframed, without_upgrade
from vllm_mm.api.openai import OpenAIApp, too_large
from vllm_mm.api.pace import BodyPace
from vllm_mm.api.timed import TimedProtocol
from vllm_mm.api.unparsed import LargeBody, unread
from vllm_mm.api.websocket import WebSocketProtocol, asks_for_session
from vllm_mm.domain.errors import BadRequest, MMError, RequestCut, RequestTooSlow, Unavailable
from vllm_mm.engine.gathering import Gathering
from vllm_mm.gateway.forward import Gateway
from vllm_mm.gateway.relay import Call
from vllm_mm.gateway.routes import ROUTES, UPLOADS, Route, route_of

DIRECT: Final = 65536
"""A body announced to be larger is read straight into its place, past the parser."""
PIPELINED: Final = 8
"""Requests of one connection that may wait for their turn before it is read no further."""
LINGER: Final = 2.0
"""Seconds for which an unwanted body is read and dropped, so that the refusal reaches the client before the close."""
CLOSING: Final = 5.0
"""Seconds for which a cut answer's last bytes may take to leave."""

_CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"


def hot_protocol(gateway: Gateway) -> type[asyncio.Protocol]:
    """The class for `uvicorn.Config(http=...)`. The configured application gets what is not the data plane's."""

    class BoundHotProtocol(HotProtocol):
        _gateway = gateway

    return BoundHotProtocol


class HotProtocol(TimedProtocol):
    """Use `hot_protocol(gateway)`, which binds it to a gateway."""

    _gateway: Gateway

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop, rules=self._gateway.rules)
        self.app = cast("Any", OpenAIApp(self._gateway, fallback=self.app))
        self._hot: HotCycle | None = None
        """The request that the parser is in, when it is ours."""
        self._answering: HotCycle | None = None
        """The request of ours whose turn it is."""
        self._pieces: list[bytes] = []
        self._size = 0
        self._direct: LargeBody | None = None
        """Where the rest of a large body goes."""
        self._block = 0
        self._head_size = 0
        self._overhead = 0
        """Bytes since the last ones of a body: of the framing, and what comes behind a body."""
        self._upgrading = False
        """The parser is in a request that offers another protocol; it is parsed again without the offer."""

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(Gathering(cast("asyncio.Transport", transport), self._gateway.outbox))

    def connection_lost(self, exc: Exception | None) -> None:
        queued: list[Any] = [cycle for cycle, _ in self.pipeline]
        unserved = [cycle for cycle in queued if isinstance(cycle, HotCycle)]
        if self._hot is not None and not self._hot.started and self._hot not in unserved:
            unserved.append(self._hot)
        self.pipeline.clear()
        for cycle in unserved:
            # They asked, so each gets its row; the gateway sees that the client is gone and does nothing else.
            cycle.gone = True
            self._serve(cycle)
        if self._answering is not None:
            self._answering.leave()
        if self._asgi is not None and not self._asgi.response_complete:
            self._asgi.disconnected = True
            self._asgi.message_event.set()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._dropping:
            return
        large = self._direct
        if large is not None:
            if self._pace is not None:
                self._pace.came(self.loop.time())
            data = large.fill(data)
            if large.complete:
                self._took(large)
            if not data:
                return
        self._feed(data)

    def pause_writing(self) -> None:
        super().pause_writing()
        if self._answering is not None:
            self._answering.pause()

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._answering is not None:
            self._answering.resume()

    # Reading a request

    def _feed(self, data: bytes) -> None:
        self._block = len(data)
        self._overhead += len(data)
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade as offer:
            if self._upgrading:
                self._stay(data[offer.args[0] :])
            else:
                self._upgrade(data[offer.args[0] :])
            return
        except httptools.HttpParserError as error:
            cause = error.__context__ or error
            if isinstance(cause, Fault):
                self._refuse_connection(cause.status, cause.message)
            else:
                self._refuse_connection(400, f"This is not a valid HTTP request: {cause}.")
            return
        hot = self._hot
        if self._overhead > self._rules.header and not self._in_head:
            self._refuse_head()
        elif self._in_head:
            self._head_size += len(data)
            if not self._head_since:
                self._head_since = self.loop.time()
            if self._head_size > self._rules.header:
                self._refuse_head()
        elif hot is not None:  # it is not complete
            if hot is self._answering and self._pace is None and not hot.refused:
                self._watch_body()
            if hot.direct:
                self._take_over(hot)

    def on_message_begin(self) -> None:
        self.url = b""
        self.headers = []
        self._hot = None
        self._in_head = True
        self._head_size = 0
        self._head_since = 0.0

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._in_head:  # what comes behind a body is none of the head's, and is not read (RFC 9110, 6.5.1)
            self.headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        self._in_head = False
        self._overhead = 0
        if self._head_size + self._block > self._rules.header:
            size = len(self.url) + sum(len(name) + len(value) + 4 for name, value in self.headers)
            if size > self._rules.header:
                raise head_too_large(self._rules.header)
        version = self.parser.get_http_version()
        body = check_head(version, self.headers)
        method = self.parser.get_method()
        if method == b"CONNECT":
            raise Fault(501, "This server is no proxy: it knows no CONNECT.")
        if self.parser.should_upgrade() and not self._should_upgrade():
            self._upgrading = True
            return
        if method == b"POST":
            path, _, query = self.url.partition(b"?")
            route = ROUTES.get(path) or (route_of(path) if path.endswith(b"/") else None)
            if route is not None and route.path not in UPLOADS:
                self._begin(route, query, body, http10=version == "1.0")
                return
        url, headers = self.url, self.headers
        self._size = 0
        super().on_message_begin()
        self.url = url
        self.headers += headers
        self.expect_100_continue = any(n == b"expect" and v.lower() == b"100-continue" for n, v in headers)
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        cycle = self._hot
        self._overhead = 0
        if self._pace is not None:
            self._pace.came(self.loop.time())
        if cycle is None:
            self._size += len(body)
            super().on_body(body)
        elif not cycle.refused:
            self._size += len(body)
            if self._size > self._rules.body:
                self._unwanted(cycle, too_large(self._rules.body))
            else:
                self._pieces.append(body)

    def on_message_complete(self) -> None:
        cycle = self._hot
        if self._upgrading:
            return
        self._pace = None
        if cycle is None:
            super().on_message_complete()
            return
        pieces, self._pieces = self._pieces, []
        self._complete(cycle, pieces[0] if len(pieces) == 1 else b"".join(pieces))

    def _stay(self, rest: bytes) -> None:
        """A request offered another protocol, and `rest` came behind its head: it is answered in this one."""
        head = without_upgrade(self.parser.get_method(), self.url, self.parser.get_http_version(), self.headers)
        self._upgrading = False
        self._fresh_parser()
        self._feed(head + rest)

    def _fresh_parser(self) -> None:
        self.parser = httptools.HttpRequestParser(self)
        self.parser.set_dangerous_leniencies(lenient_data_after_close=True)

    def _begin(self, route: Route, query: bytes, body: Body, *, http10: bool) -> None:
        """The head of a request of ours is complete."""
        headers = self.headers
        call = Call(route, query, headers, self._gateway.clock.now())
        cycle = HotCycle(self, call, keep_alive=self.parser.should_keep_alive(), http10=http10)
        before: Any = self.cycle
        self.cycle = cast("Any", cycle)
        self._hot = cycle
        self._size = 0
        self._pieces = []
        declared = body.declared
        if body.continues:
            cycle.wants_continue = True
        ours = before is None or before.response_complete
        if ours:
            self._answering = cycle
        else:
            self.pipeline.appendleft((cast("Any", cycle), self.app))
            if len(self.pipeline) >= PIPELINED:
                self.flow.pause_reading()
        if declared > self._rules.body:
            self._unwanted(cycle, too_large(self._rules.body))
        elif len(self.connections) > self._rules.connections:
            self._unwanted(cycle, Unavailable("Too many connections (limits.connections). Try again in a few seconds."))
        elif (declared > DIRECT or body.chunked or body.continues) and not self._gateway.admits(headers):
            self._unwanted(cycle, None)
        else:
            if declared > DIRECT:
                cycle.direct = declared
            if ours and cycle.wants_continue:
                self.transport.write(_CONTINUE)

    def _should_upgrade(self) -> bool:
        """To a realtime session; not while another request of the connection is being answered."""
        before: Any = self.cycle
        free = before is None or before.response_complete
        return free and self.parser.get_method() == b"GET" and asks_for_session(self.url, self.headers)

    def _upgrade(self, rest: bytes) -> None:
        """The connection is a WebSocket from now on; this protocol has no part in it any more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if len(self.connections) > self._rules.connections:
            self._refuse_connection(503, "Too many connections (limits.connections). Try again in a few seconds.")
            return
        self.connections.discard(self)
        query = self.url.partition(b"?")[2]
        head = [b"GET ", self.url, b" HTTP/1.1\r\n"]
        for name, value in self.headers:
            head += (name, b": ", value, b"\r\n")
        session = WebSocketProtocol(self._gateway.realtime, self.server_state, self.transport)
        self.transport.set_protocol(session)
        session.begin(b"".join((*head, b"\r\n")), query, self.headers, rest)

    def _watch_body(self) -> None:
        self._pace = BodyPace(self._rules, self.loop.time())

    def _take_over(self, cycle: HotCycle) -> None:
        """Read the rest of a large body past the parser."""
        self._direct = LargeBody(cycle.direct, self._pieces)
        self._pieces = []

    def _took(self, large: LargeBody) -> None:
        self._direct = None
        self._fresh_parser()  # the old one still waits for this body
        self._complete(cast("HotCycle", self._hot), large.buffer)

    def _complete(self, cycle: HotCycle, body: bytes | bytearray) -> None:
        self._hot = None
        self._pace = None
        cycle.body_complete = True
        if not cycle.refused:
            cycle.call.body = body
            if self._answering is cycle:
                self._serve(cycle)

    def _unwanted(self, cycle: HotCycle, error: MMError | None) -> None:
        """Answer without the body. No error: the gateway will find its own in the head."""
        self._pace = None
        cycle.refused = True
        cycle.keep_alive = False
        cycle.direct = 0
        cycle.call.refused = error
        self._pieces = []
        if self._answering is cycle:
            self._serve(cycle)

    # Answering

    def _serve(self, cycle: HotCycle) -> None:
        if cycle.started:
            return
        cycle.started = True
        cycle.task = task = self.loop.create_task(self._gateway.serve(cycle.call, cycle))
        self.tasks.add(task)  # so that uvicorn's shutdown waits for it; `release` takes it out

    def _go_on(self, cycle: HotCycle) -> None:
        """It is its turn."""
        if cycle.body_complete or cycle.refused:
            self._serve(cycle)
            return
        self._watch_body()
        if cycle.wants_continue:
            self.transport.write(_CONTINUE)

    def _start_asgi_task(self, cycle: Any, app: Any) -> None:
        if isinstance(cycle, HotCycle):
            self._answering = cycle
            self._go_on(cycle)
        else:
            self._asgi = cycle
            if cycle.more_body:
                self._pace = BodyPace(self._rules, self.loop.time())
            if cycle.scope["http_version"] == "1.0":
                app = unframed(app, cycle, functools.partial(self.cut, unframed=True))
            super()._start_asgi_task(cycle, app)

    def answered(self, cycle: HotCycle) -> None:
        """The answer is complete."""
        self._answering = None
        if self.transport.is_closing():
            return
        if cycle.refused and not cycle.body_complete:
            self.server_state.total_requests += 1
            self._linger()
        elif not cycle.keep_alive:
            self.server_state.total_requests += 1
            self.transport.close()
        else:
            self.on_response_complete()

    def cut(self, *, unframed: bool) -> None:
        """End the connection in the middle of an answer. `unframed`: the connection's end would be taken for the
        answer's, so it has to be a reset."""
        self._answering = None
        self._dropping = True
        transport = self.transport
        if unframed:
            end_by_reset(transport, True)
            cast("Gathering", transport).flush()
            transport.abort()
        else:
            transport.close()
            self.loop.call_later(CLOSING, transport.abort)

    def on_response_complete(self) -> None:
        """As in uvicorn, but for the keep-alive timer: one per connection looks at the clock when it fires."""
        self.server_state.total_requests += 1
        self._asgi = None
        if self.transport.is_closing():
            return
        self._free_since = self.loop.time()
        if self._dropping:
            self._linger()
            return
        self.flow.resume_reading()
        if self.pipeline:
            self._start_asgi_task(*self.pipeline.pop())

    # Ends

    # What takes too long

    @property
    def _body_size(self) -> int:
        return self._size if self._direct is None else self._direct.filled

    def _too_slow(self, error: RequestTooSlow) -> None:
        self._direct = None
        self._dropping = True
        if self._answering is not None:
            self._unwanted(self._answering, error)
        else:
            self._refuse(408, error.message)

    def _not_taken(self, error: RequestCut) -> None:
        if self._answering is None or not self._answering.cut_short(error):
            self.transport.abort()

    def _refuse_head(self) -> None:
        fault = head_too_large(self._rules.header)
        self._refuse_connection(fault.status, fault.message)

    def _refuse_connection(self, status: int, message: str) -> None:
        """What came is no request: say so if it is its turn, and close."""
        self._dropping = True
        cycle: Any = self.cycle
        if self._hot is not None and not self._hot.started:
            self._unwanted(self._hot, BadRequest(message))
            return
        if cycle is not None and not cycle.response_complete:
            cycle.keep_alive = False  # an earlier request is being answered; the connection ends with that
            return
        self._refuse(status, message)

    def _refuse(self, status: int, message: str) -> None:
        """Answer what nobody else answers, and close."""
        request_id = self._gateway.new_id([])
        self.transport.write(unread(status, message, request_id, self.server_state.default_headers))
        self._linger()

    def _linger(self) -> None:
        """Close, but read on for a moment: a close with unread bytes would reset the connection, and the client might
        lose the answer that says why."""
        self._dropping = True
        self.flow.resume_reading()
        if self.transport.can_write_eof():
            self.transport.write_eof()
        self.loop.call_later(LINGER, self.transport.close)
