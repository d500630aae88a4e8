"""Whose turn it is among the models that wait for a load. Pure."""

from bisect import bisect_right
from collections.abc import Sequence
from math import inf

from vllm_mm.domain.lifecycle import State
from vllm_mm.domain.scheduling.words import Lane, Rules, View

SOON = 0.1
"""Seconds that a swap is taken for at least, so that what costs nothing is not worth infinitely much."""


def claims_at(lane: Lane, rules: Rules) -> float:
    """When room is made for it whatever that costs; infinity when nobody waits for whom others may be told to go.

    That is when its oldest waiter is overdue. But who waits for a slot of a model that was there until lately has had a load:
    such a backlog claims the next one `max_wait` after the last, so that two of them cannot keep a third model out.
    """
    at = lane.overdue_at(rules.max_wait)
    if at is None:
        return inf
    if lane.served_until is None or lane.urgent:
        return at
    return max(at, lane.served_until + rules.max_wait)


def by_turn(lanes: Sequence[Lane], view: View, rules: Rules, now: float) -> list[Lane]:
    """Who is looked at first.

    The model with the most waiting per second of its swap: the sum of its waits as they will be when it is ready. A model
    that is asked for p times as often is then visited about sqrt(p) times as often, which makes the mean wait least; and a
    lone old waiter gains on the many. Priorities stand above that. What is only kept ready comes last, until it is overdue.

    Before an overdue model goes only who waited already when it became overdue, and that once: whoever was served or came
    since then comes after it, and after all others that were overdue by then. On that the bound rests (`bound`).
    """
    due = sorted(claims_at(lane, rules) for lane in lanes)

    def turn(lane: Lane) -> tuple[int, bool, int, float, str]:
        own, last = claims_at(lane, rules), min(now, _since(lane))
        behind = bisect_right(due, last) - (own <= last)
        return behind, lane.kept and now < own, -lane.priority, own if behind else -_gain(lane, view, now), lane.model

    return sorted(lanes, key=turn)


def lent_claims(turn: Sequence[Lane], rules: Rules, now: float) -> dict[str, str]:
    """Who makes room for itself by the claim of another: a model that goes before an overdue one of lower priority, by turn, though it
    is not overdue itself. By model, with the one that lends its claim.

    Else a priority would be worth nothing wherever the lower one came first, if only by a moment: its claim is the first to make
    busy models go. It costs the lender what it would have cost anyway: `by_turn` has only those before it that waited already when it became
    overdue, and each of them once. An operator's start lends nothing: that it is wanted at once says nothing about others.
    `turn`: those for which something can be decided, in their order.
    """
    lent: dict[str, str] = {}
    overdue: list[tuple[float, str, Lane]] = []
    for lane in reversed(turn):
        claims = claims_at(lane, rules)
        if claims <= now:
            overdue += [] if lane.urgent else [(claims, lane.model, lane)]
        elif lane.may_evict and not lane.kept:
            lenders = [it for it in overdue if it[2].priority < lane.priority and _meet(lane, it[2])]
            if lenders:
                lent[lane.model] = min(lenders)[1]
    return lent


def _since(lane: Lane) -> float:
    """Since when it waits without having been served; at the latest since somebody waits."""
    return max(-inf if t is None else t for t in (lane.served_until, lane.oldest))


def _meet(one: Lane, other: Lane) -> bool:
    """Whether they could want the same device."""
    return not (one.wish.ids and other.wish.ids) or bool(set(one.wish.ids) & set(other.wish.ids))


def _gain(lane: Lane, view: View, now: float) -> float:
    """Seconds of waiting that its load ends, for each second that it takes."""
    if lane.urgent:
        return inf
    swap = max(SOON, view.of(lane.model).swap(asleep=lane.state is State.SLEEPING))
    return lane.waiting.waited(now + swap) / swap
