"""The values of a request to generate that vLLM refuses, with its words (seen with vLLM 0.32.0)."""

import math
from collections.abc import Mapping
from typing import Any

from vllm_mm.sim import errors, fields
from vllm_mm.sim.bodies import as_list
from vllm_mm.sim.text import in_vocabulary

MOST_LOGPROBS = 20
"""vLLM's --max-logprobs."""
_BOUNDS = (
    ("temperature", 0, 2, False), ("top_p", 0, 1, True), ("min_p", 0, 1, False), ("presence_penalty", -2, 2, False),
    ("frequency_penalty", -2, 2, False), ("repetition_penalty", 0, math.inf, True),
)  # fmt: skip
"""(name, least, most, whether it has to be more than the least)."""


def choices_of(body: Mapping[str, Any]) -> int:
    """`n`, after a look at everything else that concerns sampling. Raises ApiError."""
    if body.get("stream_options") and not body.get("stream"):
        raise errors.refused("Stream options can only be defined when `stream=True`.", "stream_options")
    n = body.get("n")
    if n is None:
        return 1
    n, temperature = int(n), _number(body, "temperature", 1.0)
    if n < 1:
        raise errors.refused(f"n must be at least 1, got {n}.")
    if n > 1 and temperature == 0:
        raise errors.refused(f"n must be 1 when using greedy sampling, got {n}.")
    return n


def check(body: Mapping[str, Any]) -> None:
    """The values that every kind of generation shares; their types are right. Raises ApiError."""
    for name, least, most, above in _BOUNDS:
        value = _number(body, name, 1.0 if name in {"top_p", "repetition_penalty"} else 0.0)
        if math.isnan(value) or value < least or (above and value == least) or value > most:
            if name == "temperature" and value < 0:
                raise errors.refused(f"temperature must be non-negative, got {value:.1f}.", name, value)
            if name == "repetition_penalty":
                raise errors.refused(f"{name} must be greater than zero, got {value}.")
            shown = f"{'(' if above else '['}{least:g}, {most:g}]"
            param = {"temperature": name, "top_p": name}.get(name)
            raise errors.refused(f"{name} must be in {shown}, got {value}.", param, None if param is None else value)
    if int(_number(body, "top_k", 0)) < -1:
        raise errors.refused(f"top_k must be 0 (disable), or at least 1, got {body['top_k']}.")
    least = int(_number(body, "min_tokens", 0))
    if least < 0:
        raise errors.refused(f"min_tokens must be greater than or equal to 0, got {least}.")
    bias = [str(key) for key in body.get("logit_bias") or ()]
    if strange := [key for key in bias if not key.lstrip("-").isdecimal()]:
        message = f"logit_bias contains key(s) that cannot be converted to integer token IDs: {strange}"
        raise errors.refused(message, "logit_bias", strange)
    if outside := [int(key) for key in bias if not in_vocabulary(int(key))]:
        raise errors.refused(
            f"token_id(s) {outside} in logit_bias contain out-of-vocab token ids.", "logit_bias", outside
        )
    allowed = body.get("allowed_token_ids")
    if allowed is not None and not allowed:
        raise errors.refused("allowed_token_ids is not None and empty!", "allowed_token_ids", allowed)
    if not all(in_vocabulary(int(token)) for token in allowed or ()):
        raise errors.refused("allowed_token_ids contains out-of-vocab token id!", "allowed_token_ids", allowed)
    _check_prompt_logprobs(body)


def _check_prompt_logprobs(body: Mapping[str, Any]) -> None:
    count = _count(body, "prompt_logprobs")
    if count is not None and body.get("stream") and (count > 0 or count == -1):
        raise errors.refused("`prompt_logprobs` are not available when `stream=True`.", "prompt_logprobs")


def _count(body: Mapping[str, Any], name: str) -> int | None:
    """A number of logprobs; -1 means all. Raises ApiError."""
    value = body.get(name)
    if value is None:
        return None
    if not isinstance(value, int):
        raise errors.refused(f"`{name}` must be an integer.", name, value)
    if value < -1:
        raise errors.refused(f"`{name}` must be a positive value or -1.", name, value)
    return int(value)


def check_text(body: Mapping[str, Any]) -> None:
    """What only completions have. Raises ApiError."""
    count = _count(body, "logprobs")
    if count is not None and not 0 <= count <= MOST_LOGPROBS:
        message = f"Requested sample logprobs of {count}, which is greater than max allowed: {MOST_LOGPROBS}"
        raise errors.refused(message, "logprobs", count)
    if body.get("suffix") is not None:
        raise errors.ApiError(
            400, "suffix is only supported for models with FIM completion rendering", "BadRequestError", "suffix"
        )


def check_template(body: Mapping[str, Any]) -> None:
    """How messages become a prompt. Raises ApiError."""
    if body.get("chat_template") is not None:
        raise errors.refused(
            "Chat template is passed with request, but --trust-request-chat-template is not set. Refused request with "
            "untrusted chat template."
        )
    start = body.get("add_generation_prompt", True)
    if fields.truth("add_generation_prompt", start) and fields.truth(
        "continue_final_message", body.get("continue_final_message", False)
    ):
        raise errors.refused("continue_final_message and add_generation_prompt are not compatible.")


def check_tools(tools: object, choice: object, *, auto: bool) -> None:
    """`auto`: the engine was started to understand calls of tools. Raises ApiError."""
    if not tools or auto or choice == "none":
        return
    if choice in (None, "auto"):
        raise errors.refused('"auto" tool choice requires --enable-auto-tool-choice and --tool-call-parser to be set')
    raise errors.refused("tool_choice requires --tool-call-parser to be set")


def check_tokens(least: int, most: int | None) -> None:
    """Raises ApiError when fewer tokens are allowed than asked for."""
    if most is not None and least > most:
        raise errors.refused(f"min_tokens must be less than or equal to max_tokens={most}, got {least}.")


def check_chat(body: Mapping[str, Any]) -> None:
    """What only chat completions have. Raises ApiError."""
    check_template(body)
    if _count(body, "top_logprobs") and not body.get("logprobs"):
        raise errors.refused("when using `top_logprobs`, `logprobs` must be set to true.", "top_logprobs")
    tools, choice = as_list(body.get("tools")), body.get("tool_choice")
    if tools == []:
        raise errors.refused(
            "`tools` must not be an empty array. Either provide at least one tool or omit the field entirely.", "tools"
        )
    if choice not in (None, "none") and not tools:
        raise errors.refused("When using `tool_choice`, `tools` must be set.", "tool_choice")


def _number(body: Mapping[str, Any], name: str, default: float) -> float:
    value = body.get(name)
    if value is None:
        return default
    fields.number(name, value)
    return float(value)
