"""`run MODEL [PROMPT]`: talk to a model as any OpenAI client would."""

import json
import shlex
import sys
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, cast
from urllib.parse import quote

import typer

from vllm_mm.cli.exits import fail
from vllm_mm.cli.options import Model
from vllm_mm.cli.server import Server, the_server

_ROUTES: Mapping[str, tuple[str, str, Mapping[str, object]]] = {
    "embed": ("makes embeddings", "/v1/embeddings", {"input": "Some text."}),
    "classify": ("classifies texts", "/classify", {"input": "Some text."}),
    "score": (
        "scores texts against each other",
        "/v1/rerank",
        {"query": "A question", "documents": ["A text.", "Another."]},
    ),
}
"""By task: what such a model does, and a request to it."""
SILENCE = 600.0
"""Seconds without a byte after which an answer is given up; the first one may have to wait for a load."""


def add_to(app: typer.Typer) -> None:
    app.command("run", epilog='Example: vllm-mm run demo "Why is the sky blue?"')(run)


def run(
    context: typer.Context,
    model: Model,
    prompt: Annotated[str | None, typer.Argument(help="What to ask; without it a chat, or all of stdin.")] = None,
    system: Annotated[str | None, typer.Option("--system", help="The system message.")] = None,
    max_tokens: Annotated[int | None, typer.Option("--max-tokens", min=1, help="Length of an answer at most.")] = None,
    temperature: Annotated[float | None, typer.Option("--temperature", min=0, help="0 is the most certain.")] = None,
    wait: Annotated[int, typer.Option("--wait", min=0, max=600, help="Seconds to wait for the model to load.")] = 600,
) -> None:
    """Ask a model, or chat with it. It is loaded if need be."""
    server = the_server(context)
    _must_chat(server, model)
    talk = _Talk(server, model, system, {"max_tokens": max_tokens, "temperature": temperature}, wait)
    if prompt is not None:
        # `cat file | vllm-mm run m "Summarize"`: the text belongs to the question.
        piped = "" if sys.stdin.isatty() else sys.stdin.read()
        talk.ask(f"{prompt}\n\n{piped}" if piped.strip() else prompt)
    elif sys.stdin.isatty():
        typer.echo(f"Chat with {model}. An empty line, Ctrl-D or Ctrl-C ends it.", err=True)
        for line in _lines():
            talk.ask(line)
    else:
        talk.ask(sys.stdin.read())


def _must_chat(server: Server, model: str) -> None:
    """Said before the model is loaded: that may take minutes."""
    found = server.look(f"/v1/models/{quote(model, safe='')}")
    task = cast("dict[str, Any]", found).get("task") if isinstance(found, dict) else None
    route = _ROUTES.get(str(task))
    if route is not None:
        does, path, body = route
        request = json.dumps({"model": model, **body})
        key = "" if server.token is None else ' -H "Authorization: Bearer $VLLM_MM_TOKEN"'
        kind = " -H 'Content-Type: application/json'"
        fail(f"{model} {does}; it cannot chat. Try:\n  curl {server.url}{path}{kind}{key} -d {shlex.quote(request)}")


def _lines() -> Iterator[str]:
    while True:
        try:
            line = input("> ")
        except (EOFError, KeyboardInterrupt):
            return
        if not line.strip():
            return
        yield line


class _Talk:
    """A conversation: what was said is sent along."""

    def __init__(self, server: Server, model: str, system: str | None, options: dict[str, Any], wait: int) -> None:
        self._server = server
        self._messages: list[dict[str, str]] = [{"role": "system", "content": system}] if system else []
        self._body = {"model": model, "stream": True, **{k: v for k, v in options.items() if v is not None}}
        self._wait = wait

    def ask(self, text: str) -> None:
        self._messages.append({"role": "user", "content": text})
        body = {**self._body, "messages": self._messages}
        said: list[str] = []
        ended = False
        headers = {"X-VLLM-MM-Wait": str(self._wait)}
        with self._server.stream("POST", "/v1/chat/completions", json=body, silence=SILENCE, headers=headers) as answer:
            for line in answer.iter_lines():
                if line == "data: [DONE]":
                    ended = True
                elif line.startswith("data: "):
                    piece = _piece(json.loads(line.removeprefix("data: ")))
                    said.append(piece)
                    typer.echo(piece, nl=False)
        typer.echo()
        if not ended:
            fail("the answer was cut: the engine went away in the middle of it")
        self._messages.append({"role": "assistant", "content": "".join(said)})


def _piece(event: dict[str, Any]) -> str:
    if "error" in event:
        typer.echo()
        fail(str(event["error"].get("message", event["error"])))
    return "".join(choice.get("delta", {}).get("content") or "" for choice in event.get("choices", ()))
