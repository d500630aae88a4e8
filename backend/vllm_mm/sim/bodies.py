"""Looking into JSON of unknown shape."""

import json
from typing import Any, TypeAlias, cast

from vllm_mm.sim import errors
from vllm_mm.sim.text import in_vocabulary

Body: TypeAlias = dict[str, Any]


def as_list(value: object) -> list[object] | None:
    """The value, if it is a list."""
    return cast("list[object]", value) if isinstance(value, list) else None


def as_object(value: object) -> Body | None:
    """The value, if it is an object."""
    return cast("Body", value) if isinstance(value, dict) else None


def as_tokens(value: object) -> list[int] | None:
    """The value, if it is a list of token ids that is not empty."""
    items = as_list(value)
    if not items or not all(isinstance(item, int) and not isinstance(item, bool) and item >= 0 for item in items):
        return None
    return cast("list[int]", items)


def known(tokens: list[int]) -> list[int]:
    """The same. Raises ApiError for one that no tokenizer has."""
    for token in tokens:
        if not in_vocabulary(token):
            raise errors.refused(f"Token id {token} is out of vocabulary")
    return tokens


def text_of(content: object) -> str:
    """The text in a message's content: a text, or a list of parts."""
    if content is None or isinstance(content, str):
        return content or ""
    parts = as_list(content)
    return json.dumps(content, sort_keys=True) if parts is None else "".join(_part(part) for part in parts)


def _part(part: object) -> str:
    fields = as_object(part)
    if fields is None:
        return str(part)
    text = fields.get("text")
    return text if isinstance(text, str) else json.dumps(fields, sort_keys=True)


def chat_prompt(body: Body) -> str:
    """The `messages` of a body in a chat template. Raises ApiError."""
    items = as_list(body.get("messages"))
    if items is None:
        if body.get("messages") is None:
            raise errors.missing("messages", body)
        raise errors.invalid("messages", "Input should be a valid list", body["messages"], "list_type")
    if not items:
        raise errors.refused("Cannot apply chat template to an empty conversation. Provide at least one message.")
    parts: list[str] = []
    for item in items:
        message = as_object(item)
        if message is None or not isinstance(message.get("role"), str):
            raise errors.invalid("messages", "Input should be a valid message", item, "union_tag_not_found")
        parts.append(f"<|{message['role']}|>{text_of(message.get('content'))}\n")
    return "".join([*parts, "<|assistant|>"])
