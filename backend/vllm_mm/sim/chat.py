"""/v1/chat/completions and /v1/completions."""

import time
from dataclasses import dataclass

from vllm_mm.sim import errors, sampling, surface
from vllm_mm.sim.bodies import Body, as_list, as_object, as_tokens, chat_prompt, known
from vllm_mm.sim.client import ENGINE_DEAD, EngineDeadError
from vllm_mm.sim.forms import Tool, answer_of
from vllm_mm.sim.options import VERSION
from vllm_mm.sim.service import ABORT, Call, Limits, Plan, Service, limits_of, usage_of
from vllm_mm.sim.text import detokenize
from vllm_mm.sim.web import dump

FINGERPRINT = f"vllm-{VERSION}-sim"
DONE = b"data: [DONE]\n\n"


async def chat_completions(call: Call) -> None:
    """POST /v1/chat/completions."""
    service, request, writer = call.service, call.request, call.writer
    body = service.body(request, surface.CHAT)
    prompt = chat_prompt(body)
    limits = limits_of(body, "max_completion_tokens", "max_tokens")
    sampling.check_chat(body)
    sampling.check_tools(body.get("tools"), body.get("tool_choice"), auto=service.options.auto_tools)
    count = sampling.choices_of(body)
    service.check_model(body)
    formed, tool = answer_of(service.name, prompt, body)
    plan = service.plan(prompt, limits, formed=formed)
    identity = service.request_id(request, "chatcmpl")
    if body.get("stream"):
        chunks = _ChatChunks(identity, service.name_for(body), tool)
        await _Stream(call, body, chunks).run([plan] * count, plan.prompt_tokens)
        return
    choices: list[Body] = []
    total = 0
    for index in range(count):
        text, tokens, reason = await service.collect(plan)
        total += tokens
        choices.append(
            {
                "index": index,
                "message": {
                    "role": "assistant", "content": text if tool is None else None, "refusal": None, "annotations": None,
                    "audio": None, "function_call": None, "reasoning": None,
                    **({} if tool is None else {"tool_calls": [_tool_call(tool, text)]}),
                },
                "logprobs": _chat_logprobs(plan, 0, tokens) if body.get("logprobs") else None,
                "finish_reason": _finish(tool, reason),
                "stop_reason": plan.stop_reason,
                "token_ids": None,
                "routed_experts": None,
            }
        )  # fmt: skip
    writer.json(
        200,
        {
            "id": identity,
            "object": "chat.completion",
            "created": int(time.time()),
            "model": service.name_for(body),
            "choices": choices,
            "service_tier": None,
            "system_fingerprint": FINGERPRINT,
            "usage": usage_of(plan.prompt_tokens, total),
            "prompt_logprobs": None,
            "prompt_token_ids": None,
            "prompt_text": None,
            "kv_transfer_params": None,
            "ec_transfer_params": None,
            "metrics": None,
        },
    )


