"""Models made, changed and removed over the admin API: checked, stored, and put into the running catalog."""

import asyncio
from collections.abc import Mapping
from typing import Any

from vllm_mm.clock import Clock
from vllm_mm.control.declared import spec_from_api
from vllm_mm.control.reload import apply
from vllm_mm.domain.errors import BadRequest, ConfigError, Conflict, UnknownModel
from vllm_mm.domain.specs import ModelSpec, Source
from vllm_mm.engine.manager import ProcessManager
from vllm_mm.engine.queue import InferenceQueue
from vllm_mm.settings import Settings
from vllm_mm.store.models import Models


class Declarations:
    """One change at a time. Each is stored first and takes effect at once; models of the file are left alone."""

    def __init__(
        self, manager: ProcessManager, queue: InferenceQueue, store: Models, settings: Settings, clock: Clock
    ) -> None:
        self._manager = manager
        self._queue = queue
        self._store = store
        self._settings = settings
        self._clock = clock
        self._change = asyncio.Lock()

    def use(self, settings: Settings) -> None:
        """The configuration was reloaded: new declarations are checked against it."""
        self._settings = settings

    async def create(self, model_id: str, raw: Mapping[str, Any], cause: str) -> ModelSpec:
        """A new model. Raises BadRequest for a declaration that cannot be used, Conflict when a name is taken."""
        async with self._change:
            if model_id in self._manager.catalog:
                raise Conflict(f"The model `{model_id}` exists already. PUT or PATCH changes it.")
            return await self._put(model_id, raw, cause)

    async def replace(self, model_id: str, raw: Mapping[str, Any], cause: str) -> ModelSpec:
        """Another declaration. A running engine that no longer fits it finishes what it does and stops; the next one is
        made from the new declaration.

        Raises UnknownModel, BadRequest, and Conflict for a model of the configuration file or a name that is taken.
        """
        async with self._change:
            self._require_ours(model_id)
            return await self._put(model_id, raw, cause)

    async def patch(self, model_id: str, changes: Mapping[str, Any], cause: str) -> ModelSpec:
        """Like `replace`, with changes only, as in RFC 7396: members are merged, null takes a key away."""
        async with self._change:
            self._require_ours(model_id)
            stored = {model.id: model.declaration for model in await self._store.all()}
            return await self._put(model_id, _merge(stored.get(model_id, {}), changes), cause)

    async def remove(self, model_id: str, cause: str) -> ModelSpec:
        """Take a model away: new requests are answered 404 from now on, those that run are finished first."""
        async with self._change:
            spec = self._require_ours(model_id)
            await self._store.delete(model_id)
            await apply(self._manager, self._manager.catalog.without(model_id), cause)
            self._queue.fail(model_id, UnknownModel(f"The model `{model_id}` was removed by {cause}."))
            return spec

    def _require_ours(self, model_id: str) -> ModelSpec:
        catalog = self._manager.catalog
        spec = catalog.get(model_id) or catalog.resolve(model_id)
        if spec.id != model_id:
            raise UnknownModel(f"The model `{model_id}` does not exist: it is another name of `{spec.id}`.")
        if spec.source is Source.FILE:
            raise Conflict(
                f"The model `{model_id}` is declared in the configuration file. Change it there; "
                "only models made over the API are changed over the API."
            )
        return spec

    async def _put(self, model_id: str, raw: Mapping[str, Any], cause: str) -> ModelSpec:
        spec = spec_from_api(model_id, raw, self._settings)
        try:
            catalog = self._manager.catalog.with_spec(spec)
        except ConfigError as error:
            raise Conflict(f"{error.message[:1].upper()}{error.message[1:]}.") from error
        await self._store.put(model_id, raw, by=cause, now=self._clock.wall())
        await apply(self._manager, catalog, cause)
        for instance in self._manager.instances():
            # One that was removed and is made again comes back to the instance that it had.
            if instance.spec.id == model_id:
                instance.replace_spec(spec)
        return spec


def _merge(old: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(old)
    for name, value in changes.items():
        if value is None:
            merged.pop(name, None)
        elif isinstance(value, Mapping):
            inner = merged.get(name)
            merged[name] = _merge(inner if isinstance(inner, Mapping) else {}, value)  # pyright: ignore[reportUnknownArgumentType]  # JSON
        else:
            merged[name] = value
    return merged


def declared_id(body: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """The `id` of a body that makes a model, and the rest of it. Raises BadRequest."""
    model_id = body.get("id")
    if not isinstance(model_id, str):
        raise BadRequest('"id" is missing: the name that clients will use for the model', param="id")
    return model_id, {name: value for name, value in body.items() if name != "id"}
