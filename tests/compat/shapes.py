"""What clients of other servers rely on in answers, written down from those servers' public documentation: names and types. An
answer may have more."""

from collections.abc import Mapping
from typing import Any

Shape = Any
"""A type, a tuple of types, a list with the shape of its items, a mapping, or a set of the values that are possible."""

LLAMA_SWAP_RUNNING: Shape = {
    "running": [
        {
            "model": str,
            "state": {"starting", "ready", "stopping"},
            "cmd": str,
            "proxy": str,
            "ttl": int,
            "name": str,
            "description": str,
        }
    ]
}
LLAMA_CPP_MODELS: Shape = {
    "data": [
        {
            "id": str,
            "in_cache": bool,
            "path": str,
            "status": {"value": {"loaded", "loading", "unloaded", "sleeping"}, "args": [str]},
        }
    ]
}
LLAMA_CPP_DONE: Shape = {"success": bool}
_DETAILS: Shape = {
    "parent_model": str,
    "format": str,
    "family": str,
    "families": [str],
    "parameter_size": str,
    "quantization_level": str,
}
OLLAMA_TAGS: Shape = {
    "models": [
        {"name": str, "model": str, "modified_at": str, "size": int, "digest": str, "details": _DETAILS},
    ]
}
OLLAMA_PS: Shape = {
    "models": [
        {
            "name": str,
            "model": str,
            "size": int,
            "digest": str,
            "details": _DETAILS,
            "expires_at": str,
            "size_vram": int,
            "context_length": int,
        }
    ]
}
OLLAMA_SHOW: Shape = {"details": _DETAILS, "model_info": dict, "capabilities": [str], "modified_at": str}
OLLAMA_DONE: Shape = {"model": str, "created_at": str, "response": str, "done": bool, "done_reason": {"load", "unload"}}
OPENAI_MODELS: Shape = {"object": {"list"}, "data": [{"id": str, "object": {"model"}, "created": int, "owned_by": str}]}
OPENAI_CHUNK: Shape = {
    "id": str,
    "object": {"chat.completion.chunk"},
    "created": int,
    "model": str,
    "choices": [{"index": int, "delta": dict}],
}


def differs(found: Any, shape: Shape, place: str = "answer") -> str:
    """The first place where `found` is not as clients expect it; empty when it is."""
    if isinstance(shape, Mapping):
        if not isinstance(found, Mapping):
            return f"{place} is {found!r}, not an object"
        for name, inner in shape.items():
            if name not in found:
                return f"{place} has no {name}"
            if why := differs(found[name], inner, f"{place}.{name}"):
                return why
        return ""
    if isinstance(shape, list):
        if not isinstance(found, list):
            return f"{place} is {found!r}, not a list"
        return next((w for n, item in enumerate(found) if (w := differs(item, shape[0], f"{place}[{n}]"))), "")
    if isinstance(shape, set):
        return "" if found in shape else f"{place} is {found!r}, none of {sorted(shape)}"
    good = type(found) is shape or (isinstance(found, shape) and not isinstance(found, bool))
    return "" if good else f"{place} is {found!r}, no {shape.__name__}"
