"""Models made, changed and removed over the admin API: checked, stored, and put into the running catalog."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from vllm_mm.clock import Clock
from vllm_mm.control.configuration import CheckArguments, no_check
from vllm_mm.control.declared import spec_from_api
from vllm_mm.control.in_force import InForce
from vllm_mm.domain.catalog import Catalog
from vllm_mm.domain.changes import Effect, ModelChange, version
from vllm_mm.domain.errors import BadRequest, ConfigError, Conflict, Outdated, UnknownModel
from vllm_mm.domain.specs import ModelSpec, Source
from vllm_mm.engine.manager import ProcessManager
from vllm_mm.engine.queue import InferenceQueue
from vllm_mm.settings import ModelConfig
from vllm_mm.store.models import Models


@dataclass(frozen=True, slots=True)
class Declared:
    """What became of a declaration, or would."""

    spec: ModelSpec
    change: ModelChange
    notes: tuple[str, ...] = ()
    """What could not be checked, and why."""


class Declarations:
    """One change at a time. Each is stored first and takes effect at once; models of the file are left alone.

    With `dry_run` everything is checked and nothing is changed. `match` is the version (`domain.changes.version`) that the caller
    has seen: Outdated when it is another by now.
    """

    def __init__(
        self,
        in_force: InForce,
        manager: ProcessManager,
        queue: InferenceQueue,
        store: Models,
        clock: Clock,
        check: CheckArguments = no_check,
    ) -> None:
        self._in_force = in_force
        self._manager = manager
        self._queue = queue
        self._store = store
        self._clock = clock
        self._check = check

    async def create(self, model_id: str, raw: Mapping[str, Any], cause: str, *, dry_run: bool = False) -> Declared:
        """A new model. Raises BadRequest for a declaration that cannot be used, Conflict when a name is taken."""
        async with self._in_force.changing:
            if model_id in self._in_force.declared:
                raise Conflict(f"The model `{model_id}` exists already. PUT or PATCH changes it.")
            return await self._put(model_id, raw, cause, dry_run=dry_run)

    async def copy(self, model_id: str, new_id: str, cause: str, *, dry_run: bool = False) -> Declared:
        """A model of the API's own with the declaration of another one, of the file or not, but for the names that clients use: no
        two models have the same. Raises as `create`, and UnknownModel."""
        async with self._in_force.changing:
            if new_id in self._in_force.declared:
                raise Conflict(f"The model `{new_id}` exists already. Choose another id for the copy.")
            spec = self._require(model_id)
            config = self._in_force.settings.models.get(model_id) if spec.source is Source.FILE else None
            raw = _written(config) if config is not None else await self._stored(model_id)
            raw = {name: value for name, value in raw.items() if name not in {"aliases", "lora"}}
            # Else the engine would load what the new name says.
            raw.setdefault("model", None if spec.engine == "sim" else model_id)
            return await self._put(
                new_id, {name: v for name, v in raw.items() if v is not None}, cause, dry_run=dry_run
            )

    async def replace(
        self, model_id: str, raw: Mapping[str, Any], cause: str, *, match: str | None = None, dry_run: bool = False
    ) -> Declared:
        """Another declaration. A running engine that no longer fits it finishes what it does and stops; the next one is
        made from the new declaration.

        Raises UnknownModel, BadRequest, Outdated, and Conflict for a model of the configuration file or a name that is taken.
        """
        async with self._in_force.changing:
            self._require_ours(model_id, match)
            return await self._put(model_id, raw, cause, dry_run=dry_run)

    async def patch(
        self, model_id: str, changes: Mapping[str, Any], cause: str, *, match: str | None = None, dry_run: bool = False
    ) -> Declared:
        """Like `replace`, with changes only, as in RFC 7396: members are merged, null takes a key away."""
        async with self._in_force.changing:
            self._require_ours(model_id, match)
            return await self._put(model_id, _merge(await self._stored(model_id), changes), cause, dry_run=dry_run)

    async def remove(self, model_id: str, cause: str, *, match: str | None = None, dry_run: bool = False) -> Declared:
        """Take a model away: new requests are answered 404 from now on, those that run are finished first."""
        async with self._in_force.changing:
            spec = self._require_ours(model_id, match)
            catalog = self._in_force.declared.without(model_id)
            found = self._declared(spec, catalog)
            if not dry_run:
                await self._store.delete(model_id)
                await self._in_force.put(catalog, cause)
                self._queue.fail(model_id, UnknownModel(f"The model `{model_id}` was removed by {cause}."))
            return found

    def _require(self, model_id: str) -> ModelSpec:
        catalog = self._in_force.declared
        spec = catalog.get(model_id) or catalog.resolve(model_id)
        if spec.id != model_id:
            raise UnknownModel(f"The model `{model_id}` does not exist: it is another name of `{spec.id}`.")
        return spec

    def _require_ours(self, model_id: str, match: str | None) -> ModelSpec:
        spec = self._require(model_id)
        if spec.source is Source.FILE:
            raise Conflict(
                f"The model `{model_id}` is declared in the configuration file. Change it there; "
                f"only models made over the API are changed over the API. POST /api/models/{model_id}/copy makes one of it."
            )
        if match is not None and match != version(spec):
            raise Outdated(
                f"The model `{model_id}` was changed since you looked at it. GET it again, and send its new ETag with If-Match."
            )
        return spec

    async def _stored(self, model_id: str) -> dict[str, Any]:
        stored = {model.id: model.declaration for model in await self._store.all()}
        return dict(stored.get(model_id, {}))

    async def _put(self, model_id: str, raw: Mapping[str, Any], cause: str, *, dry_run: bool) -> Declared:
        spec = spec_from_api(model_id, raw, self._in_force.settings)
        checked = await self._check((spec,))
        if checked.wrong:
            told = "; ".join(f"args.{name}: {what}" for _, name, what in checked.wrong)
            raise BadRequest(told, param=f"args.{checked.wrong[0][1]}")
        try:
            catalog = self._in_force.declared.with_spec(spec)
            found = self._declared(spec, catalog)
        except ConfigError as error:
            raise Conflict(f"{error.message[:1].upper()}{error.message[1:]}.") from error
        await self._manager.prepare((spec,))
        if not dry_run:
            await self._store.put(model_id, raw, by=cause, now=self._clock.wall())
            await self._in_force.put(catalog, cause)
        return replace(found, notes=checked.notes)

    def _declared(self, spec: ModelSpec, catalog: Catalog) -> Declared:
        """Raises ConfigError for a name that is taken."""
        found = {c.model: c for c in self._in_force.look(catalog)}
        return Declared(spec, found.get(spec.id, ModelChange(spec.id, Effect.UPDATED)))


def _written(config: ModelConfig) -> dict[str, Any]:
    """What a model of the file says itself, as it would be sent."""
    return config.model_dump(mode="json", exclude_unset=True)


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
