"""Captures as people and programs read them: without secrets, as JSON, or as a line for curl that repeats the request."""

import base64
import shlex
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import urlsplit

import msgspec

from vllm_mm.domain.errors import Conflict
from vllm_mm.domain.redaction import HIDDEN, redact
from vllm_mm.gateway.captures import Captured
from vllm_mm.gateway.ports import Headers

_SECRET: Final = frozenset(
    {"authorization", "x-api-key", "api-key", "cookie", "set-cookie", "proxy-authorization", "proxy-authenticate"}
)
_NOT_REPEATED: Final = _SECRET | {
    "host", "connection", "keep-alive", "proxy-connection", "content-length", "transfer-encoding", "te", "trailer", "upgrade",
    "http2-settings", "expect", "accept-encoding", "content-encoding", "x-request-id",
}  # fmt: skip
"""Headers of the connection or of the framing, which curl makes itself, and secrets."""


@dataclass(frozen=True, slots=True)
class Again:
    """A captured request, to be sent once more."""

    method: str
    target: str
    headers: Headers
    """Without those of the connection and of the framing, and without secrets."""
    body: bytes


def again(capture: Mapping[str, Any]) -> Again:
    """The request of a capture. Values that were taken out stand there as they are shown. Raises Conflict when its body is not there
    as a whole."""
    request = capture["request"]
    body: Mapping[str, Any] = request["body"]
    if body["cut"]:
        raise Conflict(
            f"Of the body of {capture['id']} only the beginning was kept ({body['size']} bytes in all; captures.body, and nothing of "
            "forms): it cannot be sent again."
        )
    text = body.get("text")
    headers: Sequence[Sequence[str]] = request["headers"]
    return Again(
        request["method"],
        request["target"],
        [(n.lower().encode("latin-1"), v.encode("latin-1")) for n, v in headers if n.lower() not in _NOT_REPEATED],
        base64.b64decode(body["base64"]) if text is None else text.encode(),
    )


def document(captured: Captured, fields: Collection[str]) -> dict[str, Any]:
    """What is kept. `fields`: JSON fields whose values are not."""
    record = captured.record
    row: dict[str, Any] = msgspec.to_builtins(record)
    row |= row.pop("usage")
    return {
        "id": record.id,
        "row": row,
        "request": {
            "method": captured.method,
            "target": captured.target,
            "headers": _headers(captured.headers),
            "body": _body(b"" if captured.form else captured.body, captured.body_size, fields),
        },
        "answer": {
            "status": record.status,
            "headers": _headers(captured.answer_headers),
            "body": _body(captured.answer, captured.answer_size, fields),
        },
    }


def _headers(headers: Headers) -> list[tuple[str, str]]:
    shown = [(name.decode("latin-1"), value.decode("latin-1")) for name, value in headers]
    return [(name, HIDDEN if name.lower() in _SECRET else value) for name, value in shown]


def _body(data: bytes, size: int, fields: Collection[str]) -> dict[str, Any]:
    """`text`, or `base64` for what is none; `cut` where it is only the beginning of `size` bytes; `redacted` where values were taken out."""
    cut = len(data) < size
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        if not cut or error.start < len(data) - 3:
            return {"base64": base64.b64encode(data).decode(), "size": size, "cut": cut, "redacted": False}
        text = data[: error.start].decode()  # it was cut within a character
    shown = redact(text, fields)
    return {"text": shown, "size": size, "cut": cut, "redacted": shown != text}


def curl(capture: Mapping[str, Any], base: str) -> str:
    """A command for a shell that sends the request again, to `base` (`http://host:port`), with the key that `VLLM_MM_TOKEN` holds."""
    request = capture["request"]
    body: Mapping[str, Any] = request["body"]
    parts = urlsplit(base)
    url = f"{parts.scheme}://{parts.netloc}{request['target']}"
    lines = [f"curl -sS -N -X {request['method']} {shlex.quote(url)}"]
    lines.append('-H "Authorization: Bearer $VLLM_MM_TOKEN"')
    headers: Sequence[Sequence[str]] = request["headers"]
    lines += [f"-H {shlex.quote(f'{name}: {value}')}" for name, value in headers if name.lower() not in _NOT_REPEATED]
    text: str = body.get("text", "")
    if text:
        lines.append(f"--data-raw {shlex.quote(text)}")
    return _warnings(body) + " \\\n  ".join(lines) + "\n"


def _warnings(body: Mapping[str, Any]) -> str:
    said: list[str] = []
    if body["cut"]:
        kept = len(body.get("text", "").encode())
        said.append(f"# Of the body's {body['size']} bytes {kept} were kept: this does not repeat the request.")
    elif "base64" in body:
        said.append("# The body is no text: this does not repeat the request.")
    if body["redacted"]:
        said.append(f'# Values were taken out of the body and stand there as "{HIDDEN}".')
    return "".join(f"{line}\n" for line in said)
