"""What to load next, and when; whom to grant a lease, and in what order. Pure: time is an argument.

`words` are the question and the answers, `expectations` what the past teaches. `brain` decides: `order` says whose turn it is,
`worth` whether a swap pays and who would be missed, `board` what is left of the memory within a round, `hindrance` why somebody
waits, `bound` how long at most, `returning` who was told to come again, `fairness` how a model's slots are shared, and `shares`
how the places to wait are.
"""

from vllm_mm.domain.scheduling.bound import bound
from vllm_mm.domain.scheduling.brain import decide, foregone, serve
from vllm_mm.domain.scheduling.expectations import Backlog, Expected, Habits, SwapTimes
from vllm_mm.domain.scheduling.returning import Returning, sent_away
from vllm_mm.domain.scheduling.words import Decision, Grant, Hold, Lane, Load, Refuse, Rules, Ticket, Turns, View

__all__ = [
    "Backlog", "Decision", "Expected", "Grant", "Habits", "Hold", "Lane", "Load", "Refuse", "Returning", "Rules",
    "SwapTimes", "Ticket", "Turns", "View", "bound", "decide", "foregone", "sent_away", "serve",
]  # fmt: skip
