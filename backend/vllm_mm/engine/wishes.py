"""What somebody other than a request wants of the models: loaded, kept, or gone. Forgotten when the controller ends."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from vllm_mm.domain.catalog import Catalog
from vllm_mm.domain.specs import ModelSpec


@dataclass(frozen=True, slots=True)
class Wish:
    """Somebody other than a request wants a model READY."""

    since: float
    urgent: bool
    cause: str
    why_not: str = ""
    """Why it has to wait; empty until somebody looked."""


class Wishes:
    """At most one of each kind for a model."""

    def __init__(self) -> None:
        self._wanted: dict[str, Wish] = {}
        self._causes: dict[str, dict[str, None]] = {}
        """For what each of them is wanted, or by whom, in the order in which that was said."""
        self._pins: dict[str, bool] = {}
        self._dismissed: set[str] = set()
        self._in_time: frozenset[str] = frozenset()
        self._refusals: dict[str, str] = {}
        self._no_room: set[str] = set()
        """Of these refusals: those that say that there can be no room."""
        self._told: dict[str, str] = {}
        """The last refusal that was told of each; what is wanted for good is wanted again and again."""

    def want(self, model: str, wish: Wish) -> None:
        """From now on it is wanted, whatever was said of it before. A wish that stands goes on: it stays as old as it is, and
        as urgent; only one that is more urgent than it puts its own cause on it."""
        self._dismissed.discard(model)
        self._refusals.pop(model, None)
        if wish.urgent:  # whoever asks is answered
            self._told.pop(model, None)
        self._causes.setdefault(model, {})[wish.cause] = None
        before = self._wanted.get(model)
        if before is None:
            self._wanted[model] = wish
        elif wish.urgent:
            self._wanted[model] = replace(wish, since=before.since, why_not=before.why_not)

    def dismiss(self, model: str) -> None:
        """It was told to stop or to sleep, and is not wanted until somebody says so."""
        self.drop(model)
        self._refusals.pop(model, None)
        self._told.pop(model, None)
        self._dismissed.add(model)

    def drop(self, model: str) -> bool:
        """Not wanted any more, because it is there, or will not be. False when it was not."""
        self._causes.pop(model, None)
        return self._wanted.pop(model, None) is not None

    def withdraw(self, model: str, cause: str) -> bool:
        """Not wanted for `cause` any more. Whether nobody else wants it: then it is not wanted at all. A wish of others goes on, as
        old and as urgent as it is."""
        wish, causes = self._wanted.get(model), self._causes.get(model, {})
        if wish is None or cause not in causes:
            return False
        del causes[cause]
        if not causes:
            return self.drop(model)
        if wish.cause == cause:
            self._wanted[model] = replace(wish, cause=next(iter(causes)))
        return False

    def hold(self, model: str, reason: str) -> None:
        """It has to wait; remembered to be shown."""
        wish = self._wanted.get(model)
        if wish is not None and wish.why_not != reason:
            self._wanted[model] = replace(wish, why_not=reason)

    def moved(self, model: str) -> None:
        """Its engine changed its state: why a wish came to nothing before that explains nothing of it any more."""
        self._refusals.pop(model, None)

    def came(self, model: str) -> None:
        """It is READY, whoever wanted that: if it is refused from now on, that is news; and that it was told to stop is past."""
        self._told.pop(model, None)
        self._dismissed.discard(model)

    def refuse(self, model: str, reason: str, *, no_room: bool = False) -> bool:
        """It came to nothing before there was a process; remembered until the next wish, until its engine is in another state, and
        where it says that there can be no room, until there may be more. Whether that is news: not where the same was told before
        and nobody asked since."""
        self._refusals[model] = reason
        (self._no_room.add if no_room else self._no_room.discard)(model)
        before, self._told[model] = self._told.get(model), reason
        return before != reason

    def room_may_differ(self) -> None:
        """What there is, or who holds it for good, is not what it was: that there can be no room for somebody was said of the past."""
        for model in self._no_room:
            self._refusals.pop(model, None)
        self._no_room.clear()

    def pin(self, model: str, *, pinned: bool) -> None:
        """Whoever pins it wants it there, whatever was said of it before."""
        self.room_may_differ()
        self._pins[model] = pinned
        self._told.pop(model, None)
        if pinned:
            self._dismissed.discard(model)

    def declared(self, before: Catalog, after: Catalog) -> None:
        """The declarations are these now: one that says something new of a pin is the last word on it, and of a model that is
        gone nothing is remembered, should it ever come again."""
        self.room_may_differ()
        for old in before:
            new = after.get(old.id)
            if new is None:
                self.dismiss(old.id)
                self._dismissed.discard(old.id)
            if new != old:  # it was refused for what it was
                self._refusals.pop(old.id, None)
            if new is None or new.pinned != old.pinned:
                self._pins.pop(old.id, None)

    def in_time(self, models: Collection[str]) -> None:
        """For these it is one of their times of the week, and for no others."""
        if self._in_time != frozenset(models):
            self.room_may_differ()
        self._in_time = frozenset(models)

    def kept(self, model: str) -> bool:
        """Whether it is kept ready for its time."""
        return model in self._in_time and model not in self._dismissed

    def get(self, model: str) -> Wish | None:
        return self._wanted.get(model)

    def models(self) -> Sequence[str]:
        """Those that are wanted, longest first."""
        return tuple(self._wanted)

    def pinned(self, spec: ModelSpec) -> bool:
        """Never a victim: as somebody said, else as its declaration says."""
        return self._pins.get(spec.id, spec.pinned)

    def dismissed(self, model: str) -> bool:
        """Whether it was told to stop or to sleep, and nobody has wanted it since."""
        return model in self._dismissed

    def refusal(self, model: str) -> str:
        """Why the last wish came to nothing; empty when it did not."""
        return self._refusals.get(model, "")
