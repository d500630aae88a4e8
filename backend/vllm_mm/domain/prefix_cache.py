"""What the prefix cache of an engine is worth: what its clients would wait for it if it were lost. Pure.

A cache is lost with a stop, and with a sleep too. What it held is taken in anew, by those who would have found it there.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Work:
    """What an engine has done since it was launched, by its own counters. Tokens, and seconds."""

    asked: int = 0
    """Tokens of prompts that were looked for in the cache."""
    found: int = 0
    """Of these, those that were there."""
    made: int = 0
    """Tokens of answers."""
    prefill: float = 0.0
    """Seconds that its requests had to wait for their prompts to be taken in, added up."""

    def since(self, before: "Work") -> "Work":
        """What was done after `before`; all of it where the engine has begun to count anew."""
        if self.asked < before.asked or self.made < before.made:
            return self
        return Work(
            self.asked - before.asked,
            max(0, self.found - before.found),
            self.made - before.made,
            max(0.0, self.prefill - before.prefill),
        )


@dataclass(frozen=True, slots=True)
class PrefixCache:
    """Of one engine. Immutable: `note` returns what is known after one more look."""

    empty: Work = Work()
    """When it was empty the last time: at the launch, or after a wake."""
    now: Work = Work()

    def note(self, work: Work) -> "PrefixCache":
        return PrefixCache(self.empty if work.asked >= self.empty.asked else Work(), work)

    def emptied(self) -> "PrefixCache":
        """It slept."""
        return PrefixCache(self.now, self.now)

    def tokens(self, capacity: int | None) -> int:
        """That it holds: all that was taken in or made since it was empty, and no more than it has room for (None: not known)."""
        work = self.now.since(self.empty)
        taken_in = work.asked - work.found + work.made
        return taken_in if capacity is None else min(taken_in, capacity)

    def loss(self, capacity: int | None) -> float:
        """Seconds that its clients would wait, altogether, until it holds again what it holds now: of its tokens the share that is
        asked for again, as far as is known, at the speed at which it takes prompts in. Both are those of the whole launch: they are
        the model's, and its clients', and a sleep does not change them."""
        computed = self.now.asked - self.now.found
        if computed <= 0 or not self.now.found:
            return 0.0
        again = self.tokens(capacity) * self.now.found / self.now.asked
        return again * self.now.prefill / computed
