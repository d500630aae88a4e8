"""Reading a request's headers: what we act on, and what the engine may see."""

import itertools
import re
import secrets
from dataclasses import dataclass
from typing import Final

from vllm_mm.domain.errors import BadRequest
from vllm_mm.gateway.ports import Headers

_KEPT_HERE: Final = frozenset(
    {
        # the client's secrets
        b"authorization", b"x-api-key", b"api-key", b"cookie", b"proxy-authorization",
        # about this hop (RFC 9110, 7.6.1) and its framing
        b"connection", b"keep-alive", b"proxy-connection", b"te", b"trailer", b"transfer-encoding", b"upgrade",
        b"http2-settings", b"content-length", b"expect", b"host",
        # the meter reads answers as they are, and engines on the same machine gain nothing from compression
        b"accept-encoding",
        # a compressed body is made plain here
        b"content-encoding",
        b"x-request-id",
    }
)  # fmt: skip
_OURS: Final = b"x-vllm-mm-"
_REQUEST_ID = re.compile(rb"[A-Za-z0-9._:/+=@~-]{1,128}")
_NUMBER = re.compile(rb"-?[0-9]{1,9}(?:\.[0-9]{1,9})?")


@dataclass(slots=True)
class Head:
    """A request's headers, sorted out."""

    forward: Headers
    """For the engine; without the request id, which is added when it is known."""
    request_id: bytes | None = None
    authorization: bytes | None = None
    api_key: bytes | None = None
    host: bytes | None = None
    wait: bytes | None = None
    priority: bytes | None = None
    progress: bytes | None = None
    timings: bytes | None = None
    trailers: bool = False
    """The client can read trailers (`TE: trailers`)."""
    encoding: bytes | None = None
    origin: bytes | None = None


def read_head(headers: Headers) -> Head:
    """Names are in lower case already. Never fails: what is wrong is said when it is used."""
    head = Head([])
    named: bytes | None = None
    forward = head.forward.append
    for field in headers:
        name = field[0]
        if name in _KEPT_HERE:
            if name == b"authorization":
                head.authorization = field[1]
            elif name == b"x-api-key":
                head.api_key = field[1]
            elif name == b"x-request-id":
                head.request_id = field[1]
            elif name == b"host":
                head.host = field[1]
            elif name == b"content-encoding":
                head.encoding = field[1] if head.encoding is None else head.encoding + b"," + field[1]
            elif name == b"te":
                head.trailers = head.trailers or b"trailers" in field[1].lower()
            elif name == b"connection" and field[1].lower() not in {b"keep-alive", b"close"}:
                named = field[1] if named is None else named + b"," + field[1]
        elif name[0] == 120 and name.startswith(_OURS):
            match name:
                case b"x-vllm-mm-wait":
                    head.wait = field[1]
                case b"x-vllm-mm-priority":
                    head.priority = field[1]
                case b"x-vllm-mm-progress":
                    head.progress = field[1]
                case b"x-vllm-mm-timings":
                    head.timings = field[1]
                case _:
                    pass
        else:
            if name == b"origin":
                head.origin = field[1]
            forward(field)
    if named is not None:
        options = {option.strip().lower() for option in named.split(b",")}
        head.forward = [field for field in head.forward if field[0] not in options]
    return head


def seconds_to_wait(value: bytes | None, default: float) -> float:
    """X-VLLM-MM-Wait. Raises BadRequest."""
    if value is None:
        return default
    seconds = float(value) if _NUMBER.fullmatch(value) else -1.0
    if not 0 <= seconds <= 600:
        raise BadRequest("X-VLLM-MM-Wait has to be a number of seconds from 0 to 600.", param="X-VLLM-MM-Wait")
    return seconds


def priority(value: bytes | None) -> int:
    """X-VLLM-MM-Priority. Raises BadRequest."""
    if value is None:
        return 0
    number = int(value) if re.fullmatch(rb"-?[0-9]{1,3}", value) else 1000
    if not -100 <= number <= 100:
        raise BadRequest("X-VLLM-MM-Priority has to be a whole number from -100 to 100.", param="X-VLLM-MM-Priority")
    return number


def wants_progress(value: bytes | None, *, default: bool) -> bool:
    """X-VLLM-MM-Progress. Raises BadRequest."""
    return _switch("X-VLLM-MM-Progress", value, default=default)


def wants_timings(value: bytes | None, *, default: bool) -> bool:
    """X-VLLM-MM-Timings. Raises BadRequest."""
    return _switch("X-VLLM-MM-Timings", value, default=default)


def _switch(name: str, value: bytes | None, *, default: bool) -> bool:
    if value is None:
        return default
    if value not in {b"0", b"1"}:
        raise BadRequest(f"{name} has to be 0 or 1.", param=name)
    return value == b"1"


class Names:
    """Request ids. Ours never repeat; a client's own is used as it is, as long as it is harmless text."""

    def __init__(self) -> None:
        self._prefix = f"req_{secrets.token_hex(6)}_"
        self._count = itertools.count(1)

    def new(self) -> str:
        return self._prefix + str(next(self._count))

    def given(self, value: bytes | None) -> str | None:
        """The client's id, or None when it gave none that can be used."""
        if value is None or _REQUEST_ID.fullmatch(value) is None:
            return None
        return value.decode("ascii")
