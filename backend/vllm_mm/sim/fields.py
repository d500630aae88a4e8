"""The types of fields in a body, as vLLM's validation takes them (pydantic, lax mode): tables, and what holds a body to them."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

from vllm_mm.sim import errors
from vllm_mm.sim.bodies import as_list, as_object

Check: TypeAlias = Callable[[str, object], None]
"""Raises ApiError for a value that the field of this name cannot have."""
Table: TypeAlias = Mapping[str, Check]

_TRUE = frozenset({"true", "1", "yes", "on", "t", "y"})
_FALSE = frozenset({"false", "0", "no", "off", "f", "n"})


def hold(body: Mapping[str, Any], table: Table) -> None:
    """Each field that is there. Raises ApiError for the first that is wrong."""
    for name, check in table.items():
        if name in body:
            check(name, body[name])


def or_null(check: Check) -> Check:
    """The same, or null."""

    def judge(name: str, value: object) -> None:
        if value is not None:
            check(name, value)

    return judge


def whole(least: int | None = None, most: int | None = None) -> Check:
    """A whole number, also written as text."""

    def judge(name: str, value: object) -> None:
        number = _whole(name, value)
        if least is not None and number < least:
            message = f"Input should be greater than or equal to {least}"
            raise errors.invalid(name, message, value, "greater_than_equal")
        if most is not None and number > most:
            raise errors.invalid(name, f"Input should be less than or equal to {most}", value, "less_than_equal")

    return judge


def _whole(name: str, value: object) -> int:
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        if not value.is_integer():
            message = "Input should be a valid integer, got a number with a fractional part"
            raise errors.invalid(name, message, value, "int_from_float")
        return int(value)
    if isinstance(value, str):
        try:
            return int(value)
        except ValueError:
            message = "Input should be a valid integer, unable to parse string as an integer"
            raise errors.invalid(name, message, value, "int_parsing") from None
    raise errors.invalid(name, "Input should be a valid integer", value, "int_type")


def number(name: str, value: object) -> None:
    """Any number, also written as text."""
    if isinstance(value, (int, float)):
        return
    if not isinstance(value, str):
        raise errors.invalid(name, "Input should be a valid number", value, "float_type")
    try:
        float(value)
    except ValueError:
        message = "Input should be a valid number, unable to parse string as a number"
        raise errors.invalid(name, message, value, "float_parsing") from None


def flag(name: str, value: object) -> None:
    """True or false, also in words."""
    truth(name, value)


def truth(name: str, value: object) -> bool:
    """What a flag says. Raises ApiError."""
    if isinstance(value, (bool, int, float)) and value in (0, 1):
        return bool(value)
    if isinstance(value, str) and value.lower() in _TRUE | _FALSE:
        return value.lower() in _TRUE
    if isinstance(value, (int, str)):
        message = "Input should be a valid boolean, unable to interpret input"
        raise errors.invalid(name, message, value, "bool_parsing")
    raise errors.invalid(name, "Input should be a valid boolean", value, "bool_type")


def text(name: str, value: object) -> None:
    """A text, and nothing that could be written as one."""
    if not isinstance(value, str):
        raise errors.invalid(name, "Input should be a valid string", value, "string_type")


def items(check: Check) -> Check:
    """A list of such values."""

    def judge(name: str, value: object) -> None:
        found = as_list(value)
        if found is None:
            raise errors.invalid(name, "Input should be a valid list", value, "list_type")
        for index, item in enumerate(found):
            check(f"{name}.{index}", item)

    return judge


def mapping(check: Check | None = None) -> Check:
    """An object, with such values."""

    def judge(name: str, value: object) -> None:
        found = as_object(value)
        if found is None:
            raise errors.invalid(name, "Input should be a valid dictionary", value, "dict_type")
        if check is not None:
            for key, item in found.items():
                check(f"{name}.{key}", item)

    return judge


def one_of(*words: str) -> Check:
    """One of these texts."""
    quoted = [f"'{word}'" for word in words]
    expected = f"{', '.join(quoted[:-1])} or {quoted[-1]}"

    def judge(name: str, value: object) -> None:
        if value not in words:
            raise errors.invalid(name, f"Input should be {expected}", value, "literal_error")

    return judge


def shape(required: Sequence[str] = (), /, **fields: Check) -> Check:
    """An object with these fields; those that are required have to be there."""

    def judge(name: str, value: object) -> None:
        found = as_object(value)
        if found is None:
            message = "Input should be a valid dictionary or object to extract fields from"
            raise errors.invalid(name, message, value, "model_attributes_type")
        for field in required:
            if field not in found:
                raise errors.missing(f"{name}.{field}", found)
        for field, check in fields.items():
            if field in found:
                check(f"{name}.{field}", found[field])

    return judge


def either(*checks: Check) -> Check:
    """What one of these takes; else the error of the first."""

    def judge(name: str, value: object) -> None:
        first: errors.ApiError | None = None
        for check in checks:
            try:
                check(name, value)
            except errors.ApiError as error:
                first = first or error
            else:
                return
        if first is not None:
            raise first

    return judge
