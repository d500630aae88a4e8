"""Errors in the words of each API, and the table from errors to HTTP."""

import inspect
import json
from unittest.mock import Mock

import pytest

from vllm_mm.api.problems import explain
from vllm_mm.domain import errors
from vllm_mm.gateway.bodies import error_body, error_event
from vllm_mm.gateway.outcomes import outcome_of
from vllm_mm.gateway.ports import Problem
from vllm_mm.gateway.refusals import next_number, refusal
from vllm_mm.gateway.relay import Call, Relay
from vllm_mm.gateway.routes import RESPONSES, ROUTES, Form

EXPECTED = {
    "BadRequest": 400, "PayloadTooLarge": 413, "RequestTooSlow": 408, "UnsupportedEncoding": 415, "UnknownModel": 404, "UnknownRoute": 404, "NotFound": 404, "Unauthorized": 401, "Forbidden": 403,
    "RateLimited": 429, "BudgetSpent": 429, "Conflict": 409, "Unavailable": 503, "QueueFull": 503, "StillLoading": 503, "TornDown": 503, "StartFailed": 503,
    "NoRoom": 503, "ShuttingDown": 503, "UpstreamDied": 502, "UpstreamTimeout": 504, "UpstreamStalled": 504, "RequestCut": 503, "RequestCancelled": 410, "Outdated": 412, "NoDiskRoom": 507, "HubUnreachable": 503, "ConfigError": 400, "MMError": 500,
    "SessionExpired": 504, "UpgradeRefused": 502, "ResponseGone": 404, "ResponseOutOfReach": 503,
}  # fmt: skip
KINDS = {n: k for n, k in vars(errors).items() if inspect.isclass(k) and issubclass(k, errors.MMError)}


def make(kind: type[errors.MMError], **more: float) -> errors.MMError:
    if kind is errors.UpgradeRefused:
        return errors.UpgradeRefused("why", status=500)
    return kind("why", sent=True, started=False) if kind is errors.UpstreamDied else kind("why", **more)  # type: ignore[call-arg]


def test_every_error_has_its_status() -> None:
    """A new error without an entry here is noticed."""
    assert {name: explain(make(kind)).status for name, kind in KINDS.items()} == EXPECTED


@pytest.mark.parametrize(("after", "told"), [(None, 5), (0.0, 1), (0.2, 1), (7.01, 8), (59.5, 60), (1e9, 60)])
def test_retry_after(after: float | None, told: int) -> None:
    """Whole seconds from 1 to 60, on 503 and 429 only."""
    assert explain(errors.QueueFull("full", retry_after=after)).retry_after == told
    assert explain(errors.RateLimited("slow", retry_after=after)).retry_after == told
    assert explain(errors.Conflict("busy", retry_after=after)).retry_after is None


def test_foreign_errors_show_nothing() -> None:
    """What went wrong inside is for the log."""
    problem = explain(RuntimeError("the secret is mm-123"))
    assert (problem.status, "mm-123" in problem.message) == (500, False)
    assert outcome_of(RuntimeError()).value == "internal"


def test_shapes() -> None:
    """OpenAI's object and Anthropic's, whole and as events."""
    problem = explain(errors.UnknownModel("no such `é`"))
    assert json.loads(error_body(problem, Form.OPENAI, "r")) == {
        "error": {
            "message": "no such `é`",
            "type": "invalid_request_error",
            "param": "model",
            "code": "model_not_found",
        }
    }
    assert json.loads(error_body(problem, Form.ANTHROPIC, "r")) == {
        "type": "error", "error": {"type": "not_found_error", "message": "no such `é`"}, "request_id": "r",
    }  # fmt: skip
    for form in Form:
        event = error_event(problem, form, "r")
        assert event.endswith(b"\n\n")
        assert event.count(b"\n\n") == 1
        assert b"[DONE]" not in event
        data = event.split(b"data: ", 1)[1]
        assert json.loads(data)["error"]["message"] == "no such `é`"
        assert event.startswith(b"data: " if form is Form.OPENAI else b"event: error\n")


def test_routes_hold_nothing_administrative() -> None:
    """vLLM's open routes are not among ours."""
    for path in (
        b"/sleep",
        b"/wake_up",
        b"/collective_rpc",
        b"/server_info",
        b"/docs",
        b"/v1/load_lora_adapter",
        b"/reset_prefix_cache",
        b"/invocations",
    ):
        assert path not in ROUTES
    assert all(path == route.path and route.name == path.decode() for path, route in ROUTES.items())


def test_a_refusal_carries_its_reason_inside_of_each_shape() -> None:
    """A code beside the message, which clients that do not know it ignore; where there is none, no field."""
    for form in Form:
        told = json.loads(error_body(Problem(503, "not yet", "model_loading", reason="busy"), form, "r"))
        assert (told["error"]["reason"], told["error"]["message"]) == ("busy", "not yet")
        assert "reason" not in json.loads(error_body(Problem(400, "no", "invalid_request"), form, "r"))["error"]


@pytest.mark.parametrize(
    ("body", "message", "kind"),
    [
        (b'{"error":{"message":"no","type":"Odd","code":null}}', "no", "Odd"),
        (b'{"object":"error","message":"no","type":"BadRequestError","code":400}', "no", "BadRequestError"),
        (b'{"error":"no"}', "no", "invalid_request_error"),
        (b'{"detail":"no"}', "no", "invalid_request_error"),
        (b'{"detail":[{"loc":["body"]}]}', 'The engine refused the request: {"detail":[{"loc":["body"]}]}', "invalid_request_error"),
        (b"<p>no", "The engine refused the request: <p>no", "invalid_request_error"),
        (b"[1]", "The engine refused the request: [1]", "invalid_request_error"),
        (b"\xff", "The engine refused the request: \ufffd", "invalid_request_error"),
    ],
)  # fmt: skip
def test_what_an_engine_refuses_is_told_in_its_own_words(body: bytes, message: str, kind: str) -> None:
    """In whatever form it says so; a client's fault is never told as the server's."""
    error = json.loads(error_body(refusal(400, body), Form.OPENAI, "r"))["error"]
    assert (error["message"], error["type"]) == (message, kind)


def test_an_answer_that_is_no_stream_is_the_engines_fault() -> None:
    problem = refusal(200, b'{"error":{"message":"no"}}')
    assert (problem.status, problem.code, problem.said) == (502, "upstream_error", None)


@pytest.mark.parametrize(
    ("query", "pieces", "number"),
    [
        (b"", [], 0),
        (b"stream=true&starting_after=7", [], 8),
        (b"stream=true&starting_after=7", [b'data: {"type":"x","sequence_number":8}\n\n'], 9),
        (b"", [b'data: {"sequence_number":0}\n\n', b'data: {"text":"\\"sequence_number\\":5","sequence_number": 1}\n\n'], 2),
        (b"", [b'1e\r\ndata: {"sequence_num\r\n', b'c\r\nber":41}\n\n\r\n'], 42),
        (b"", [b'data: {"type":"x"}\n\n'], None),
    ],
)  # fmt: skip
def test_the_number_of_an_error_event(query: bytes, pieces: list[bytes], number: int | None) -> None:
    """The next one of the stream, where its events have numbers."""
    relay = Relay(Call(RESPONSES, query, [], 0.0), Mock(), "r", lambda: 0.0)
    for piece in pieces:
        relay.data(piece)
    assert next_number(relay) == number
    event = error_event(Problem(502, "gone", "upstream_died"), Form.RESPONSES, "r", number)
    told = json.loads(event.split(b"data: ")[1])
    assert told.get("sequence_number") == number
    assert "sequence_number" not in told["error"]
