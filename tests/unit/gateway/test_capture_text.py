"""What a capture says, and the command that repeats it."""

import json
import shlex
from dataclasses import replace

import pytest

from vllm_mm.domain.errors import Conflict
from vllm_mm.domain.usage import Outcome, RequestRecord, Usage
from vllm_mm.gateway.capture_text import again, curl, document
from vllm_mm.gateway.captures import Captured

RECORD = RequestRecord(
    id="req_1", request_id="mine", at=1.0, route="/v1/chat/completions", model="a", asked="a", key="k", stream=False,
    outcome=Outcome.OK, status=200, error=None, queued_s=0.1, ttft_s=0.2, total_s=1.5, bytes_in=10, bytes_out=20,
    usage=Usage(3, 4, 1), generation=2,
)  # fmt: skip
BODY = json.dumps({"model": "a", "user": "anna", "x": "it's $HOME `id` é\n"}, ensure_ascii=False).encode()
SECRETS = ("authorization", "x-api-key", "api-key", "cookie", "proxy-authorization")
CAPTURED = Captured(
    RECORD, "POST", "/v1/chat/completions?a=%20b&c='", [
        *((name.encode(), b"Bearer mm-secret") for name in SECRETS), (b"host", b"h"), (b"content-length", b"9"),
        (b"content-type", b"application/json"), (b"x-odd", b"it's $HOME"),
    ],
    BODY, len(BODY), form=False, answer_headers=[(b"set-cookie", b"a=secret")], answer=b"\xff\xfe", answer_size=2,
)  # fmt: skip


def test_a_capture_is_a_request_again() -> None:
    """As it came, without what is of its connection or a secret; what is no text is there byte for byte."""
    repeated = again(document(CAPTURED, ["user"]))
    assert (repeated.method, repeated.target) == ("POST", "/v1/chat/completions?a=%20b&c='")
    assert repeated.headers == [(b"content-type", b"application/json"), (b"x-odd", b"it's $HOME")]
    assert json.loads(repeated.body) == {**json.loads(BODY), "user": "***"}
    assert again(document(CAPTURED, [])).body == BODY
    assert again(document(replace(CAPTURED, body=b"\xff\xfe", body_size=2), [])).body == b"\xff\xfe"


@pytest.mark.parametrize("part", [replace(CAPTURED, body_size=len(BODY) + 1), replace(CAPTURED, form=True)])
def test_a_part_of_a_request_is_none(part: Captured) -> None:
    with pytest.raises(Conflict, match=r"captures\.body"):
        again(document(part, []))


def test_secrets_are_not_in_it() -> None:
    """No key, no cookie, on either side; values of named fields neither; what is no text is there as base64."""
    said = document(CAPTURED, ["user"])
    assert "secret" not in json.dumps(said)
    assert "anna" not in json.dumps(said)
    assert dict(said["request"]["headers"])["authorization"] == "***"
    assert (said["answer"]["body"]["base64"], said["answer"]["body"]["cut"]) == ("//4=", False)
    assert (said["row"]["prompt_tokens"], said["row"]["outcome"]) == (3, "ok")


def test_the_command_says_the_same_to_a_shell() -> None:
    """Nothing in the request is anything to the shell, but the variable that holds the key."""
    command = curl(document(CAPTURED, []), "http://h:1/")
    words = shlex.split(command)
    assert words[:5] == ["curl", "-sS", "-N", "-X", "POST"]
    assert words[5] == "http://h:1/v1/chat/completions?a=%20b&c='"
    headers = [words[i + 1] for i, word in enumerate(words) if word == "-H"]
    assert headers == ["Authorization: Bearer $VLLM_MM_TOKEN", "content-type: application/json", "x-odd: it's $HOME"]
    assert words[-2:] == ["--data-raw", BODY.decode()]
    assert not command.startswith("#")


def test_the_command_says_what_it_lacks() -> None:
    """A body of which only the beginning was kept, also within a character; values that were taken out; a body that is no text; a form."""
    middle = BODY.index("é".encode()) + 1
    cut = document(replace(CAPTURED, body=BODY[:middle], body_size=len(BODY)), ["user"])
    assert cut["request"]["body"]["cut"] is True
    lines = curl(cut, "http://h").split("\n")
    assert lines[0].startswith(f"# Of the body's {len(BODY)} bytes ")
    assert lines[1].startswith("# Values were taken out")
    odd = curl(document(replace(CAPTURED, body=b"\xff", body_size=1), []), "http://h")
    assert odd.startswith("# The body is no text")
    assert "--data-raw" not in odd
    form = document(replace(CAPTURED, body=b"", body_size=70, form=True), [])
    assert curl(form, "http://h").startswith("# Of the body's 70 bytes 0 were kept")
