"""Apply changed declarations: the difference, and nothing else."""

from collections.abc import Collection

from vllm_mm.domain.catalog import Catalog
from vllm_mm.domain.changes import Effect, ModelChange, changes
from vllm_mm.domain.lifecycle import State
from vllm_mm.domain.reasons import Reason, of_event
from vllm_mm.engine.manager import ProcessManager

_NO_ENGINE = frozenset({State.STOPPED, State.BACKOFF, State.FAILED})


def difference(manager: ProcessManager, catalog: Catalog) -> tuple[ModelChange, ...]:
    """What `apply` would do now."""
    return changes(manager.catalog, catalog, _running(manager))


async def apply(manager: ProcessManager, catalog: Catalog, cause: str) -> tuple[ModelChange, ...]:
    """Make `catalog` the one in force. Streams on models that go are let finish; nothing else is disturbed. `cause`: who or what wants it; where
    that is no reason by itself (`SIGHUP`), that of the models is that they were declared anew."""
    why = cause if of_event("", cause, "") is not None else Reason.RELOAD.because(cause)
    found = difference(manager, catalog)
    going = {c.model for c in found if c.effect in {Effect.REMOVED, Effect.RESTARTED}}
    manager.set_catalog(catalog)
    for instance in manager.instances():
        model = instance.spec.id
        if model in going:
            await manager.retire(model, why)
        spec = catalog.get(model)
        if spec is not None:  # one that was removed earlier and comes back included, and one that is as it was before
            instance.replace_spec(spec)
    return found


def _running(manager: ProcessManager) -> Collection[str]:
    return {i.spec.id for i in manager.instances() if i.state not in _NO_ENGINE}
