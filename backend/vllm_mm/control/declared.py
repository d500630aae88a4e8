"""From what was declared, in the configuration file or over the admin API, to the specs that everything else works with."""

from collections.abc import Mapping
from typing import Any

from vllm_mm.domain import schedules
from vllm_mm.domain.catalog import Catalog
from vllm_mm.domain.errors import BadRequest, ConfigError
from vllm_mm.domain.profiles import Profile
from vllm_mm.domain.request_rules import Level, RuleSet, rule_set
from vllm_mm.domain.specs import (
    DeviceWish,
    EngineKind,
    IdlePolicy,
    LauncherKind,
    ModelSpec,
    RetryPolicy,
    SleepMode,
    SleepSpec,
    Source,
    StartLimits,
    Task,
)
from vllm_mm.domain.usage import Price
from vllm_mm.settings import DefaultsConfig, ModelConfig, ProfileConfig, Section, Settings, SettingsError, parse_model
from vllm_mm.settings.models import LoraConfig, RequestRulesConfig


def spec(model_id: str, model: ModelConfig, defaults: DefaultsConfig, source: Source = Source.FILE) -> ModelSpec:
    """The spec of one model: what it says itself, over the defaults."""
    engine = model.engine or defaults.engine
    own_args = {**defaults.args, **model.args} if engine == "vllm" else dict(model.args)
    wish = model.devices
    return ModelSpec(
        id=model_id,
        engine=EngineKind(engine),
        model=model.model,
        executable=model.executable or defaults.executable,
        launcher=LauncherKind(model.launcher or defaults.launcher),
        args={name: value for name, value in own_args.items() if value is not None},
        env={**defaults.env, **model.env},
        command=model.command,
        sim=model.sim,
        task=Task(model.task),
        aliases=tuple(name for path, name, _ in model.names() if path[0] == "aliases"),
        devices=DeviceWish(count=wish.count or len(wish.ids) or 1, ids=wish.ids),
        memory=model.memory,
        kv_cache=model.kv_cache,
        pinned=model.pinned,
        preload=model.preload,
        schedule=model.schedule,
        priority=model.priority,
        concurrency=model.concurrency or defaults.concurrency,
        progress=defaults.progress if model.progress is None else model.progress,
        stream_usage=defaults.stream_usage if model.stream_usage is None else model.stream_usage,
        idle=IdlePolicy(**_merged(defaults.idle, model.idle)),
        start=StartLimits(**_merged(defaults.start, model.start)),
        retry=RetryPolicy(**_merged(defaults.retry, model.retry)),
        sleep=_sleep(_merged(defaults.sleep, model.sleep)),
        request_defaults=model.request_defaults,
        request_overrides=model.request_overrides,
        request_limits=_limits(model),
        request_rules=_request_rules(model_id, model, defaults),
        lora={n: adapter.path if isinstance(adapter, LoraConfig) else adapter for n, adapter in model.lora.items()},
        price=None if model.price is None else Price(**model.price.model_dump()),
        source=source,
    )


def profile(name: str, said: ProfileConfig) -> Profile:
    """A profile of the configuration."""
    return Profile(name, said.pins, said.preloads, dict(said.aliases), tuple(schedules.parse(t) for t in said.schedule))


def catalog(settings: Settings, stored: Mapping[str, Mapping[str, Any]] | None = None) -> Catalog:
    """All models: those of the file, and those of the database (`stored`: id to declaration) that the file does not have.

    The file wins over a stored model with the same id. Raises ConfigError when names clash or a stored declaration
    no longer fits the configuration; `usable` sorts those out beforehand.
    """
    declared = [spec(model_id, model, settings.defaults) for model_id, model in settings.models.items()]
    for model_id, raw in (stored or {}).items():
        if model_id in settings.models:
            continue
        try:
            declared.append(spec_from_api(model_id, raw, settings))
        except BadRequest as e:
            raise ConfigError(f"the model {model_id!r}, made over the API, cannot be used: {e.message}") from e
    return Catalog(declared)


def usable(
    settings: Settings, stored: Mapping[str, Mapping[str, Any]]
) -> tuple[dict[str, Mapping[str, Any]], dict[str, str]]:
    """The stored declarations that can be used together with `settings`, and for the others the reason why not.

    A start must not fail because of one: the configuration may have changed since it was stored.
    """
    good: dict[str, Mapping[str, Any]] = {}
    bad: dict[str, str] = {}
    known = catalog(settings)
    for model_id, raw in stored.items():
        if model_id in settings.models:
            bad[model_id] = "the configuration file has a model with this id"
            continue
        try:
            known = known.with_spec(spec_from_api(model_id, raw, settings))
        except (BadRequest, ConfigError) as e:
            bad[model_id] = e.message
        else:
            good[model_id] = raw
    return good, bad


def model_config_from_api(model_id: str, raw: Mapping[str, Any], settings: Settings) -> ModelConfig:
    """The body of a request that declares a model. Raises BadRequest that names every wrong field and the nearest right one."""
    try:
        return parse_model(model_id, raw, settings)
    except SettingsError as e:
        first = e.problems[0].path
        raise BadRequest("; ".join(str(p) for p in e.problems), param=".".join(map(str, first)) or None) from e


def spec_from_api(model_id: str, raw: Mapping[str, Any], settings: Settings) -> ModelSpec:
    """As `model_config_from_api`, as far as the spec."""
    return spec(model_id, model_config_from_api(model_id, raw, settings), settings.defaults, Source.API)


def _request_rules(model_id: str, model: ModelConfig, defaults: DefaultsConfig) -> dict[str, RuleSet]:
    """What is said for all models, with what the model says over it, and over that what is said for one of its names."""
    everywhere = _rule_set(Level.MODEL, model).over(_rule_set(Level.SYSTEM, defaults))
    names = {model_id: everywhere}
    for _, name, own in model.names():
        names[name] = everywhere if own is None else _rule_set(Level.ALIAS, own).over(everywhere)
    return {name: rules for name, rules in names.items() if rules}


def _rule_set(level: Level, said: RequestRulesConfig) -> RuleSet:
    return rule_set(level, said.request_defaults, said.request_overrides, _limits(said))


def _limits(said: RequestRulesConfig) -> dict[str, Any]:
    return said.request_limits.model_dump(exclude_unset=True)


def _sleep(values: Mapping[str, Any]) -> SleepSpec:
    return SleepSpec(SleepMode(values["mode"]), values["level"], values["keeps"])


def _merged(defaults: Section, own: Section) -> dict[str, Any]:
    """The defaults, overlaid with what was set explicitly (null included: it means never)."""
    values = {name: getattr(defaults, name) for name in type(defaults).model_fields}
    return values | {name: getattr(own, name) for name in own.model_fields_set}
