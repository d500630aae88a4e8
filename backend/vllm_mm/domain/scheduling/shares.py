"""Who may still wait when many do: nobody fills the queue while others ask too. Pure.

A key, and a model, may hold as many places as are left free, while another one asked lately. So the last place is never taken by
one who has many: one of them gets half of the places, two that come in turn get a third each, and one that comes later gets half of
what is left; so there is one left for somebody who has none while n keys wait in a queue of 2**n places or more. The bound on a
model is for keys that wait for it already: one key's crowd there does not shut out another's one.
Nobody who waits is sent away for a newcomer. Who asks alone may have all.
"""

from dataclasses import dataclass

LATELY = 300.0
"""Seconds for which one that asked counts as somebody who may ask again."""
MANY = 1000
"""Of more than these, those are forgotten that did not ask lately."""


@dataclass(frozen=True, slots=True)
class Places:
    """As one more asks for a place."""

    bound: int
    """`queue.max_size`."""
    taken: int
    by_key: int
    """Of those, by the key that asks."""
    by_model: int
    """Of those, for the model that is asked for."""
    by_both: int | bool
    """Of those, by the key that asks; or whether there are any, which is what counts."""
    other_keys: bool
    """Whether another key asked lately."""
    other_models: bool

    @property
    def free(self) -> int:
        return self.bound - self.taken


def refusal(places: Places) -> str:
    """Why there is no place for it, for people; empty when there is. `Places.free` says whether the queue is full."""
    free = places.free
    if free <= 0:
        return f"{places.taken} requests are waiting already, which is the bound (queue.max_size)"
    kept = f"the last {free} of {places.bound} places (queue.max_size) are kept for others"
    if places.other_keys and places.by_key >= free:
        return f"{places.by_key} requests of this key are waiting already; {kept}"
    if places.other_models and places.by_both and places.by_model >= free:
        return f"{places.by_model} requests for this model are waiting already; {kept}"
    return ""


class Asked:
    """Who asked when for the last time; keys say, or models."""

    __slots__ = ("last",)

    def __init__(self) -> None:
        self.last: dict[str | None, float] = {}
        """In monotonic seconds. To be written to: every request does."""

    def others(self, who: str | None, now: float) -> bool:
        """Whether anybody but `who` asked lately."""
        if len(self.last) > MANY:
            self.last = {one: at for one, at in self.last.items() if now - at <= LATELY}
        return any(one != who and now - at <= LATELY for one, at in self.last.items())
