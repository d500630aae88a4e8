"""Apply a changed configuration: the difference, and nothing else."""

from collections.abc import Iterator
from dataclasses import dataclass

from vllm_mm.domain.catalog import Catalog
from vllm_mm.engine.manager import ProcessManager
from vllm_mm.settings import Section, Settings


@dataclass(frozen=True, slots=True)
class Difference:
    """Model ids by what happens to them."""

    added: tuple[str, ...]
    removed: tuple[str, ...]
    restarted: tuple[str, ...]
    """Their process depends on something that changed: they drain, stop, and are new when next wanted."""
    updated: tuple[str, ...]
    """Something else changed (a pin, a priority): their engine does not notice."""

    def __str__(self) -> str:
        parts = {
            "added": self.added,
            "removed": self.removed,
            "new when next wanted": self.restarted,
            "changed in place": self.updated,
        }
        return (
            "; ".join(f"{what}: {', '.join(models)}" for what, models in parts.items() if models) or "no model changed"
        )


def difference(before: Catalog, after: Catalog) -> Difference:
    old, new = {s.id: s for s in before}, {s.id: s for s in after}
    common = [m for m in old if m in new and old[m] != new[m]]
    return Difference(
        added=tuple(m for m in new if m not in old),
        removed=tuple(m for m in old if m not in new),
        restarted=tuple(m for m in common if old[m].fingerprint != new[m].fingerprint),
        updated=tuple(m for m in common if old[m].fingerprint == new[m].fingerprint),
    )


_AT_ONCE = frozenset({"models", "defaults"})
"""The sections of the configuration that a reload applies."""


def at_restart(before: Settings, after: Settings) -> tuple[str, ...]:
    """The settings that differ and take effect only when the server is started again, as dotted keys."""
    return tuple(_differing(before, after, "", _AT_ONCE))


def _differing(before: Section, after: Section, prefix: str, skip: frozenset[str] = frozenset()) -> Iterator[str]:
    for name in type(before).model_fields:
        old, new = getattr(before, name), getattr(after, name)
        if name in skip or old == new:
            continue
        if isinstance(old, Section) and isinstance(new, Section):
            yield from _differing(old, new, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}"


async def apply(manager: ProcessManager, catalog: Catalog, cause: str) -> Difference:
    """Make `catalog` the one in force. Streams on models that go are let finish; nothing else is disturbed."""
    diff = difference(manager.catalog, catalog)
    manager.set_catalog(catalog)
    for instance in manager.instances():
        model = instance.spec.id
        if model in diff.removed or model in diff.restarted:
            await manager.retire(model, cause)
        spec = catalog.get(model)
        if spec is not None:  # one that was removed earlier and comes back included, and one that is as it was before
            instance.replace_spec(spec)
    return diff
