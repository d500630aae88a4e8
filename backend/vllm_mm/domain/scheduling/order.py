"""Whose turn it is among the models that wait for a load. Pure."""

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
    since then comes after it. On that the bound rests (`bound`).
    """
    due = sorted((claims_at(lane, rules), lane.model) for lane in lanes)

    def turn(lane: Lane) -> tuple[bool, bool, int, float, str]:
        own = claims_at(lane, rules)
        since = max(-inf if t is None else t for t in (lane.served_until, lane.oldest))
        first = next((at for at, model in due if model != lane.model), inf)
        behind = first <= min(now, since)
        return behind, lane.kept and now < own, -lane.priority, own if behind else -_gain(lane, view, now), lane.model

    return sorted(lanes, key=turn)


def _gain(lane: Lane, view: View, now: float) -> float:
    """Seconds of waiting that its load ends, for each second that it takes."""
    if lane.urgent:
        return inf
    swap = max(SOON, view.of(lane.model).swap(asleep=lane.state is State.SLEEPING))
    return lane.waiting.waited(now + swap) / swap
