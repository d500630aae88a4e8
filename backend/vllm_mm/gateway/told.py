"""What an answer tells beside itself: for whom and how long it waited, in headers, and how long it took, at its end."""

from typing import TYPE_CHECKING, Final
from urllib.parse import quote

from vllm_mm.gateway.ports import Headers

if TYPE_CHECKING:
    from vllm_mm.gateway.relay import Relay

_OURS: Final = b"x-vllm-mm-"
_TTFT: Final = _OURS + b"ttft-ms"
_TOTAL: Final = _OURS + b"total-ms"
ANNOUNCED: Final = (b"trailer", _TTFT + b", " + _TOTAL)
_SAFE: Final = "/:@ .,;+=~!$&'()*#[]<>|^`{}\"%?"


def waited(relay: "Relay", model: str) -> Headers:
    """The model, the launch that answers, how long the lease was waited for, and how much of that until the model was ready. What is
    not known yet is left out."""
    name = _NAMES.get(model) or _name(model)
    arrived, leased_at = relay.call.arrived, relay.leased_at
    if leased_at is None:
        told: Headers = [(b"x-vllm-mm-model", name)]
        if not relay.waiting:  # it is over: so long, and in vain
            told.append((b"x-vllm-mm-queue-ms", _ms(relay.now() - arrived)))
        return told
    return [
        (b"x-vllm-mm-model", name),
        (b"x-vllm-mm-instance", b"%b#%d" % (name, relay.generation or 0)),
        (b"x-vllm-mm-queue-ms", _ms(leased_at - arrived)),
        (b"x-vllm-mm-load-ms", _ms(min(relay.ready_at, leased_at) - arrived)),
    ]


def at_the_end(relay: "Relay") -> Headers:
    """Arrival to the first token, and to the end."""
    arrived, now = relay.call.arrived, relay.now()
    first = relay.meter.token_at or relay.first_at or now
    return [(_TTFT, _ms(first - arrived)), (_TOTAL, _ms(now - arrived))]


def as_comment(times: Headers) -> bytes:
    """`timings ttft_ms=12 total_ms=345`."""
    fields = (name.removeprefix(_OURS).replace(b"-", b"_") + b"=" + value for name, value in times)
    return b"timings " + b" ".join(fields)


_NAMES: Final[dict[str, bytes]] = {}
"""As headers have them; of models that were asked for."""


def _name(model: str) -> bytes:
    if len(_NAMES) >= 1000:
        _NAMES.clear()
    _NAMES[model] = name = header_text(model)
    return name


def header_text(text: str) -> bytes:
    """Ids may hold any character; a header line may not."""
    return quote(text, safe=_SAFE).encode() if not text.isascii() else text.encode()


def _ms(seconds: float) -> bytes:
    return b"%d" % (seconds * 1000) if seconds > 0 else b"0"
