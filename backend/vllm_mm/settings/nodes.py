"""Configuration text with its place kept: each value knows the file and line, the variable or the flag it came from."""

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

import yaml

MAX_NODES = 200_000
"""Values in one file, aliases counted each time that they are used; more is a mistake or an attack."""


Scalar: TypeAlias = str | int | float | bool | None
KeyPath: TypeAlias = tuple[str | int, ...]


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a value stands."""

    name: str
    """File as it was given, `environment variable X`, or `flag --x`."""
    line: int | None = None
    """Counted from 1."""
    column: int | None = None

    def __str__(self) -> str:
        parts = [self.name, *(str(n) for n in (self.line, self.column) if n is not None)]
        return ":".join(parts)

    @property
    def at_line(self) -> "Origin":
        return Origin(self.name, self.line)


@dataclass(frozen=True, slots=True)
class Node:
    """A value: a mapping of `Entry`, a list of `Node`, or a scalar."""

    value: "Value"
    origin: Origin


@dataclass(frozen=True, slots=True)
class Entry:
    """A key of a mapping and what stands behind it."""

    key: Origin
    node: Node


Value: TypeAlias = dict[str, Entry] | list[Node] | Scalar


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong, where, and what to do about it."""

    message: str
    origin: Origin | None = None
    path: KeyPath = ()

    def __str__(self) -> str:
        parts = [str(self.origin) if self.origin else "", format_path(self.path), self.message]
        return ": ".join(p for p in parts if p)


class SettingsError(ValueError):
    """The configuration cannot be used. `problems` has all that is wrong, one line each in the message."""

    def __init__(self, problems: list[Problem]) -> None:
        super().__init__("\n".join(str(p) for p in problems))
        self.problems = problems


def format_path(path: KeyPath) -> str:
    """`models["Qwen/Qwen2.5-7B"].devices.ids[0]`."""
    text = ""
    for part in path:
        if isinstance(part, int):
            text += f"[{part}]"
        elif re.fullmatch(r"[A-Za-z0-9_-]+", part):
            text += f".{part}" if text else part
        else:
            text += f"[{json.dumps(part, ensure_ascii=False)}]"
    return text


