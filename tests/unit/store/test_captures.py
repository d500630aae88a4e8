"""Files of captures: bounded, private, found again."""

import stat
from pathlib import Path

import pytest

from vllm_mm.store.captures import CaptureFiles, Stored


def stored(number: int, at: float, *, request_id: str = "", size: int = 100) -> Stored:
    return Stored(f"req_a_{number}", request_id or f"req_a_{number}", at, b"%d" % number * size)


def test_they_are_bounded_together_and_by_age(tmp_path: Path) -> None:
    """The newest stay: so many bytes, and none that is too old. Repeating a write changes nothing."""
    files = CaptureFiles(tmp_path, total=250, age=50.0)
    files.put([stored(n, 100.0 + n) for n in range(1, 5)], 105.0)
    files.put([stored(4, 104.0)], 105.0)
    assert [files.find(f"req_a_{n}") is not None for n in range(1, 5)] == [False, False, True, True]
    assert files.prune(153.5) == 1
    assert files.find("req_a_3") is None
    assert files.find("req_a_4") == b"4" * 100
    assert {stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir()} == {0o600}


def test_they_are_found_by_what_the_client_saw(tmp_path: Path) -> None:
    """By the own id, or the newest with that X-Request-Id, whatever that is made of; also by who opens the folder anew."""
    files = CaptureFiles(tmp_path, total=10_000, age=1e9)
    files.put(
        [stored(1, 1.0, request_id="../é/x"), stored(2, 3.0, request_id="../é/x"), stored(3, 2.0, request_id="y")], 4.0
    )
    again = CaptureFiles(tmp_path, total=10_000, age=1e9)
    assert again.find("../é/x") == b"2" * 100
    assert again.find("req_a_1") == b"1" * 100
    assert again.find("nobody") is None
    assert len(list(tmp_path.rglob("*"))) == 3


def test_what_is_none_of_them_is_left_alone(tmp_path: Path) -> None:
    """But drafts that a crash left behind go; and an id that is none makes no file."""
    (tmp_path / "note.txt").write_text("mine")
    (tmp_path / "00000000000001.req_a_1.0000000000000000.json.new").write_text("half")
    files = CaptureFiles(tmp_path, total=1, age=1.0)
    files.prune(1e10)
    assert [path.name for path in tmp_path.iterdir()] == ["note.txt"]
    with pytest.raises(ValueError, match="no id"):
        files.put([Stored("../x", "x", 1.0, b"")], 1.0)
