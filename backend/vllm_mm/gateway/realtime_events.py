"""The events of `/v1/realtime` that the gateway reads or says itself. All others pass as they are."""

import json
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import msgspec

from vllm_mm.domain.usage import Usage
from vllm_mm.engine.exchange import BINARY, CONTINUATION, TEXT, Frame
from vllm_mm.gateway.bodies import openai_type
from vllm_mm.gateway.ports import Problem, WaitView
from vllm_mm.gateway.rename import value_span

WHOLE: Final = 1 << 20
"""Bytes; a longer message is passed on without a look into it."""
_SESSION: Final = frozenset({b'"session"', b'"response"'})
"""Where a model may stand one level down: `session.update` and `session.created` of OpenAI's API."""
_encode = msgspec.json.Encoder().encode


class _Named(msgspec.Struct):
    model: str | None = None


class _FromClient(msgspec.Struct):
    type: str = ""
    model: str | None = None
    session: _Named | None = None


class _Counts(msgspec.Struct):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    input_tokens: int | None = None
    output_tokens: int | None = None


class _Used(msgspec.Struct):
    usage: _Counts | None = None


class _FromEngine(msgspec.Struct):
    type: str = ""
    usage: _Counts | None = None
    response: _Used | None = None


_client = msgspec.json.Decoder(_FromClient).decode
_engine = msgspec.json.Decoder(_FromEngine).decode


@dataclass(frozen=True, slots=True)
class Wish:
    """What a client's event says of the model. `refused`: why it cannot be meant so, as (message, code)."""

    model: str | None = None
    refused: tuple[str, str] | None = None


_NOTHING: Final = Wish()


def wish(event: bytes) -> Wish:
    """The model of a `session.update`, at its top level (vLLM) or in `session` (OpenAI). All other events say nothing."""
    try:
        said = _client(event)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return _not_understood(event)
    if said.type != "session.update":
        return _NOTHING
    named = said.model or (said.session.model if said.session is not None else None)
    if not named:
        return Wish(
            refused=('session.update has to name the model: {"type": "session.update", "model": ...}.', "missing_model")
        )
    return Wish(named)


def _not_understood(event: bytes) -> Wish:
    try:
        content = json.loads(event)
    except (ValueError, RecursionError) as error:
        return Wish(refused=(f"This is not valid JSON: {error}.", "invalid_json"))
    if not isinstance(content, dict):
        return Wish(refused=("An event has to be a JSON object with a `type`.", "invalid_event"))
    return Wish(refused=("`type` and `model` have to be texts, and `session` an object.", "invalid_event"))


def update(model: str) -> Frame:
    """What tells vLLM the model of a session that named it in its address. It answers nothing to it."""
    return Frame(TEXT, _encode({"type": "session.update", "model": model}))


def created(now: float) -> Frame:
    """vLLM's greeting, for clients that wait for it before they say which model they want."""
    return Frame(TEXT, _encode({"type": "session.created", "id": f"sess-{secrets.token_hex(16)}", "created": int(now)}))


def is_created(event: bytes) -> bool:
    try:
        return _engine(event).type == "session.created"
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return False


def failed(problem: Problem) -> Frame:
    """OpenAI's error event."""
    error: dict[str, object] = {
        "type": openai_type(problem.status),
        "code": problem.code,
        "message": problem.message,
        "param": problem.param,
        "event_id": None,
    }
    if problem.reason:
        error["reason"] = problem.reason
    if problem.retry_after is not None:
        error["retry_after"] = problem.retry_after
    return Frame(TEXT, _encode({"type": "error", "event_id": f"event_{secrets.token_hex(8)}", "error": error}))


def progress(model: str, wait: WaitView | None) -> Frame:
    """For a client that asked for it; `eta_s` is in seconds."""
    told: dict[str, object] = {"type": "vllm_mm.progress", "state": "queued", "model": model}
    if wait is not None:
        told |= {"position": wait.position, "phase": wait.phase or None, "percent": wait.percent, "eta_s": wait.eta_s}
    return Frame(TEXT, _encode(told))


