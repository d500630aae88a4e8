"""OpenAI's Responses: POST, GET and cancel on /v1/responses. The store is in memory and needs `VLLM_ENABLE_RESPONSES_API_STORE=1`."""

import asyncio
import time

from vllm_mm.sim import errors
from vllm_mm.sim.bodies import Body, as_list, as_object, text_of
from vllm_mm.sim.client import EngineDeadError
from vllm_mm.sim.service import Call, Plan, Service, limits_of, new_id
from vllm_mm.sim.web import Writer, dump


async def create(call: Call) -> None:
    """POST /v1/responses, also as a stream, also in the background."""
    service, writer = call.service, call.writer
    body = service.body(call.request)
    prompt = _prompt(service, body)
    limits = limits_of(body, "max_output_tokens")
    service.check_model(body)
    background = bool(body.get("background"))
    if background and not service.options.response_store:
        raise errors.refused(
            "This vLLM engine does not support `store=True` and therefore does not support the background mode. To enable "
            "these features, set the environment variable `VLLM_ENABLE_RESPONSES_API_STORE=1` when launching the vLLM server.",
            "background",
        )
    plan = service.plan(prompt, limits, field_name="max_output_tokens")
    response = _response(service, body, plan, f"resp_{call.request.headers.get('x-request-id') or new_id()}")
    keep = service.options.response_store and body.get("store") is not False
    if keep:
        service.responses[response["id"]] = response
    if background:
        response["status"] = "queued"
        task = asyncio.get_running_loop().create_task(_in_background(service, plan, response, prompt))
        service.background[response["id"]] = task
        writer.json(200, _visible(response))
    elif body.get("stream"):
        await _stream(service, writer, plan, response, prompt)
    else:
        text, count, reason = await service.collect(plan)
        _complete(response, plan, text, count, reason, prompt)
        writer.json(200, _visible(response))


async def retrieve(call: Call) -> None:
    """GET /v1/responses/{id}: what the store holds; with `stream`, its last event."""
    response = _stored(call)
    if call.request.parameter("stream", "false").lower() not in {"true", "1"}:
        call.writer.json(200, _visible(response))
        return
    call.writer.start()
    if (task := call.service.background.get(response["id"])) is not None:
        await asyncio.wait([task])
    after = int(call.request.parameter("starting_after", "-1"))
    events = _Events(call.writer, after + 1)
    events.send("response.completed", response=_visible(response))
    call.writer.end()


async def cancel(call: Call) -> None:
    """POST /v1/responses/{id}/cancel: only what runs in the background."""
    response = _stored(call)
    if response["status"] not in {"queued", "in_progress"}:
        raise errors.ApiError(400, "Cannot cancel a synchronous response.", "invalid_request_error", "response_id")
    response["status"] = "cancelled"
    if (task := call.service.background.pop(response["id"], None)) is not None:
        task.cancel()
    call.writer.json(200, _visible(response))


def _stored(call: Call) -> Body:
    identity = call.request.path.split("/")[3]
    response = call.service.responses.get(identity)
    if response is None:
        raise errors.ApiError(404, f"Response with id '{identity}' not found.", "invalid_request_error", "response_id")
    return response


async def _in_background(service: Service, plan: Plan, response: Body, prompt: str) -> None:
    response["status"] = "in_progress"
    try:
        text, count, reason = await service.collect(plan)
        _complete(response, plan, text, count, reason, prompt)
    except EngineDeadError:
        response["status"] = "failed"
    finally:
        service.background.pop(response["id"], None)


class _Events:
    """Numbered server-sent events."""

    def __init__(self, writer: Writer, first: int = 0) -> None:
        self._writer = writer
        self._number = first

    def send(self, kind: str, **fields: object) -> None:
        event = {**fields, "sequence_number": self._number, "type": kind}
        self._number += 1
        self._writer.write(b"event: %b\ndata: %b\n\n" % (kind.encode(), dump(event)))


