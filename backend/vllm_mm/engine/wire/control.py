"""The instance's own way to its engine: it can only ask what the instance itself needs.

httpx: nobody waits for these questions in bulk.
"""

import asyncio
import importlib
import io
import json
import socket
import ssl
import wave
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple, cast

import httpx
import msgspec

from vllm_mm.domain.errors import MMError, UpstreamDied, UpstreamTimeout
from vllm_mm.domain.specs import Task
from vllm_mm.engine.ports import Address
from vllm_mm.engine.wire.dial import connect_unix
from vllm_mm.engine.wire.listening import transcribe_silence

for _late in ("httpcore", "anyio._backends._asyncio"):
    importlib.import_module(_late)  # httpx would at its first request: 200 ms on the loop, in the middle of traffic

_NO_TLS: Final = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
"""Engines speak plain HTTP; without this httpx reads all certificate authorities for each client, 30 ms on the loop."""


class ControlChannel:
    """The instance's own questions to its engine: health, the readiness probe, sleep and wake, metrics."""

    def __init__(self, address: Address, *, timeout: float) -> None:
        """`timeout`: seconds for one question, unless a method says otherwise."""
        self._address = address
        self._timeout = timeout
        self._base = "http://localhost" if address.socket is not None else f"http://{address.host}:{address.port}"
        self._headers = {"authorization": f"Bearer {address.key}"} if address.key else {}
        self._closed = False
        self._clients: set[httpx.AsyncClient] = set()
        """One for each question under way."""

    def _client(self) -> httpx.AsyncClient:
        """For one question. A pool that is kept would keep, for ever, the connections of questions that were given up in the moment
        in which they got one (httpcore), until it has no place for another."""
        limits = httpx.Limits(max_keepalive_connections=0)
        transport = httpx.AsyncHTTPTransport(uds=self._address.socket, limits=limits, verify=_NO_TLS, trust_env=False)
        return httpx.AsyncClient(base_url=self._base, transport=transport, trust_env=False, headers=self._headers)

    def listens(self) -> bool:
        """Whether a connection is accepted, without asking anything over it; costs some hundredths of a millisecond."""
        unix = self._address.socket
        with socket.socket(socket.AF_UNIX if unix is not None else socket.AF_INET) as made:
            made.setblocking(False)
            try:
                made.connect(unix if unix is not None else (self._address.host, self._address.port))
            except BlockingIOError:  # under way (TCP), or so many wait already
                return made.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) == 0
            except OSError:
                return False
            return True

    async def healthy(self) -> bool:
        """GET /health is 200. False for everything else, refused connections included."""
        try:
            async with asyncio.timeout(self._timeout):
                return await self._status("/health") == 200
        except (OSError, ValueError, IndexError):  # TimeoutError is an OSError; what is no status line is no health
            return False

    async def _status(self, path: str) -> int:
        """Of an answer to GET, without httpx: this is asked all the time, and its first question takes 15 ms, at the end of
        each start."""
        if self._address.socket is not None:
            reader, writer = await asyncio.open_unix_connection(sock=await connect_unix(self._address.socket))
        else:
            reader, writer = await asyncio.open_connection(self._address.host, self._address.port)
        key = f"authorization: Bearer {self._address.key}\r\n" if self._address.key else ""
        try:
            writer.write(f"GET {path} HTTP/1.1\r\nhost: localhost\r\n{key}connection: close\r\n\r\n".encode())
            return int((await reader.readline()).split(maxsplit=2)[1])
        finally:
            writer.transport.abort()

    async def probe(self, model: str, task: Task) -> str:
        """One token (or one embedding, or one score) at temperature 0: proof of readiness. Returns the answer's
        essence, to be compared with a later one. Raises UpstreamDied or UpstreamTimeout."""
        match task:
            case Task.GENERATE:
                return await self._probe_generation(model)
            case Task.EMBED:
                return _essence(await self._post("/v1/embeddings", {"model": model, "input": "Hello"}), "data")
            case Task.TRANSCRIBE:
                return await self._probe_transcription(model)
            case Task.REALTIME:
                return await transcribe_silence(self._address, model, self._timeout)
            case Task.CLASSIFY:
                return _essence(await self._post("/classify", {"model": model, "input": "Hello"}), "data")
            case Task.SCORE:
                return _essence(
                    await self._post("/v1/score", {"model": model, "text_1": "Hello", "text_2": "Hello"}), "data"
                )

    async def _probe_generation(self, model: str) -> str:
        one_token = {"model": model, "max_tokens": 1, "temperature": 0, "stream": False}
        response = await self._ask("POST", "/v1/completions", {**one_token, "prompt": "Hello"})
        if response.status_code in {404, 405, 501}:
            # Not every OpenAI-compatible server has the old route.
            messages = [{"role": "user", "content": "Hello"}]
            response = await self._ask("POST", "/v1/chat/completions", {**one_token, "messages": messages})
        if response.status_code in {404, 405, 501}:
            # It generates nothing that we know how to ask for; that it lists models has to do.
            return _essence(_answer(await self._ask("GET", "/v1/models"), self._address), "object")
        return _essence(_answer(response, self._address), "choices")

    async def _probe_transcription(self, model: str) -> str:
        """Half a second of silence."""
        fields = {"model": model, "temperature": "0", "max_completion_tokens": "1"}
        form = _Form(fields, {"file": ("probe.wav", _silence(), "audio/wav")})
        return _essence(_answer(await self._ask("POST", "/v1/audio/transcriptions", form=form), self._address), "text")

    async def sleep(self, level: int, *, keep: bool = False, timeout: float = 300.0) -> None:
        """`level` is a query parameter: vLLM ignores it in a JSON body and always sleeps at level 1.

        With `keep` the requests that run or wait in the engine stand still and go on after the wake; without, vLLM aborts
        them, and their streams end as if they were complete (finish reason `abort`): there must be none then.
        """
        params = {"level": str(level), "mode": "keep"} if keep else {"level": str(level)}
        self._done(await self._ask("POST", "/sleep", params=params, timeout=timeout))

    async def keeps_requests(self) -> bool:
        """Whether its /sleep knows a `mode`, by its own description of its routes: a vLLM that does not would abort everything
        it has, and say that all is well. An engine that describes nothing is believed."""
        response = await self._ask("GET", "/openapi.json")
        return response.status_code != 200 or sleep_has_mode(response.content)

    async def wake(self, tags: Sequence[str] = (), *, timeout: float = 300.0) -> None:
        """All that sleeps, or only what the tags name (`weights`, `kv_cache`)."""
        self._done(await self._ask("POST", "/wake_up", params={"tags": list(tags)} if tags else None, timeout=timeout))

    async def reload_weights(self, *, timeout: float = 1800.0) -> None:
        """After a wake from level 2, whose weights are gone; without it the engine answers gibberish."""
        self._done(await self._ask("POST", "/collective_rpc", {"method": "reload_weights"}, timeout=timeout))

    async def reset_prefix_cache(self) -> None:
        self._done(await self._ask("POST", "/reset_prefix_cache"))

    async def is_sleeping(self) -> bool:
        return _answer(await self._ask("GET", "/is_sleeping"), self._address).get("is_sleeping") is True

    async def metrics(self) -> str:
        """The Prometheus text."""
        response = await self._ask("GET", "/metrics")
        self._done(response)
        return response.text

    async def models(self) -> Sequence[dict[str, Any]]:
        """What GET /v1/models lists."""
        data: object = _answer(await self._ask("GET", "/v1/models"), self._address).get("data")
        if not isinstance(data, list):
            return []
        return [cast("dict[str, Any]", item) for item in cast("list[object]", data) if isinstance(item, dict)]

    async def version(self) -> str:
        return str(_answer(await self._ask("GET", "/version"), self._address).get("version", ""))

    async def close(self) -> None:
        """Questions under way come to nothing."""
        self._closed = True
        for client in tuple(self._clients):
            await client.aclose()

    async def _post(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        return _answer(await self._ask("POST", path, body), self._address)

    async def _ask(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | None = None,
        *,
        form: "_Form | None" = None,
        params: Mapping[str, str | Sequence[str]] | None = None,
        timeout: float | None = None,
    ) -> httpx.Response:
        seconds = self._timeout if timeout is None else timeout
        client = self._client()
        if self._closed:
            await client.aclose()
        self._clients.add(client)
        try:
            # The whole question has a deadline; httpx's own is per read.
            async with asyncio.timeout(seconds):
                fields, files = form if form is not None else (None, None)
                return await client.request(
                    method, path, json=body, data=fields, files=files, params=params, timeout=seconds
                )
        except (TimeoutError, httpx.TimeoutException) as error:
            raise UpstreamTimeout(
                f"the engine at {self._address} did not answer {method} {path} within {seconds:g} s"
            ) from error
        except RuntimeError as error:
            if not self._closed:
                raise
            # httpx says it so when its client was closed before or during a question: the launch is being ended.
            raise UpstreamDied(
                f"{method} {path} at {self._address}: the channel was closed", sent=False, started=False
            ) from error
        except httpx.HTTPError as error:
            sent = not isinstance(error, httpx.ConnectError)
            raise UpstreamDied(
                f"{method} {path} at {self._address}: {error or type(error).__name__}", sent=sent, started=False
            ) from error
        finally:
            self._clients.discard(client)
            await client.aclose()

    def _done(self, response: httpx.Response) -> None:
        if response.status_code >= 300:
            raise _refused(response, self._address)


def sleep_has_mode(description: bytes) -> bool:
    """Of an OpenAPI description that has /sleep at all."""
    try:
        parameters = msgspec.json.decode(description, type=_Description).paths["/sleep"].post.parameters
    except (msgspec.MsgspecError, LookupError):
        return True
    return any(p.name == "mode" for p in parameters)


class _Form(NamedTuple):
    """A form with a file in it."""

    fields: dict[str, str]
    files: dict[str, tuple[str, bytes, str]]


def _silence() -> bytes:
    """A WAV file: half a second, 16 kHz, 16 bits, one channel."""
    whole = io.BytesIO()
    with wave.open(whole, "wb") as sound:
        sound.setnchannels(1)
        sound.setsampwidth(2)
        sound.setframerate(16_000)
        sound.writeframes(bytes(16_000))
    return whole.getvalue()


class _Parameter(msgspec.Struct):
    name: str = ""


class _Post(msgspec.Struct):
    parameters: tuple[_Parameter, ...] = ()


class _Path(msgspec.Struct):
    post: _Post = msgspec.field(default_factory=_Post)


class _Description(msgspec.Struct):
    """The part of an OpenAPI description that matters here."""

    paths: dict[str, _Path]


def _refused(response: httpx.Response, address: Address) -> MMError:
    request = response.request
    return UpstreamDied(
        f"the engine at {address} answered {request.method} {request.url.path} with {response.status_code}: {response.text[:500]}",
        sent=True,
        started=False,
    )


def _answer(response: httpx.Response, address: Address) -> dict[str, Any]:
    if response.status_code >= 300:
        raise _refused(response, address)
    try:
        answer: object = response.json()
    except ValueError:
        answer = None
    if not isinstance(answer, dict):
        raise UpstreamDied(
            f"the engine at {address} answered {response.request.url.path} with something that is not a JSON object: {response.text[:200]!r}",
            sent=True,
            started=False,
        )
    return cast("dict[str, Any]", answer)


def _essence(answer: Mapping[str, Any], field: str) -> str:
    """The part that two equal engines answer alike: not ids, times or names."""
    value: Any = answer.get(field)
    if not value:
        raise UpstreamDied(f"the engine's probe answer has no {field!r}: {str(answer)[:200]}", sent=True, started=False)
    try:
        choice = value[0]
        return str(choice["text"] if "text" in choice else choice["message"]["content"])
    except (LookupError, TypeError):
        return json.dumps(value, sort_keys=True)[:2000]
