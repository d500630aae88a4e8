"""What a run in virtual time goes by, beside the models, the devices and the policy."""

from dataclasses import dataclass, field
from math import inf

from vllm_mm.domain.scheduling import Rules


@dataclass(frozen=True, slots=True)
class Terms:
    """What holds for a whole run. Seconds and bytes."""

    rules: Rules = field(default_factory=Rules)
    drain_timeout: float = 60.0
    """Requests that are left after a drain of this long are cut or frozen; infinity lets them finish."""
    preempt: bool = False
    """They are frozen, where their engine can sleep and the host has the memory: they go on when it is awake again."""
    sleep_budget: int = 0
    """Host memory for engines that are put to sleep instead of stopped; 0 stops them."""
    patience: float = inf
    """How long a request waits for its model before it gives up."""
