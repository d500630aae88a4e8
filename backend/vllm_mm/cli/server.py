"""The running server, as the commands see it: requests over HTTP, and refusals as messages and exit codes."""

import contextlib
from collections.abc import Generator, Mapping
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


class Server:
    """Where it is, the key to it, and one client for all requests of a command."""

    def __init__(self, url: str, token: str | None) -> None:
        self.url = url
        self.token = token
        self._http: httpx.Client | None = None

    def get(self, path: str, **params: Any) -> Any:
        """The JSON of an answer. Leaves with a message and the right exit code on any refusal."""
        return self.call("GET", path, params=params)

    def call(
        self, method: str, path: str, *, params: Mapping[str, Any] | None = None, json: Any = None, wait: float = 0.0
    ) -> Any:
        """`wait`: seconds that the server may take on purpose."""
        with self._told() as client:
            given = {name: value for name, value in (params or {}).items() if value is not None}
            answer = client.request(method, path, params=given, json=json, timeout=_timeout(READ_TIMEOUT + wait))
            self._check(answer)
            try:
                return answer.json()
            except ValueError:
                fail(f"{self.url} answered with something else than JSON; is that a vllm-mm server?")

    def look(self, path: str) -> Any | None:
        """As `get`, but None when the server refuses."""
        with self._told() as client:
            answer = client.get(path, timeout=_timeout(READ_TIMEOUT))
        try:
            return None if answer.is_error else answer.json()
        except ValueError:
            return None

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
        with self._told() as client:
            given = {name: value for name, value in (params or {}).items() if value is not None}
            sent = {"Accept": accept, **(headers or {})}
            with client.stream(
                method, path, params=given, json=json, headers=sent, timeout=_timeout(silence)
            ) as answer:
                if answer.is_error:
                    answer.read()
                self._check(answer)
                yield answer

    def close(self) -> None:
        """Drop the connection; a later request makes a new one."""
        client, self._http = self._http, None
        if client is not None:
            client.close()

    def _client(self) -> "httpx.Client":
        import httpx  # noqa: PLC0415  # takes a third of a second: only for commands that talk

        if self._http is None:
            if self.token is not None and not self.token.isascii():
                fail(
                    "the key has characters that no key has, such as a chat program's quotes: copy it once more",
                    Exit.REFUSED,
                )
            headers = {"Authorization": f"Bearer {self.token}"} if self.token else {}
            # Certificates are only loaded where they are needed; that takes time too.
            secure = self.url.startswith("https:")
            self._http = httpx.Client(base_url=self.url, headers=headers, trust_env=False, verify=secure)
        return self._http

    @contextlib.contextmanager
    def _told(self) -> "Generator[httpx.Client]":
        """The client; whatever goes wrong on the way ends the command with a message."""
        import httpx  # noqa: PLC0415  # as above

        try:
            yield self._client()
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


def _timeout(read: float | None) -> "httpx.Timeout":
    import httpx  # noqa: PLC0415  # as above

    return httpx.Timeout(READ_TIMEOUT, connect=CONNECT_TIMEOUT, read=read)


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
