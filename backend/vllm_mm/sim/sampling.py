"""The values of a request to generate that vLLM refuses, with its words (seen with vLLM 0.32.0)."""

from collections.abc import Mapping
from typing import Any

from vllm_mm.sim import errors
from vllm_mm.sim.bodies import as_list


def choices_of(body: Mapping[str, Any]) -> int:
    """`n`, after a look at everything else that concerns sampling. Raises ApiError."""
    if body.get("stream_options") and not body.get("stream"):
        raise errors.refused("Stream options can only be defined when `stream=True`.", "stream_options")
    temperature, top_p = _number(body, "temperature", 1.0), _number(body, "top_p", 1.0)
    if temperature > 2:
        raise errors.refused(f"temperature must be in [0, 2], got {temperature}.", "temperature", temperature)
    if not 0 < top_p <= 1:
        raise errors.refused(f"top_p must be in (0, 1], got {top_p}.", "top_p", top_p)
    n = body.get("n")
    if n is None:
        return 1
    if isinstance(n, bool) or not isinstance(n, int):
        raise errors.invalid("n", "Input should be a valid integer", n, "int_type")
    if n < 1:
        raise errors.refused(f"n must be at least 1, got {n}.")
    if n > 1 and temperature == 0:
        raise errors.refused(f"n must be 1 when using greedy sampling, got {n}.")
    return n


def check_tokens(least: int, most: int | None) -> None:
    """Raises ApiError when fewer tokens are allowed than asked for."""
    if most is not None and least > most:
        raise errors.refused(f"min_tokens must be less than or equal to max_tokens={most}, got {least}.")


def check_chat(body: Mapping[str, Any]) -> None:
    """What only chat completions have. Raises ApiError."""
    if body.get("top_logprobs") and not body.get("logprobs"):
        raise errors.refused("when using `top_logprobs`, `logprobs` must be set to true.", "top_logprobs")
    tools, choice = as_list(body.get("tools")), body.get("tool_choice")
    if choice not in (None, "none") and not tools:
        raise errors.refused("When using `tool_choice`, `tools` must be set.", "tool_choice")


def _number(body: Mapping[str, Any], name: str, default: float) -> float:
    value = body.get(name)
    if value is None:
        return default
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise errors.invalid(
            name, "Input should be a valid number, unable to parse string as a number", value, "float_parsing"
        )
    return float(value)
