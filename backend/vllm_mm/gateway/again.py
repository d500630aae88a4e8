"""Whether a request whose engine went away is sent once more, without its client noticing.

Only where no work can be done twice: nothing of an answer came, and no engine got the whole request, or the one that got it is dead and
what it did is gone with it.
"""

from typing import Final

from vllm_mm.clock import Clock
from vllm_mm.domain.errors import MMError, UpstreamDied
from vllm_mm.domain.lifecycle import State
from vllm_mm.gateway.ports import InstanceState, Leases
from vllm_mm.gateway.relay import Relay

NOTICED: Final = 2.0
"""Seconds in which it is known that an engine is dead, after its connection broke. One that lives then may be at work."""
LOOK: Final = 0.02
"""Seconds between two looks."""


async def may_go_again(relay: Relay, error: UpstreamDied, leases: Leases, clock: Clock, patience: float) -> bool:
    """Returns when another launch may be asked for, or none is to be expected: after `patience` seconds at most."""
    if error.started or relay.stopped is not None or relay.client.gone:
        return False
    spec, generation = relay.spec, relay.generation
    if spec is None or generation is None or (error.sent and relay.call.upload is not None):
        return False  # a form that came piece by piece is gone
    # Who got nothing of it cannot be at work on it, and gets it even if it lives; but one that cannot be reached is most likely dead, and
    # that is known in a moment: asked at once, it would fail the second time too.
    fresh = not error.sent
    relay.exchange = None  # who stops it meanwhile interrupts this wait
    began = clock.now()
    while True:
        try:
            now = leases.describe(spec.id)
        except MMError:
            return fresh
        if _replaceable(now, generation):
            return True
        patient = patience if now.state is State.STOPPING else min(NOTICED, patience)
        if now.state is State.FAILED or clock.now() - began >= patient:
            return fresh
        await clock.sleep(LOOK)


def _replaceable(now: InstanceState, generation: int) -> bool:
    """Whether all of that launch is gone. Who asks in its BACKOFF waits there for the next one, or is told that it takes too long."""
    return now.generation != generation or now.state in {State.STOPPED, State.BACKOFF}
