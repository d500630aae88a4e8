"""What is wrong with rules about requests: fields that they may not touch, and values that no JSON can hold."""

import math
from collections.abc import Iterator, Mapping
from typing import Any, TypeAlias, cast

from vllm_mm.settings.models import ModelConfig, RequestRulesConfig
from vllm_mm.settings.nodes import KeyPath
from vllm_mm.vocabulary.requests import PROTECTED

Finding: TypeAlias = tuple[KeyPath, str]


def check_rules_of_model(model: ModelConfig) -> Iterator[Finding]:
    """In a model and the names that have rules of their own; paths begin inside of it."""
    yield from check_rules((), model)
    for path, _, own in model.names():
        if own is not None:
            yield from check_rules(path, own)


def check_rules(path: KeyPath, rules: RequestRulesConfig) -> Iterator[Finding]:
    """In what one level says."""
    for key, said in (("request_defaults", rules.request_defaults), ("request_overrides", rules.request_overrides)):
        for name, value in said.items():
            if name in PROTECTED:
                yield (*path, key, name), f"`{name}` cannot be set by a rule: {PROTECTED[name]}; remove it"
            elif not name:
                yield (*path, key, name), "a request field needs a name"
            yield from _value((*path, key, name), value)
        yield from _text((*path, key), *said)


def _value(path: KeyPath, value: object) -> Iterator[Finding]:
    if isinstance(value, Mapping):
        members = cast("Mapping[str, Any]", value)
        yield from _text(path, *members)
        for name, inner in members.items():
            yield from _value((*path, name), inner)
    elif isinstance(value, list | tuple):
        for i, inner in enumerate(cast("list[Any]", value)):
            yield from _value((*path, i), inner)
    elif isinstance(value, float) and not math.isfinite(value):
        yield path, f"{value} is no number that JSON has"
    elif isinstance(value, str):
        yield from _text(path, value)


def _text(path: KeyPath, *texts: str) -> Iterator[Finding]:
    for text in texts:
        try:
            text.encode()
        except UnicodeEncodeError:
            yield path, f"{text!r} has half of a surrogate pair in it"