# YAML 1.2's core schema instead of YAML 1.1's: `no`, `on`, `12:30` and dates are text, `1e3` is a number.
_CORE: tuple[tuple[re.Pattern[str], Callable[[str], Scalar]], ...] = (
    (re.compile(r"null|Null|NULL|~|"), lambda _: None),
    (re.compile(r"true|True|TRUE"), lambda _: True),
    (re.compile(r"false|False|FALSE"), lambda _: False),
    (re.compile(r"[-+]?[0-9]+"), int),
    (re.compile(r"0o[0-7]+"), lambda t: int(t[2:], 8)),
    (re.compile(r"0x[0-9a-fA-F]+"), lambda t: int(t[2:], 16)),
    (re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?"), float),
    (re.compile(r"[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)"), lambda t: float(t.replace(".", ""))),
)


def plain_scalar(text: str) -> Scalar:
    """What an unquoted YAML scalar means."""
    for pattern, make in _CORE:
        if pattern.fullmatch(text):
            return make(text)
    return text


_VARIABLE = re.compile(r"\$?\$\{env\.([^}:]*)(?::-([^}]*))?\}")
_VARIABLE_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


@dataclass(slots=True)
class Reader:
    """Turns YAML text into nodes and collects what is wrong with it."""

    name: str
    """The file's name for messages."""
    environ: Mapping[str, str]
    problems: list[Problem] = field(default_factory=list[Problem])
    _count: int = 0
    _open: list[int] = field(default_factory=list[int])

    def read(self, text: str) -> Node | None:
        """The document, or None when it is empty or too broken to go on; then `problems` says why."""
        try:
            loader = yaml.SafeLoader(text)
            root: yaml.Node | None = loader.get_single_node()
        except yaml.MarkedYAMLError as e:
            mark = e.problem_mark or e.context_mark
            where = Origin(self.name, mark.line + 1, mark.column + 1) if mark else Origin(self.name)
            context = f" ({e.context})" if e.context else ""
            line = text.splitlines()[mark.line : mark.line + 1] if mark else []
            hint = "; put `${env...}` in quotes inside of braces" if any("${" in part for part in line) else ""
            self._problem(f"this is not YAML: {e.problem or 'unreadable'}{context}{hint}", where)
            return None
        except (yaml.YAMLError, RecursionError) as e:
            self._problem(f"this is not YAML: {' '.join(str(e).split()) or 'nested too deeply'}", Origin(self.name))
            return None
        return None if root is None else self._node(root, ())

    def _problem(self, message: str, origin: Origin, path: KeyPath = ()) -> None:
        self.problems.append(Problem(message, origin, path))

    def _origin(self, node: yaml.Node) -> Origin:
        mark: Any = node.start_mark
        return Origin(self.name, mark.line + 1, mark.column + 1)

    def _node(self, node: yaml.Node, path: KeyPath) -> Node:
        origin = self._origin(node)
        self._count += 1
        if self._count > MAX_NODES:
            raise SettingsError([Problem(f"more than {MAX_NODES:,} values (aliases multiply?)", origin.at_line)])
        if id(node) in self._open:
            self._problem("this alias contains itself", origin, path)
            return Node(None, origin)
        self._open.append(id(node))
        try:
            if isinstance(node, yaml.MappingNode):
                return Node(self._mapping(node, path), origin)
            if isinstance(node, yaml.SequenceNode):
                return Node([self._node(child, (*path, i)) for i, child in enumerate(node.value)], origin)
            return Node(self._scalar(node, path), origin)
        finally:
            self._open.pop()

    def _mapping(self, node: yaml.MappingNode, path: KeyPath) -> "dict[str, Entry]":
        entries: dict[str, Entry] = {}
        merged: list[dict[str, Entry]] = []
        for key, child in node.value:
            where = self._origin(key)
            if not isinstance(key, yaml.ScalarNode):
                self._problem("a key has to be plain text", where, path)
                continue
            name: str = key.value
            if name == "<<" and key.style is None:
                merged.extend(self._merge(child, path))
            elif name in entries:
                first = entries[name].key
                self._problem(f"this key stands here already, on line {first.line}; remove one", where, (*path, name))
            else:
                entries[name] = Entry(where, self._node(child, (*path, name)))
        for mapping in merged:
            for name, entry in mapping.items():
                entries.setdefault(name, entry)
        return entries

    def _merge(self, node: yaml.Node, path: KeyPath) -> "list[dict[str, Entry]]":
        sources = node.value if isinstance(node, yaml.SequenceNode) else [node]
        result: list[dict[str, Entry]] = []
        for source in sources:
            value = self._node(source, path).value
            if isinstance(value, dict):
                result.append(value)
            else:
                self._problem("`<<` takes a mapping, or a list of mappings", self._origin(source), path)
        return result

    def _scalar(self, node: yaml.Node, path: KeyPath) -> Scalar:
        text: str = node.value
        origin = self._origin(node)
        if node.tag not in {f"tag:yaml.org,2002:{t}" for t in ("null", "bool", "int", "float", "str", "timestamp")}:
            if node.tag not in {"tag:yaml.org,2002:value", "tag:yaml.org,2002:merge"}:
                self._problem(f"the tag `{node.tag}` has no meaning here; remove it", origin, path)
            return text
        expanded = self._expand(text, origin, path)
        plain = isinstance(node, yaml.ScalarNode) and node.style is None
        return plain_scalar(expanded) if plain else expanded

    def _expand(self, text: str, origin: Origin, path: KeyPath) -> str:
        def replace(match: re.Match[str]) -> str:
            if match[0].startswith("$$"):
                return match[0][1:]
            name, fallback = match[1], match[2]
            if not _VARIABLE_NAME.fullmatch(name):
                self._problem(f"`{match[0]}` names no environment variable", origin, path)
                return ""
            value = self.environ.get(name)
            if fallback is not None:
                return value or fallback
            if value is None:
                hint = f"set it, or write `${{env.{name}:-default}}`"
                self._problem(f"the environment variable {name} is not set; {hint}", origin, path)
                return ""
            return value

        return _VARIABLE.sub(replace, text)


def read_file(path: Path, shown: str, environ: Mapping[str, str]) -> Node:
    """The file's mapping. Raises SettingsError with everything that is wrong with its text."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as e:
        raise SettingsError([Problem(f"not UTF-8 text (byte {e.start})", Origin(shown))]) from e
    except OSError as e:
        raise SettingsError([Problem(f"cannot be read: {e.strerror or e}", Origin(shown))]) from e
    reader = Reader(shown, environ)
    node = reader.read(text)
    if reader.problems:
        raise SettingsError(reader.problems)
    if node is None or node.value is None:
        return Node({}, Origin(shown))
    if not isinstance(node.value, dict):
        raise SettingsError([Problem("expected a mapping such as `server: {port: 8000}`", node.origin.at_line)])
    return node


def from_text(text: str, origin: Origin) -> Node:
    """The value of an environment variable or a flag: a YAML flow collection, or an unquoted scalar."""
    if text.lstrip()[:1] in {"[", "{"}:
        reader = Reader(origin.name, {})
        node = reader.read(text)
        if reader.problems or node is None:
            raise SettingsError([Problem(p.message, origin) for p in reader.problems])
        return relocate(node, origin)
    return Node(plain_scalar(text), origin)


def from_value(value: object, origin: Origin) -> Node:
    """A Python value from a caller (text is read as by `from_text`; containers as they are)."""
    if isinstance(value, str):
        return from_text(value, origin)
    return _literal(value, origin)


def _literal(value: Any, origin: Origin) -> Node:
    if isinstance(value, Mapping):
        items: Mapping[Any, Any] = value  # pyright: ignore[reportUnknownVariableType]  # isinstance cannot tell of what
        return Node({str(k): Entry(origin, _literal(v, origin)) for k, v in items.items()}, origin)
    if isinstance(value, list | tuple):
        members: list[Any] = list(value)  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]  # as above
        return Node([_literal(v, origin) for v in members], origin)
    return Node(value if isinstance(value, str | int | float | bool | None) else str(value), origin)


def relocate(node: Node, origin: Origin) -> Node:
    """The same values, all at `origin`."""
    return _literal(to_python(node), origin)


def to_python(node: Node) -> Any:
    """Plain dicts, lists and scalars."""
    if isinstance(node.value, dict):
        return {k: to_python(e.node) for k, e in node.value.items()}
    if isinstance(node.value, list):
        return [to_python(n) for n in node.value]
    return node.value


def overlay(base: Node, top: Node) -> Node:
    """`top` over `base`: mappings are merged key by key, everything else is replaced."""
    if not isinstance(base.value, dict) or not isinstance(top.value, dict):
        return top
    entries = dict(base.value)
    for name, entry in top.value.items():
        below = entries.get(name)
        entries[name] = entry if below is None else Entry(entry.key, overlay(below.node, entry.node))
    return Node(entries, base.origin)


def at_path(path: KeyPath, node: Node) -> Node:
    """A tree that holds nothing but `node` at `path`."""
    for part in reversed(path):
        node = Node({str(part): Entry(node.origin, node)}, node.origin)
    return node


def locate(root: Node, loc: KeyPath) -> tuple[KeyPath, Origin]:
    """Where pydantic's `loc` stands: the path without the parts that are no keys (union tags), and the innermost place."""
    path: list[str | int] = []
    node, origin = root, root.origin
    for part in loc:
        if isinstance(node.value, dict) and str(part) in node.value:
            entry = node.value[str(part)]
            node, origin = entry.node, entry.key
            path.append(str(part))
        elif isinstance(node.value, list) and isinstance(part, int) and part < len(node.value):
            node = node.value[part]
            origin = node.origin
            path.append(part)
    return tuple(path), origin
