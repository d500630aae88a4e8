"""Why something is loaded, waits or is refused: a code for programs, and a sentence for people. Pure.

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
    ROOM = "room", "There is not enough memory, whoever may go for it."
    ORDER = "order", "Another model waits longer and needs the same room."
    FROZEN = "frozen", "Its requests are frozen in its sleeping engine until it has the memory to go on."
    # Why it cannot be.
    DEVICE = "device", "The devices where it could go are out of use or do not exist."
    NEVER = "never", "It needs more than there can ever be, as things are declared."
    FAILED = "failed", "Its last start failed; it is tried again after a pause, or when an operator says so."

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
