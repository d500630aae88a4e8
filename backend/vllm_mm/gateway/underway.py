"""What is under way at this moment, as it is listed: requests and realtime sessions of this process."""

from collections.abc import Iterable
from heapq import nsmallest
from itertools import chain
from typing import TYPE_CHECKING

from vllm_mm.domain.running import Listing, Running, Stage
from vllm_mm.gateway.relay import Relay
from vllm_mm.gateway.routes import REALTIME

if TYPE_CHECKING:
    from vllm_mm.gateway.forward import Gateway
    from vllm_mm.gateway.realtime_session import RealtimeSession


def under_way(gateway: "Gateway", most: int) -> Listing:
    """The `most` oldest requests and sessions of `gateway`."""
    clock = gateway.clock
    return listing(gateway.running, gateway.realtime.running, most, clock.now(), clock.wall())


def listing(
    relays: Iterable[Relay], sessions: Iterable["RealtimeSession"], most: int, now: float, wall: float
) -> Listing:
    """The `most` oldest of those that are not over."""
    going = [r for r in relays if not r.over]
    talking = [s for s in sessions if not s.over]
    everything = chain(((r.call.arrived, r.own_id, r) for r in going), ((s.arrived, s.own_id, s) for s in talking))
    oldest = nsmallest(most, everything, key=lambda found: found[:2])
    rows = [_relay(it, now, wall) if isinstance(it, Relay) else _session(it, now, wall) for _, _, it in oldest]
    return Listing(rows, len(going) + len(talking))


def _relay(relay: Relay, now: float, wall: float) -> Running:
    call, lease, arrived = relay.call, relay.lease, relay.call.arrived
    leased_at, first_at = relay.leased_at, relay.meter.token_at or relay.first_at
    if relay.queued and lease is None:  # again, where it was sent to an engine that died
        stage, leased_at = Stage.WAITS, None
    elif leased_at is None:
        stage = Stage.ARRIVES
    else:
        stage = Stage.PROMPT if first_at is None else Stage.ANSWERS
    # Nobody says that it stands still; then its time does not, a moment from now.
    still = 0.0 if lease is None else lease.frozen_s(now)
    return Running(
        id=relay.own_id, request_id=relay.id, at=wall - (now - arrived), route=call.route.name,
        model=None if relay.spec is None else relay.spec.id, asked=relay.asked, key=None if relay.key is None else relay.key.id,
        stream=relay.stream, stage=stage,
        queued_s=None if leased_at is None else leased_at - arrived,
        load_s=None if leased_at is None else max(0.0, min(relay.ready_at, leased_at) - arrived),
        ttft_s=None if leased_at is None or first_at is None else first_at - arrived,
        total_s=now - arrived, frozen_s=relay.frozen_s + still, frozen=lease is not None and lease.frozen_s(now + 1.0) > still,
        bytes_in=relay.size_in if call.upload is None else call.upload.size, bytes_out=relay.meter.size,
        generation=relay.generation, retried=relay.retried, ending=relay.stopped is not None,
    )  # fmt: skip


def _session(session: "RealtimeSession", now: float, wall: float) -> Running:
    """It answers from when it has its engine on: who speaks first is the client's to say."""
    arrived, leased_at = session.arrived, session.leased_at
    waits = Stage.WAITS if session.spec is not None else Stage.ARRIVES
    return Running(
        id=session.own_id, request_id=session.id, at=wall - (now - arrived), route=REALTIME.name,
        model=None if session.spec is None else session.spec.id, asked=session.asked,
        key=None if session.key is None else session.key.id, stream=True, stage=Stage.ANSWERS if session.talks else waits,
        queued_s=None if leased_at is None else leased_at - arrived,
        load_s=None if leased_at is None else max(0.0, min(session.ready_at, leased_at) - arrived),
        ttft_s=None, total_s=now - arrived, frozen_s=0.0, frozen=False, bytes_in=session.size_in, bytes_out=session.size_out,
        generation=session.generation, retried=False, ending=session.stopped is not None,
    )  # fmt: skip
