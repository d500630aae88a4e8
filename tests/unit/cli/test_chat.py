"""`vllm-mm run` without a prompt: a chat at a terminal."""

import builtins
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import pytest
import typer

from cli_rig import Cli
from vllm_mm.cli import chat as module
from vllm_mm.cli.chat import Talk, chat
from vllm_mm.cli.exits import Exit

if TYPE_CHECKING:
    from vllm_mm.cli.server import Server


class Answer:
    def __init__(self, lines: list[str | BaseException]) -> None:
        self._lines = lines

    def read(self) -> bytes:
        return "".join(map(str, self._lines)).encode()

    def iter_lines(self) -> Iterator[str]:
        for line in self._lines:
            if isinstance(line, BaseException):
                raise line
            yield line


def piece(text: str) -> str:
    return f'data: {{"choices": [{{"delta": {{"content": "{text}"}}}}]}}'


DONE = "data: [DONE]"


class FakeServer:
    """Gives the prepared answers, one after the other, and remembers what was sent."""

    def __init__(self, *answers: list[str | BaseException]) -> None:
        self.answers = list(answers)
        self.sent: list[list[dict[str, str]]] = []
        self.streamed: list[bool] = []
        self.closed = 0

    @contextmanager
    def stream(self, _method: str, _path: str, *, json: Mapping[str, Any], **_: Any) -> Iterator[Answer]:
        self.sent.append(json["messages"])
        self.streamed.append(json["stream"])
        try:
            yield Answer(self.answers.pop(0))
        finally:
            self.closed += 1


def typing(monkeypatch: pytest.MonkeyPatch, *lines: str | type[BaseException]) -> None:
    """A person at the terminal: what is typed, or Ctrl-C, and Ctrl-D at the end."""
    typed = iter(lines)

    def read(_prompt: str = "") -> str:
        line = next(typed, EOFError)
        if isinstance(line, type):
            raise line
        return line

    monkeypatch.setattr(builtins, "input", read)


def talk(server: FakeServer, system: str | None = None) -> Talk:
    return Talk(cast("Server", server), "demo", system, {"max_tokens": None}, 5)


def test_what_was_said_is_sent_along(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """With the system message in front; an empty line is nothing."""
    server = FakeServer([piece("one"), piece(" two"), DONE], [piece("three"), DONE])
    typing(monkeypatch, "hello", "", "again")
    chat(talk(server, "Be brief."), "demo")
    assert [m["content"] for m in server.sent[1]] == ["Be brief.", "hello", "one two", "again"]
    assert capsys.readouterr().out == "one two\nthree\n\n"


def test_ctrl_c_stops_the_answer_and_not_the_chat(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The connection is closed, so that the engine stops too; what had come counts as said."""
    server = FakeServer([piece("half"), KeyboardInterrupt()], [piece("whole"), DONE])
    typing(monkeypatch, "a", "b")
    chat(talk(server), "demo")
    assert server.closed == 2
    assert [m["content"] for m in server.sent[1]] == ["a", "half", "b"]
    assert "(stopped)" in capsys.readouterr().err


def test_an_answer_that_is_stopped_before_it_began_was_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two questions in a row would be no conversation."""
    server = FakeServer([KeyboardInterrupt()], [piece("x"), DONE])
    typing(monkeypatch, "a", "b")
    chat(talk(server), "demo")
    assert [m["content"] for m in server.sent[1]] == ["b"]


@pytest.mark.parametrize(
    "broken", [[piece("half")], ['data: {"error": {"message": "the engine died", "code": "upstream_died"}}']]
)
def test_a_chat_goes_on_after_an_answer_that_failed(
    broken: list[str | BaseException], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It is told, and was not asked."""
    server = FakeServer(broken, [piece("x"), DONE])
    typing(monkeypatch, "a", "b")
    chat(talk(server), "demo")
    assert [m["content"] for m in server.sent[1]] == ["b"]
    assert "the engine" in capsys.readouterr().err


def test_words_with_a_slash(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """They are for the chat and not for the model; paths are no such words."""
    server = FakeServer(*[[piece("x"), DONE] for _ in range(3)])
    typing(monkeypatch, "a", "/clear", "/system Be kind.", "b", "/help", "/nope", "/etc/hosts is a file", "/exit", "c")
    chat(talk(server), "demo")
    assert [m["content"] for m in server.sent[1]] == ["Be kind.", "b"]
    assert server.sent[2][-1]["content"] == "/etc/hosts is a file"
    assert len(server.sent) == 3
    told = capsys.readouterr().err
    assert "/clear" in told
    assert "There is no /nope" in told


def test_a_line_can_go_on_in_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a backslash at its end."""
    server = FakeServer([piece("x"), DONE])
    typing(monkeypatch, "a\\", "b")
    chat(talk(server), "demo")
    assert server.sent[0][-1]["content"] == "a\nb"


def test_ctrl_c_twice_at_the_prompt_ends_the_chat(monkeypatch: pytest.MonkeyPatch) -> None:
    """Once may have been meant for the answer that had just ended."""
    server = FakeServer([piece("x"), DONE])
    typing(monkeypatch, KeyboardInterrupt, "a", KeyboardInterrupt, KeyboardInterrupt, "b")
    chat(talk(server), "demo")
    assert len(server.sent) == 1


def test_one_question_that_is_stopped_is_130() -> None:
    """As shells say it."""
    with pytest.raises(typer.Exit) as ended:
        talk(FakeServer([piece("half"), KeyboardInterrupt()])).answer("a")
    assert ended.value.exit_code == Exit.INTERRUPTED


@pytest.mark.parametrize("words", [[], ["  "]])
def test_nothing_is_not_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str]) -> None:
    """`vllm-mm run demo </dev/null` is a mistake, and not an empty prompt."""
    server = FakeServer([DONE])
    monkeypatch.setattr(module, "the_server", lambda _context: server)
    monkeypatch.setattr(module, "_must_chat", lambda _server, _model: None)
    ended = Cli(tmp_path).now("run", "demo", *words, stdin="\n")
    assert (ended.exit_code, server.sent) == (2, [])
    assert "there is nothing to ask" in ended.stderr


def test_the_whole_answer_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    """As the API gives it, not streamed."""
    server = FakeServer(['{"choices": [{"message": {"content": "hi"}}], "usage": {"total_tokens": 3}}'])
    talk(server, "Be brief.").print_whole("hello")
    assert json.loads(capsys.readouterr().out)["usage"] == {"total_tokens": 3}
    assert [m["content"] for m in server.sent[0]] == ["Be brief.", "hello"]
    assert server.streamed == [False]
