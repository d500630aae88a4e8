"""Routes that every engine has: health, version, load, metrics, models, tokens."""

import asyncio

from vllm_mm.sim import errors, sampling, surface
from vllm_mm.sim.bodies import Body, as_list, as_tokens, chat_prompt
from vllm_mm.sim.options import VERSION
from vllm_mm.sim.service import Call
from vllm_mm.sim.text import detokenize, tokenize


async def health(call: Call) -> None:
    """GET /health: 200 unless the core is dead."""
    service, writer = call.service, call.writer
    await asyncio.sleep(service.faults.slow_health)
    writer.send(503 if service.engine.dead else 200)


async def version(call: Call) -> None:
    """GET /version."""
    writer = call.writer
    writer.json(200, {"version": VERSION})


async def load(call: Call) -> None:
    """GET /load."""
    service, writer = call.service, call.writer
    writer.json(200, {"server_load": service.load})


async def metrics(call: Call) -> None:
    """GET /metrics."""
    service, writer = call.service, call.writer
    text = service.metrics.render(service.engine.stats, service.name)
    writer.send(200, text.encode(), "text/plain; version=1.0.0; charset=utf-8")


async def models(call: Call) -> None:
    """GET /v1/models."""
    service, writer = call.service, call.writer
    permission: Body = {
        "id": f"modelperm-{service.created:032x}", "object": "model_permission", "created": service.created,
        "allow_create_engine": False, "allow_sampling": True, "allow_logprobs": True, "allow_search_indices": False,
        "allow_view": True, "allow_fine_tuning": False, "organization": "*", "group": None, "is_blocking": False,
    }  # fmt: skip
    data: list[Body] = [
        {
            "id": name, "object": "model", "created": service.created, "owned_by": "vllm", "root": service.options.model,
            "parent": None, "max_model_len": service.options.max_model_len, "permission": [permission],
        }
        for name in service.options.served_names
    ] + [
        {
            "id": name, "object": "model", "created": service.created, "owned_by": "vllm", "root": path,
            "parent": service.name, "max_model_len": None, "permission": [permission],
        }
        for name, path in service.options.lora_modules.items()
    ]  # fmt: skip
    writer.json(200, {"object": "list", "data": data})


async def tokenize_route(call: Call) -> None:
    """POST /tokenize: a prompt, or messages."""
    service, request, writer = call.service, call.request, call.writer
    body = service.body(request, surface.TOKENIZE)
    prompt = body.get("prompt")
    if prompt is None and "messages" in body:
        sampling.check_template(body)
        prompt = chat_prompt(body)
    if not isinstance(prompt, str):
        raise errors.invalid("prompt", "Input should be a valid string", prompt, "string_type")
    service.check_model(body)
    tokens = tokenize(prompt)
    strings = [detokenize([token]) for token in tokens] if body.get("return_token_strs") else None
    writer.json(
        200,
        {
            "count": len(tokens), "max_model_len": service.options.max_model_len, "tokens": tokens, "token_strs": strings,
        },
    )  # fmt: skip


async def detokenize_route(call: Call) -> None:
    """POST /detokenize."""
    service, request, writer = call.service, call.request, call.writer
    body = service.body(request)
    tokens = [] if as_list(body.get("tokens")) == [] else as_tokens(body.get("tokens"))
    if tokens is None:
        raise errors.invalid("tokens", "Input should be a valid list", body.get("tokens"), "list_type")
    service.check_model(body)
    writer.json(200, {"prompt": detokenize(tokens)})
