"""What every route shares: options, engine, counters, the checks of a body, and the running of a generation."""

import asyncio
import json
import os
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from vllm_mm.sim import errors, fields, sampling
from vllm_mm.sim.bodies import Body, as_list, as_object
from vllm_mm.sim.client import Engine
from vllm_mm.sim.events import StoredEvents
from vllm_mm.sim.log import Log
from vllm_mm.sim.metrics import Metrics
from vllm_mm.sim.options import Options
from vllm_mm.sim.text import Answer, Formed, count_tokens, cut_at_stop
from vllm_mm.sim.web import Request, Writer
from vllm_mm.vocabulary.faults import Faults

HISTORY = 20_000
"""Requests that are remembered for /sim/requests."""
ABORT = "abort"
"""The finish reason of a request that /sleep, /pause or /abort_requests ended."""


@dataclass(frozen=True, slots=True)
class Plan:
    """A generation, known in full before it begins: the text is a function of the prompt."""

    answer: Answer | Formed
    prompt_tokens: int
    total: int
    """Tokens to generate."""
    finish_reason: str
    stop_reason: str | None = None
    cut: int | None = None
    """Characters to show; None shows all."""

    def piece(self, start: int, end: int) -> str:
        """The text of the tokens from `start` to before `end`."""
        if self.cut is None:
            return self.answer.text(start, end)
        return self.answer.text(0, end)[len(self.answer.text(0, start)) : self.cut]


@dataclass(frozen=True, slots=True)
class Limits:
    """What a request says about the length of its answer."""

    max_tokens: int | None = None
    min_tokens: int = 0
    ignore_eos: bool = False
    stop: tuple[str, ...] = ()


@dataclass(slots=True, eq=False)
class Seen:
    """A request and how it went, for those who test who sends them."""

    identity: str
    """Its `X-Request-Id`."""
    path: str
    began: float = field(default_factory=time.monotonic)
    ended: float | None = None
    """In seconds of the host's monotonic clock, like `began`."""
    how: str = "running"
    """`running`, `answered`, `left` (by its client, before its end) or `failed`."""

    def end(self, how: str) -> None:
        """It is over."""
        self.ended = time.monotonic()
        self.how = how


