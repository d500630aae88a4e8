"""Every name a client may use, and the model it stands for. Immutable: a change of configuration makes a new one."""

from collections.abc import Iterable, Iterator, Mapping
from difflib import get_close_matches

from vllm_mm.domain.errors import ConfigError, UnknownModel
from vllm_mm.domain.specs import ModelSpec


class Catalog:
    """Specs by id, and ids by name (id, alias or LoRA adapter)."""

    __slots__ = ("_by_name", "_specs")

    def __init__(self, specs: Iterable[ModelSpec] = ()) -> None:
        """Raises ConfigError when two models claim the same name."""
        self._specs: dict[str, ModelSpec] = {}
        self._by_name: dict[str, ModelSpec] = {}
        for spec in specs:
            if spec.id in self._specs:
                raise ConfigError(f"two models have the id {spec.id!r}; give one of them another id")
            self._specs[spec.id] = spec
        for spec in self._specs.values():
            for name in (*spec.served_names, *spec.lora):
                other = self._by_name.get(name)
                if other is not None and other.id != spec.id:
                    raise ConfigError(f"{name!r} names both {other.id!r} and {spec.id!r}; remove it from one of them")
                self._by_name[name] = spec
        for spec in self._specs.values():  # they take an alias away from whoever has it, an id from nobody
            for name in spec.nicknames:
                if name in self._specs and name != spec.id:
                    raise ConfigError(f"{name!r} is to be a name of {spec.id!r}, but it is the id of a model")
                self._by_name[name] = spec

    def resolve(self, name: str) -> ModelSpec:
        """The spec that `name` stands for. Raises UnknownModel, naming the nearest known name."""
        spec = self._by_name.get(name)
        if spec is None:
            near = self._nearest(name) if len(name) <= 200 else None
            hint = f" Did you mean `{near}`?" if near is not None else " GET /v1/models lists what there is."
            shown = name if len(name) <= 200 else f"{name[:200]}..."
            raise UnknownModel(f"The model `{shown}` does not exist.{hint}")
        return spec

    def _nearest(self, name: str) -> str | None:
        """Whatever the case of its letters; one that differs in nothing else goes before all others."""
        lower = {known.lower(): known for known in self._by_name}
        if (same := lower.get(name.lower())) is not None:
            return same
        near = get_close_matches(name, self._by_name, n=1) or get_close_matches(name.lower(), lower, n=1)
        return lower[near[0].lower()] if near else None

    def get(self, model: str) -> ModelSpec | None:
        """By id only."""
        return self._specs.get(model)

    def names(self) -> Mapping[str, ModelSpec]:
        return self._by_name

    def with_spec(self, spec: ModelSpec) -> "Catalog":
        """Added, or put in place of the one with the same id."""
        return Catalog([*(s for s in self if s.id != spec.id), spec])

    def without(self, model: str) -> "Catalog":
        return Catalog(s for s in self if s.id != model)

    def __iter__(self) -> Iterator[ModelSpec]:
        return iter(self._specs.values())

    def __len__(self) -> int:
        return len(self._specs)

    def __contains__(self, model: object) -> bool:
        return model in self._specs
