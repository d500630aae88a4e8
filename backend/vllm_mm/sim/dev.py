"""Routes of the development mode (`VLLM_SERVER_DEV_MODE=1`): sleep, wake, pause, faults. Their arguments are query parameters."""

import json
from typing import Any

from vllm_mm.sim import errors
from vllm_mm.sim.bodies import Body, as_list, as_object
from vllm_mm.sim.options import VERSION
from vllm_mm.sim.service import Call
from vllm_mm.sim.web import Request
from vllm_mm.vocabulary.faults import Faults, parse_faults

_MODES = ("abort", "wait", "keep")


async def sleep(call: Call) -> None:
    """POST /sleep?level=0|1|2&mode=abort|wait|keep; a body is not looked at."""
    service, request, writer = call.service, call.request, call.writer
    text = request.parameter("level", "1")
    if not text.lstrip("-").isdecimal():
        message = "Input should be a valid integer, unable to parse string as an integer"
        raise _bad_query("int_parsing", "level", message, text)
    level = int(text)
    if level > 2:
        raise _bad_query("less_than_equal", "level", "Input should be less than or equal to 2", text, "'le': 2")
    if level < 0:
        raise _bad_query("greater_than_equal", "level", "Input should be greater than or equal to 0", text, "'ge': 0")
    await service.engine.call("sleep", level=level, mode=_mode(request))
    writer.json(200, {"status": "sleeping", "level": level})


async def wake_up(call: Call) -> None:
    """POST /wake_up[?tags=weights&tags=kv_cache]: 500 when it does not fit."""
    service, request, writer = call.service, call.request, call.writer
    tags = request.values("tags") or None
    service.log.note("api_router.py:56", f"wake up the engine with tags: {tags}")
    awake = await service.engine.call("wake_up", tags=tags)
    writer.json(200, {"status": "awake" if awake else "sleeping", "tags": tags})


async def is_sleeping(call: Call) -> None:
    """GET /is_sleeping."""
    service, writer = call.service, call.writer
    writer.json(200, {"is_sleeping": await service.engine.call("is_sleeping")})


async def collective_rpc(call: Call) -> None:
    """POST /collective_rpc {"method": "reload_weights"}."""
    service, request, writer = call.service, call.request, call.writer
    body = _object(request)
    method = body.get("method")
    if method is None:
        raise errors.http_error(400, "Missing 'method' in request body")
    await service.engine.call("reload_weights" if method == "reload_weights" else str(method))
    writer.json(200, {"results": [None] * service.options.tensor_parallel_size})


async def reset_prefix_cache(call: Call) -> None:
    """POST /reset_prefix_cache."""
    service, writer = call.service, call.writer
    service.log.note("api_router.py:41", "Resetting prefix cache...")
    writer.json(200, {"success": True})


async def pause(call: Call) -> None:
    """POST /pause?mode=abort|wait|keep."""
    service, request, writer = call.service, call.request, call.writer
    await service.engine.call("pause", mode=_mode(request))
    writer.json(200, {"status": "paused"})


async def resume(call: Call) -> None:
    """POST /resume."""
    service, writer = call.service, call.writer
    await service.engine.call("resume")
    writer.json(200, {"status": "resumed"})


async def is_paused(call: Call) -> None:
    """GET /is_paused."""
    service, writer = call.service, call.writer
    writer.json(200, {"is_paused": await service.engine.call("is_paused")})


async def abort_requests(call: Call) -> None:
    """POST /abort_requests {}: everything that is under way."""
    service, request, writer = call.service, call.request, call.writer
    _object(request)
    writer.json(200, {"status": "aborted", "aborted": service.engine.abort_all()})


async def server_info(call: Call) -> None:
    """GET /server_info."""
    service, writer = call.service, call.writer
    config = f"model='{service.options.model}', max_seq_len={service.options.max_model_len}"
    writer.json(200, {"vllm_config": config, "vllm_env": {}, "system_env": {"vllm_version": VERSION}})


async def requests(call: Call) -> None:
    """GET /sim/requests: the last ones, with their ids, times on the host's monotonic clock, and how they ended."""
    seen = [
        {"id": r.identity, "path": r.path, "began": r.began, "ended": r.ended, "how": r.how}
        for r in call.service.history
    ]
    call.writer.json(200, {"requests": seen})


async def set_fault(call: Call) -> None:
    """POST /sim/fault {"fault": "NAME:VALUE"} turns a fault on; DELETE ends all."""
    service, request, writer = call.service, call.request, call.writer
    texts: list[str] = []
    if request.method == "POST":
        given = _object(request).get("fault")
        texts = [given] if isinstance(given, str) else [str(item) for item in as_list(given) or ()]
        try:
            faults = parse_faults(texts)
        except ValueError as error:
            raise errors.http_error(400, str(error)) from None
    else:
        faults = Faults()
    service.faults = faults
    await service.engine.call("fault", texts=texts)
    service.ignore_term(faults.ignore_term)
    writer.json(200, {"faults": texts})


def _mode(request: Request) -> str:
    mode = request.parameter("mode", "abort")
    if mode not in _MODES:
        expected = "'abort', 'wait' or 'keep'"
        raise _bad_query("literal_error", "mode", f"Input should be {expected}", mode, f"'expected': {expected!r}")
    return mode


def _bad_query(kind: str, name: str, message: str, value: str, context: str = "") -> errors.ApiError:
    context = f", 'ctx': {{{context}}}" if context else ""
    detail = f"{{'type': '{kind}', 'loc': 'query.{name}', 'msg': {message!r}, 'input': {value!r}{context}}}"
    return errors.ApiError(400, f"1 validation error:\n  {detail}", "Bad Request", f"query.{name}")


def _object(request: Request) -> Body:
    try:
        body: Any = json.loads(request.body)
    except ValueError as error:
        raise errors.http_error(400, f"JSON decode error: {error}") from None
    found = as_object(body)
    if found is None:
        raise errors.http_error(400, "Request body must be a JSON object")
    return found