async def _stream(service: Service, writer: Writer, plan: Plan, response: Body, prompt: str) -> None:
    """There is no [DONE]; when the engine dies the stream just ends, without a terminal event."""
    events = _Events(writer)
    item = f"msg_{new_id()[:16]}"
    counted = 0

    def on_piece(start: int, end: int, _last: bool) -> None:
        nonlocal counted
        counted = end
        if start == 0:
            message: Body = {
                "id": item, "content": [], "role": "assistant", "status": "in_progress", "type": "message", "phase": None,
            }  # fmt: skip
            events.send("response.output_item.added", item=message, output_index=0)
            part: Body = {"annotations": [], "text": "", "type": "output_text", "logprobs": []}
            events.send("response.content_part.added", content_index=0, item_id=item, output_index=0, part=part)
        delta = plan.piece(start, end)
        events.send(
            "response.output_text.delta", content_index=0, delta=delta, item_id=item, logprobs=[], output_index=0
        )

    writer.start()
    response["status"] = "in_progress"
    events.send("response.created", response=_visible(response))
    events.send("response.in_progress", response=_visible(response))
    try:
        reason = await service.run(plan, on_piece)
    except EngineDeadError:
        writer.end()
        return
    text = plan.piece(0, counted)
    _complete(response, plan, text, counted, reason, prompt, item)
    if counted:
        part = response["output"][0]["content"][0]
        events.send("response.output_text.done", content_index=0, item_id=item, logprobs=[], output_index=0, text=text)
        events.send("response.content_part.done", content_index=0, item_id=item, output_index=0, part=part)
        events.send("response.output_item.done", item=response["output"][0], output_index=0)
    events.send("response.completed", response=_visible(response))
    writer.end()


def _prompt(service: Service, body: Body) -> str:
    """The input after what came before it. Raises ApiError."""
    given = body.get("input")
    if isinstance(given, str):
        text = f"<|user|>{given}\n"
    elif (items := as_list(given)) is not None:
        text = "".join(_item(item) for item in items)
    else:
        if given is None:
            raise errors.missing("input", body)
        raise errors.invalid("input", "Input should be a valid string", given, "string_type")
    before = ""
    if (previous := body.get("previous_response_id")) is not None:
        stored = service.responses.get(str(previous))
        if stored is None:
            raise errors.ApiError(
                404, f"Response with id '{previous}' not found.", "invalid_request_error", "response_id"
            )
        before = stored["_history"]
    instructions = body.get("instructions")
    system = f"<|system|>{text_of(instructions)}\n" if instructions is not None else ""
    return f"{system}{before}{text}<|assistant|>"


def _item(item: object) -> str:
    message = as_object(item)
    if message is None:
        raise errors.invalid("input", "Input should be a valid dictionary", item, "model_type")
    return f"<|{message.get('role', 'user')}|>{text_of(message.get('content'))}\n"


def _response(service: Service, body: Body, plan: Plan, identity: str) -> Body:
    """A response before its output."""
    return {
        "id": identity, "created_at": int(time.time()), "incomplete_details": None,
        "instructions": body.get("instructions"), "metadata": body.get("metadata"), "model": service.name,
        "object": "response", "output": [], "parallel_tool_calls": body.get("parallel_tool_calls") is not False,
        "temperature": float(body.get("temperature") or 1.0), "tool_choice": body.get("tool_choice") or "auto",
        "tools": body.get("tools") or [], "top_p": float(body.get("top_p") or 1.0),
        "background": bool(body.get("background")),
        "max_output_tokens": body.get("max_output_tokens") or service.options.max_model_len - plan.prompt_tokens,
        "max_tool_calls": None, "previous_response_id": body.get("previous_response_id"), "prompt": None,
        "reasoning": body.get("reasoning"), "service_tier": "auto", "status": "in_progress", "text": body.get("text"),
        "top_logprobs": None, "truncation": "disabled", "usage": None, "user": body.get("user"),
        "presence_penalty": 0.0, "frequency_penalty": 0.0, "kv_transfer_params": None, "ec_transfer_params": None,
        "input_messages": None, "output_messages": None,
    }  # fmt: skip


def _complete(
    response: Body, plan: Plan, text: str, count: int, reason: str, prompt: str, item: str | None = None
) -> None:
    """Put the output in."""
    status = "completed" if reason == "stop" else "incomplete"
    content: Body = {"annotations": [], "text": text, "type": "output_text", "logprobs": None}
    response["output"] = [
        {
            "id": item or f"msg_{new_id()[:16]}", "content": [content], "role": "assistant", "status": "completed",
            "type": "message", "phase": None,
        }
    ]  # fmt: skip
    response["status"] = status
    response["incomplete_details"] = {"reason": "max_output_tokens"} if status == "incomplete" else None
    response["usage"] = {
        "input_tokens": plan.prompt_tokens,
        "input_tokens_details": {
            "cached_tokens": 0, "cache_write_tokens": 0, "input_tokens_per_turn": [], "cached_tokens_per_turn": [],
        },
        "output_tokens": count,
        "output_tokens_details": {
            "reasoning_tokens": 0, "tool_output_tokens": 0, "output_tokens_per_turn": [], "tool_output_tokens_per_turn": [],
        },
        "total_tokens": plan.prompt_tokens + count,
    }  # fmt: skip
    response["_history"] = f"{prompt}{text}\n"


def _visible(response: Body) -> Body:
    """Without what only the store needs."""
    return {key: value for key, value in response.items() if not key.startswith("_")}
