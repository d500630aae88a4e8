"""Why something is loaded, waits, goes or is refused: a code for programs, and a sentence for people. Pure.

In decisions, events and answers a reason is text, `code: sentence`; `split` takes it apart. docs/scheduling.md has all codes.
"""

from enum import StrEnum


class Reason(StrEnum):
    """Each code with what it means, in one sentence."""

    meaning: str

    # Why a request is served.
    READY = "ready", "Its model is ready and has a slot for it."
    # Why a load was decided.
    WAKE = "wake", "It sleeps on memory that is still its own: it is woken, and nobody has to go."
    THAW = "thaw", "Requests of its own are frozen in it: it is woken, so that they go on."
    FITS = "fits", "There is room for it beside everybody who is loaded."
    IDLE = "idle", "Those who go for it serve nobody, and nobody is known to miss them."
    PAYS = "pays", "Those who go for it serve nobody now, and at least as many wait for others as would wait for them."
    MAX_WAIT = "max_wait", "Somebody has waited `swap.max_wait` for it: room is made whatever that costs."
    OPERATOR = "operator", "An operator asked for it: that counts like somebody who has waited `swap.max_wait`."
    # Why somebody waits.
    SLOTS = "slots", "It is ready, and all requests that it may have at a time are running."
    FAIRNESS = "fairness", "It is ready and has a slot, which is another key's turn."
    LOADING = "loading", "It is being loaded, or waits for the memory that was promised to it."
    STOPPING = "stopping", "It is on its way out, and can be loaded again when it is gone."
    DWELL = "dwell", "Those who could go for it became ready just now (`swap.min_dwell`, `swap.quantum`)."
    COST = (
        "cost",
        "Those who could go for it are worth more where they are than it would be, until somebody has waited too long.",
    )
    BUSY = "busy", "Those who could go for it are serving requests, and nobody has waited too long yet."
    RIGHTS = (
        "rights",
        "The keys of those who ask for it may not have it loaded, or not have others go for it: then it waits for free room.",
    )
    ROOM = "room", "There is not enough memory, whoever may go for it."
    ORDER = "order", "Another model waits longer and needs the same room."
    DATABASE = "database", "The database has not taken the row of its start, without which nothing is started."
    FROZEN = "frozen", "Its requests are frozen in its sleeping engine until it has the memory to go on."
    # Why it cannot be.
    DEVICE = "device", "The devices where it could go are out of use or do not exist."
    NEVER = "never", "It needs more than it could have, as things are declared and pinned: to wait would not help."
    FAILED = "failed", "Its last start failed; it is tried again after a pause, or when an operator says so."
    # Why a model is wanted.
    REQUEST = "request", "A request for it waits."
    PRELOAD = "preload", "It is declared to be loaded when the server starts."
    SCHEDULE = "schedule", "It is one of the times of the week in which it is to be ready (`schedule`)."
    PINNED = "pinned", "It is pinned: it is loaded whenever it is not there."
    # Why a model goes, or a load is given up.
    EVICTED = "evicted", "It makes room for another model, which is named."
    SLEEP_ROOM = (
        "sleep_room",
        "The host's memory for sleep goes to a model that falls asleep now; this one slept longest.",
    )
    UNUSED = "unused", "Nobody has used it for as long as its idle times allow."
    LENT = "lent", "Room on its device is lent to something else (`vllm-mm drain --device`), or was and is given back."
    STRANGER = "stranger", "Programs that are not ours use memory of a device."
    RELOAD = "reload", "Its declaration changed, or is gone."
    UNWANTED = "unwanted", "Nobody waits for its load any more (`queue.cancel_unwanted_loads`)."
    GIVEN_UP = (
        "given_up",
        "Its load was called off before there was a process; the next round decides anew where somebody waits.",
    )
    SHUTDOWN = "shutdown", "The server ends, or is being replaced."
    CRASH = "crash", "Its engine ended unasked."
    UNHEALTHY = "unhealthy", "Its engine lives, and is of no use."
    SLEEPLESS = (
        "sleepless",
        "Its engine did not sleep, or not wake, as it should: it is stopped, and started where it is wanted.",
    )
    STALLED = "stalled", "Its start made no progress for `start.stall`."
    DEADLINE = "deadline", "It took longer than it may."
    # Why an instance is what it became.
    PROBE = "probe", "It answered its health check and made a token."
    ENGINE = "engine", "Its engine says so, and that was seen to be true."
    ADOPTED = "adopted", "It is an engine of an earlier controller, and provably this model's."
    BOOT = "boot", "It was left by an earlier controller."
    BACKOFF = "backoff", "It failed, and a pause goes before the next start; or this pause is over."
    # Why a request is refused or ended.
    QUEUE_FULL = "queue_full", "As many requests wait as may wait (`queue.max_size`)."
    QUEUE_SHARE = (
        "queue_share",
        "Its key, or its model, has as many requests waiting as it leaves places free, and others ask too (`queue.max_size`).",
    )
    CUT = "cut", "Its model died, or had to go before the answer was complete."

    def __new__(cls, code: str, meaning: str) -> "Reason":
        """A member whose text is its code."""
        member = str.__new__(cls, code)
        member._value_ = code
        member.meaning = meaning
        return member

    def because(self, sentence: str) -> str:
        """`code: sentence`, as decisions carry it."""
        return f"{self.value}: {sentence}"


def split(reason: str) -> tuple[Reason | None, str]:
    """The code and the sentence; the code's own meaning where no sentence was given, and None for text without a code."""
    code, _, sentence = reason.partition(": ")
    try:
        found = Reason(code)  # pyright: ignore[reportCallIssue]  # pyright reads `__new__` as how members are looked up
    except ValueError:
        return None, reason
    return found, sentence or found.meaning


_KINDS = {
    "swap.given_up": Reason.GIVEN_UP,
    "instance.stopped": Reason.CRASH,  # every decision to stop has a code; what is left is the end of an engine in its own words
    "lease.revoked": Reason.CUT,
    "lease.thawed": Reason.THAW,
    "orphan.swept": Reason.CRASH,
    "sleep.failed": Reason.UNHEALTHY,
    "wake.failed": Reason.UNHEALTHY,
    "alert.device": Reason.DEVICE,
    "device.well": Reason.DEVICE,
    "alert.foreign_memory": Reason.STRANGER,
    "foreign_memory.gone": Reason.STRANGER,
    "device_lease.asked": Reason.LENT,
    "device_lease.held": Reason.LENT,
    "device_lease.ended": Reason.LENT,
    "device_lease.restored": Reason.LENT,
    "alert.arguments": Reason.NEVER,
    "alert.survivors": Reason.DEADLINE,
    "alert.memory_not_back": Reason.DEADLINE,
}
"""What a kind of event always means, where it carries no other reason."""


def of_event(kind: str, cause: str, reason: str) -> Reason | None:
    """The code of an event: that of its reason, else of its cause (`operator ada`, `request r1`), else of its kind. None for
    events that no decision is behind."""
    wanted = cause.removeprefix("stopped by ")
    known = split(reason)[0] or split(wanted)[0] or split(wanted.partition(" ")[0])[0]
    return known or _KINDS.get(kind)
