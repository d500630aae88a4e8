"""The server's secret: made once, for its owner's eyes only, and never in two ways."""

import os
import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from vllm_mm.domain.errors import ConfigError
from vllm_mm.store.secret import FILE, derived, mark, server_secret


def test_made_once_and_read_after(tmp_path: Path) -> None:
    """256 random bits in a file of mode 0600, whatever the umask; the same at each start."""
    before = os.umask(0)
    try:
        made = server_secret(tmp_path, None)
    finally:
        os.umask(before)
    assert len(bytes.fromhex(made.decode())) == 32
    assert stat.S_IMODE((tmp_path / FILE).stat().st_mode) == 0o600
    assert server_secret(tmp_path, None) == made
    assert [p.name for p in tmp_path.iterdir()] == [FILE]
    other = tmp_path / "other"
    other.mkdir()
    assert server_secret(other, None) != made


def test_many_at_once_agree(tmp_path: Path) -> None:
    """The server and `keys create --local` may begin at the same moment."""
    with ThreadPoolExecutor(16) as pool:
        made = set(pool.map(lambda _: server_secret(tmp_path, None), range(64)))
    assert len(made) == 1
    assert [p.name for p in tmp_path.iterdir()] == [FILE]


def test_the_configured_one_counts(tmp_path: Path) -> None:
    """Then there is no file."""
    assert server_secret(tmp_path, "s" * 32) == b"s" * 32
    assert not list(tmp_path.iterdir())


def test_a_file_that_others_may_read_is_closed_again(tmp_path: Path) -> None:
    """As a copy from a backup may be."""
    (tmp_path / FILE).write_text("x" * 64 + "\n")
    (tmp_path / FILE).chmod(0o644)
    assert server_secret(tmp_path, None) == b"x" * 64
    assert stat.S_IMODE((tmp_path / FILE).stat().st_mode) == 0o600


@pytest.mark.parametrize("text", ["", "short\n"])
def test_an_empty_file_is_no_secret(tmp_path: Path, text: str) -> None:
    """It is said, and not used: keys hashed with it would be worth little."""
    (tmp_path / FILE).write_text(text)
    with pytest.raises(ConfigError, match="holds no secret"):
        server_secret(tmp_path, None)


def test_where_it_cannot_be_made(tmp_path: Path) -> None:
    """Nothing is left of the attempt."""
    with pytest.raises(OSError, match="gone"):
        server_secret(tmp_path / "gone", None)


def test_marks_and_derived_secrets_tell_nothing_of_it() -> None:
    """A mark tells two secrets apart; one for a purpose is none for another."""
    assert mark(b"a") != mark(b"b")
    assert mark(b"a") == mark(b"a")
    assert derived(b"a", "x") != derived(b"a", "y") != b"a"
    assert len(mark(b"a")) == 16
