"""The rules for the name that was asked for, on a request's body. Without rules nothing of this is called."""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Final
from urllib.parse import quote

from vllm_mm.domain.body_edits import Body, Edit, Unreadable, edits
from vllm_mm.domain.errors import BadRequest
from vllm_mm.domain.request_rules import MAX_TOKENS, Plan, RuleSet

IN_TURN: Final = 1 << 16
"""A larger body is looked at in a thread, so that no other request waits for it."""
_TOKENS: Final[Mapping[bytes, Sequence[str]]] = {
    b"/v1/chat/completions": ("max_completion_tokens", MAX_TOKENS),
    b"/v1/completions": (MAX_TOKENS,),
    b"/v1/responses": ("max_output_tokens",),
    b"/v1/messages": (MAX_TOKENS,),
}
"""By path: what the API calls the greatest number of tokens of an answer, the name that is used for new ones first."""

_STREAMS: Final = frozenset({b"stream", b"stream_options"})


async def apply_rules(rules: RuleSet, path: bytes, body: Body) -> tuple[Sequence[Edit], bytes]:
    """What has to be changed in `body`, and the rules that do it as the value of a header, empty when none does.
    Raises BadRequest."""
    plan = rules.plan(_TOKENS.get(path, ()))
    if not plan.fields:
        return (), b""
    changes, names = _find(plan, body) if len(body) <= IN_TURN else await asyncio.to_thread(_find, plan, body)
    return changes, ",".join(quote(name, safe="") for name in names).encode()


def about_streams(rules: RuleSet) -> bool:
    """Whether they say something of `stream` or `stream_options`."""
    return not _STREAMS.isdisjoint(rules.plan().fields)


def _find(plan: Plan, body: Body) -> tuple[Sequence[Edit], Sequence[str]]:
    try:
        return edits(plan, body)
    except Unreadable as error:
        raise BadRequest(f"The rules of this model cannot be applied to the request: {error}.") from error
