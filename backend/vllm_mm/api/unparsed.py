"""What passes a connection's parser by: the rest of a large body, and the answer to what is no request."""

from collections.abc import Iterable, Sequence

from uvicorn.protocols.http.httptools_impl import STATUS_LINE

from vllm_mm.gateway.bodies import error_body
from vllm_mm.gateway.ports import Problem
from vllm_mm.gateway.routes import Form


class LargeBody:
    """A body that is read straight into its place: no copy by the parser, none to join the pieces. It takes memory as it comes, for whoever
    announces much may send nothing of it."""

    __slots__ = ("_size", "buffer")

    def __init__(self, size: int, pieces: Iterable[bytes]) -> None:
        """`pieces`: what the parser has of it already."""
        self.buffer = bytearray()
        self._size = size
        for piece in pieces:
            self.fill(piece)

    @property
    def filled(self) -> int:
        return len(self.buffer)

    @property
    def complete(self) -> bool:
        return len(self.buffer) == self._size

    def fill(self, data: bytes) -> bytes:
        """Takes what belongs to the body; returns what belongs to the next request."""
        room = self._size - len(self.buffer)
        if len(data) <= room:
            self.buffer += data
            return b""
        self.buffer += memoryview(data)[:room]
        return data[room:]


_CODES = {408: "request_timeout", 431: "request_header_too_large"}


def unread(status: int, message: str, request_id: str, headers: Sequence[tuple[bytes, bytes]]) -> bytes:
    """A whole answer to what is no request; the connection closes behind it. `headers`: those of every answer."""
    body = error_body(Problem(status, message, _CODES.get(status, "invalid_request")), Form.OPENAI, request_id)
    return refusal(status, body, (*headers, (b"x-request-id", request_id.encode())))


def refusal(status: int, body: bytes, headers: Sequence[tuple[bytes, bytes]]) -> bytes:
    """A whole answer of JSON, with which the connection closes."""
    head = [STATUS_LINE[status]]
    for name, value in headers:
        head += (name, b": ", value, b"\r\n")
    head.append(b"content-type: application/json\r\nconnection: close\r\ncontent-length: %d\r\n\r\n" % len(body))
    return b"".join((*head, body))
