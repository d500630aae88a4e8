"""Speech to text: /v1/audio/transcriptions and /v1/audio/translations. The text is a function of the file's bytes."""

import hashlib
import io
import math
import time
from collections.abc import Mapping
from typing import Final

from python_multipart.exceptions import FormParserError
from python_multipart.multipart import Field, File, parse_form

from vllm_mm.sim import errors
from vllm_mm.sim.bodies import Body
from vllm_mm.sim.client import EngineDeadError
from vllm_mm.sim.service import Call, Limits, Plan, new_id, usage_of
from vllm_mm.sim.web import Request, dump

BYTES_PER_SECOND: Final = 32_000
"""16 kHz and 16 bits, whatever the file says."""
_TRUE = frozenset({"true", "1", "yes", "on", "t", "y"})


async def transcriptions(call: Call) -> None:
    """POST /v1/audio/transcriptions."""
    await _answer(call, "transcribe")


async def translations(call: Call) -> None:
    """POST /v1/audio/translations."""
    await _answer(call, "translate")


async def _answer(call: Call, task: str) -> None:
    service, writer = call.service, call.writer
    fields, audio = _form(call.request)
    if audio is None:
        raise errors.missing("file", dict(fields))
    service.check_model(fields)
    form = fields.get("response_format", "json")
    streamed = fields.get("stream", "false").lower() in _TRUE
    if form not in {"text", "json", "verbose_json"}:
        raise errors.ApiError(
            400,
            "Currently only support response_format: `text`, `json`, `verbose_json` or `diarized_json`",
            "BadRequestError",
        )
    if form == "verbose_json" and streamed:
        raise errors.ApiError(400, "verbose_json format doesn't support streaming case", "BadRequestError")
    seconds = len(audio) / BYTES_PER_SECOND
    most = fields.get("max_completion_tokens", "")
    limits = Limits(max_tokens=int(most) if most.isdecimal() and int(most) else None)
    prompt = f"<|{task}|>{fields.get('language', '')}|{hashlib.sha256(audio).hexdigest()}"
    plan = service.plan(prompt, limits, field_name="max_completion_tokens")
    if streamed:
        await _stream(call, plan, task, usage=fields.get("stream_include_usage", "").lower() in _TRUE)
        return
    text, count, _ = await service.collect(plan)
    if form == "verbose_json":
        segment: Body = {
            "id": 0, "avg_logprob": -0.1, "compression_ratio": 1.0, "end": seconds, "no_speech_prob": None, "seek": 0, "start": 0.0,
            "temperature": float(fields.get("temperature", "0")), "text": text, "tokens": list(range(count)),
        }  # fmt: skip
        language = fields.get("language")
        writer.json(
            200, {"duration": seconds, "language": language, "text": text, "segments": [segment], "words": None}
        )
    elif task == "transcribe":
        writer.json(200, {"text": text, "usage": {"type": "duration", "seconds": math.ceil(seconds)}})
    else:
        writer.json(200, {"text": text})


async def _stream(call: Call, plan: Plan, task: str, *, usage: bool) -> None:
    service, writer = call.service, call.writer
    base: Body = {
        "id": f"{task}-{call.request.headers.get('x-request-id') or new_id()}",
        "object": "transcription.chunk" if task == "transcribe" else "translation.chunk",
        "created": int(time.time()),
        "model": service.name,
    }
    counted = 0

    def send(choices: list[Body], **more: object) -> None:
        writer.write(b"data: %b\n\n" % dump({**base, "choices": choices, **more}))

    def on_piece(start: int, end: int, last: bool) -> None:
        nonlocal counted
        counted = end
        choice: Body = {"delta": {"content": plan.piece(start, end)}}
        if last:
            choice |= {"finish_reason": plan.finish_reason, "stop_reason": plan.stop_reason}
        send([choice])

    writer.start()
    try:
        await service.run(plan, on_piece)
    except EngineDeadError as error:
        writer.write(b"data: %b\n\n" % dump(errors.internal(str(error)).body))
    else:
        if usage:
            used = usage_of(plan.prompt_tokens, counted)
            send([], usage={name: value for name, value in used.items() if value is not None})
    writer.write(b"data: [DONE]\n\n")
    writer.end()


def _form(request: Request) -> tuple[Mapping[str, str], bytes | None]:
    """Fields and the file. Raises ApiError."""
    fields: dict[str, str] = {}
    files: dict[str, bytes] = {}

    def on_field(field: Field) -> None:
        fields[(field.field_name or b"").decode()] = (field.value or b"").decode(errors="replace")

    def on_file(file: File) -> None:
        file.file_object.seek(0)
        files[(file.field_name or b"").decode()] = file.file_object.read()
        file.close()

    if not request.headers.get("content-type", "").lower().startswith("multipart/form-data"):
        raise errors.missing("file", {})
    try:
        parse_form(
            {"Content-Type": request.headers["content-type"].encode("latin-1")},
            io.BytesIO(request.body),
            on_field,
            on_file,
        )
    except FormParserError:
        raise errors.http_error(400, "There was an error parsing the body") from None
    return fields, files.get("file")