async def completions(call: Call) -> None:
    """POST /v1/completions. A list of prompts gives a choice each."""
    service, request, writer = call.service, call.request, call.writer
    body = service.body(request, surface.TEXT)
    prompts = _prompts(body.get("prompt"))
    limits = limits_of(body, "max_tokens")
    if limits.max_tokens is None:
        limits = Limits(16, limits.min_tokens, limits.ignore_eos, limits.stop)
    sampling.check_text(body)
    count = sampling.choices_of(body)
    service.check_model(body)
    each = [service.plan(prompt, limits, formed=answer_of(service.name, prompt, body)[0]) for prompt in prompts]
    plans = [plan for plan in each for _ in range(count)]
    prompt_tokens = sum(plan.prompt_tokens for plan in each)
    identity = service.request_id(request, "cmpl")
    if body.get("stream"):
        await _Stream(call, body, _TextChunks(identity, service.name_for(body))).run(plans, prompt_tokens)
        return
    choices: list[Body] = []
    total = 0
    for index, plan in enumerate(plans):
        text, tokens, reason = await service.collect(plan)
        total += tokens
        choices.append(
            {
                "index": index,
                "text": (prompts[index // count] if body.get("echo") else "") + text,
                "logprobs": _text_logprobs(plan, 0, tokens) if body.get("logprobs") is not None else None,
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
            "model": service.name_for(body),
            "choices": choices,
            "service_tier": None,
            "system_fingerprint": FINGERPRINT,
            "usage": usage_of(prompt_tokens, total),
            "kv_transfer_params": None,
            "ec_transfer_params": None,
            "metrics": None,
        },
    )


def _finish(tool: Tool | None, reason: str) -> str:
    """As vLLM: a tool that was asked for by its name is no reason of its own."""
    return "tool_calls" if tool is not None and not tool.named and reason == "stop" else reason


def _tool_call(tool: Tool, arguments: str) -> Body:
    return {"id": tool.identity, "type": "function", "function": {"name": tool.name, "arguments": arguments}}


@dataclass(frozen=True, slots=True)
class _ChatChunks:
    """The chunks of a chat stream."""

    identity: str
    model: str
    tool: Tool | None = None
    """What is streamed are its arguments."""
    kind: str = "chat.completion.chunk"
    details: bool = True
    """Whether continuous usage has vLLM's (empty) details."""

    def first(self, index: int) -> Body | None:
        return {"index": index, "delta": {"role": "assistant", "content": ""}, "logprobs": None, "finish_reason": None}

    def choice(self, index: int, text: str, logprobs: object, end: "_End | None", *, begins: bool = False) -> Body:
        choice: Body = {"index": index, "delta": self._delta(text, begins=begins), "logprobs": logprobs}
        if end is None:
            return {**choice, "finish_reason": None, "token_ids": None}
        reason = _finish(self.tool, end.finish_reason)
        return {**choice, "finish_reason": reason, "stop_reason": end.stop_reason, "token_ids": None}

    def _delta(self, text: str, *, begins: bool) -> Body:
        if self.tool is None:
            return {"content": text}
        call: Body = _tool_call(self.tool, text) if begins else {"function": {"arguments": text}}
        return {"tool_calls": [{**call, "index": 0}]}

    def logprobs(self, plan: Plan, start: int, end: int) -> Body:
        return _chat_logprobs(plan, start, end)


@dataclass(frozen=True, slots=True)
class _TextChunks:
    """The chunks of a completion stream."""

    identity: str
    model: str
    kind: str = "text_completion"
    details: bool = False

    def first(self, index: int) -> Body | None:  # noqa: ARG002 - completions have no first chunk
        return None

    def choice(self, index: int, text: str, logprobs: object, end: "_End | None", *, begins: bool = False) -> Body:
        del begins  # nothing is told at the beginning
        return {
            "index": index,
            "text": text,
            "logprobs": logprobs,
            "finish_reason": end and end.finish_reason,
            "stop_reason": end and end.stop_reason,
            "prompt_token_ids": None,
            "token_ids": None,
        }

    def logprobs(self, plan: Plan, start: int, end: int) -> Body:
        return _text_logprobs(plan, start, end)


@dataclass(frozen=True, slots=True)
class _End:
    """Why a choice ended."""

    finish_reason: str
    stop_reason: str | None


class _Stream:
    """Server-sent events: the head goes out at once, each piece as its tokens come, an error inside the stream."""

    def __init__(self, call: Call, body: Body, chunks: _ChatChunks | _TextChunks) -> None:
        self._service = call.service
        self._writer = call.writer
        self._chunks = chunks
        self._include, self._continuous = _usage_wanted(call.service, body)
        self._with_logprobs = bool(body.get("logprobs"))
        self._created = int(time.time())
        self._prompt_tokens = 0
        self._counted = 0

    async def run(self, plans: list[Plan], prompt_tokens: int) -> None:
        """One plan after the other, to [DONE]."""
        self._prompt_tokens = prompt_tokens
        self._writer.start()
        try:
            for index, plan in enumerate(plans):
                await self._choice(index, plan)
            if self._include:
                self._write([], self._usage(details=False), FINGERPRINT)
        except EngineDeadError:
            self._writer.write(b"data: %b\n\n" % dump(errors.internal(ENGINE_DEAD).body))
        self._writer.write(DONE)
        self._writer.end()

    async def _choice(self, index: int, plan: Plan) -> None:
        before = self._counted

        def on_piece(start: int, end: int, last: bool) -> None:
            if start == 0 and (first := self._chunks.first(index)) is not None:
                self._write([first], self._usage_now(), first=True)
            self._counted = before + end
            logprobs = self._chunks.logprobs(plan, start, end) if self._with_logprobs else None
            ending = _End(plan.finish_reason, plan.stop_reason) if last else None
            choice = self._chunks.choice(index, plan.piece(start, end), logprobs, ending, begins=start == 0)
            self._write([choice], self._usage_now(), FINGERPRINT if last and not self._include else None)

        if await self._service.run(plan, on_piece) == ABORT:
            self._write([self._chunks.choice(index, "", None, _End(ABORT, None))], self._usage_now())

    def _write(
        self, choices: list[Body], usage: Body | None, fingerprint: str | None = None, *, first: bool = False
    ) -> None:
        chunk: Body = {
            "id": self._chunks.identity,
            "object": self._chunks.kind,
            "created": self._created,
            "model": self._chunks.model,
            "choices": choices,
        }
        if usage is not None:
            chunk["usage"] = usage
        if fingerprint is not None:
            chunk["system_fingerprint"] = fingerprint
        if first:
            chunk |= {"prompt_token_ids": None, "prompt_text": None}
        self._writer.write(b"data: %b\n\n" % dump(chunk))

    def _usage_now(self) -> Body | None:
        return self._usage(details=self._chunks.details) if self._continuous else None

    def _usage(self, *, details: bool) -> Body:
        usage: Body = {
            "prompt_tokens": self._prompt_tokens,
            "total_tokens": self._prompt_tokens + self._counted,
            "completion_tokens": self._counted,
        }
        return {**usage, "completion_tokens_details": None} if details else usage


def _usage_wanted(service: Service, body: Body) -> tuple[bool, bool]:
    """Whether a final usage chunk, and usage in each chunk, are wanted. Raises ApiError."""
    wanted = as_object(body.get("stream_options") or {})
    if wanted is None:
        raise errors.invalid("stream_options", "Input should be a valid dictionary", kind="model_attributes_type")
    include = bool(wanted.get("include_usage")) or service.options.force_include_usage
    return include, (include and bool(wanted.get("continuous_usage_stats"))) or service.options.force_include_usage


def _prompts(prompt: object) -> list[str]:
    """One or more prompts, as text or tokens. Raises ApiError."""
    if isinstance(prompt, str) and prompt:
        return [prompt]
    if tokens := as_tokens(prompt):
        return [detokenize(known(tokens))]
    if items := as_list(prompt):
        return [text for item in items for text in _prompts(item)]
    if items == []:
        raise errors.refused("You must pass at least one prompt")
    raise errors.refused("Either prompt or prompt_embeds must be provided and non-empty.", "prompt")


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
