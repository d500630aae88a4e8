"""What the README of real runs says about rounding: in float32 an answer is the same alone and in a batch."""

import asyncio
from typing import Any

import httpx
import pytest

from real_vllm import A, Installation, direct

PROMPTS = (
    "What is the capital of France?",
    "Name three colours.",
    "Why is the sky blue?",
    "Write a sentence about the sea.",
    "What is seven times eight?",
    "Who wrote Hamlet?",
    "Give me a recipe for bread.",
    "Tell me a story about a fox.",
)


async def ask(engine: httpx.AsyncClient, prompt: str) -> str:
    body: dict[str, Any] = {
        "messages": [{"role": "user", "content": prompt}], "max_tokens": 48, "temperature": 0, "ignore_eos": True,
    }  # fmt: skip
    answer = await engine.post("/v1/chat/completions", json=body)
    return answer.json()["choices"][0]["message"]["content"]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
async def test_an_answer_alone_and_in_a_batch(vllm: Installation, full: bool, dtype: str) -> None:
    """Asked alone, twice, an answer is the same in either type. Beside seven others it is still the same in float32;
    what bfloat16 does is measured, and printed."""
    if not full:
        pytest.skip("only with --real-full (a real start for each type)")
    async with direct(vllm, A, launcher="warm", dtype=dtype) as engine:
        alone = [await ask(engine, prompt) for prompt in PROMPTS]
        assert [await ask(engine, prompt) for prompt in PROMPTS] == alone
        batches = [await asyncio.gather(*(ask(engine, prompt) for prompt in PROMPTS)) for _ in range(3)]
    differ = [sum(a != b for a, b in zip(alone, batch, strict=True)) for batch in batches]
    print(f"{dtype}: of {len(PROMPTS)} answers of 48 tokens, {differ} differ in a batch from those alone")
    print(f"{dtype}: {PROMPTS[0]!r} -> {alone[0]!r}")
    if dtype == "float32":
        assert differ == [0, 0, 0]
