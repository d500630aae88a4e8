"""What operators say about the fields of requests: defaults, overrides and limits, for all models, for one, for one name.

Rules are trees of JSON values that know where each of them was said. `merge` lays a nearer tree over a farther one;
`RuleSet.plan` makes of the result what `domain.body_edits` applies to the bytes of a body.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import cached_property
from typing import Any, Final, TypeAlias, cast

MAX_TOKENS: Final = "max_tokens"
"""The name of the limit on the length of an answer, whatever an API calls its field."""

MIN_TOKENS: Final = "min_tokens"
"""What every API of vLLM calls the least number of tokens of an answer. More than the most is an error to engines."""

IF_MISSING: Final = "max_tokens_if_missing"
"""Whether requests that name no number get the limit."""


class Level(StrEnum):
    """Where a rule was said, from the farthest to the nearest."""

    SYSTEM = "system"
    """`defaults`: for all models."""
    MODEL = "model"
    ALIAS = "alias"
    """For one name of a model: an alias, or a LoRA adapter."""


class Kind(StrEnum):
    """What a rule does."""

    DEFAULT = "default"
    """Sets a field where the client did not; null sets none."""
    OVERRIDE = "override"
    """Sets a field whatever the client says; null removes it."""
    LIMIT = "limit"
    """Makes a larger number its own."""


@dataclass(frozen=True, slots=True)
class Leaf:
    """A value that replaces what is below it: a scalar, null or a list."""

    value: Any
    source: Level


@dataclass(frozen=True, slots=True)
class Branch:
    """An object, whose members are laid over those of the object below it."""

    fields: Mapping[str, "Tree"] = field(default_factory=dict[str, "Tree"])
    whole: bool = False
    """It replaces the object below it, for a farther rule has put something else in its place."""
    makes: bool = True
    """It comes where no object is. One that only takes members away does not."""


Tree: TypeAlias = Leaf | Branch


def branch(values: Mapping[str, Any], source: Level) -> Branch:
    """The tree of what one level says."""
    fields = {name: _tree(value, source) for name, value in values.items()}
    return Branch(fields, makes=not fields or any(map(_makes, fields.values())))


def _tree(value: object, source: Level) -> Tree:
    return branch(cast("Mapping[str, Any]", value), source) if isinstance(value, Mapping) else Leaf(value, source)


def merge(below: Tree, above: Tree) -> Tree:
    """`above`, the nearer, over `below`. Objects are merged member by member, all else is replaced.

    Applying what comes out is applying `below` and then `above`; so several may be merged in any grouping, not in any order.
    """
    if isinstance(above, Leaf) or above.whole:
        return above
    if isinstance(below, Leaf):
        return Branch(above.fields, whole=True) if above.makes else below
    return _merged(below, above)


def _merged(below: Branch, above: Branch) -> Branch:
    fields = dict(below.fields)
    for name, tree in above.fields.items():
        fields[name] = merge(fields[name], tree) if name in fields else tree
    return Branch(fields, below.whole, below.makes or above.makes)


def _makes(tree: Tree) -> bool:
    """Whether something is there that was not."""
    return tree.makes if isinstance(tree, Branch) else tree.value is not None


@dataclass(frozen=True, slots=True)
class Rule:
    """One value of a merged rule set, for people."""

    kind: Kind
    path: tuple[str, ...]
    value: Any
    source: Level


@dataclass(frozen=True, slots=True)
class Limit:
    """The most that a number may be."""

    at_most: int
    if_missing: bool
    """The limit is set where the client names no number."""


@dataclass(frozen=True, slots=True)
class Field:
    """What becomes of one field of an object. Values are JSON in bytes; None leaves what is there."""

    name: str
    """The rule's name, for whoever wants to know which took effect."""
    missing: bytes | None = None
    """For a field that is not there, or null."""
    value: bytes | None = None
    """For one that has a value, unless that is an object and there is an `inner`."""
    inner: "Plan | None" = None
    """For the members of an object."""
    remove: bool = False
    """The field goes, unless `missing` comes in its place."""
    weak: bool = False
    """`missing` is only for a client that names none of the `group`."""
    at_most: int | None = None
    """A larger number becomes this one..."""
    signed: bool = False
    """...and one below zero stays."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What becomes of an object."""

    fields: Mapping[bytes, Field]
    """By name in UTF-8, without escapes."""
    group: frozenset[bytes] = frozenset()
    """Names of the same thing: who sets one of them has set it."""


