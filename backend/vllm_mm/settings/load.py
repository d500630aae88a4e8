"""Where the configuration comes from: flags over environment over file over defaults, with every error in its place."""

import difflib
import functools
import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from vllm_mm.settings.checks import check, check_model
from vllm_mm.settings.fields import Section, check_model_id
from vllm_mm.settings.models import ModelConfig
from vllm_mm.settings.nodes import (
    KeyPath,
    Node,
    Origin,
    Problem,
    SettingsError,
    from_value,
    locate,
    overlay,
    to_python,
)
from vllm_mm.settings.root import Settings
from vllm_mm.settings.sources import from_defaults, from_environment, from_file, from_flags, inner_section
from vllm_mm.settings.xdg import default_config_dir

FILE_NAME = "vllm-mm.yaml"


def find_config(config: Path | None, environ: Mapping[str, str], cwd: Path) -> Path | None:
    """The file that `load` reads: `config`, else ./vllm-mm.yaml, else $XDG_CONFIG_HOME/vllm-mm/config.yaml, else None."""
    if config is not None:
        return cwd / config
    return next((path for path in _candidates(config, environ, cwd) if path.is_file()), None)


def _candidates(config: Path | None, environ: Mapping[str, str], cwd: Path) -> tuple[Path, ...]:
    """Where a file would be read, the first one before the others."""
    if config is not None:
        return (cwd / config,)
    return cwd / FILE_NAME, default_config_dir(environ) / "config.yaml"


@dataclass(frozen=True, slots=True)
class Loaded:
    """Settings, and where each of them was said."""

    settings: Settings
    root: Node
    """What was said by all sources, laid over each other."""
    file: Path | None
    """The one that was read."""
    candidates: tuple[Path, ...] = ()
    """Where one would have been read, the first one before the others."""
    empty: bool = False
    """The file says nothing at all, as one does that was cut off or is about to be written."""

    def place(self, path: KeyPath) -> Origin:
        """Where the value at `path` stands, or the nearest that there is above it."""
        return locate(self.root, path)[1].at_line


def load(
    config: Path | None = None,
    overrides: Mapping[str, Any] | None = None,
    environ: Mapping[str, str] | None = None,
    cwd: Path | None = None,
) -> Settings:
    """The settings in force. `overrides` are flags by dotted key (`server.port`); those that are None were not given.

    Reads no environment but `environ`. Raises SettingsError with all that is wrong, not only the first of it.
    """
    return load_with_places(config, overrides, environ, cwd).settings


def load_with_places(
    config: Path | None = None,
    overrides: Mapping[str, Any] | None = None,
    environ: Mapping[str, str] | None = None,
    cwd: Path | None = None,
) -> Loaded:
    """As `load`, with the places of all values."""
    environ = environ or {}
    cwd = cwd or Path.cwd()
    problems: list[Problem] = []
    path = find_config(config, environ, cwd)
    # From the weakest to the strongest; pydantic-settings merges them in the same order (`Settings.from_layers`).
    layers = [from_defaults(environ)]
    empty = False
    try:
        if path is not None:
            layers.append(said := from_file(path, cwd, environ))
            empty = not said.value
    except SettingsError as e:
        problems.extend(e.problems)
    layers += [from_environment(environ, problems), from_flags(overrides or {}, problems)]
    root = functools.reduce(overlay, layers)
    settings = _validate(layers, root, problems)
    if problems or settings is None:
        raise SettingsError(problems)
    found = _with_absolute_paths(settings, root, path, environ, cwd)
    return Loaded(found, root, path, _candidates(config, environ, cwd), empty)


def parse_model(model_id: str, raw: Mapping[str, Any], settings: Settings) -> ModelConfig:
    """A model that was declared elsewhere than in the file (the admin API). Raises SettingsError with all that is wrong."""
    problems: list[Problem] = []
    try:
        check_model_id(model_id)
    except ValueError as e:
        problems.append(Problem(str(e), path=("id",)))
    root = from_value(raw, Origin(""))
    try:
        model = ModelConfig.model_validate(to_python(root))
    except ValidationError as e:
        problems.extend(_problem(root, error, ModelConfig) for error in e.errors())
    else:
        listed = None if isinstance(settings.devices, str) else settings.devices
        problems.extend(Problem(m, path=p) for p, m in check_model(model, settings.defaults, listed))
        if not problems:
            return model
    raise SettingsError([Problem(p.message, None, p.path) for p in problems])


def schema() -> dict[str, Any]:
    """The JSON Schema of the configuration file."""
    document = Settings.model_json_schema()
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "vllm-mm configuration",
        **{k: v for k, v in document.items() if k != "title"},
    }


def key_paths() -> Iterator[tuple[str, ...]]:
    """Every setting there is, as a path; `*` stands for any name, as in `models.*.memory`."""
    yield from _walk(Settings, ())


