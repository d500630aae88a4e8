"""Errors in the words of each API: whole bodies, and events in the middle of a stream."""

from collections.abc import Mapping

import msgspec

from vllm_mm.gateway.ports import Problem
from vllm_mm.gateway.routes import Form

_encode = msgspec.json.Encoder().encode

_OPENAI_TYPES = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error", 504: "timeout_error"}
_ANTHROPIC_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}
"""https://docs.anthropic.com/en/api/errors; 503 is the honest status for what their API calls 529."""


def openai_type(status: int) -> str:
    return _OPENAI_TYPES.get(status, "invalid_request_error" if status < 500 else "server_error")


def anthropic_type(status: int) -> str:
    return _ANTHROPIC_TYPES.get(status, "invalid_request_error" if status < 500 else "api_error")


def error_body(problem: Problem, form: Form, request_id: str) -> bytes:
    """A response's whole JSON body."""
    if form is Form.ANTHROPIC:
        error = {"type": anthropic_type(problem.status), "message": problem.message, **_said(problem)}
        return _encode({"type": "error", "error": error, "request_id": request_id})
    return _encode({"error": _openai_error(problem)})


def error_event(problem: Problem, form: Form, request_id: str, number: int | None = None) -> bytes:
    """What a running event stream says before it is cut; never followed by an end marker. `number` is that of the event
    among those of its stream (Responses), where it is known."""
    if form is Form.ANTHROPIC:
        return b"event: error\ndata: " + error_body(problem, form, request_id) + b"\n\n"
    if form is Form.RESPONSES:
        # The API's own event is flat; the official client raises only when `error` is there too.
        error = _openai_error(problem)
        code = error["code"]
        event = {
            "type": "error",
            "code": code if code is None else str(code),  # text in this API; vLLM's is the status
            "message": error["message"],
            "param": error["param"],
            "error": error,
        }
        if number is not None:
            event["sequence_number"] = number
        return b"event: error\ndata: " + _encode(event) + b"\n\n"
    return b"data: " + error_body(problem, form, request_id) + b"\n\n"


def _openai_error(problem: Problem) -> dict[str, object]:
    return {
        "message": problem.message,
        "type": openai_type(problem.status),
        "param": problem.param,
        "code": problem.code,
        **_said(problem),
    }


def _said(problem: Problem) -> Mapping[str, object]:
    """What the engine says, or the reason: beyond both APIs' shapes, whose clients ignore what they do not know; left out
    where there is none."""
    if problem.said is not None:
        return problem.said
    return {"reason": problem.reason} if problem.reason else {}
