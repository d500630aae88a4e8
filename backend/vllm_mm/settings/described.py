"""Models whose fields are described by the docstrings below them, which are read when a schema is made.

pydantic can do this itself (`use_attribute_docstrings`), and then reads the source of each class when the class is made: a sixth of
the time in which a server starts, for words that it may never be asked for.
"""

import ast
import functools
import inspect
import sys
from collections.abc import Mapping
from typing import Any, ClassVar

from pydantic import BaseModel, GetJsonSchemaHandler
from pydantic_core import CoreSchema


class Described(BaseModel):
    """Base of all models that appear in a JSON Schema of ours."""

    described_by: ClassVar[tuple[type, ...]] = ()
    """Classes whose fields this one has, and whose docstrings describe them as well; its own come first."""

    @classmethod
    def __get_pydantic_json_schema__(cls, core_schema: CoreSchema, handler: GetJsonSchemaHandler, /) -> dict[str, Any]:
        schema = handler(core_schema)
        properties: dict[str, Any] = handler.resolve_ref_schema(schema).get("properties", {})
        for base in (*cls.described_by, *reversed(cls.__mro__)):
            for name, text in _docstrings(base.__module__).get(base.__qualname__, {}).items():
                field = cls.model_fields.get(name)
                shown = None if field is None else properties.get(field.serialization_alias or field.alias or name)
                if field is not None and shown is not None and field.description is None:
                    shown["description"] = text  # what its type says of itself is less
        return schema


@functools.cache
def _docstrings(module: str) -> Mapping[str, Mapping[str, str]]:
    """By class and attribute. Empty where there is no source."""
    try:
        tree = ast.parse(inspect.getsource(sys.modules[module]))
    except (OSError, TypeError, SyntaxError):
        return {}
    return {node.name: dict(_attributes(node)) for node in tree.body if isinstance(node, ast.ClassDef)}


def _attributes(node: ast.ClassDef) -> list[tuple[str, str]]:
    return [
        (field.target.id, inspect.cleandoc(text.value.value))
        for field, text in zip(node.body, node.body[1:], strict=False)
        if isinstance(field, ast.AnnAssign)
        and isinstance(field.target, ast.Name)
        and isinstance(text, ast.Expr)
        and isinstance(text.value, ast.Constant)
        and isinstance(text.value.value, str)
    ]
