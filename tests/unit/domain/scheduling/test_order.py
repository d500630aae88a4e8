"""When a lane claims room. Who goes first among several is in test_brain."""

from math import inf

from vllm_mm.domain.lifecycle import State
from vllm_mm.domain.scheduling import Lane, Rules, Ticket
from vllm_mm.domain.scheduling.order import claims_at
from vllm_mm.domain.specs import DeviceWish

RULES = Rules(max_wait=20.0)


def lane(served_until: float | None = None, *arrived: float, wanted: float | None = None, urgent: bool = False) -> Lane:
    tickets = tuple(Ticket(f"t{n}", "m", at, 9e9) for n, at in enumerate(arrived))
    return Lane("m", State.STOPPED, tickets, wanted, DeviceWish(), 1, 0, urgent=urgent, served_until=served_until)


def test_a_lane_claims_room_when_its_oldest_waiter_is_overdue() -> None:
    """And never when nobody waits."""
    assert claims_at(lane(), RULES) == inf
    assert claims_at(lane(None, 7.0, 3.0), RULES) == 23.0


def test_a_backlog_that_was_served_claims_the_next_load_later() -> None:
    """Whoever came since the last one claims as ever; an operator does not wait for that."""
    assert claims_at(lane(50.0, 3.0), RULES) == 70.0
    assert claims_at(lane(50.0, 60.0), RULES) == 80.0
    assert claims_at(lane(50.0, 3.0, wanted=51.0, urgent=True), RULES) == 23.0
