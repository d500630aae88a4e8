"""Answers of a form: whatever schema is asked for, the answer fits it, and is the same for the same prompt."""

import json
from typing import Any

import jsonschema_rs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from vllm_mm.sim.forms import DEEPEST, LONGEST, answer_of, form_of, written

NODE = {"type": "object", "properties": {"v": {"type": "number"}, "next": {"$ref": "#/$defs/node"}}, "required": ["v"]}
SCHEMAS: list[dict[str, Any]] = [
    {},
    {"type": "object"},
    {"const": [1, {"a": None}]},
    {"enum": ["x", 5, None]},
    {"type": "boolean"},
    {"type": "null"},
    {"type": ["null", "string"], "minLength": 30, "maxLength": 31},
    {"type": "string", "maxLength": 2},
    {"type": "string", "maxLength": 0},
    *({"type": "string", "format": name} for name in ("date", "time", "date-time", "email", "uuid", "uri", "ipv4", "duration")),
    {"type": "integer"},
    {"type": "integer", "minimum": 3, "maximum": 3},
    {"type": "integer", "exclusiveMinimum": 3, "exclusiveMaximum": 5},
    {"type": "integer", "maximum": -100, "multipleOf": 7},
    {"type": "number", "minimum": 0.5, "maximum": 0.75, "multipleOf": 0.25},
    {"type": "array", "items": {"type": "integer"}, "minItems": 5},
    {"type": "array", "maxItems": 0},
    {"type": "array", "prefixItems": [{"type": "integer"}, {"type": "string"}], "items": {"type": "boolean"}},
    {"properties": {"a": {"type": "string"}}, "required": ["a", "b"]},
    {"type": "object", "properties": {"a": {"type": "string"}}, "additionalProperties": False},
    {"anyOf": [{"type": "integer"}, {"type": "null"}]},
    {"oneOf": [{"type": "string"}, {"type": "integer"}]},
    {
        "allOf": [{"$ref": "#/$defs/a"}, {"properties": {"y": {"type": "integer"}}, "required": ["y"]}],
        "properties": {"z": {"type": "boolean"}},
        "$defs": {"a": {"type": "object", "properties": {"x": {"type": "string"}}, "required": ["x"]}},
    },
    {"$ref": "#/$defs/node", "$defs": {"node": NODE}},
    {"type": "array", "items": {"anyOf": [{"$ref": "#"}, {"type": "null"}]}},
]  # fmt: skip


@pytest.mark.parametrize("schema", SCHEMAS, ids=json.dumps)
@given(seed=st.integers(0, 2**64 - 1))
def test_what_is_written_fits_its_schema(schema: dict[str, Any], seed: int) -> None:
    text = written(schema, seed)
    assert jsonschema_rs.validator_for(schema).is_valid(json.loads(text)), text
    assert written(schema, seed) == text


@pytest.mark.parametrize(
    "schema",
    [
        {"$ref": "#/$defs/node", "$defs": {"node": {**NODE, "required": ["next"]}}},
        {"type": "array", "minItems": 10_000, "items": {"type": "string", "minLength": 10_000}},
        {"type": "array", "minItems": 1000, "items": {"type": "array", "minItems": 1000, "items": {"$ref": "#"}}},
        {"$ref": "#"},
        {"$ref": "#/nowhere"},
        {"allOf": [{"$ref": "#"}]},
        {"type": "object", "properties": 5, "required": "x"},
        {"enum": []},
        {"type": "integer", "minimum": "x", "multipleOf": 0},
        5,
    ],
    ids=json.dumps,
)
def test_what_cannot_be_has_an_end(schema: object) -> None:
    """A schema that contains itself without a way out, that asks for gigabytes, or that is none."""
    text = written(schema, 1)
    assert len(text) <= LONGEST
    assert text.count("{") + text.count("[") <= LONGEST
    assert text.count("next") <= DEEPEST


FORMAT = {"type": "json_schema", "json_schema": {"name": "n", "schema": {"const": 7}}}


@pytest.mark.parametrize(
    ("body", "text"),
    [
        ({}, None),
        ({"response_format": {"type": "text"}}, None),
        ({"response_format": FORMAT}, "7"),
        ({"text": {"format": {"type": "json_schema", "name": "n", "schema": {"const": 7}}}}, "7"),
        ({"structured_outputs": {"json": '{"const": 8}'}}, "8"),
        ({"structured_outputs": {"json": "{"}}, None),
        ({"structured_outputs": {"choice": ["yes", "no", "maybe"]}}, "maybe"),
        ({"guided_choice": ["yes", "no", "maybe"]}, "maybe"),
        ({"guided_json": {"const": 9}}, "9"),
        ({"structured_outputs": {"regex": "a+"}}, None),
    ],
)
def test_where_a_form_is_asked_for(body: dict[str, Any], text: str | None) -> None:
    assert form_of(body, 5) == text


@pytest.mark.parametrize(
    "body", [{"response_format": {"type": "json_object"}}, {"structured_outputs": {"json_object": True}}]
)
def test_an_object_of_any_kind(body: dict[str, Any]) -> None:
    assert isinstance(json.loads(form_of(body, 5) or ""), dict)


ARGUMENTS = {"type": "object", "properties": {"n": {"const": 3}}, "required": ["n"]}


@pytest.mark.parametrize(
    ("tool", "choice", "named"),
    [
        ({"type": "function", "function": {"name": "f", "parameters": ARGUMENTS}}, "required", False),
        (
            {"type": "function", "function": {"name": "f", "parameters": ARGUMENTS}},
            {"type": "function", "function": {"name": "f"}},
            True,
        ),
        ({"type": "function", "name": "f", "parameters": ARGUMENTS}, {"type": "function", "name": "f"}, True),
        ({"name": "f", "input_schema": ARGUMENTS}, {"type": "any"}, False),
        ({"name": "f", "input_schema": ARGUMENTS}, {"type": "tool", "name": "f"}, True),
    ],
)
def test_a_tool_that_has_to_be_called(tool: object, choice: object, *, named: bool) -> None:
    """In the words of each API: chat, responses, messages."""
    formed, called = answer_of("m", "p", {"tools": [tool], "tool_choice": choice})
    assert formed is not None
    assert called is not None
    assert (called.name, called.named, formed.text(0, 99)) == ("f", named, '{"n": 3}')
    assert formed.natural_length == 2


@pytest.mark.parametrize(
    "choice", [None, "auto", "none", {"type": "auto"}, {"type": "function", "function": {"name": "g"}}]
)
def test_a_tool_that_has_not(choice: object) -> None:
    tool = {"type": "function", "function": {"name": "f", "parameters": ARGUMENTS}}
    assert answer_of("m", "p", {"tools": [tool], "tool_choice": choice}) == (None, None)
