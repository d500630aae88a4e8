"""What engines count by themselves, read from our `/metrics`."""

import re


def counter(metrics: str, name: str, model: str) -> float:
    """Of all engines of a model."""
    found = re.findall(rf'^{re.escape(name)}{{[^}}]*\bmodel="{re.escape(model)}"[^}}]*}} (\S+)$', metrics, re.MULTILINE)
    return sum(map(float, found))


def tokens(metrics: str, model: str) -> tuple[float, float]:
    """Of prompts, and generated."""
    return counter(metrics, "vllm:prompt_tokens_total", model), counter(metrics, "vllm:generation_tokens_total", model)
