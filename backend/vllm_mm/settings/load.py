"""Where the configuration comes from: flags over environment over file over defaults, with every error in its place."""

import difflib
import itertools
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from vllm_mm.settings.checks import check, check_model
from vllm_mm.settings.model import (
    ModelConfig,
    Section,
    Settings,
    check_model_id,
    default_cache_dir,
    default_config_dir,
    default_data_dir,
)
from vllm_mm.settings.nodes import (
    KeyPath,
    Node,
    Origin,
    Problem,
    SettingsError,
    at_path,
    from_text,
    from_value,
    locate,
    overlay,
    read_file,
    to_python,
)

PREFIX = "VLLM_MM_"
NOT_SETTINGS = frozenset({"VLLM_MM_URL", "VLLM_MM_TOKEN", "VLLM_MM_CONFIG", "VLLM_MM_VLLM_CPU", "VLLM_MM_PIP_ARGS"})
"""Variables with our prefix that belong to the command line and to the scripts."""
FILE_NAME = "vllm-mm.yaml"


def find_config(config: Path | None, environ: Mapping[str, str], cwd: Path) -> Path | None:
    """The file that `load` reads: `config`, else ./vllm-mm.yaml, else $XDG_CONFIG_HOME/vllm-mm/config.yaml, else None."""
    if config is not None:
        return cwd / config
    candidates = (cwd / FILE_NAME, default_config_dir(environ) / "config.yaml")
    return next((path for path in candidates if path.is_file()), None)


def load(
    config: Path | None = None,
    overrides: Mapping[str, Any] | None = None,
    environ: Mapping[str, str] | None = None,
    cwd: Path | None = None,
) -> Settings:
    """The settings in force. `overrides` are flags by dotted key (`server.port`); those that are None were not given.

    Reads no environment but `environ`. Raises SettingsError with all that is wrong, not only the first of it.
    """
    environ = environ or {}
    cwd = cwd or Path.cwd()
    problems: list[Problem] = []
    root = _defaults(environ)
    path = find_config(config, environ, cwd)
    layers = [
        *([] if path is None else [lambda: _from_file(path, cwd, environ)]),
        lambda: _from_environment(environ, problems),
        lambda: _from_flags(overrides or {}, problems),
    ]
    for layer in layers:
        try:
            root = overlay(root, layer())
        except SettingsError as e:
            problems.extend(e.problems)
    settings = _validate(root, problems)
    if problems or settings is None:
        raise SettingsError(problems)
    return _with_absolute_paths(settings, root, path, environ, cwd)


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
        inner, step = _inner(field.annotation)
        if inner is None:
            yield (*path, name)
        else:
            yield from _walk(inner, (*path, name, *step))


def _inner(annotation: Any) -> tuple[type[Section] | None, tuple[str, ...]]:
    """The section inside an annotation, and the step to it: nothing, or `*` for the members of a mapping or a list."""
    if isinstance(annotation, type) and issubclass(annotation, Section):
        return annotation, ()
    origin, args = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return _inner(args[0])
    if origin is dict:
        return _inner(args[1])[0], ("*",)
    if origin is tuple:
        return _inner(args[0])[0], ("*",)
    if origin is Union or str(origin) == "<class 'types.UnionType'>":
        found = [_inner(arg) for arg in args]
        return next((f for f in found if f[0] is not None), (None, ()))
    return None, ()


def _section_at(path: KeyPath, root: type[Section]) -> type[Section] | None:
    """The section whose keys stand at `path`; None inside free-form mappings."""
    section, rest = root, list(path)
    while rest:
        field = section.model_fields.get(str(rest.pop(0)))
        inner, step = _inner(field.annotation) if field is not None else (None, ())
        if inner is None or len(rest) < len(step):
            return None
        del rest[: len(step)]
        section = inner
    return section


def _defaults(environ: Mapping[str, str]) -> Node:
    origin = Origin("default")
    paths = {"data_dir": str(default_data_dir(environ)), "cache_dir": str(default_cache_dir(environ))}
    return from_value({"paths": paths}, origin)


def _from_file(path: Path, cwd: Path, environ: Mapping[str, str]) -> Node:
    shown = str(path.relative_to(cwd)) if path.is_relative_to(cwd) else str(path)
    return read_file(path, shown, environ)


def _from_environment(environ: Mapping[str, str], problems: list[Problem]) -> Node:
    origin = Origin("environment")
    root = Node({}, origin)
    for name in sorted(environ):
        if not name.startswith(PREFIX) or name in NOT_SETTINGS or environ[name] == "":
            continue
        where = Origin(f"environment variable {name}")
        try:
            node = from_text(environ[name], where)
        except SettingsError as e:
            problems.extend(e.problems)
            continue
        root = overlay(root, at_path(_variable_path(name), node))
    return root


def _variable_path(name: str) -> KeyPath:
    """`VLLM_MM_SERVER__PORT` -> server.port. Names inside free-form mappings (model ids, variables) keep their case."""
    parts = name.removeprefix(PREFIX).split("__")
    path: list[str] = []
    section: type[Section] | None = Settings
    while parts:
        part = parts.pop(0)
        if section is None:
            path.append(part)
            continue
        field = section.model_fields.get(part.lower())
        path.append(part.lower())
        section, step = _inner(field.annotation) if field is not None else (None, ())
        if step and parts:
            path.append(parts.pop(0))
    return tuple(path)


def _from_flags(overrides: Mapping[str, Any], problems: list[Problem]) -> Node:
    origin = Origin("command line")
    root = Node({}, origin)
    for key, value in overrides.items():
        if value is None:
            continue
        try:
            root = overlay(root, at_path(tuple(key.split(".")), from_value(value, origin)))
        except SettingsError as e:
            problems.extend(e.problems)
    return root


def _validate(root: Node, problems: list[Problem]) -> Settings | None:
    found: list[Problem] = []
    data = to_python(root)
    try:
        settings = Settings.model_validate(data)
    except ValidationError as e:
        found = [_problem(root, error, Settings) for error in e.errors()]
        settings = _without(data, found)
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
    "bool_type": "true or false",
    "bool_parsing": "true or false",
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
