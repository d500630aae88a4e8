"""Anthropic's Messages: /v1/messages and /v1/messages/count_tokens."""

import json

from vllm_mm.sim import errors, sampling, surface
from vllm_mm.sim.bodies import Body, as_object, chat_prompt, text_of
from vllm_mm.sim.client import ENGINE_DEAD, EngineDeadError
from vllm_mm.sim.forms import Tool, answer_of
from vllm_mm.sim.service import ABORT, Call, Plan, limits_of
from vllm_mm.sim.text import count_tokens
from vllm_mm.sim.web import dump


async def messages(call: Call) -> None:
    """POST /v1/messages: `model` and `max_tokens` are required."""
    service, writer = call.service, call.writer
    body = service.body(call.request, surface.MESSAGES)
    prompt = _prompt(body)
    _check_model_is_named(body)
    if body.get("max_tokens") is None:
        raise errors.missing("max_tokens", body)
    if isinstance(most := body["max_tokens"], int) and most < 1:
        message = "Value error, max_tokens must be positive"
        raise errors.invalid("max_tokens", message, most, cause="max_tokens must be positive")
    choice = (as_object(body.get("tool_choice")) or {}).get("type")
    with errors.anthropic_shape():
        limits = limits_of(body, "max_tokens")
        sampling.check_tools(body.get("tools"), choice, auto=service.options.auto_tools)
        service.check_model(body)
        formed, tool = answer_of(service.name, prompt, body)
        plan = service.plan(prompt, limits, field_name="max_completion_tokens", formed=formed)
    identity = service.request_id(call.request, "chatcmpl")
    if body.get("stream"):
        await _stream(call, plan, identity, service.name_for(body), tool)
        return
    text, count, reason = await service.collect(plan)
    writer.json(
        200,
        {
            "id": identity,
            "type": "message",
            "role": "assistant",
            "content": [{"type": "text", "text": text} if tool is None else _use(tool, text)],
            "model": service.name_for(body),
            **{key: value for key, value in _stop(plan, reason, tool).items() if value is not None},
            "usage": {"input_tokens": plan.prompt_tokens, "output_tokens": count},
        },
    )


async def count_tokens_route(call: Call) -> None:
    """POST /v1/messages/count_tokens."""
    body = call.service.body(call.request, surface.COUNT)
    prompt = _prompt(body)
    _check_model_is_named(body)
    with errors.anthropic_shape():
        call.service.check_model(body)
    tokens = count_tokens(prompt)
    call.writer.json(200, {"input_tokens": tokens, "context_management": {"original_input_tokens": tokens}})


def _use(tool: Tool, arguments: str) -> Body:
    """Arguments that were cut at `max_tokens` are no JSON, and nothing is told of them."""
    try:
        given: object = json.loads(arguments)
    except ValueError:
        given = {}
    return {"type": "tool_use", "id": tool.identity, "name": tool.name, "input": given}


async def _stream(call: Call, plan: Plan, identity: str, name: str, tool: Tool | None) -> None:
    """Anthropic's events. There is no [DONE]; an error is an event of its own."""
    service, writer = call.service, call.writer
    counted = 0

    def event(kind: str, **fields: object) -> None:
        writer.write(b"event: %b\ndata: %b\n\n" % (kind.encode(), dump({"type": kind, **fields})))

    def on_piece(start: int, end: int, _last: bool) -> None:
        nonlocal counted
        counted = end
        if start == 0:
            message: Body = {
                "id": identity, "type": "message", "role": "assistant", "content": [], "model": name,
                "stop_reason": None, "stop_sequence": None,
                "usage": {"input_tokens": plan.prompt_tokens, "output_tokens": 0},
            }  # fmt: skip
            event("message_start", message=message)
            block: Body = {"type": "text", "text": ""} if tool is None else _use(tool, "{}")
            event("content_block_start", content_block=block, index=0)
        if text := plan.piece(start, end):
            delta: Body = {"type": "text_delta", "text": text}
            if tool is not None:
                delta = {"type": "input_json_delta", "partial_json": text}
            event("content_block_delta", delta=delta, index=0)

    writer.start()
    try:
        reason = await service.run(plan, on_piece)
    except EngineDeadError:
        event("error", error={"type": "internal_error", "message": ENGINE_DEAD})
        writer.end()
        return
    if counted:
        event("content_block_stop", index=0)
    usage = {"input_tokens": plan.prompt_tokens, "output_tokens": counted}
    event("message_delta", delta=_stop(plan, reason, tool), usage=usage)
    event("message_stop")
    writer.end()


def _stop(plan: Plan, reason: str, tool: Tool | None) -> Body:
    """Anthropic's words for the finish reason."""
    if reason == ABORT:
        return {"stop_reason": None, "stop_sequence": None}
    if plan.stop_reason is not None:
        return {"stop_reason": "stop_sequence", "stop_sequence": plan.stop_reason}
    whole = "end_turn" if tool is None else "tool_use"
    return {"stop_reason": "max_tokens" if reason == "length" else whole, "stop_sequence": None}


def _check_model_is_named(body: Body) -> None:
    """Raises ApiError; this is validation, so in OpenAI's shape."""
    if "model" not in body:
        raise errors.missing("model", body)
    model = body["model"]
    if not isinstance(model, str):
        raise errors.invalid("model", "Input should be a valid string", model, "string_type")
    if not model:
        raise errors.invalid("model", "Value error, Model is required", model, cause="Model is required")


def _prompt(body: Body) -> str:
    """The system text and the messages in a chat template. Raises ApiError."""
    system = body.get("system")
    with errors.anthropic_shape(only="BadRequestError"):
        prompt = chat_prompt(body)
    return f"<|system|>{text_of(system)}\n{prompt}" if system is not None else prompt
