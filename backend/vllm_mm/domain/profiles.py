"""Profiles: named sets of pins, preloads and aliases, one of which is active at a time, or none. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, tzinfo

from vllm_mm.domain import schedules
from vllm_mm.domain.catalog import Catalog
from vllm_mm.domain.schedules import Window
from vllm_mm.domain.specs import ModelSpec


@dataclass(frozen=True, slots=True)
class Profile:
    """What holds of the models while it is active, laid over what they say themselves."""

    name: str
    pins: tuple[str, ...] | None = None
    """The models that are pinned, and no others; None leaves pins as they are declared."""
    preloads: tuple[str, ...] | None = None
    """The models that are loaded when it becomes active or the server starts, and no others; None as for `pins`."""
    aliases: Mapping[str, str] = field(default_factory=dict[str, str])
    """More names that clients may use, each with the model that it stands for. One that is an alias of another model is taken from it."""
    windows: tuple[Window, ...] = ()
    """Times of the week in which it is active by itself."""


def missing(catalog: Catalog, profile: Profile) -> tuple[str, ...]:
    """The models that it names and that are not there, in the order of their names."""
    named = {*(profile.pins or ()), *(profile.preloads or ()), *profile.aliases.values()}
    return tuple(sorted(name for name in named if name not in catalog))


def overlaid(declared: Catalog, profile: Profile | None) -> Catalog:
    """The models as they are while `profile` is active. What it says of models that are not there has no effect.

    Raises ConfigError for an alias that is the id of another model.
    """
    if profile is None:
        return declared
    names: dict[str, list[str]] = {}
    for alias, model in profile.aliases.items():
        names.setdefault(model, []).append(alias)
    return Catalog(_overlaid(spec, profile, names.get(spec.id, ())) for spec in declared)


def _overlaid(spec: ModelSpec, profile: Profile, aliases: Sequence[str]) -> ModelSpec:
    nicknames = tuple(name for name in aliases if name not in (*spec.served_names, *spec.lora))
    own = spec.request_rules.get(spec.id)
    return replace(
        spec,
        pinned=spec.pinned if profile.pins is None else spec.id in profile.pins,
        preload=spec.preload if profile.preloads is None else spec.id in profile.preloads,
        nicknames=nicknames,
        request_rules={**spec.request_rules, **({} if own is None else dict.fromkeys(nicknames, own))},
    )


def scheduled(profiles: Sequence[Profile], now: datetime, zone: tzinfo | None) -> str | None:
    """The name of the first one whose time it is at `now` (which has a time zone); None when it is no one's. `zone` None is that
    of the machine."""
    return next((p.name for p in profiles if schedules.is_open(p.windows, now, zone)), None)
