"""A stream that has begun and gets nothing more, although its engine runs: it is ended with a reason, and the engine has to prove itself.

Before the first token nothing is concluded: a long prompt may take minutes, and others may come first. An engine that sends nothing to
anybody is noticed by its watch (`timeouts.stuck`).
"""

from vllm_mm.domain.errors import UpstreamStalled
from vllm_mm.gateway.ports import LeaseView
from vllm_mm.gateway.relay import Relay


def stalled(relay: Relay, lease: LeaseView, after: float, now: float) -> None:
    """Look at a request, once a second. `after`: seconds without a byte. Time does not count in which it stands still in a sleeping
    engine, or in which its client reads nothing."""
    exchange, meter = relay.exchange, relay.meter
    if exchange is None or meter.token_at is None:
        return
    frozen = lease.frozen_s(now)
    if meter.size != relay.seen_size or frozen != relay.seen_frozen or exchange.paused:
        relay.seen_size, relay.seen_frozen, relay.seen_at = meter.size, frozen, now
        return
    if now - relay.seen_at >= after:
        lease.suspect()
        relay.stop(
            UpstreamStalled(
                f"The engine of `{lease.model}` runs, and has sent nothing of this answer for {now - relay.seen_at:.0f} s "
                "(timeouts.stream_stall). It is looked at, and replaced if it makes no token for anybody. Send the request again."
            )
        )
