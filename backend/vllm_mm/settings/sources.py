"""The sources of the configuration, read one by one: defaults, file, environment, flags. Each value knows where it stands."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Final, Union, get_args, get_origin

from vllm_mm.settings.fields import Section, Switch
from vllm_mm.settings.nodes import (
    KeyPath,
    Node,
    Origin,
    Problem,
    SettingsError,
    at_path,
    from_text,
    from_value,
    overlay,
    read_file,
)
from vllm_mm.settings.root import Settings
from vllm_mm.settings.xdg import default_cache_dir, default_data_dir

PREFIX = "VLLM_MM_"
NOT_SETTINGS = frozenset({"VLLM_MM_URL", "VLLM_MM_TOKEN", "VLLM_MM_CONFIG", "VLLM_MM_VLLM_CPU", "VLLM_MM_PIP_ARGS"})
"""Variables with our prefix that belong to the command line and to the scripts."""


def from_defaults(environ: Mapping[str, str]) -> Node:
    """What the defaults take from the environment: the places of the XDG Base Directory Specification."""
    origin = Origin("default")
    paths = {"data_dir": str(default_data_dir(environ)), "cache_dir": str(default_cache_dir(environ))}
    return from_value({"paths": paths}, origin)


def from_file(path: Path, cwd: Path, environ: Mapping[str, str]) -> Node:
    """The YAML file, with the line of each value. Raises SettingsError."""
    near = path.is_relative_to(cwd) and cwd != cwd.parent  # below `/` is everything
    shown = str(path.relative_to(cwd)) if near else str(path)
    return read_file(path, shown, environ)


def from_environment(environ: Mapping[str, str], problems: list[Problem]) -> Node:
    """The variables `VLLM_MM_SECTION__KEY`; what cannot be read goes to `problems`."""
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
        root = overlay(root, _at(_variable_path(name), node))
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
        section, step = inner_section(field.annotation) if field is not None else (None, ())
        if step and parts:
            path.append(parts.pop(0))
    return tuple(path)


def from_flags(overrides: Mapping[str, Any], problems: list[Problem]) -> Node:
    """Flags by dotted key; None was not given. What cannot be read goes to `problems`."""
    origin = Origin("command line")
    root = Node({}, origin)
    for key, value in overrides.items():
        if value is None:
            continue
        try:
            root = overlay(root, _at(tuple(key.split(".")), from_value(value, origin)))
        except SettingsError as e:
            problems.extend(e.problems)
    return root


_SWITCHES: Final[Mapping[object, bool]] = {
    **dict.fromkeys(("1", "yes", "on", "y", "true"), True),
    **dict.fromkeys(("0", "no", "off", "n", "false"), False),
}
"""As people write them in an environment and on a command line; a file has YAML's own."""


def _at(path: KeyPath, node: Node) -> Node:
    if isinstance(node.value, str | int) and _is_switch(path):
        node = Node(_SWITCHES.get(str(node.value).lower(), node.value), node.origin)
    return at_path(path, node)


def _is_switch(path: KeyPath) -> bool:
    section: type[Section] = Settings
    parts = list(path)
    while parts:
        field = section.model_fields.get(str(parts.pop(0)))
        if field is None:
            return False
        inner, step = inner_section(field.annotation)
        if inner is None:
            return not parts and not {bool, Switch}.isdisjoint((field.annotation, *get_args(field.annotation)))
        del parts[: len(step)]
        section = inner
    return False


def inner_section(annotation: Any) -> tuple[type[Section] | None, tuple[str, ...]]:
    """The section inside an annotation, and the step to it: nothing, or `*` for the members of a mapping or a list."""
    if isinstance(annotation, type) and issubclass(annotation, Section):
        return annotation, ()
    origin, args = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return inner_section(args[0])
    if origin is dict:
        return inner_section(args[1])[0], ("*",)
    if origin is tuple:
        return inner_section(args[0])[0], ("*",)
    if origin is Union or str(origin) == "<class 'types.UnionType'>":
        found = [inner_section(arg) for arg in args]
        return next((f for f in found if f[0] is not None), (None, ()))
    return None, ()
