"""/v1/chat/completions and /v1/completions."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from vllm_mm.sim import errors
from vllm_mm.sim.bodies import Body, as_list, as_object, as_tokens, chat_prompt
from vllm_mm.sim.client import ENGINE_DEAD, EngineDeadError
from vllm_mm.sim.options import VERSION
from vllm_mm.sim.service import Call, Limits, Plan, Service, limits_of, usage_of
from vllm_mm.sim.text import detokenize
from vllm_mm.sim.web import Writer, dump

FINGERPRINT = f"vllm-{VERSION}-sim"
DONE = b"data: [DONE]\n\n"


async def chat_completions(call: Call) -> None:
    """POST /v1/chat/completions."""
    service, request, writer = call.service, call.request, call.writer
    body = service.body(request)
    prompt = chat_prompt(body.get("messages"))
    limits = limits_of(body, "max_completion_tokens", "max_tokens")
    service.check_model(body)
    plan = service.plan(prompt, limits)
    identity = service.request_id(request, "chatcmpl")
    if body.get("stream"):
        await _stream(service, body, writer, [plan], _ChatChunks(identity, service.name))
        return
    text, count, reason = await service.collect(plan)
    writer.json(
        200,
        {
            "id": identity,
            "object": "chat.completion",
            "created": int(time.time()),
            "model": service.name,
            "choices": [
                {
                    "index": 0,
                    "message": {
                        "role": "assistant", "content": text, "refusal": None, "annotations": None, "audio": None,
                        "function_call": None, "reasoning": None,
                    },
                    "logprobs": _chat_logprobs(plan, 0, count) if body.get("logprobs") else None,
                    "finish_reason": reason,
                    "stop_reason": plan.stop_reason,
                    "token_ids": None,
                    "routed_experts": None,
                }
            ],
            "service_tier": None,
            "system_fingerprint": FINGERPRINT,
            "usage": usage_of(plan.prompt_tokens, count),
            "prompt_logprobs": None,
            "prompt_token_ids": None,
            "prompt_text": None,
            "kv_transfer_params": None,
            "ec_transfer_params": None,
            "metrics": None,
        },
    )  # fmt: skip


async def completions(call: Call) -> None:
    """POST /v1/completions. A list of prompts gives a choice each."""
    service, request, writer = call.service, call.request, call.writer
    body = service.body(request)
    prompts = _prompts(body.get("prompt"))
    limits = limits_of(body, "max_tokens")
    if limits.max_tokens is None:
        limits = Limits(16, limits.min_tokens, limits.ignore_eos, limits.stop)
    service.check_model(body)
    plans = [service.plan(prompt, limits) for prompt in prompts]
    identity = service.request_id(request, "cmpl")
    if body.get("stream"):
        await _stream(service, body, writer, plans, _TextChunks(identity, service.name))
        return
    choices: list[Body] = []
    total = 0
    for index, plan in enumerate(plans):
        text, count, reason = await service.collect(plan)
        total += count
        choices.append(
            {
                "index": index,
                "text": (prompts[index] if body.get("echo") else "") + text,
                "logprobs": _text_logprobs(plan, 0, count) if body.get("logprobs") is not None else None,
                "finish_reason": reason,
                "stop_reason": plan.stop_reason,
                "token_ids": None,
                "prompt_logprobs": None,
                "prompt_token_ids": None,
                "routed_experts": None,
            }
        )
    writer.json(
        200,
        {
            "id": identity,
            "object": "text_completion",
            "created": int(time.time()),
            "model": service.name,
            "choices": choices,
            "service_tier": None,
            "system_fingerprint": FINGERPRINT,
            "usage": usage_of(sum(plan.prompt_tokens for plan in plans), total),
            "kv_transfer_params": None,
            "ec_transfer_params": None,
            "metrics": None,
        },
    )


@dataclass(frozen=True, slots=True)
class _ChatChunks:
    """The chunks of a chat stream."""

    identity: str
    model: str
    kind: str = "chat.completion.chunk"

    def first(self, index: int) -> Body | None:
        return {"index": index, "delta": {"role": "assistant", "content": ""}, "logprobs": None, "finish_reason": None}

    def choice(self, index: int, text: str, logprobs: Callable[[], Any] | None) -> Body:
        return {"index": index, "delta": {"content": text}, "logprobs": logprobs and logprobs(), "finish_reason": None}

    def logprobs(self, plan: Plan, start: int, end: int) -> Any:
        return _chat_logprobs(plan, start, end)


@dataclass(frozen=True, slots=True)
class _TextChunks:
    """The chunks of a completion stream."""

    identity: str
    model: str
    kind: str = "text_completion"

    def first(self, index: int) -> Body | None:  # noqa: ARG002 - completions have no first chunk
        return None

    def choice(self, index: int, text: str, logprobs: Callable[[], Any] | None) -> Body:
        return {
            "index": index, "text": text, "logprobs": logprobs and logprobs(), "finish_reason": None, "stop_reason": None,
        }  # fmt: skip

    def logprobs(self, plan: Plan, start: int, end: int) -> Any:
        return _text_logprobs(plan, start, end)


async def _stream(
    service: Service, body: Body, writer: Writer, plans: list[Plan], chunks: _ChatChunks | _TextChunks
) -> None:
    """Server-sent events: the head goes out at once, each piece as its tokens come, the error inside the stream."""
    include, continuous = _usage_wanted(service, body)
    created = int(time.time())
    prompt_tokens = sum(plan.prompt_tokens for plan in plans)
    counted = 0

    def write(choices: list[Body], usage: Body | None, fingerprint: bool = False) -> None:
        chunk: Body = {
            "id": chunks.identity, "object": chunks.kind, "created": created, "model": chunks.model, "choices": choices,
        }  # fmt: skip
        if usage is not None:
            chunk["usage"] = usage
        if fingerprint:
            chunk["system_fingerprint"] = FINGERPRINT
        writer.write(b"data: %b\n\n" % dump(chunk))

    def usage(completion: int) -> Body:
        return {
            "prompt_tokens": prompt_tokens, "total_tokens": prompt_tokens + completion, "completion_tokens": completion,
        }  # fmt: skip

    writer.start()
    try:
        for index, plan in enumerate(plans):
            before = counted
            held: list[Body] = []

            def on_piece(
                start: int, end: int, last: bool, plan: Plan = plan, index: int = index, before: int = before
            ) -> None:
                nonlocal counted
                if start == 0 and (first := chunks.first(index)) is not None:
                    write([first], usage(before) if continuous else None)
                counted = before + end
                logprobs = (lambda: chunks.logprobs(plan, start, end)) if body.get("logprobs") else None
                choice = chunks.choice(index, plan.piece(start, end), logprobs)
                if last:
                    choice["finish_reason"] = plan.finish_reason
                    choice["stop_reason"] = plan.stop_reason
                write([choice], usage(counted) if continuous else None, fingerprint=last and not include)

            reason = await service.run(plan, on_piece)
            if reason == "abort":
                choice = chunks.choice(index, "", None)
                choice |= {"finish_reason": reason, "stop_reason": None}
                held.append(choice)
                write(held, usage(counted) if continuous else None)
        if include:
            write([], usage(counted), fingerprint=True)
    except EngineDeadError:
        writer.write(b"data: %b\n\n" % dump(errors.internal(ENGINE_DEAD).body))
    writer.write(DONE)
    writer.end()


def _usage_wanted(service: Service, body: Body) -> tuple[bool, bool]:
    """Whether a final usage chunk, and usage in each chunk, are wanted. Raises ApiError."""
    wanted = as_object(body.get("stream_options") or {})
    if wanted is None:
        raise errors.invalid("stream_options", "Input should be a valid dictionary", kind="model_attributes_type")
    include = bool(wanted.get("include_usage")) or service.options.force_include_usage
    return include, (include and bool(wanted.get("continuous_usage_stats"))) or service.options.force_include_usage


def _prompts(prompt: object) -> list[str]:
    """One or more prompts, as text or tokens. Raises ApiError."""
    if isinstance(prompt, str):
        return [prompt]
    if tokens := as_tokens(prompt):
        return [detokenize(tokens)]
    if items := as_list(prompt):
        return [text for item in items for text in _prompts(item)]
    raise errors.invalid("prompt", "Either prompt or prompt_embeds must be provided and non-empty.", prompt)


def _chat_logprobs(plan: Plan, start: int, end: int) -> Body:
    tokens = [plan.answer.token(index) for index in range(start, end)]
    return {
        "content": [
            {"token": token, "logprob": -0.1, "bytes": list(token.encode()), "top_logprobs": []} for token in tokens
        ]
    }


def _text_logprobs(plan: Plan, start: int, end: int) -> Body:
    tokens = [plan.answer.token(index) for index in range(start, end)]
    offsets = [len(plan.answer.text(0, index)) for index in range(start, end)]
    return {
        "text_offset": offsets,
        "token_logprobs": [-0.1] * len(tokens),
        "tokens": tokens,
        "top_logprobs": [{token: -0.1} for token in tokens],
    }
