"""Tables that fit, colours that are wanted, and what is shown again while it changes."""

import re
import time

import pytest
import typer

from vllm_mm.cli import output, watching
from vllm_mm.cli.exits import Exit

COLUMNS = ("model", "state", "reason")
ROWS = [("demo", "ready", "nothing"), ("a-model-with-a-long-name", "failed", "it does not fit: 80.0 GiB of 24.0 GiB")]


@pytest.mark.parametrize("width", [40, 60, 80, 200])
def test_a_table_fits_the_terminal(width: int) -> None:
    """The widest columns give way; what is cut ends with a mark."""
    lines = output.table(COLUMNS, ROWS, "", width).splitlines()
    assert max(map(len, lines)) <= width
    assert ("…" in lines[2]) == (width < 80)
    assert lines[0].split() == ["MODEL", "STATE", "REASON"]


def test_a_terminal_that_is_much_too_narrow_breaks_lines() -> None:
    """Columns keep their heading and a few characters."""
    lines = output.table(COLUMNS, ROWS, "", 5).splitlines()
    assert lines[0].split() == ["MODEL", "STATE", "REASON"]


def test_in_a_pipe_a_table_is_whole_and_plain() -> None:
    """Scripts read it."""
    text = output.table(COLUMNS, ROWS, "")
    assert "80.0 GiB of 24.0 GiB" in text
    assert "\x1b" not in text


def test_states_have_a_colour_where_colours_are_wanted(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a terminal, unless NO_COLOR says otherwise; widths are those of the text."""
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert output.coloured()
    text = output.table(COLUMNS, ROWS, "", coloured=True)
    assert "\x1b[32mready" in text
    assert re.sub(r"\x1b\[\d+m", "", text) == output.table(COLUMNS, ROWS, "")
    monkeypatch.setenv("NO_COLOR", "1")
    assert not output.coloured()
    monkeypatch.setenv("NO_COLOR", "")
    assert output.coloured()
    monkeypatch.setenv("TERM", "dumb")
    assert not output.coloured()


def frames(monkeypatch: pytest.MonkeyPatch, *texts: str) -> int:
    """Watch these; the exit code."""
    shown, looks = iter(texts), iter(range(len(texts) - 1))

    def sleep(_: float) -> None:
        if next(looks, None) is None:
            raise KeyboardInterrupt

    monkeypatch.setattr(time, "sleep", sleep)
    with pytest.raises(typer.Exit) as ended:
        watching.watch(lambda: next(shown))
    return ended.value.exit_code


def test_in_a_pipe_only_what_is_new_is_shown(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Ctrl-C ends it with the code for that."""
    assert frames(monkeypatch, "a", "a", "b") == Exit.INTERRUPTED
    assert capsys.readouterr().out == "a\n\nb\n"


def test_on_a_terminal_it_stays_in_its_place(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """What stood there before is back afterwards."""
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    frames(monkeypatch, "a\nb", "c")
    told = capsys.readouterr().out
    assert told.startswith("\x1b[?1049h")
    assert told.endswith("\x1b[?1049l")
    assert told.count("\x1b[H") == 2