@dataclass(frozen=True)
class RuleSet:
    """All that is said about the requests for one name."""

    defaults: Branch = field(default_factory=Branch)
    overrides: Branch = field(default_factory=Branch)
    limits: Branch = field(default_factory=Branch)

    def __bool__(self) -> bool:
        return bool(self.defaults.fields or self.overrides.fields or self.limits.fields)

    def over(self, below: "RuleSet") -> "RuleSet":
        """These rules, the nearer, over those of a farther level."""
        return RuleSet(
            _merged(below.defaults, self.defaults),
            _merged(below.overrides, self.overrides),
            _merged(below.limits, self.limits),
        )

    def rules(self) -> Iterator[Rule]:
        """Each value and where it was said. What a nearer level took away is there as its null."""
        for kind, tree in ((Kind.DEFAULT, self.defaults), (Kind.OVERRIDE, self.overrides), (Kind.LIMIT, self.limits)):
            yield from _leaves(kind, (), tree)

    @property
    def limit(self) -> Limit | None:
        """The limit on the length of an answer."""
        said = _applied(self.limits, {})
        return Limit(said[MAX_TOKENS], said.get(IF_MISSING, False)) if MAX_TOKENS in said else None

    @cached_property
    def _plans(self) -> dict[Sequence[str], Plan]:
        return {}

    def plan(self, tokens: Sequence[str] = ()) -> Plan:
        """What becomes of a body in an API in which `tokens` are the names of the field for the length of an answer, the
        one that is set where there is none first. Made once."""
        plan = self._plans.get(tokens)
        if plan is None:
            self._plans[tokens] = plan = self._make(tokens)
        return plan

    def _make(self, tokens: Sequence[str]) -> Plan:
        defaults, overrides = dict(self.defaults.fields), dict(self.overrides.fields)
        said = _nearest(defaults, tokens)
        names = _nearest(overrides, tokens)
        others = {name: Leaf(None, Level.SYSTEM) for name in tokens if names and name not in names}
        for name in tokens:
            if said and name not in said:
                defaults.pop(name, None)
        fields = dict(_plan(defaults, overrides | others).fields)
        for name in others:
            fields[name.encode()] = replace(fields[name.encode()], name=names[0])
        if self.limit is not None and tokens:
            _limited(fields, self.limit, tokens)
        _no_less_than_the_most(fields, self.limit if tokens else None, names)
        if fields.keys().isdisjoint(name.encode() for name in tokens):
            return Plan(fields)
        for name in tokens:
            fields.setdefault(name.encode(), Field(name))
        return Plan(fields, frozenset(name.encode() for name in tokens))


def rule_set(
    level: Level,
    defaults: Mapping[str, Any] | None = None,
    overrides: Mapping[str, Any] | None = None,
    limits: Mapping[str, Any] | None = None,
) -> RuleSet:
    """What one level says."""
    return RuleSet(branch(defaults or {}, level), branch(overrides or {}, level), branch(limits or {}, level))


def exceeds(value: object, at_most: int, *, signed: bool = False) -> bool:
    """Whether a number, or the text of one, which engines take as well, is beyond the limit. Numbers below zero are, unless `signed`: to
    some servers they mean that there is no bound."""
    if isinstance(value, str):
        try:
            value = float(value)
        except ValueError:
            return False
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return not (signed or value >= 0) or not value <= at_most


