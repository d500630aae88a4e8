"""Finding `model` and `stream` in a JSON body: once, without building the rest."""

import codecs
import json
from typing import Final, NamedTuple, cast

import msgspec

from vllm_mm.domain.errors import BadRequest

_SLICE = 1 << 16


class Envelope(msgspec.Struct):
    """The fields that decide where a request goes, how its errors are told and how its tokens are counted; at the top level
    only, in any position, the last one when there are several."""

    model: str | None = None
    stream: bool | None = None
    stream_options: msgspec.Raw = msgspec.Raw(b"")


class Sniffed(NamedTuple):
    """What was found."""

    model: str
    stream: bool
    """A stream is wanted."""
    options: bool = False
    """`stream_options` are there, whatever they say."""


_ABSENT: Final = msgspec.Raw(b"")
_decode = msgspec.json.Decoder(Envelope).decode


def sniff(body: bytes | bytearray) -> Sniffed:
    """The model's name, and what is said of streams.

    Agrees with Python's `json.loads`, which is what engines use: where the fast parser refuses, the slow one decides.
    Raises BadRequest with the position, or with the parameter of a wrong type.
    """
    if not body:
        raise BadRequest("The request has no body. Send a JSON object with a `model`.")
    try:
        envelope = _decode(body)
        if not body.isascii():
            _check_utf8(body)
    except msgspec.ValidationError:
        envelope = _slowly(body)
    except (msgspec.DecodeError, RecursionError):
        envelope = _slowly(body)
    if not envelope.model:
        raise BadRequest(
            "The request names no model. Add `model`, one of those that GET /v1/models lists.", param="model"
        )
    # Not the Raw itself: it would hold on to the whole body.
    return Sniffed(envelope.model, envelope.stream is True, bool(envelope.stream_options))


def _slowly(body: bytes | bytearray) -> Envelope:
    try:
        value: object = json.loads(body.decode())
    except UnicodeDecodeError as error:
        raise _not_utf8(error.start) from error
    except json.JSONDecodeError as error:
        raise BadRequest(
            f"The body is not valid JSON: {error.msg} at line {error.lineno}, column {error.colno} (character {error.pos})."
        ) from error
    except (RecursionError, ValueError) as error:  # ValueError: a number with too many digits
        raise BadRequest(f"The body is not JSON that can be read: {error}.") from error
    if not isinstance(value, dict):
        raise BadRequest(f"The body has to be a JSON object, not {_kind(value)}.")
    fields = cast("dict[str, object]", value)
    model, stream = fields.get("model"), fields.get("stream")
    if model is not None and not isinstance(model, str):
        raise BadRequest(f"`model` has to be a string, not {_kind(model)}.", param="model")
    if stream is not None and not isinstance(stream, bool):
        raise BadRequest(f"`stream` has to be true or false, not {_kind(stream)}.", param="stream")
    if model is not None and not model.isascii():
        try:
            model.encode()
        except UnicodeEncodeError as error:
            raise BadRequest("`model` has half of a surrogate pair in it.", param="model") from error
    return Envelope(model, stream, msgspec.Raw(b"{}") if "stream_options" in fields else _ABSENT)


def _check_utf8(body: bytes | bytearray) -> None:
    """Skipped strings too: the engine would refuse them later, and less clearly. Never holds a second copy."""
    decoder = codecs.getincrementaldecoder("utf-8")()
    view = memoryview(body)
    for start in range(0, len(view), _SLICE):
        part = view[start : start + _SLICE]
        try:
            decoder.decode(part, final=start + _SLICE >= len(view))
        except UnicodeDecodeError as error:
            raise _not_utf8(start + error.start) from error


def _not_utf8(position: int) -> BadRequest:
    return BadRequest(f"The body is not valid UTF-8, which JSON has to be: the first bad byte is number {position}.")


def _kind(value: object) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return "a boolean"
        case int() | float():
            return "a number"
        case str():
            return "a string"
        case list():
            return "an array"
        case _:
            return "an object"