@dataclass(slots=True, eq=False)
class Service:
    """One engine's state in the API server."""

    options: Options
    log: Log
    engine: Engine
    faults: Faults
    give_up: Callable[[], None]
    """Stop the server: the core is dead."""
    ignore_term: Callable[[bool], None]
    """Whether SIGTERM does nothing."""
    metrics: Metrics = field(default_factory=Metrics)
    responses: dict[str, Body] = field(default_factory=dict[str, Body])
    """The store of /v1/responses, while `response_store` is on."""
    background: dict[str, asyncio.Task[None]] = field(default_factory=dict[str, "asyncio.Task[None]"])
    """Responses that are made without a client waiting."""
    events: dict[str, StoredEvents] = field(default_factory=dict[str, StoredEvents])
    """Of those that were begun as streams in the background, also when they are complete."""
    history: deque["Seen"] = field(default_factory=lambda: deque["Seen"](maxlen=HISTORY))
    """The last requests, oldest first."""
    load: int = 0
    """Requests that use the engine now (/load)."""
    created: int = field(default_factory=lambda: int(time.time()))

    @property
    def name(self) -> str:
        """The name in every answer of the model itself, whichever alias was asked for."""
        return self.options.served_names[0]

    def name_for(self, body: Mapping[str, Any]) -> str:
        """The name in the answer to a request: that of the adapter, if it asks for one."""
        model = body.get("model")
        return model if isinstance(model, str) and model in self.options.lora_modules else self.name

    def seen(self, request: Request) -> "Seen":
        """Note a request that begins."""
        found = Seen(request.headers.get("x-request-id", ""), request.path)
        self.history.append(found)
        return found

    def body(self, request: Request, table: fields.Table | None = None) -> Body:
        """The JSON object of a request, whose fields are of the types in `table`; `stream` is true or false then. Raises ApiError."""
        if request.headers.get("content-type", "").lower().partition(";")[0].strip() != "application/json":
            raise errors.ApiError(
                400,
                "1 validation error:\n  Unsupported Media Type: Only 'application/json' is allowed",
                "Bad Request",
            )
        try:
            content = json.loads(request.body)
        except json.JSONDecodeError as error:
            detail = (
                f"{{'type': 'json_invalid', 'loc': 'body.{error.pos}', 'msg': 'JSON decode error', 'input': '<dict of 0 items>', "
                f"'ctx': {{'error': '{error.msg}'}}}}"
            )
            raise errors.ApiError(400, f"1 validation error:\n  {detail}", "Bad Request", f"body.{error.pos}") from None
        except (ValueError, RecursionError):  # no text, a number of too many digits, too deep
            raise errors.http_error(400, "There was an error parsing the body") from None
        body = as_object(content)
        if body is None:
            raise errors.invalid("", "Input should be a valid dictionary", kind="model_attributes_type")
        fields.hold(body, table or {})
        if body.get("stream") is not None:
            body["stream"] = fields.truth("stream", body["stream"])
        return body

    def check_model(self, body: Mapping[str, Any], *, pooling: bool = False) -> None:
        """Raises ApiError for a model that is not served, or a name that is no text."""
        model = body.get("model")
        if model is not None and not isinstance(model, str):
            raise errors.invalid("model", "Input should be a valid string", model, "string_type")
        if model and model not in self.options.served_names and model not in self.options.lora_modules:
            raise errors.unknown_model(model, () if pooling else self.options.served_names)

    def request_id(self, request: Request, prefix: str) -> str:
        """`X-Request-Id` with the prefix of the kind of answer, else a new one."""
        return f"{prefix}-{request.headers.get('x-request-id') or new_id()}"

    def plan(
        self, prompt: str, limits: Limits, *, field_name: str = "max_tokens", formed: Formed | None = None
    ) -> Plan:
        """How the answer to a prompt will come out; `formed` is all of it, where a form was asked for. Raises ApiError when it does not fit the model's length."""
        prompt_tokens = max(1, count_tokens(prompt))
        room = self.options.max_model_len - prompt_tokens
        if room < 1:
            raise errors.refused(
                f"This model's maximum context length is {self.options.max_model_len} tokens. However, your prompt contains "
                f"{prompt_tokens} input tokens, which exceeds this limit even without any output tokens. Please reduce the "
                "length of the input prompt.",
                "input_tokens",
                prompt_tokens,
            )
        if limits.max_tokens is not None and limits.max_tokens > self.options.max_model_len:
            raise errors.refused(
                f"{field_name}={limits.max_tokens} cannot be greater than max_model_len={self.options.max_model_len}. Please "
                "request fewer output tokens.",
                field_name,
                limits.max_tokens,
            )
        if limits.max_tokens is not None and limits.max_tokens > room:
            raise errors.refused(
                f"This model's maximum context length is {self.options.max_model_len} tokens. However, you requested "
                f"{limits.max_tokens} output tokens and your prompt contains {prompt_tokens} input tokens, for a total of "
                f"{limits.max_tokens + prompt_tokens} tokens. Please reduce the length of the input prompt or the number of "
                "requested output tokens.",
                "input_tokens",
                prompt_tokens,
            )
        most = room if limits.max_tokens is None else limits.max_tokens
        ends = formed is not None or not limits.ignore_eos  # a form that is complete has nothing behind it
        if formed is None or self.engine.stats.garbled:
            answer = Answer(self.name, prompt, garbled=self.engine.stats.garbled)
            natural = self.options.profile.length or answer.natural_length
        else:
            answer, natural = formed, formed.natural_length
        natural = max(natural, limits.min_tokens) if ends else most
        total = min(natural, most)
        reason = "stop" if ends and natural <= most else "length"
        total, cut, stopped_by = cut_at_stop(answer, total, limits.stop)
        return Plan(answer, prompt_tokens, total, "stop" if stopped_by else reason, stopped_by, cut)

    async def run(self, plan: Plan, on_piece: Callable[[int, int, bool], None]) -> str:
        """Generate; `on_piece(start, end, last)` names the tokens that have come. Returns the finish reason.

        Cancelling it ends the generation in the core. Raises EngineDeadError.
        """
        begun = time.monotonic()
        latest = begun
        position = 0

        def on_tokens(count: int, last: bool) -> None:
            nonlocal latest, position
            now = time.monotonic()
            if position == 0:
                self.metrics.prompt_tokens += plan.prompt_tokens  # as vLLM: once the whole prompt was taken in
                self.metrics.first_token(now - begun)
            else:
                self.metrics.next_token(now - latest)
            latest = now
            start, position = position, position + count
            self.metrics.generation_tokens += count
            on_piece(start, position, last)

        self.load += 1
        self.metrics.prefix_cache_queries += plan.prompt_tokens
        try:
            generation = self.engine.submit(plan.prompt_tokens, plan.total, on_tokens)
            try:
                how = await generation.done
            finally:
                self.engine.abort(generation)
        finally:
            self.load -= 1
        reason = plan.finish_reason if how == "finished" else ABORT
        self.metrics.finished(reason, time.monotonic() - begun)
        return reason

    async def take_in(self, tokens: int) -> None:
        """A pooling request: prefill and nothing more. Raises EngineDeadError."""
        begun = time.monotonic()
        self.load += 1
        try:
            generation = self.engine.submit(tokens, 1, lambda _count, _last: None)
            try:
                await generation.done
                self.metrics.prompt_tokens += tokens
            finally:
                self.engine.abort(generation)
        finally:
            self.load -= 1
        self.metrics.finished("stop", time.monotonic() - begun)

    async def collect(self, plan: Plan) -> tuple[str, int, str]:
        """Generate to the end: text, tokens, finish reason."""
        count = 0

        def on_piece(_start: int, end: int, _last: bool) -> None:
            nonlocal count
            count = end

        reason = await self.run(plan, on_piece)
        return plan.piece(0, count), count, reason