def encode(value: object) -> bytes:
    """JSON as short as it gets. Raises ValueError for text that has no UTF-8."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()


def _leaves(kind: Kind, path: tuple[str, ...], tree: Tree) -> Iterator[Rule]:
    if isinstance(tree, Leaf):
        yield Rule(kind, path, tree.value, tree.source)
        return
    for name, inner in tree.fields.items():
        yield from _leaves(kind, (*path, name), inner)


def _nearest(trees: Mapping[str, Tree], names: Sequence[str]) -> Sequence[str]:
    """Of several names of the same thing, those that the nearest level gives a value."""
    levels = list(Level)
    found = {
        name: levels.index(tree.source)
        for name in names
        if isinstance(tree := trees.get(name), Leaf) and tree.value is not None
    }
    return [name for name, level in found.items() if level == max(found.values())]


def _plan(defaults: Mapping[str, Tree], overrides: Mapping[str, Tree]) -> Plan:
    return Plan(
        {
            name.encode(): _field(name, defaults.get(name), overrides.get(name))
            for name in dict.fromkeys([*defaults, *overrides])
        }
    )


def _field(name: str, default: Tree | None, override: Tree | None) -> Field:
    if isinstance(override, Leaf):
        if override.value is None:
            return Field(name, remove=True)
        text = encode(override.value)
        return Field(name, missing=text, value=text)
    base: Any = _plain(default) if default is not None and _makes(default) else None
    inner: Mapping[str, Tree] = default.fields if isinstance(default, Branch) else {}
    if override is None:
        return Field(
            name, missing=None if base is None else encode(base), inner=_plan(inner, {}) if inner else None, weak=True
        )
    if override.whole:
        over = encode(_plain(override))
        return Field(name, missing=over, value=over)
    plan = _plan(inner, override.fields)
    if not override.makes and not isinstance(base, dict):
        return Field(name, missing=None if base is None else encode(base), inner=plan)
    over = encode(_applied(override, cast("dict[str, Any]", base) if isinstance(base, dict) else {}))
    return Field(name, missing=over, value=over if override.makes else None, inner=plan)


def _plain(tree: Tree) -> Any:
    """What it makes where nothing was."""
    return tree.value if isinstance(tree, Leaf) else _applied(tree, {})


def _applied(tree: Branch, base: Mapping[str, Any]) -> dict[str, Any]:
    """An override on an object."""
    result = dict(base)
    for name, inner in tree.fields.items():
        below = result.get(name)
        if isinstance(inner, Leaf):
            result[name] = inner.value
            if inner.value is None:
                del result[name]
        elif isinstance(below, dict) and not inner.whole:
            result[name] = _applied(inner, cast("dict[str, Any]", below))
        elif inner.makes:
            result[name] = _applied(inner, {})
    return result


def _limited(fields: dict[bytes, Field], limit: Limit, tokens: Sequence[str]) -> None:
    """What a rule sets is limited now, what the client sets when it comes."""
    number = encode(limit.at_most)

    def capped(text: bytes | None) -> bytes | None:
        return number if text is not None and exceeds(json.loads(text), limit.at_most) else text

    for name in tokens:
        old = fields.get(name.encode(), Field(MAX_TOKENS))
        fields[name.encode()] = replace(
            old, missing=capped(old.missing), value=capped(old.value), at_most=limit.at_most
        )
    first = tokens[0].encode()
    if limit.if_missing and all(fields[name.encode()].missing is None for name in tokens):
        fields[first] = replace(fields[first], name=MAX_TOKENS, missing=number, weak=True)


def _no_less_than_the_most(fields: dict[bytes, Field], limit: Limit | None, overridden: Sequence[str]) -> None:
    """Where rules make an answer shorter than the client asks for at least, they make that less, too: engines would refuse it for
    something that the client has not said."""
    most = [] if limit is None else [limit.at_most]
    for name in overridden:
        value = json.loads(fields[name.encode()].value or b"null")
        if isinstance(value, int) and value > 0:
            most.append(value)
    if not most:
        return
    old = fields.get(MIN_TOKENS.encode(), Field(MIN_TOKENS))
    least = encode(min(most))
    missing, value = (
        least if text is not None and exceeds(json.loads(text), min(most), signed=True) else text
        for text in (old.missing, old.value)
    )
    fields[MIN_TOKENS.encode()] = replace(old, missing=missing, value=value, at_most=min(most), signed=True)
