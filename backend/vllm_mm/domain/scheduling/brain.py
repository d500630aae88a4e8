"""The server's policy: whom to grant a lease, and what to load when, for whom to go. Pure.

Requests for what is ready run at once. For the others `order` says whose turn it is, `worth` whether a swap pays and who
would be missed least, and `bound` how long anybody can be passed over.
"""

from collections.abc import Sequence

from vllm_mm.domain.lifecycle import State
from vllm_mm.domain.reasons import Reason
from vllm_mm.domain.residency import Reservation
from vllm_mm.domain.scheduling.board import Board
from vllm_mm.domain.scheduling.fairness import deal
from vllm_mm.domain.scheduling.order import by_turn, lent_claims
from vllm_mm.domain.scheduling.words import Decision, Grant, Hold, Lane, Refuse, Rules, View

ON_THE_WAY = frozenset({State.STARTING, State.WAKING})
GOING = frozenset({State.DRAINING, State.SUSPENDING, State.STOPPING})


def decide(view: View, rules: Rules, now: float) -> tuple[Decision, ...]:
    """One decision per lane that has somebody waiting, in the order in which they are to be carried out.

    Guarantees: a READY lane with free slots is granted whatever other lanes do; loads that fit together are decided
    together; each decision is made against the ledger as the decisions before it will leave it; a lane whose oldest
    waiter is `max_wait` old takes its room from busy models too, and no lane that came or was served since then may take
    that room first; one of higher priority that waited already then takes it instead.

    Grants come first (they take no room), then the other lanes by turn. A READY lane that is only wanted, without tickets,
    gets no decision.
    """
    waiting = [lane for lane in view.lanes if lane.oldest is not None]
    ready = [serve(lane) for lane in waiting if lane.state is State.READY and lane.tickets]
    granted = {d.model: len(d.tickets) for d in ready if isinstance(d, Grant)}
    others = [lane for lane in waiting if lane.state is not State.READY]
    turn = by_turn(others, view, rules, now)
    apart = [lane for lane in others if lane.state not in ON_THE_WAY]
    board = Board(view, apart, granted, rules, now, _lent(turn, view, rules, now))
    return (*ready, *(_decide(lane, board) for lane in turn))


def _lent(turn: Sequence[Lane], view: View, rules: Rules, now: float) -> dict[str, str]:
    """See `lent_claims`; among equals there is nothing to lend."""
    if len({lane.priority for lane in turn}) < 2:
        return {}
    held = view.ledger.reservations
    return lent_claims([lane for lane in turn if foregone(lane, held.get(lane.model)) is None], rules, now)


def serve(lane: Lane) -> Grant | Hold:
    """What a READY lane gives to those who wait for it."""
    if lane.free_slots <= 0:
        return Hold(lane.model, Reason.SLOTS.because("all requests that it may have at a time are running"))
    tickets, turns = deal(lane.tickets, lane.turns, lane.free_slots)
    return Grant(lane.model, tickets, turns=turns)


def foregone(lane: Lane, own: Reservation | None) -> Hold | Refuse | None:
    """What the state of a lane's own instance decides, whatever the policy; None when there is something to choose:
    a load, or, with a reservation of its `own`, a wake."""
    if lane.back_at is not None and lane.tickets:
        sentence = "it failed while it served, and is started again after a pause"
        return Hold(lane.model, Reason.BACKOFF.because(sentence), lane.back_at)
    if lane.state in {State.BACKOFF, State.FAILED}:
        return Refuse(lane.model, Reason.FAILED.because("its last start failed"))
    if lane.state in GOING or (own is not None and own.leaving):
        return Hold(lane.model, Reason.STOPPING.because("it is on its way out, and comes back when it is gone"))
    if lane.state in ON_THE_WAY:
        return Hold(lane.model, Reason.LOADING.because(f"it is {lane.state.value}"))
    if own is not None and (lane.state is State.STOPPED or not own.begun):
        return Hold(lane.model, Reason.LOADING.because("it waits for the memory that was promised to it"))
    return None


def _decide(lane: Lane, board: Board) -> Decision:
    decided = foregone(lane, board.own(lane.model))
    return decided if decided is not None else board.load(lane)
