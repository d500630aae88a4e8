"""OpenAI's Responses: POST, GET and cancel on /v1/responses. The store is in memory and needs `VLLM_ENABLE_RESPONSES_API_STORE=1`."""

import asyncio
import time
from collections.abc import Callable, Coroutine, Mapping
from typing import Any

from vllm_mm.sim import errors, surface
from vllm_mm.sim.bodies import Body, as_list, as_object, text_of
from vllm_mm.sim.client import EngineDeadError
from vllm_mm.sim.events import StoredEvents
from vllm_mm.sim.forms import Tool, answer_of
from vllm_mm.sim.service import Call, Plan, Service, limits_of, new_id
from vllm_mm.sim.web import dump


async def create(call: Call) -> None:
    """POST /v1/responses, also as a stream, also in the background."""
    service, writer = call.service, call.writer
    body = service.body(call.request, surface.RESPONSES)
    if body.get("background") and not body.get("store", True):
        raise errors.refused("background can only be used when `store` is true", "background")
    background, wanted = _flag("background", body), _flag("store", {"store": True, **body})
    prompt = _prompt_of(body)
    limits = limits_of(body, "max_output_tokens")
    if body.get("tool_choice") == "required" and not body.get("tools"):
        raise errors.refused("Tool choice 'required' must be specified with 'tools' parameter.", "tool_choice")
    service.check_model(body)
    if background and not service.options.response_store:
        raise errors.ApiError(
            400,
            "This vLLM engine does not support `store=True` and therefore does not support the background mode. To enable "
            "these features, set the environment variable `VLLM_ENABLE_RESPONSES_API_STORE=1` when launching the vLLM server.",
            "invalid_request_error",
            "background",
        )
    prompt = _after(service, body, prompt)
    formed, tool = answer_of(service.name, prompt, body)
    plan = service.plan(prompt, limits, field_name="max_output_tokens", formed=formed)
    keep = wanted and service.options.response_store
    making = _Making(service, plan, prompt, _response(service, body, plan), tool, keep=keep)
    if background:
        making.response["status"] = "queued"
        service.responses[making.id] = making.response
        if body.get("stream"):
            events = service.events[making.id] = StoredEvents()
            making.in_background(making.stream(events.add))
            writer.start()
            await events.replay(0, writer)
        else:
            making.in_background(making.whole())
            writer.json(200, _visible(making.response))
    elif body.get("stream"):
        writer.start()
        await making.stream(writer.write)
        writer.end()
    else:
        await making.whole()
        writer.json(200, _visible(making.response))


async def retrieve(call: Call) -> None:
    """GET /v1/responses/{id}: what the store holds; with `stream`, the events of what was begun as a stream in the background,
    from the one after `starting_after` on, as they come."""
    after = _number(call, "starting_after")
    streamed = _flag("stream", dict(call.request.query), place="query")
    response = _stored(call)
    if not streamed:
        call.writer.json(200, _visible(response))
        return
    call.writer.start()
    events = call.service.events.get(response["id"])
    if events is None:
        return  # in the middle of the answer, as in vLLM: nobody catches its error, and the status has been sent
    await events.replay(0 if after is None else after + 1, call.writer)


async def cancel(call: Call) -> None:
    """POST /v1/responses/{id}/cancel: only what runs in the background."""
    response = _stored(call)
    if response["status"] not in {"queued", "in_progress"}:
        raise errors.ApiError(400, "Cannot cancel a synchronous response.", "invalid_request_error", "response_id")
    response["status"] = "cancelled"
    if (task := call.service.background.pop(response["id"], None)) is not None:
        task.cancel()
    call.writer.json(200, _visible(response))


_TRUE = frozenset({"true", "1", "yes", "on", "t", "y"})
_FALSE = frozenset({"false", "0", "no", "off", "f", "n", "none"})
"""What pydantic takes for a boolean, as text."""


def _flag(name: str, given: Mapping[str, Any], *, place: str = "body") -> bool:
    """Raises ApiError for what is none."""
    value = str(given.get(name)).lower()
    if value not in _TRUE | _FALSE:
        message = "Input should be a valid boolean, unable to interpret input"
        raise errors.invalid(name, message, given.get(name), "bool_parsing", place=place)
    return value in _TRUE


def _number(call: Call, name: str) -> int | None:
    """A number of the query. Raises ApiError."""
    values = call.request.values(name)
    if not values:
        return None
    try:
        return int(values[-1])
    except ValueError:
        message = "Input should be a valid integer, unable to parse string as an integer"
        raise errors.invalid(name, message, values[-1], "int_parsing", place="query") from None


def _stored(call: Call) -> Body:
    identity = call.request.path.split("/")[3]
    response = call.service.responses.get(identity)
    if response is None:
        raise _not_found(identity)
    return response


def _not_found(identity: str) -> errors.ApiError:
    return errors.ApiError(404, f"Response with id '{identity}' not found.", "invalid_request_error", "response_id")