def with_model(event: bytes, name: str) -> bytes:
    """The event with another `model`, if it has one."""
    span = value_span(event, b'"model"', _SESSION) if b'"model"' in event else None
    return event if span is None else b"".join((event[: span[0]], _encode(name), event[span[1] :]))


def used(event: bytes) -> Usage | None:
    """The tokens that an event reports: `transcription.done` of vLLM, `response.done` of OpenAI."""
    if b'"usage"' not in event:
        return None
    try:
        said = _engine(event)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return None
    counts = said.usage or (said.response.usage if said.response is not None else None)
    if counts is None:
        return None
    prompt = counts.prompt_tokens if counts.prompt_tokens is not None else counts.input_tokens
    completion = counts.completion_tokens if counts.completion_tokens is not None else counts.output_tokens
    return Usage(prompt, completion)


def added(total: Usage, more: Usage) -> Usage:
    """The tokens of both."""
    return Usage(_sum(total.prompt_tokens, more.prompt_tokens), _sum(total.completion_tokens, more.completion_tokens))


def _sum(a: int | None, b: int | None) -> int | None:
    return b if a is None else a if b is None else a + b


class Messages:
    """Puts the frames of one direction together to whole messages of text, as far as they are no longer than `WHOLE`."""

    __slots__ = ("_pieces", "_size")

    def __init__(self) -> None:
        self._pieces: list[bytes] | None = None
        """None: no message of text is under way, or it is too long."""
        self._size = 0

    def feed(self, frame: Frame) -> bytes | None:
        """The message of text that ends with this frame; None when none does."""
        if frame.opcode == CONTINUATION:
            pieces = self._pieces
            if pieces is None:
                return None
            pieces.append(frame.data)
            self._size += len(frame.data)
        elif frame.opcode == TEXT:
            if frame.fin:
                self._pieces = None
                return frame.data if len(frame.data) <= WHOLE else None
            self._pieces = pieces = [frame.data]
            self._size = len(frame.data)
        else:
            self._pieces = None
            return None
        if self._size > WHOLE:
            self._pieces = None
            return None
        if not frame.fin:
            return None
        self._pieces = None
        return b"".join(pieces)


class TextOnly:
    """Frames without messages of bytes, which vLLM's route does not survive. Each is refused once, when it begins."""

    def __init__(self, refuse: Callable[[Frame], None], out: Callable[[Frame], None]) -> None:
        self._refuse = refuse
        self._out = out
        self._drops = False
        """The message that is under way is one of bytes."""

    def feed(self, frame: Frame) -> None:
        if frame.opcode == BINARY:
            self._drops = True
            message = (
                "Messages of bytes are not taken: send events as JSON text, with the audio in base64 "
                '({"type": "input_audio_buffer.append", "audio": ...}).'
            )
            self._refuse(failed(Problem(400, message, "invalid_event")))
        elif frame.opcode == TEXT:
            self._drops = False
        if not self._drops:
            self._out(frame)


class Renamed:
    """Frames with another `model` in their events. A message of text in several frames comes out as one; one that is longer than
    `WHOLE`, and what is no text, as it is."""

    def __init__(self, name: str, out: Callable[[Frame], None]) -> None:
        self._name = name
        self._out = out
        self._held: list[Frame] = []
        self._size = 0

    def feed(self, frame: Frame) -> None:
        if frame.opcode == TEXT and frame.fin:
            self._out(self._edited(frame) if len(frame.data) <= WHOLE else frame)
        elif frame.opcode == TEXT or self._held:
            self._held.append(frame)
            self._size += len(frame.data)
            if self._size > WHOLE:
                self._release()
            elif frame.fin:
                whole = Frame(TEXT, b"".join(f.data for f in self._held))
                self._held, self._size = [], 0
                self._out(self._edited(whole))
        else:
            self._out(frame)

    def _release(self) -> None:
        held, self._held, self._size = self._held, [], 0
        for frame in held:
            self._out(frame)

    def _edited(self, frame: Frame) -> Frame:
        return Frame(TEXT, with_model(frame.data, self._name))
