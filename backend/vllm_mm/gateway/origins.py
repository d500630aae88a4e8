"""Web pages of other origins that may use the data plane (`cors.origins`): what browsers want to hear (the Fetch standard,
"CORS protocol")."""

from typing import Final

from vllm_mm.gateway.head import read_head
from vllm_mm.gateway.ports import Headers, Rules

_SHOWN: Final = (
    b"x-request-id, retry-after, x-vllm-mm-model, x-vllm-mm-instance, x-vllm-mm-queue-ms, x-vllm-mm-load-ms, x-vllm-mm-ttft-ms, "
    b"x-vllm-mm-rules, x-ratelimit-limit-requests, x-ratelimit-remaining-requests, x-ratelimit-reset-requests, "
    b"x-ratelimit-limit-tokens, x-ratelimit-remaining-tokens, x-ratelimit-reset-tokens"
)
"""Headers of answers that a page's own code may read."""


def allowed(origin: bytes | None, rules: Rules) -> bool:
    return origin is not None and (origin in rules.origins or b"*" in rules.origins)


def may_read(origin: bytes) -> Headers:
    """For an answer that a page of `origin` may read."""
    return [
        (b"access-control-allow-origin", origin),
        (b"access-control-expose-headers", _SHOWN),
        (b"vary", b"origin"),
    ]


def preflight(headers: Headers, methods: bytes, rules: Rules) -> Headers | None:
    """The answer to a browser that asks first, before it sends a page's key; None when the page may not, or nobody asks."""
    origin = read_head(headers).origin
    asked = dict(headers)
    if origin is None or not allowed(origin, rules) or b"access-control-request-method" not in asked:
        return None
    return [
        *may_read(origin),
        (b"access-control-allow-methods", methods),
        (b"access-control-allow-headers", asked.get(b"access-control-request-headers", b"authorization, content-type")),
        (b"access-control-max-age", b"%d" % int(rules.preflight)),
    ]
