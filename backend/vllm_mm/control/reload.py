"""Apply a changed configuration: the difference, and nothing else."""

from dataclasses import dataclass

from vllm_mm.domain.catalog import Catalog
from vllm_mm.engine.manager import ProcessManager


@dataclass(frozen=True, slots=True)
class Difference:
    """Model ids by what happens to them."""

    added: tuple[str, ...]
    removed: tuple[str, ...]
    restarted: tuple[str, ...]
    """Their process depends on something that changed: they drain, stop, and are new when next wanted."""
    updated: tuple[str, ...]
    """Something else changed (a pin, a priority): their engine does not notice."""


def difference(before: Catalog, after: Catalog) -> Difference:
    old, new = {s.id: s for s in before}, {s.id: s for s in after}
    common = [m for m in old if m in new and old[m] != new[m]]
    return Difference(
        added=tuple(m for m in new if m not in old),
        removed=tuple(m for m in old if m not in new),
        restarted=tuple(m for m in common if old[m].fingerprint != new[m].fingerprint),
        updated=tuple(m for m in common if old[m].fingerprint == new[m].fingerprint),
    )


async def apply(manager: ProcessManager, catalog: Catalog, cause: str) -> Difference:
    """Make `catalog` the one in force. Streams on models that go are let finish; nothing else is disturbed."""
    diff = difference(manager.catalog, catalog)
    manager.set_catalog(catalog)
    for instance in manager.instances():
        model = instance.spec.id
        if model in diff.removed or model in diff.restarted:
            await manager.retire(model, cause)
        spec = catalog.get(model)
        if spec is not None and spec != instance.spec:  # one that was removed earlier and comes back included
            instance.replace_spec(spec)
    return diff
