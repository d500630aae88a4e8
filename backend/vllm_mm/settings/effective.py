"""Every setting as it is in force: its value, where that was said, and whether a reload can change it."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, cast

from vllm_mm.settings.fields import Section
from vllm_mm.settings.load import Loaded
from vllm_mm.settings.nodes import KeyPath, Node, format_path
from vllm_mm.settings.redact import redacted
from vllm_mm.settings.root import Settings

LIVE = frozenset({"models", "defaults", "profiles", "config"})
"""The sections that a reload applies."""

From: TypeAlias = Literal["flag", "environment", "file", "default"]


@dataclass(frozen=True, slots=True)
class Effective:
    """One setting."""

    key: str
    """As in an error: `server.port`, `models["org/a"].pinned`."""
    value: Any
    """Ready for JSON, without secrets."""
    source: From
    where: str
    """`vllm-mm.yaml:12`, `environment variable VLLM_MM_SERVER__PORT`; empty for a default."""
    live: bool
    """A reload applies a change of it; else it takes effect when the server is started again."""


def effective(loaded: Loaded) -> list[Effective]:
    """All settings of the server with their values, and of models and profiles what was said of them."""
    data = redacted(loaded.settings)
    found = list(_section(loaded, loaded.settings, data, ()))
    for owner in ("profiles", "models"):
        for name in cast("dict[str, Any]", data[owner]):
            found += _said(loaded, data, (owner, name))
    return found


def _section(loaded: Loaded, section: Section, data: dict[str, Any], path: KeyPath) -> Iterator[Effective]:
    for name in type(section).model_fields:
        inner, here = getattr(section, name), (*path, name)
        if here in {("models",), ("profiles",)}:
            continue
        if isinstance(inner, Section):
            yield from _section(loaded, inner, data[name], here)
        else:
            yield _one(loaded, data[name], here)


def _said(loaded: Loaded, data: dict[str, Any], path: KeyPath) -> Iterator[Effective]:
    """The keys of one model that are written somewhere."""
    node: Node | None = loaded.root
    value: Any = data
    for part in path:
        entry = node.value.get(str(part)) if node is not None and isinstance(node.value, dict) else None
        node, value = (None if entry is None else entry.node), value[part]
    if node is not None and isinstance(node.value, dict):
        for name in node.value:
            yield _one(loaded, value[name], (*path, name))


def _one(loaded: Loaded, value: Any, path: KeyPath) -> Effective:
    said, source, where = _source(loaded, path)
    return Effective(format_path(path), value, source if said else "default", where if said else "", path[0] in LIVE)


def _source(loaded: Loaded, path: KeyPath) -> tuple[bool, From, str]:
    node = loaded.root
    for part in path:
        entry = node.value.get(str(part)) if isinstance(node.value, dict) else None
        if entry is None:
            return False, "default", ""
        node = entry.node
    # What is merged from several places is told by where its key stands.
    origin = loaded.place(path)
    if origin.line is not None:
        return True, "file", str(origin)
    if origin.name.startswith("environment"):
        return True, "environment", origin.name
    if origin.name.startswith(("command line", "flag")):
        return True, "flag", origin.name
    return False, "default", ""


def at_restart(before: Settings, after: Settings) -> tuple[str, ...]:
    """The settings that differ and take effect only when the server is started again, as dotted keys."""
    return tuple(_differing(before, after, "", LIVE))


def _differing(before: Section, after: Section, prefix: str, skip: frozenset[str] = frozenset()) -> Iterator[str]:
    for name in type(before).model_fields:
        old, new = getattr(before, name), getattr(after, name)
        if name in skip or old == new:
            continue
        if isinstance(old, Section) and isinstance(new, Section):
            yield from _differing(old, new, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}"
