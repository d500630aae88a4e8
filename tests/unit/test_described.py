"""Descriptions of fields, from the docstrings below them."""

from typing import Annotated

from pydantic import Field, WithJsonSchema

from vllm_mm.settings.described import Described

Length = Annotated[float, WithJsonSchema({"type": "number", "description": "Metres."})]


class Box(Described):
    label: str
    """What is written on it,
    for people."""
    width: Length
    """From left to right."""
    height: Length
    depth: Length = Field(default=1.0, description="Said by itself.")
    """Not shown."""


class Crate(Box):
    weight: float = Field(default=0.0, serialization_alias="kg")
    """With what is in it."""
    first: Box | None = None
    """On top."""


def test_a_docstring_says_more_than_the_type() -> None:
    shown = Box.model_json_schema()["properties"]
    assert shown["label"]["description"] == "What is written on it,\nfor people."
    assert shown["width"]["description"] == "From left to right."
    assert shown["height"]["description"] == "Metres."
    assert shown["depth"]["description"] == "Said by itself."


def test_what_is_inherited_is_described_as_well() -> None:
    shown = Crate.model_json_schema(mode="serialization")["properties"]
    assert shown["label"]["description"] == "What is written on it,\nfor people."
    assert shown["kg"]["description"] == "With what is in it."
    assert shown["first"]["description"] == "On top."


def test_a_class_without_a_source_has_no_descriptions() -> None:
    made = type("Made", (Described,), {"__annotations__": {"a": int}, "__module__": "builtins"})
    assert "description" not in made.model_json_schema()["properties"]["a"]


class Weighed(Described):
    described_by = (Box,)

    width: int = 0
    depth: int = 0
    """Its own word comes first."""


def test_a_class_with_the_fields_of_another_is_described_by_it() -> None:
    shown = Weighed.model_json_schema()["properties"]
    assert shown["width"]["description"] == "From left to right."
    assert shown["depth"]["description"] == "Its own word comes first."
