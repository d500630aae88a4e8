"""The running server, as the commands see it: requests over HTTP, and refusals as messages and exit codes."""

import contextlib
from collections.abc import Generator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import typer

from vllm_mm.cli.exits import Exit, fail

if TYPE_CHECKING:
    import httpx

DEFAULT_URL = "http://127.0.0.1:8000"
CONNECT_TIMEOUT = 5.0
"""Seconds to reach the server."""
READ_TIMEOUT = 30.0
"""Seconds of silence in an answer that does not stream, beyond what was asked to be waited for."""


@dataclass(frozen=True, slots=True)
class Server:
    """Where it is, and the key to it."""

    url: str
    token: str | None

    def get(self, path: str, **params: Any) -> Any:
        """The JSON of an answer. Leaves with a message and the right exit code on any refusal."""
        return self.call("GET", path, params=params)

    def call(
        self, method: str, path: str, *, params: Mapping[str, Any] | None = None, json: Any = None, wait: float = 0.0
    ) -> Any:
        """`wait`: seconds that the server may take on purpose."""
        with self._client(READ_TIMEOUT + wait) as client, self._told():
            given = {name: value for name, value in (params or {}).items() if value is not None}
            answer = client.request(method, path, params=given, json=json)
            self._check(answer)
            return answer.json()

    @contextlib.contextmanager
    def stream(
        self,
        method: str,
        path: str,
        *,
        params: Mapping[str, Any] | None = None,
        json: Any = None,
        accept: str = "*/*",
        headers: Mapping[str, str] | None = None,
        silence: float | None = None,
    ) -> "Generator[httpx.Response]":
        """An answer to be read as it comes. `silence`: seconds without a byte after which it is given up."""
        with self._client(silence) as client, self._told():
            given = {name: value for name, value in (params or {}).items() if value is not None}
            with client.stream(
                method, path, params=given, json=json, headers={"Accept": accept, **(headers or {})}
            ) as answer:
                if answer.is_error:
                    answer.read()
                self._check(answer)
                yield answer

    def _client(self, read: float | None) -> "httpx.Client":
        import httpx  # noqa: PLC0415  # takes a third of a second: only for commands that talk

        headers = {"Authorization": f"Bearer {self.token}"} if self.token else {}
        timeout = httpx.Timeout(READ_TIMEOUT, connect=CONNECT_TIMEOUT, read=read)
        return httpx.Client(base_url=self.url, headers=headers, timeout=timeout, trust_env=False)

    @contextlib.contextmanager
    def _told(self) -> Generator[None]:
        import httpx  # noqa: PLC0415  # as above

        try:
            yield
        except httpx.TimeoutException as error:
            fail(f"{self.url} does not answer in time ({type(error).__name__}); try again", Exit.UNREACHABLE)
        except (httpx.TransportError, httpx.InvalidURL, httpx.UnsupportedProtocol) as error:
            fail(
                f"no server at {self.url} ({error}). Start one with `vllm-mm serve`, or set VLLM_MM_URL.",
                Exit.UNREACHABLE,
            )

    def _check(self, answer: "httpx.Response") -> None:
        if not answer.is_error:
            return
        code = {401: Exit.REFUSED, 403: Exit.REFUSED, 404: Exit.NOT_FOUND}.get(answer.status_code, Exit.FAILED)
        message = _message(answer)
        if answer.status_code == 401 and self.token is None:
            message += " Set VLLM_MM_TOKEN (the first start of the server prints an admin token)."
        fail(message, code)


def _message(answer: "httpx.Response") -> str:
    try:
        return str(answer.json()["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return f"{answer.url} answered {answer.status_code}; is that a vllm-mm server?"


def the_server(context: typer.Context) -> Server:
    """The one that `--url` and `--token`, or the environment, name."""
    found: Server = context.find_root().obj
    return found


def model_path(model: str, act: str = "") -> str:
    """The path of a model, whatever characters its id has."""
    return f"/api/models/{quote(model, safe='')}{'/' if act else ''}{act}"
