"""What goes wrong when the client's status is out already, to be told as an event: the engine's own error, and the number of the event."""

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final, cast

import msgspec

from vllm_mm.gateway.ports import Problem

if TYPE_CHECKING:
    from vllm_mm.gateway.relay import Relay

LONGEST: Final = 2000
"""Characters of an answer that is no error as we know it."""
_AFTER: Final = re.compile(rb"(?:^|&)starting_after=([0-9]{1,9})(?:&|$)")


def refusal(status: int, body: bytes) -> Problem:
    """An answer with `status` and `body` that cannot follow a head which promised a stream. Whose fault it is stays what the
    engine says it is."""
    said = _error(body)
    if status < 400:
        return Problem(502, f"The engine did not answer with a stream: {_text(body)}", "upstream_error")
    if said is None:
        return Problem(status, f"The engine refused the request: {_text(body)}", "upstream_error")
    return Problem(status, str(said["message"]), "upstream_error", said=said)


def next_number(relay: "Relay") -> int | None:
    """That of the next event of a stream whose API numbers them (Responses)."""
    if relay.first_at is not None and not relay.muted:
        return relay.meter.next_number()
    after = _AFTER.search(relay.call.query)
    return 0 if after is None else int(after[1]) + 1


def _error(body: bytes) -> Mapping[str, object] | None:
    """The error in a body of OpenAI's or Anthropic's form, of vLLM's older one (flat), or of FastAPI's."""
    try:
        whole = msgspec.json.decode(body)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
        return None
    if not isinstance(whole, dict):
        return None
    fields = cast("dict[str, object]", whole)
    error = fields.get("error", fields.get("detail", fields))
    if isinstance(error, str):
        return {"message": error}
    if not isinstance(error, dict):
        return None
    said = cast("dict[str, object]", error)
    return said if isinstance(said.get("message"), str) else None


def _text(body: bytes) -> str:
    return body[:LONGEST].decode("utf-8", "replace")
