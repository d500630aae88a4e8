"""From what is declared to what a run needs: models with their times, and devices with what-if capacities."""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any, cast

import yaml

from vllm_mm.domain.residency import Device
from vllm_mm.domain.specs import EngineKind, ModelSpec
from vllm_mm.settings import Settings
from vllm_mm.virtual.engine import EngineTimes, VirtualModel, from_profile, times

EVERYONE = "default"
"""In a file of times: what holds for models that are not named."""

LIMITS = ("max_size", "max_wait", "request_timeout", "on_teardown", "cancel_unwanted_loads")
"""Settings of the queue that a run does not go by."""


class ScenarioError(Exception):
    """What was given cannot be simulated; the message says what to change."""


def read_times(path: Path, models: Iterable[str]) -> dict[str, dict[str, Any]]:
    """A YAML file: model id, or `default`, to `load: 20s`, `wake: 3s`, `prefill: 8000`, ... Raises ScenarioError, with the
    line, for what it does not understand and for a model that is none of `models`."""
    try:
        text = path.read_text(encoding="utf-8")
        raw, root = yaml.safe_load(text), yaml.compose(text, yaml.SafeLoader)
    except OSError as error:
        raise ScenarioError(f"{path}: {error.strerror or error}") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ScenarioError(f"{path}: it is not YAML ({error})") from error
    if not isinstance(raw, dict) or not isinstance(root, yaml.MappingNode):
        raise ScenarioError(f"{path}: expected model ids (or `{EVERYONE}`), each with its times")
    known, found = list(models), dict[str, dict[str, Any]]()
    for (name, given), (key, value) in zip(cast("dict[Any, Any]", raw).items(), _entries(root), strict=False):
        where, model = f"{path}:{_line(key)}", str(name)
        if model != EVERYONE and model not in known:
            near = get_close_matches(model, known, n=1)
            hint = f"did you mean {near[0]}?" if near else f"they are {', '.join(known)}, or `{EVERYONE}` for all"
            raise ScenarioError(f"{where}: {model} is none of the models; {hint}")
        if not isinstance(given, dict):
            raise ScenarioError(f"{where}: {model}: expected times such as `{{load: 20s, wake: 3s}}`, not {given!r}")
        layer = {str(k): v for k, v in cast("dict[Any, Any]", given).items()}
        for (what, number), (inner, _) in zip(layer.items(), _entries(value), strict=False):
            try:
                times({what: number}, EngineTimes())
            except ValueError as error:
                raise ScenarioError(f"{path}:{_line(inner)}: the times of {model}: {error}") from error
        found[model] = layer
    return found


def _entries(node: yaml.Node) -> Iterator[tuple[yaml.Node, yaml.Node]]:
    """Keys and values where they stand in the file, of a key that is there twice the first."""
    seen: set[str] = set()
    for key, value in node.value if isinstance(node, yaml.MappingNode) else ():
        if key.value not in seen:
            seen.add(key.value)
            yield key, value


def _line(node: yaml.Node) -> int:
    return node.start_mark.line + 1


def model_of(
    spec: ModelSpec,
    memory: int,
    base: EngineTimes,
    *,
    given: Mapping[str, Mapping[str, Any]],
    options: Mapping[str, Any],
    learned: float | None = None,
    can_sleep: bool = True,
) -> VirtualModel:
    """One declared model. Times in rising order of weight: `base`, a simulated engine's profile, the learned load time,
    `given` for all, `given` for this model, `options`. Raises ScenarioError."""
    try:
        found = from_profile(spec.sim, base, spec.devices.count) if spec.engine is EngineKind.SIM else base
        found = replace(found, sleeps=can_sleep)
        if learned is not None:
            found = replace(found, load=learned)
        for layer in (given.get(EVERYONE, {}), given.get(spec.id, {}), options):
            found = times(layer, found)
    except ValueError as error:
        raise ScenarioError(f"the times of {spec.id}: {error}") from error
    return VirtualModel(
        spec.id, memory, found, spec.devices, spec.concurrency, spec.pinned, spec.preload, spec.priority, spec.idle
    )


def plain_models(
    names: Sequence[str], memory: int, *, given: Mapping[str, Mapping[str, Any]], options: Mapping[str, Any]
) -> list[VirtualModel]:
    """Models that are declared nowhere: all of one size. Raises ScenarioError."""
    specs = [ModelSpec(name, engine=EngineKind.COMMAND) for name in names]
    models = [model_of(s, memory, EngineTimes(), given=given, options=options) for s in specs]
    return [replace(m, idle=VirtualModel("", 0).idle) for m in models]


def left_out(settings: Settings, given: Collection[str]) -> list[str]:
    """What the configuration says that a run in virtual time does not go by, for people. `given`: settings in whose place something
    was said for the run."""
    found: list[str] = []
    if kept := [model for model, declared in settings.models.items() if declared.schedule]:
        shown = ", ".join(kept[:3]) + (f" and {len(kept) - 3} more" if len(kept) > 3 else "")
        found.append(f"the `schedule` of {shown}")
    said = [f"queue.{name}" for name in LIMITS if name in settings.queue.model_fields_set]
    if "sleep_budget" in settings.host_memory.model_fields_set and settings.host_memory.sleep_budget is None:
        said.append("host_memory.sleep_budget")  # auto: half of a machine that is not this one
    instead = {"queue.max_wait": "--patience", "host_memory.sleep_budget": "--sleep-budget"}
    found += [f"`{s}`" + (f" (give {instead[s]})" if s in instead else "") for s in said if s not in given]
    return found


def with_capacity(devices: Sequence[Device], memory: int | None) -> list[Device]:
    """Every device with another capacity, and nobody else on it: the question is what the hardware would bring."""
    if memory is None:
        return list(devices)
    return [replace(d, capacity=memory, foreign=0) for d in devices]
