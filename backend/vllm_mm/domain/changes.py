"""What another declaration comes to, before and after it is applied: which models it touches, in what, and whether their engines
notice. Pure."""

import hashlib
import json
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, fields, is_dataclass
from enum import StrEnum
from typing import cast

from vllm_mm.domain.request_rules import RuleSet
from vllm_mm.domain.specs import ModelSpec

_NOT_SHOWN = frozenset({"id"})
"""Fields of a spec that are no part of its declaration."""


class Effect(StrEnum):
    """What becomes of the model and its engine."""

    NEW = "new"
    REMOVED = "removed"
    """Nobody can ask for it any more; its engine finishes what runs and stops."""
    RESTARTED = "restarted"
    """Its process depends on something that changed: it finishes what runs and stops, and is new when next wanted.
    One that does not run is new at its next start."""
    UPDATED = "updated"
    """Something else changed (a pin, a priority): its engine does not notice."""


@dataclass(frozen=True, slots=True)
class FieldChange:
    """One key of a declaration, with the defaults laid under it."""

    key: str
    """As in the configuration: `args.max-model-len`."""
    before: object
    """None where it was not there."""
    after: object


@dataclass(frozen=True, slots=True)
class ModelChange:
    """What changes of one model."""

    model: str
    effect: Effect
    fields: tuple[FieldChange, ...] = ()
    """Empty for a model that is new or removed."""
    running: bool = False
    """It has an engine that has to go for it."""

    @property
    def text(self) -> str:
        """The effect, for people."""
        match self.effect:
            case Effect.NEW:
                return "new"
            case Effect.REMOVED:
                return "removed: drains and stops" if self.running else "removed"
            case Effect.RESTARTED if self.running:
                return f"restarts {self.model} after drain, when it is next wanted"
            case Effect.RESTARTED:
                return "it does not run: its next start is the new one"
            case _:
                return "no restart"


def change(before: ModelSpec | None, after: ModelSpec | None, *, running: bool = False) -> ModelChange | None:
    """From one declaration of a model to another; None stands for no such model, and as an answer for no difference."""
    if after is None:
        return None if before is None else ModelChange(before.id, Effect.REMOVED, running=running)
    if before is None:
        return ModelChange(after.id, Effect.NEW)
    if before == after:
        return None
    effect = Effect.RESTARTED if before.fingerprint != after.fingerprint else Effect.UPDATED
    return ModelChange(
        after.id, effect, tuple(_differences(before, after)), running=running and effect is Effect.RESTARTED
    )


def changes(
    before: Iterable[ModelSpec], after: Iterable[ModelSpec], running: Collection[str] = ()
) -> tuple[ModelChange, ...]:
    """Of all models, those that are there afterwards first. `running`: ids of those that have an engine."""
    old, new = {s.id: s for s in before}, {s.id: s for s in after}
    found = (change(old.get(m), new.get(m), running=m in running) for m in (*new, *(m for m in old if m not in new)))
    return tuple(c for c in found if c is not None)


def summary(found: Iterable[ModelChange]) -> str:
    """In a line, for a log."""
    names = {
        Effect.NEW: "added", Effect.REMOVED: "removed", Effect.RESTARTED: "new when next wanted",
        Effect.UPDATED: "changed in place",
    }  # fmt: skip
    by_effect = {effect: [c.model for c in found if c.effect is effect] for effect in names}
    parts = [f"{names[effect]}: {', '.join(models)}" for effect, models in by_effect.items() if models]
    return "; ".join(parts) or "no model changed"


def version(spec: ModelSpec) -> str:
    """16 hex digits that are others for every other declaration of a model, for those who change only what they have seen."""
    declared = {name: value for name, value in asdict(spec).items() if name != "nicknames"}
    return hashlib.sha256(json.dumps(declared, sort_keys=True, default=str).encode()).hexdigest()[:16]


def _differences(before: ModelSpec, after: ModelSpec) -> Iterator[FieldChange]:
    old, new = dict(_leaves("", before)), dict(_leaves("", after))
    for key in (*new, *(k for k in old if k not in new)):
        if old.get(key) != new.get(key):
            yield FieldChange(key, old.get(key), new.get(key))


def _leaves(prefix: str, value: object) -> Iterator[tuple[str, object]]:
    """Every value that stands for itself, with its key; an empty mapping has none."""
    inner: Mapping[str, object]
    if isinstance(value, RuleSet):  # as one list: where a rule was said is a part of it
        yield prefix, [f"{r.kind} {'.'.join(r.path)} = {json.dumps(r.value)} ({r.source})" for r in value.rules()]
        return
    if isinstance(value, Mapping):
        inner = cast("Mapping[str, object]", value)
    elif is_dataclass(value) and not isinstance(value, type):
        inner = {f.name: getattr(value, f.name) for f in fields(value) if prefix or f.name not in _NOT_SHOWN}
    else:
        yield prefix, value
        return
    for name, item in inner.items():
        yield from _leaves(f"{prefix}.{name}" if prefix else name, item)