class _Making:
    """A response while it is made."""

    def __init__(
        self, service: Service, plan: Plan, prompt: str, response: Body, tool: Tool | None, *, keep: bool
    ) -> None:
        self.id: str = response["id"]
        self.response = response
        self._service = service
        self._plan = plan
        self._prompt = prompt
        self._tool = tool
        self._keep = keep

    def in_background(self, work: Coroutine[None, None, None]) -> None:
        """The engine goes on with it, whoever leaves."""
        background = self._service.background
        task = background[self.id] = asyncio.get_running_loop().create_task(self._outlive(work))
        task.add_done_callback(lambda _: background.pop(self.id, None))

    async def _outlive(self, work: Coroutine[None, None, None]) -> None:
        try:
            await work
        except EngineDeadError:
            self.response["status"] = "failed"

    async def whole(self) -> None:
        text, count, reason = await self._service.collect(self._plan)
        self._complete(text, count, reason, self._new_item())

    async def stream(self, write: Callable[[bytes], None]) -> None:
        """There is no [DONE]; when the engine dies the stream just ends, without a terminal event."""
        plan, response = self._plan, {**self.response, "status": "in_progress"}
        item, counted, number = self._new_item(), 0, 0

        def send(kind: str, **fields: object) -> None:
            nonlocal number
            event = {**fields, "sequence_number": number, "type": kind}
            number += 1
            write(b"event: %b\ndata: %b\n\n" % (kind.encode(), dump(event)))

        def on_piece(start: int, end: int, _last: bool) -> None:
            nonlocal counted
            counted = end
            if start == 0:
                added = self._item("", item, "in_progress")
                send("response.output_item.added", item=added, output_index=0)
                if self._tool is None:
                    part: Body = {"annotations": [], "text": "", "type": "output_text", "logprobs": []}
                    send("response.content_part.added", content_index=0, item_id=item, output_index=0, part=part)
            delta = plan.piece(start, end)
            if self._tool is None:
                send(
                    "response.output_text.delta",
                    content_index=0,
                    delta=delta,
                    item_id=item,
                    logprobs=[],
                    output_index=0,
                )
            else:
                send("response.function_call_arguments.delta", delta=delta, item_id=item, output_index=0)

        send("response.created", response=_visible(response))
        send("response.in_progress", response=_visible(response))
        try:
            reason = await self._service.run(plan, on_piece)
        except EngineDeadError:
            return
        text = plan.piece(0, counted)
        self._complete(text, counted, reason, item)
        if counted:
            done = self.response["output"][0]
            if self._tool is None:
                part = done["content"][0]
                send("response.output_text.done", content_index=0, item_id=item, logprobs=[], output_index=0, text=text)
                send("response.content_part.done", content_index=0, item_id=item, output_index=0, part=part)
            else:
                name = self._tool.name
                send("response.function_call_arguments.done", arguments=text, item_id=item, name=name, output_index=0)
            send("response.output_item.done", item=done, output_index=0)
        send("response.completed", response=_visible(self.response))

    def _complete(self, text: str, count: int, reason: str, item: str) -> None:
        """Put the output in; from now on it can be asked for."""
        response, plan = self.response, self._plan
        status = "completed" if reason == "stop" else "incomplete"
        response["output"] = [self._item(text, item, "completed")]
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
        response["_history"] = f"{self._prompt}{text}\n"
        if self._keep:
            self._service.responses[self.id] = response

    def _new_item(self) -> str:
        return f"{'msg' if self._tool is None else 'fc'}_{new_id()[:16]}"

    def _item(self, text: str, identity: str, status: str) -> Body:
        """What it puts out: a message, or the call of a tool."""
        tool = self._tool
        if tool is not None:
            return {
                "type": "function_call", "id": identity, "call_id": tool.identity, "name": tool.name, "arguments": text,
                "status": status,
            }  # fmt: skip
        content: Body = {"annotations": [], "text": text, "type": "output_text", "logprobs": None}
        return {
            "id": identity, "content": [content] if status == "completed" else [], "role": "assistant", "status": status,
            "type": "message", "phase": None,
        }  # fmt: skip


def _prompt_of(body: Body) -> str:
    """The input. Raises ApiError."""
    given = body.get("input")
    if isinstance(given, str):
        return f"<|user|>{given}\n"
    if (items := as_list(given)) is not None:
        if not items:
            raise errors.refused("Cannot apply chat template to an empty conversation. Provide at least one message.")
        return "".join(_item(item) for item in items)
    if given is None:
        raise errors.missing("input", body)
    raise errors.invalid("input", "Input should be a valid string", given, "string_type")


def _after(service: Service, body: Body, prompt: str) -> str:
    """The prompt behind what came before it. Raises ApiError."""
    before = ""
    if (previous := body.get("previous_response_id")) is not None:
        stored = service.responses.get(str(previous))
        if stored is None:
            raise _not_found(str(previous))
        before = stored.get("_history", "")
    instructions = body.get("instructions")
    system = f"<|system|>{text_of(instructions)}\n" if instructions is not None else ""
    return f"{system}{before}{prompt}<|assistant|>"


def _item(item: object) -> str:
    message = as_object(item)
    if message is None:
        raise errors.invalid("input", "Input should be a valid dictionary", item, "model_type")
    if message.get("type", "message") == "message":
        for field in ("role", "content"):
            if field not in message:
                raise errors.missing(f"input.{field}", message)
    return f"<|{message.get('role', 'user')}|>{text_of(message.get('content'))}\n"


def _response(service: Service, body: Body, plan: Plan) -> Body:
    """A response before its output."""
    return {
        "id": str(body.get("request_id") or f"resp_{new_id()[:16]}"), "created_at": int(time.time()), "incomplete_details": None,
        "instructions": body.get("instructions"), "metadata": body.get("metadata"), "model": service.name_for(body),
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


def _visible(response: Body) -> Body:
    """Without what only the store needs."""
    return {key: value for key, value in response.items() if not key.startswith("_")}