@dataclass(frozen=True, slots=True, eq=False)
class Call:
    """One request to one engine, for the route that answers it."""

    service: Service
    request: Request
    writer: Writer


def new_id() -> str:
    """32 hex digits."""
    return os.urandom(16).hex()


def limits_of(body: Mapping[str, Any], *names: str) -> Limits:
    """The limits of a body; the first of `names` that is given is the maximum. Raises ApiError."""
    most: int | None = None
    for name in names:
        value = body.get(name)
        if value is None:
            continue
        fields.whole()(name, value)
        most = int(value)
        if most < 1:
            raise errors.refused(f"max_tokens must be at least 1, got {most}.", "max_tokens", most)
        break
    stop = next((body[name] for name in ("stop", "stop_sequences") if body.get(name) is not None), ())
    stops = (stop,) if isinstance(stop, str) else tuple(str(item) for item in as_list(stop) or ())
    if any(not text for text in stops) or stop == "":
        raise errors.refused("stop cannot contain an empty string.")
    sampling.check(body)
    least = int(body.get("min_tokens") or 0)
    sampling.check_tokens(least, most)
    return Limits(
        max_tokens=most,
        min_tokens=least,
        ignore_eos="ignore_eos" in body and fields.truth("ignore_eos", body["ignore_eos"]),
        stop=stops,
    )


def usage_of(prompt: int, completion: int | None) -> Body:
    """vLLM's usage object; pooling counts no completion."""
    return {
        "prompt_tokens": prompt,
        "total_tokens": prompt + (completion or 0),
        "completion_tokens": completion or 0,
        "prompt_tokens_details": None,
        "completion_tokens_details": None,
    }
