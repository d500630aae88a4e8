"""How a request that is not over is listed, stage by stage."""

from typing import Any

from fakes import FakeClock
from vllm_mm.domain.errors import RequestCancelled
from vllm_mm.domain.running import Stage
from vllm_mm.domain.specs import ModelSpec
from vllm_mm.gateway.ports import Rules
from vllm_mm.gateway.realtime_session import RealtimeSession
from vllm_mm.gateway.relay import Call, Relay
from vllm_mm.gateway.routes import ROUTES
from vllm_mm.gateway.underway import listing

ROUTE = ROUTES[b"/v1/chat/completions"]
SPEC = ModelSpec(id="m")


class Client:
    """Takes everything."""

    raw = True
    gone = False

    def __getattr__(self, name: str) -> Any:
        return lambda *_args, **_more: None


class Frozen:
    """A lease whose request stands still from `since` on."""

    def __init__(self, since: float | None) -> None:
        self.since = since

    def frozen_s(self, now: float) -> float:
        return 0.0 if self.since is None else max(0.0, now - self.since)


def relay(clock: FakeClock, name: str = "req_1") -> Relay:
    client: Any = Client()
    return Relay(Call(ROUTE, b"", [], clock.now()), client, name, clock.now)


async def test_each_stage_of_a_request_is_told_with_its_times() -> None:
    """From a head that came to an answer on its way; what is not reached has no time."""
    clock = FakeClock()
    it = relay(clock)

    def seen() -> Any:
        found = listing([it], [], 10, clock.now(), clock.wall())
        assert found.total == 1
        return found.requests[0]

    arrived = clock.wall()
    await clock.advance(1.0)
    row = seen()
    assert (row.stage, row.model, row.at, row.total_s, row.queued_s) == (Stage.ARRIVES, None, arrived, 1.0, None)
    it.spec, it.asked, it.queued, it.stream = SPEC, "alias", True, True
    await clock.advance(1.0)
    row = seen()
    assert (row.stage, row.model, row.asked, row.queued_s, row.load_s) == (Stage.WAITS, "m", "alias", None, None)
    it.lease = lease = Frozen(None)  # type: ignore[assignment]
    it.leased_at, it.ready_at, it.generation = clock.now(), clock.now() - 0.5, 3
    await clock.advance(1.0)
    row = seen()
    assert (row.stage, row.queued_s, row.load_s, row.ttft_s, row.generation) == (Stage.PROMPT, 2.0, 1.5, None, 3)
    assert not row.frozen
    it.first_at = clock.now()
    it.meter.size = 50
    lease.since = clock.now()
    await clock.advance(2.0)
    row = seen()
    assert (row.stage, row.ttft_s, row.total_s, row.bytes_out) == (Stage.ANSWERS, 3.0, 5.0, 50)
    assert (row.frozen, row.frozen_s) == (True, 2.0)
    assert not row.ending
    it.stop(RequestCancelled("by ada"))
    assert seen().ending
    it.over = True
    assert listing([it], [], 10, clock.now(), clock.wall()).total == 0


async def test_one_that_is_sent_again_waits_again() -> None:
    """Its first lease counts no more."""
    clock = FakeClock()
    it = relay(clock)
    it.spec, it.queued, it.retried, it.leased_at = SPEC, True, True, clock.now()
    (row,) = listing([it], [], 10, clock.now(), clock.wall()).requests
    assert (row.stage, row.queued_s, row.retried) == (Stage.WAITS, None, True)


async def test_no_more_than_asked_for_and_the_oldest_first() -> None:
    """Sessions among requests, by when they came."""
    clock, client = FakeClock(), Client()
    first = relay(clock, "req_first")
    await clock.advance(1.0)
    session = RealtimeSession(client, b"", [], "req_session", Rules(), clock)  # type: ignore[arg-type]
    session.spec, session.leased_at = SPEC, None
    await clock.advance(1.0)
    last = relay(clock, "req_last")
    found = listing([last, first], [session], 2, clock.now(), clock.wall())
    assert ([row.id for row in found.requests], found.total) == (["req_first", "req_session"], 3)
    row = found.requests[1]
    assert (row.stage, row.route, row.total_s, row.ttft_s) == (Stage.WAITS, "/v1/realtime", 1.0, None)
    session.leased_at, session.ready_at = clock.now(), clock.now() - 5.0
    session.bind(client)  # type: ignore[arg-type]
    row = listing([], [session], 2, clock.now(), clock.wall()).requests[0]
    assert (row.stage, row.queued_s, row.load_s) == (Stage.ANSWERS, 1.0, 0.0)
    session.spec = None
    session.unbind()
    assert listing([], [session], 2, clock.now(), clock.wall()).requests[0].stage is Stage.ARRIVES
    session.over = True
    assert listing([], [session], 2, clock.now(), clock.wall()).total == 0
