"""Whose turn it is among those who wait for one model: shares of its slots by key, whatever one key asks for. Pure.

Start-time fair queueing: each key has a clock that advances by 1 / weight with every lease, and the key whose clock is behind
goes next. In the long run slots are shared by weight, as weighted deficit round robin shares them, but leases of a heavy key
do not come in bursts: whoever comes new waits for at most one lease of each other key. `priority` stands above it.
"""

from collections.abc import Sequence
from heapq import heapify, heappop, heapreplace

from vllm_mm.domain.scheduling.words import Ticket, Turns

LIGHTEST = 1e-3
"""Weights below are taken for this one: a key without any would never be served."""


def deal(tickets: Sequence[Ticket], turns: Turns, count: int) -> tuple[tuple[Ticket, ...], Turns]:
    """The next `count` of `tickets` (in any order), in the order in which they are served, and the turns after that.

    Within a key the oldest goes first, and so it does between keys that are equally far.
    """
    if count <= 0 or not tickets:
        return (), turns
    clock, ahead = turns.clock, dict(turns.ahead)
    dealt: list[Ticket] = []
    for priority in sorted({t.priority for t in tickets}, reverse=True):
        queues = _by_key([t for t in tickets if t.priority == priority])
        heap = [(max(clock, ahead.get(key, clock)), queue[-1][0], key) for key, queue in queues.items()]
        heapify(heap)
        while heap and len(dealt) < count:
            clock, _, key = heap[0]
            _, ticket = queues[key].pop()
            dealt.append(ticket)
            ahead[key] = clock + 1 / max(ticket.weight, LIGHTEST)
            if queues[key]:
                heapreplace(heap, (ahead[key], queues[key][-1][0], key))
            else:
                heappop(heap)
        if len(dealt) == count:
            break
    return tuple(dealt), Turns(clock, {key: at for key, at in ahead.items() if at > clock})


def _by_key(tickets: Sequence[Ticket]) -> dict[str | None, list[tuple[int, Ticket]]]:
    """Each key's tickets with their places in the order of arrival, the oldest last."""
    queues: dict[str | None, list[tuple[int, Ticket]]] = {}
    oldest_first = sorted(tickets, key=lambda t: t.arrived)
    for numbered in reversed(list(enumerate(oldest_first))):
        queues.setdefault(numbered[1].key, []).append(numbered)
    return queues