def _walk(section: type[BaseModel], path: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    for name, field in section.model_fields.items():
        inner, step = inner_section(field.annotation)
        if inner is None:
            yield (*path, name)
        else:
            yield from _walk(inner, (*path, name, *step))


def _section_at(path: KeyPath, root: type[Section]) -> type[Section] | None:
    """The section whose keys stand at `path`; None inside free-form mappings."""
    section, rest = root, list(path)
    while rest:
        field = section.model_fields.get(str(rest.pop(0)))
        inner, step = inner_section(field.annotation) if field is not None else (None, ())
        if inner is None or len(rest) < len(step):
            return None
        del rest[: len(step)]
        section = inner
    return section


def _validate(layers: Sequence[Node], root: Node, problems: list[Problem]) -> Settings | None:
    """`root` is the layers laid over each other: it tells where each value in force stands."""
    found: list[Problem] = []
    try:
        settings = Settings.from_layers(*(to_python(layer) for layer in reversed(layers)))
    except ValidationError as e:
        found = [_problem(root, error, Settings) for error in e.errors()]
        settings = _without(to_python(root), found)
    if settings is not None:
        shape = {p.path[:2] for p in found}
        for path, message in check(settings):
            if path[:2] not in shape:
                _, origin = locate(root, path)
                found.append(Problem(message, origin.at_line, path))
    problems.extend(sorted(found, key=lambda p: (p.origin.line or 0) if p.origin else 0))
    return settings


def _without(data: Any, found: list[Problem]) -> Settings | None:
    """What is left when everything that is wrong is taken away, so that the rest can be checked in the same run."""
    for problem in found:
        keys = list(itertools.takewhile(lambda part: isinstance(part, str), problem.path))
        place: dict[Any, Any] = data
        for key in keys[:-1]:
            place = place[key] if isinstance(place.get(key), dict) else {}
        if keys:
            place.pop(keys[-1], None)
    try:
        return Settings.model_validate(data)
    except ValidationError:
        return None


def _problem(root: Node, error: ErrorDetails, section: type[Section]) -> Problem:
    path, origin = locate(root, error["loc"])
    if error["type"] == "missing":
        return Problem("is missing", origin.at_line, (*path, error["loc"][-1]))
    if error["type"] == "extra_forbidden":
        return Problem(_unknown(path, section), origin.at_line, path)
    return Problem(_message(error), origin.at_line, path)


def _unknown(path: KeyPath, root: type[Section]) -> str:
    name = str(path[-1])
    section = _section_at(path[:-1], root)
    known = list(section.model_fields) if section is not None else []
    plain = name.lower().replace("-", "_")
    near = difflib.get_close_matches(plain, known, n=1, cutoff=0.5)
    elsewhere = [p for p in _walk(root, ()) if p[-1] == plain]
    if near and (not elsewhere or difflib.SequenceMatcher(None, plain, near[0]).ratio() > 0.75):
        return f"unknown key; did you mean `{near[0]}`?"
    if elsewhere:
        return f"unknown key here; did you mean `{'.'.join(elsewhere[0])}`?"
    return f"unknown key; known are {', '.join(sorted(known))}" if known else "unknown key"


_EXPECTED = {
    "dict_type": "a mapping",
    "model_type": "a mapping",
    "model_attributes_type": "a mapping",
    "tuple_type": "a list",
    "string_type": "text (put it in quotes)",
    "int_type": "a whole number",
    "int_parsing": "a whole number",
    "int_from_float": "a whole number",
    "path_type": "a path",
}


def _message(error: ErrorDetails) -> str:
    shown = repr(error["input"])
    shown = shown if len(shown) <= 80 else shown[:77] + "..."
    context: dict[str, Any] = error.get("ctx", {})
    expected = _EXPECTED.get(error["type"])
    if expected is not None:
        return f"expected {expected}, not {shown}"
    if error["type"] == "literal_error":
        near = difflib.get_close_matches(str(error["input"]), re.findall(r"'([^']*)'", context["expected"]), n=1)
        hint = f"; did you mean `{near[0]}`?" if near else ""
        return f"{shown} is none of {context['expected']}{hint}"
    if error["type"] == "greater_than_equal":
        return f"{shown} is too small; at least {context['ge']}"
    if error["type"] == "less_than_equal":
        return f"{shown} is too big; at most {context['le']}"
    if error["type"] == "value_error":
        return str(context["error"])
    return f"{error['msg'][:1].lower()}{error['msg'][1:]}, not {shown}"


def _with_absolute_paths(
    settings: Settings, root: Node, file: Path | None, environ: Mapping[str, str], cwd: Path
) -> Settings:
    """Relative paths count from the file that has them, or from the working directory; `~` is the home directory."""
    found: dict[str, Path] = {}
    for name, value in (("data_dir", settings.paths.data_dir), ("cache_dir", settings.paths.cache_dir)):
        _, origin = locate(root, ("paths", name))
        text = str(value)
        if text == "~" or text.startswith("~/"):
            text = environ.get("HOME", str(Path.home())) + text[1:]
        base = file.parent if file is not None and origin.line is not None else cwd
        found[name] = (base / text).absolute()
    return settings.model_copy(update={"paths": settings.paths.model_copy(update=found)})
