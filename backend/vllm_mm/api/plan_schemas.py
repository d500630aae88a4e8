"""What the admin API says of what a load would do (`schemas` has the rest, and its units)."""

from vllm_mm.api.schemas import FootprintOut, Out
from vllm_mm.control.plan import Act
from vllm_mm.domain.lifecycle import Goal, OnTimeout, State
from vllm_mm.domain.reasons import Reason


class VictimOut(Out):
    model: str
    state: State
    in_flight: int
    device_bytes: dict[str, int]
    bytes: int
    """The sum over devices."""
    goal: Goal
    """Where its eviction would lead."""
    why: str
    """Why it would sleep, or be stopped instead."""
    on_timeout: OnTimeout
    """What would become of requests that outlast its drain."""
    drain_s: float
    """Until its last request ends, by what its drains took before."""
    go_s: float
    """From there until its memory is free."""
    return_s: float
    """What it would take to have it back: a wake, or a start."""
    cache_s: float
    """What its clients would wait longer then, altogether, because its prefix cache is lost, if they come."""


class StoppedOut(Out):
    """A sleeper that would be stopped so that a victim can sleep: the host's memory for sleep has no room for both. It may be the
    model itself, which is then started anew instead of woken."""

    model: str
    sleeps_for: str
    """The victim that would sleep in its place."""
    host_bytes: int
    asleep_s: float
    return_s: float
    """What it would take to have it back: a start, where it would have been a wake."""
    late: bool
    """Only if the drain of that victim takes longer than `swap.drain_timeout`, so that it has to sleep with requests."""


class PlanOut(Out):
    """What a load would do. Nothing was changed."""

    model: str
    act: Act
    code: Reason | None
    """Why, as a code; null where nothing has to be decided."""
    reason: str
    state: State
    devices: dict[str, int]
    """Bytes that it would take, by device."""
    bytes: int
    victims: list[VictimOut]
    """In the order in which they would be told to go."""
    stopped: list[StoppedOut]
    """Sleepers that would have to go for the sleep of victims, those that slept longest first."""
    footprint: FootprintOut
    room_s: float
    """Until the victims have made room; they go at the same time."""
    load_s: float | None
    """The load alone; null when there is none to come."""
    eta_s: float | None
    """Until it could be READY, waiting and room included: as likely sooner as later."""
    at_latest_s: float | None
    """The same, kept nine times of ten."""
    again_in_s: float | None
    """When time alone may change a `wait`."""
