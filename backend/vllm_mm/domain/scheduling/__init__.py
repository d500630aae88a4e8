"""What to load next, and when; whom to grant a lease, and in what order. Pure: time is an argument.

`words` are the question and the answers, `expectations` what the past teaches, `brain` decides, `fairness` shares slots.
"""

from vllm_mm.domain.scheduling.brain import decide, foregone
from vllm_mm.domain.scheduling.expectations import Backlog, Expected, Habits, Times
from vllm_mm.domain.scheduling.words import Decision, Grant, Hold, Lane, Load, Refuse, Rules, Ticket, Turns, View

__all__ = [
    "Backlog", "Decision", "Expected", "Grant", "Habits", "Hold", "Lane", "Load", "Refuse", "Rules", "Ticket", "Times",
    "Turns", "View", "decide", "foregone",
]  # fmt: skip
