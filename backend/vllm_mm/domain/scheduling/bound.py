"""How long anybody can be passed over. Pure."""

from vllm_mm.domain.scheduling.words import Rules


def bound(rules: Rules, rivals: int, swap: float) -> float:
    """The longest that a request waits until its model is being loaded, in seconds, whatever else arrives.

    `rivals`: the most models, its own among them, that waited for a load at once since the request came, or were being loaded
    for others, or whose clients were told to come again and are expected (`returning`); `swap`: the longest
    time from the decision to load one of them until it was ready (the drain of its victims, their stop or sleep, and the
    load). Each of the others goes before it at most once (`order.by_turn`), and has its quantum when it is ready. Loads that
    fail count as swaps. For who was told to come again, and did in time, it counts from the first coming; but what became ready
    while it was away has its dwell and its quantum all the same, and rivals their turns. What no policy can promise is left out: memory that foreign processes or pinned models take.
    """
    return max(rules.max_wait, rules.min_dwell) + max(0, rivals - 1) * (swap + rules.stay)
