"""Answers of a form that was asked for: JSON after a schema, one of several texts, the arguments of a tool. As all answers, they depend on
the model's name and the prompt, and on nothing else."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from vllm_mm.sim.bodies import as_list, as_object
from vllm_mm.sim.service import new_id
from vllm_mm.sim.text import Formed, seed_of

SHALLOW = 6
"""Levels of JSON; below them nothing is written that need not be: a schema may contain itself."""
DEEPEST = 24
"""Levels; what would be below them is null, whatever its schema says."""
MOST = 10_000
"""Values in one answer."""
LONGEST = 100_000
"""Characters that a schema can make an answer have."""
_PIECE = 4
"""Characters of a token."""
_WORDS = ("alpha", "beta", "gamma", "delta", "epsilon", "zeta", "eta", "theta")
_FORMATS = {
    "date": "2026-01-31", "time": "12:30:00Z", "date-time": "2026-01-31T12:30:00Z", "email": "ada@example.com",
    "uuid": "00000000-0000-4000-8000-000000000000", "uri": "https://example.com/", "ipv4": "192.0.2.1", "duration": "PT1H",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Tool:
    """A tool that has to be called."""

    name: str
    named: bool
    """It was asked for by its name; else any of them was."""
    identity: str = field(default_factory=lambda: f"chatcmpl-tool-{new_id()[:16]}")


def tool_of(tools: object, choice: object, seed: int) -> tuple[Tool, object] | None:
    """The tool that has to be called, and the schema of its arguments; None where none has to be. Takes the forms of all APIs."""
    known = [(name, schema) for name, schema in map(_declared, as_list(tools) or ()) if name]
    asked = as_object(choice)
    if asked is not None:
        name = asked.get("name") or (as_object(asked.get("function")) or {}).get("name")
        if name is not None:
            return next(((Tool(found, named=True), schema) for found, schema in known if found == name), None)
        choice = asked.get("type")
    if choice not in {"required", "any"} or not known:
        return None
    name, schema = known[seed % len(known)]
    return Tool(name, named=False), schema


def _declared(tool: object) -> tuple[str, object]:
    declared = as_object(tool) or {}
    declared = as_object(declared.get("function")) or declared
    return str(declared.get("name") or ""), declared.get("parameters", declared.get("input_schema"))


def form_of(body: Mapping[str, Any], seed: int) -> str | None:
    """The text that fits the form which a body asks for, other than by a tool; None for free text, and for forms that are only checked by
    real engines (patterns, grammars)."""
    own = as_object(body.get("structured_outputs")) or {}
    choices = as_list(own.get("choice") or body.get("guided_choice"))
    if choices:
        return str(choices[seed % len(choices)])
    schema = own.get("json") or body.get("guided_json")
    wanted = (
        as_object(body.get("response_format")) or as_object((as_object(body.get("text")) or {}).get("format")) or {}
    )
    if wanted.get("type") == "json_schema":
        schema = (as_object(wanted.get("json_schema")) or wanted).get("schema")
    elif schema is None and (wanted.get("type") == "json_object" or own.get("json_object")):
        schema = {"type": "object", "properties": {"answer": {"type": "string"}}}
    if isinstance(schema, str):
        try:
            schema = json.loads(schema)
        except ValueError:
            return None
    return None if schema is None else written(schema, seed)


def written(schema: object, seed: int) -> str:
    """JSON that fits the schema."""
    return json.dumps(_Maker(schema, seed).make(schema, 0), ensure_ascii=False)[:LONGEST]


def answer_of(model: str, prompt: str, body: Mapping[str, Any]) -> tuple[Formed | None, Tool | None]:
    """How the answer has to be: a text of a form, and the tool whose arguments it is."""
    seed = seed_of(model, prompt)
    called = tool_of(body.get("tools"), body.get("tool_choice"), seed)
    if called is not None:
        tool, schema = called
        return Formed(written(schema or {"type": "object"}, seed), _PIECE), tool
    text = form_of(body, seed)
    return None if text is None else Formed(text, _PIECE), None


class _Maker:
    """One value after one schema."""

    def __init__(self, root: object, seed: int) -> None:
        self._root = root
        self._seed = seed
        self._made = self._values = 0

    def _pick(self, count: int) -> int:
        self._made += 1
        return seed_of(str(self._seed), str(self._made)) % count

    def make(self, schema: object, depth: int) -> object:
        found = as_object(schema)
        self._values += 1
        if found is None or depth > DEEPEST or self._values > MOST:
            return None
        if "$ref" in found:
            return self.make(self._referred(str(found["$ref"])), depth + 1)
        if "const" in found:
            return found["const"]
        if values := as_list(found.get("enum")):
            return values[self._pick(len(values))]
        if parts := as_list(found.get("allOf")):
            return self.make(_joined([found, *(self._whole(part) for part in parts)]), depth + 1)
        for either in ("anyOf", "oneOf"):
            if ways := as_list(found.get(either)):
                # The last one is the way out of a schema that contains itself, most often.
                return self.make(ways[0] if depth < SHALLOW else ways[-1], depth + 1)
        return self._of_type(_type(found), found, depth)

    def _of_type(self, kind: str, schema: Mapping[str, Any], depth: int) -> object:
        match kind:
            case "object":
                return self._object(schema, depth)
            case "array":
                return self._array(schema, depth)
            case "string":
                return self._string(schema)
            case "integer" | "number":
                return self._number(schema, whole=kind == "integer")
            case "boolean":
                return bool(self._pick(2))
            case _:
                return None

    def _object(self, schema: Mapping[str, Any], depth: int) -> object:
        required = {str(name) for name in as_list(schema.get("required")) or ()}
        fields = as_object(schema.get("properties")) or {}
        wanted = [name for name in fields if depth < SHALLOW or name in required]
        return {name: self.make(fields[name], depth + 1) for name in wanted} | dict.fromkeys(
            sorted(required - fields.keys())
        )

    def _array(self, schema: Mapping[str, Any], depth: int) -> object:
        first = as_list(schema.get("prefixItems")) or []
        least, most = _bound(schema, "minItems", 0), _bound(schema, "maxItems", 1_000)
        count = max(least, len(first), min(most, 2 if depth < SHALLOW else 0))
        return [
            self.make(item, depth + 1) for item in [*first, *[schema.get("items", {"type": "string"})] * count][:count]
        ]

    def _string(self, schema: Mapping[str, Any]) -> str:
        known = _FORMATS.get(str(schema.get("format")))
        if known is not None:
            return known
        text = _WORDS[self._pick(len(_WORDS))]
        least, most = _bound(schema, "minLength", 0), _bound(schema, "maxLength", 1_000)
        return (text * (least // len(text) + 1) if len(text) < least else text)[: max(least, min(most, len(text)))]

    def _number(self, schema: Mapping[str, Any], *, whole: bool) -> float:
        step = schema.get("multipleOf")
        step = step if isinstance(step, (int, float)) and step > 0 else 1
        least, above = schema.get("minimum"), schema.get("exclusiveMinimum")
        most, below = schema.get("maximum"), schema.get("exclusiveMaximum")
        if isinstance(above, (int, float)) and not isinstance(above, bool):
            least = above + step
        if isinstance(below, (int, float)) and not isinstance(below, bool):
            most = below - step
        if not isinstance(least, (int, float)):
            least = most - 9 * step if isinstance(most, (int, float)) else 0
        top = most if isinstance(most, (int, float)) else least + 9 * step
        first = -(-least // step) * step
        value = first + step * self._pick(max(1, int((top - first) // step) + 1)) if top >= first else least
        return int(value) if whole or float(value).is_integer() else value

    def _referred(self, reference: str) -> object:
        """What `#/$defs/name` means; nothing where it is not there."""
        found: object = self._root
        for name in reference.removeprefix("#").split("/")[1:]:
            found = (as_object(found) or {}).get(name.replace("~1", "/").replace("~0", "~"))
        return found

    def _whole(self, part: object) -> Mapping[str, Any]:
        found = as_object(part) or {}
        return as_object(self._referred(str(found["$ref"]))) or {} if "$ref" in found else found


def _joined(parts: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    """One schema that asks for all that these ask for."""
    joined: dict[str, Any] = {}
    for part in parts:
        for name, value in part.items():
            if name == "properties":
                joined[name] = {**joined.get(name, {}), **(as_object(value) or {})}
            elif name == "required":
                joined[name] = [*joined.get(name, ()), *(as_list(value) or ())]
            elif name != "allOf":
                joined[name] = value
    return joined


def _type(schema: Mapping[str, Any]) -> str:
    """The first that is not null, of several; where it does not say, what its other words are about."""
    named = schema.get("type")
    kinds = [str(kind) for kind in (as_list(named) or [named]) if kind is not None]
    if kinds:
        return next((kind for kind in kinds if kind != "null"), "null")
    return "object" if "properties" in schema or "required" in schema else "array" if "items" in schema else "string"


def _bound(schema: Mapping[str, Any], name: str, default: int) -> int:
    value = schema.get(name)
    return min(1_000, value) if isinstance(value, int) and value >= 0 else default
