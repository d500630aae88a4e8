"""`run MODEL [PROMPT]`: talk to a model as any OpenAI client would."""

import contextlib
import json
import shlex
import sys
from collections.abc import Iterator, Mapping
from importlib import import_module
from typing import Annotated, Any, cast
from urllib.parse import quote

import typer

from vllm_mm.cli.exits import Exit, fail
from vllm_mm.cli.options import Model
from vllm_mm.cli.output import print_json
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
    json: Annotated[
        bool, typer.Option("--json", help="Print the whole answer as JSON, as the API gives it; not in a chat.")
    ] = False,
) -> None:
    """Ask a model, or chat with it. It is loaded if need be. Ctrl-C stops the answer."""
    server = the_server(context)
    _must_chat(server, model)
    talk = Talk(server, model, system, {"max_tokens": max_tokens, "temperature": temperature}, wait)
    if json and prompt is None and sys.stdin.isatty():
        fail("--json is for one question: name it, or pipe it in", Exit.USAGE)
    answer = talk.print_whole if json else talk.answer
    if prompt is not None:
        # `cat file | vllm-mm run m "Summarize"`: the text belongs to the question.
        piped = "" if sys.stdin.isatty() else sys.stdin.read()
        answer(f"{prompt}\n\n{piped}" if piped.strip() else _something(prompt))
    elif sys.stdin.isatty():
        chat(talk, model)
    else:
        answer(_something(sys.stdin.read()))


def _something(question: str) -> str:
    if not question.strip():
        fail("there is nothing to ask: the prompt and stdin are empty", Exit.USAGE)
    return question


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


HELP = """/exit    end the chat (also Ctrl-D)
/clear   forget what was said
/system  TEXT  another system message; without a text, none
/help    this list
Ctrl-C stops an answer; twice at the prompt it ends the chat. A line that ends with \\ goes on in the next."""


def chat(talk: "Talk", model: str) -> None:
    """Until the person ends it. What goes wrong with one answer is told, and the chat goes on."""
    with contextlib.suppress(ImportError):
        import_module("readline")  # that alone gives `input` a history, and keys to edit a line
    typer.echo(f"Chat with {model}. /help lists what else there is, /exit ends it.", err=True)
    for line in _lines():
        word, _, rest = line.strip().partition(" ")
        match word:
            case "/exit" | "/quit" | "/bye":
                return
            case "/clear":
                talk.forget()
            case "/system":
                talk.instruct(rest.strip())
            case "/help" | "/?":
                typer.echo(HELP, err=True)
            case _ if word.startswith("/") and word[1:].isalpha():
                typer.echo(f"There is no {word}; /help lists what there is.", err=True)
            case _:
                with contextlib.suppress(typer.Exit):  # it is told already
                    talk.ask(line)


def _lines() -> Iterator[str]:
    """What the person says, a message each."""
    interrupted = False
    held: list[str] = []
    while True:
        try:
            line = input("... " if held else "> ")
        except EOFError:
            typer.echo()
            return
        except KeyboardInterrupt:
            typer.echo()
            if interrupted:
                return
            interrupted, held = True, []
            typer.echo("Once more, or /exit, ends the chat.", err=True)
            continue
        interrupted = False
        if line.endswith("\\"):
            held.append(line[:-1])
            continue
        text = "\n".join((*held, line))
        held = []
        if text.strip():
            yield text


class Talk:
    """A conversation: what was said is sent along."""

    def __init__(self, server: Server, model: str, system: str | None, options: dict[str, Any], wait: int) -> None:
        self._server = server
        self._system = system or ""
        self._said: list[dict[str, str]] = []
        self._body = {"model": model, "stream": True, **{k: v for k, v in options.items() if v is not None}}
        self._wait = wait

    def forget(self) -> None:
        """What was said; the system message stays."""
        self._said.clear()

    def instruct(self, system: str) -> None:
        """From now on; an empty text takes it away."""
        self._system = system

    def answer(self, text: str) -> None:
        """One question, and the end: exit code 130 when it was stopped."""
        if not self.ask(text):
            raise typer.Exit(Exit.INTERRUPTED)

    def print_whole(self, text: str) -> None:
        """One question, whose answer is not streamed: the JSON of it."""
        body = {**self._body, "stream": False, "messages": self._messages(text)}
        headers = {"X-VLLM-MM-Wait": str(self._wait)}
        with self._server.stream("POST", "/v1/chat/completions", json=body, silence=SILENCE, headers=headers) as answer:
            print_json(json.loads(answer.read()))

    def _messages(self, text: str) -> list[dict[str, str]]:
        """All that is sent with that question."""
        before = [{"role": "system", "content": self._system}] if self._system else []
        return [*before, *self._said, {"role": "user", "content": text}]

    def ask(self, text: str) -> bool:
        """Print the answer as it comes. False when Ctrl-C stopped it: what came of it counts as said. A question whose answer
        failed was not asked. Leaves with a message (typer.Exit) when it fails."""
        question = {"role": "user", "content": text}
        body = {**self._body, "messages": self._messages(text)}
        said: list[str] = []
        stopped = False
        try:
            ended = self._stream(body, said)
        except KeyboardInterrupt:
            stopped = ended = True
        typer.echo()
        if not ended:
            fail("the answer was cut: the engine went away in the middle of it")
        if stopped:
            typer.echo("(stopped)", err=True)
        if said or not stopped:
            self._said += (question, {"role": "assistant", "content": "".join(said)})
        return not stopped

    def _stream(self, body: Mapping[str, Any], said: list[str]) -> bool:
        """Whether it came to its end."""
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
        return ended


def _piece(event: dict[str, Any]) -> str:
    if "error" in event:
        typer.echo()
        fail(str(event["error"].get("message", event["error"])))
    return "".join(choice.get("delta", {}).get("content") or "" for choice in event.get("choices", ()))
