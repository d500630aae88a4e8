"""Which requests a worker serves, as their first bytes tell."""

import pytest

from vllm_mm.api.handing import LINE, is_ours


@pytest.mark.parametrize(
    "line",
    [
        "POST /v1/chat/completions HTTP/1.1",
        "POST /v1/chat/completions?x=1 HTTP/1.1",
        "POST /v1/chat/completions/ HTTP/1.1",
        "OPTIONS /v1/embeddings HTTP/1.1",
        "GET /v1/models HTTP/1.1",
        "GET /v1/models/org/model HTTP/1.1",
        "POST /v1/audio/transcriptions HTTP/1.1",
        "POST /tokenize HTTP/1.0",
    ],
)
def test_models_are_a_workers(line: str) -> None:
    assert is_ours(line.encode() + b"\r\nhost: x\r\n") is True
    assert is_ours(b"\r\n" + line.encode() + b"\n") is True


@pytest.mark.parametrize(
    "line",
    [
        "GET / HTTP/1.1",
        "GET /api/status HTTP/1.1",
        "POST /v1/responses HTTP/1.1",
        "POST /v1/responses/ HTTP/1.1",
        "GET /v1/responses/resp_1 HTTP/1.1",
        "POST /v1/responses/resp_1/cancel HTTP/1.1",
        "GET /v1/realtime?model=a HTTP/1.1",
        "GET /v1/modelsx HTTP/1.1",
        "POST http://host/v1/completions HTTP/1.1",
        "nonsense",
        "",
    ],
)
def test_the_rest_is_the_controllers(line: str) -> None:
    """Also what is no request at all: it says so."""
    assert is_ours(b"x " + line.encode() + b"\r\n" if not line else line.encode() + b"\r\n") is False


def test_a_line_that_is_not_there_yet_is_waited_for() -> None:
    """Up to a bound, beyond which the parser refuses it."""
    assert is_ours(b"POST /v1/chat/comp") is None
    assert is_ours(b"\r\n") is None
    assert is_ours(b"G" * (LINE + 1)) is True
