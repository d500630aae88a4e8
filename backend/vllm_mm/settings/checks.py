"""What a shape alone cannot tell: values that contradict each other. Each finding has its key path and what to do."""

import math
from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from ipaddress import ip_address
from typing import Any, TypeAlias

from vllm_mm.settings.fleet import DeviceConfig
from vllm_mm.settings.models import DefaultsConfig, IdleConfig, ModelConfig
from vllm_mm.settings.nodes import KeyPath
from vllm_mm.settings.request_rules import check_rules, check_rules_of_model
from vllm_mm.settings.root import Settings
from vllm_mm.settings.values import check_model_values, check_values, placeholders
from vllm_mm.vocabulary.profile import problems
from vllm_mm.vocabulary.quantities import parse_size

Finding: TypeAlias = tuple[KeyPath, str]

OWN_ARGUMENTS = frozenset({"host", "port", "uds", "served-model-name"})
"""Arguments of `vllm serve` that the controller sets itself."""


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach a server on `host`."""
    if host == "localhost":
        return True
    try:
        return ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def check(settings: Settings) -> list[Finding]:
    """Everything that is contradictory in `settings`."""
    return [
        *check_values(settings),
        *_server(settings),
        *_devices(settings),
        *_names(settings),
        *_models(settings),
        *_profiles(settings),
    ]


def check_model(
    model: ModelConfig, defaults: DefaultsConfig, devices: tuple[DeviceConfig, ...] | None
) -> list[Finding]:
    """Everything that is contradictory in one model; `devices` are the listed ones, None when they are found at start."""
    return [
        *check_model_values(model), *_engine(model, defaults), *_wish(model, model.engine or defaults.engine, devices), *_profile(model), *_sleep(model),
        *check_rules_of_model(model),
    ]  # fmt: skip


def _profile(model: ModelConfig) -> Iterator[Finding]:
    """What the simulated engine would refuse at its start."""
    for key, message in problems(model.sim):
        yield ("sim", key), message


def _sleep(model: ModelConfig) -> Iterator[Finding]:
    keeps, memory = model.sleep.keeps, model.memory
    if keeps is not None and memory is not None and keeps >= memory:
        yield ("sleep", "keeps"), "has to be smaller than `memory`, else sleep gives nothing back; or use `mode: never`"


def without_effect(settings: Settings) -> Iterator[Finding]:
    """What may be set and does nothing: in this version (docs/configuration.md says the same), or where it stands."""
    if "max_age" in settings.cors.model_fields_set:
        yield ("cors", "max_age"), "has no effect yet: preflights are not answered"
    for model_id, model in settings.models.items():
        launcher = model.launcher or settings.defaults.launcher
        if launcher == "warm" and (model.engine or settings.defaults.engine) == "command":
            yield ("models", model_id, "launcher"), "`warm` has no effect on a `command` engine, it is started locally"
    yield from _never_reached(settings)
    yield from _unknown_models(settings)


def _never_reached(settings: Settings) -> Iterator[Finding]:
    """Times of which the other is always over first, and sizes that another one shows to be wrong."""
    if settings.queue.max_wait > settings.queue.request_timeout:
        yield (
            ("queue", "max_wait"),
            "is longer than `queue.request_timeout`, which ends such a wait before; raise that, or wait less",
        )
    yield from _idle(("defaults",), settings.defaults.idle, settings.defaults.idle)
    for model_id, model in settings.models.items():
        base: KeyPath = ("models", model_id)
        if model.idle.model_fields_set:
            yield from _idle(base, model.idle, settings.defaults.idle)
        weights, ranks = model.sim.get("weights"), model.devices.count or len(model.devices.ids) or 1
        if model.memory is not None and _size(weights) > model.memory * ranks:
            yield (
                (*base, "memory"),
                f"is less than its weights alone (`sim.weights` is {weights}); give it more, or leave `memory` out",
            )


def _idle(base: KeyPath, idle: IdleConfig, defaults: IdleConfig) -> Iterator[Finding]:
    def of(name: str) -> float | None:
        return getattr(idle if name in idle.model_fields_set else defaults, name)

    sleep, stop = of("sleep_after"), of("stop_after")
    if sleep is not None and stop is not None and sleep > stop:
        yield (
            (*base, "idle", "sleep_after"),
            "is later than `stop_after`: it is stopped before it could sleep; make `stop_after` later, or write null for one of them",
        )


def _size(value: object) -> int:
    try:
        return parse_size(value)
    except ValueError:  # `_profile` tells of it
        return 0


def _server(settings: Settings) -> Iterator[Finding]:
    auth, host = settings.auth, settings.server.host
    if auth.mode == "none" and not auth.force and not is_loopback(host):
        yield (
            ("auth", "mode"),
            (
                f"`none` on {host} would let everybody on the network in; set `server.host` to 127.0.0.1, "
                "use `keys`, or set `auth.force: true` when something in front of it guards it"
            ),
        )
    if auth.proxy.addresses and not auth.proxy.scopes:
        yield (
            ("auth", "proxy", "scopes"),
            "says what everybody may do whom the proxy names; write it, such as `scopes: [read]`",
        )


def _devices(settings: Settings) -> Iterator[Finding]:
    if isinstance(settings.devices, str):
        return
    if not settings.devices:
        yield ("devices",), "an empty list leaves nothing to run models on; write `auto`, `cpu` or at least one device"
    seen: set[str] = set()
    for i, device in enumerate(settings.devices):
        if device.id in seen:
            yield ("devices", i, "id"), f"{device.id!r} is listed already; remove one"
        seen.add(device.id)
        if device.simulated and device.memory is None:
            yield ("devices", i), "a simulated device needs its `memory`, such as `memory: 24GiB`"
        if device.memory and device.headroom is not None and device.headroom >= device.memory:
            yield ("devices", i, "headroom"), "has to be smaller than `memory`, else nothing fits"


def _names(settings: Settings) -> Iterator[Finding]:
    owners: dict[str, str] = dict.fromkeys(settings.models, "")
    for model_id, model in settings.models.items():
        base: KeyPath = ("models", model_id)
        for path, name, _ in model.names():
            if name in owners:
                owner = owners[name] or name
                yield (*base, *path), f"{name!r} is a name of the model {owner!r} already; remove it from one of them"
            owners.setdefault(name, model_id)


def _profiles(settings: Settings) -> Iterator[Finding]:
    for name, profile in settings.profiles.items():
        for alias, model in profile.aliases.items():
            path: KeyPath = ("profiles", name, "aliases", alias)
            if alias in settings.models and alias != model:
                yield path, f"{alias!r} is the id of a model, which keeps it; choose another alias"
            elif any(alias in other.lora for other in settings.models.values()):
                yield path, f"{alias!r} is the name of a LoRA adapter, which keeps it; choose another alias"


def _unknown_models(settings: Settings) -> Iterator[Finding]:
    """No error: they may be made over the API."""
    for name, profile in settings.profiles.items():
        named = {"pins": profile.pins or (), "preloads": profile.preloads or (), "aliases": profile.aliases.values()}
        for key, models in named.items():
            for model in dict.fromkeys(models):
                if model not in settings.models:
                    near = get_close_matches(model, settings.models, n=1)
                    hint = f"did you mean `{near[0]}`?" if near else "it has no effect until one is made over the API"
                    yield ("profiles", name, key), f"{model!r} is no model of this file; {hint}"


def _models(settings: Settings) -> Iterator[Finding]:
    for name, value in settings.defaults.args.items():
        yield from _argument(("defaults", "args"), name, value)
    yield from _kv_cache_space(("defaults", "env"), settings.defaults.env)
    yield from check_rules(("defaults",), settings.defaults)
    listed = None if isinstance(settings.devices, str) else settings.devices
    for model_id, model in settings.models.items():
        for path, message in check_model(model, settings.defaults, listed):
            yield ("models", model_id, *path), message


def _argument(path: KeyPath, name: str, value: Any) -> Iterator[Finding]:
    plain = name.lstrip("-").replace("_", "-")
    if name.startswith("-"):
        yield (*path, name), f"write it without the dashes: `{name.lstrip('-')}`"
    elif plain in OWN_ARGUMENTS:
        yield (*path, name), f"vllm-mm sets `--{plain}` itself; remove it"
    elif plain == "gpu-memory-utilization" and value is not None and not 0 < _number(value) <= 1:
        yield (*path, name), f"{value!r} is no fraction of a device's memory; write it like 0.9"


def _kv_cache_space(path: KeyPath, env: Mapping[str, str]) -> Iterator[Finding]:
    """Memory is reserved from it before the engine could say that it is wrong."""
    name = "VLLM_CPU_KVCACHE_SPACE"
    if env.get(name) and not 0 <= _number(env[name]) < math.inf:
        yield (*path, name), f"{env[name]!r} is not a number of GiB; write it like 4"


def _number(value: Any) -> float:
    """NaN for what is none."""
    try:
        return math.nan if isinstance(value, bool) else float(value)
    except (TypeError, ValueError):
        return math.nan


def _engine(model: ModelConfig, defaults: DefaultsConfig) -> Iterator[Finding]:
    engine = model.engine or defaults.engine
    if engine == "command":
        if not model.command:
            yield ("command",), "a `command` engine needs its argument list"
        elif not placeholders(model.command) & {"port", "socket"}:
            yield ("command",), "has to contain `{port}` (or `{socket}`): the engine must listen where it is told to"
    elif model.command:
        yield ("command",), f"is for `engine: command`, but this is a `{engine}` engine"
    if engine != "sim" and model.sim:
        yield ("sim",), f"is for `engine: sim`, but this is a `{engine}` engine"
    if engine != "vllm" and model.args:
        yield ("args",), f"is for `engine: vllm`, but this is a `{engine}` engine"
    if engine != "vllm" and model.executable is not None:
        yield ("executable",), f"is for `engine: vllm`, but this is a `{engine}` engine"
    for name, value in model.args.items():
        yield from _argument(("args",), name, value)
    yield from _kv_cache_space(("env",), model.env)


def _simulated(ids: tuple[str, ...], count: int, devices: tuple[DeviceConfig, ...]) -> Iterator[Finding]:
    """Real vLLM has nothing to run on there."""
    told = "vLLM cannot run on a simulated device"
    advice = "use `engine: sim` to try things out, or name a real one in `devices`"
    simulated = {device.id for device in devices if device.simulated}
    for i, device_id in enumerate(ids):
        if device_id in simulated:
            yield ("devices", "ids", i), f"{told}, which {device_id} is; {advice}"
    if not ids and len(devices) >= count > sum(not device.simulated for device in devices):
        yield ("engine",), f"{told}, and `devices` has not {count} that are not; {advice}"


def _wish(model: ModelConfig, engine: str, devices: tuple[DeviceConfig, ...] | None) -> Iterator[Finding]:
    count, ids = model.devices.count, model.devices.ids
    if ids and count is not None and count != len(ids):
        yield ("devices", "count"), f"is {count}, but `ids` names {len(ids)}; remove one of the two"
    if len(set(ids)) != len(ids):
        yield ("devices", "ids"), "names a device twice"
    if devices is None:
        return
    if engine == "vllm":
        yield from _simulated(ids, count or len(ids) or 1, devices)
    known = {device.id for device in devices}
    for i, device_id in enumerate(ids):
        if device_id not in known:
            yield ("devices", "ids", i), f"there is no device {device_id!r}; `devices` has {', '.join(sorted(known))}"
    if (count or 1) > len(known):
        yield ("devices", "count"), f"asks for {count} devices, but `devices` has {len(known)}"
