"""What is guaranteed of the zygote's script, part by part. It is run as a whole in tests/process."""

import ast
import ctypes
import gc
import os
import socket
import sys
import types
from pathlib import Path

import pytest

from vllm_mm.engine.launchers import zygote


def cuda(*, initialised: bool) -> dict[str, types.ModuleType]:
    module = types.ModuleType("torch.cuda")
    module.__dict__["is_initialized"] = lambda: initialised
    return {"torch.cuda": module}


@pytest.mark.parametrize(
    ("devices", "threads", "modules", "reason"),
    [
        ([], 1, {}, ""),
        (["/dev/null", "/dev/urandom", "/dev/nvidiactl"], 1, cuda(initialised=False), ""),
        ([], 2, {}, "2 Python threads run in it"),
        ([], 1, cuda(initialised=True), "CUDA was initialised by an import"),
        (["/dev/null", "/dev/nvidia0"], 1, {}, "an import opened the device /dev/nvidia0"),
        (["/dev/nvidia-uvm"], 1, {}, "an import opened the device /dev/nvidia-uvm"),
        (["/dev/kfd"], 1, {}, "an import opened the device /dev/kfd"),
        (["/dev/dri/renderD128"], 1, {}, "an import opened the device /dev/dri/renderD128"),
    ],
)
def test_who_may_not_be_forked(
    devices: list[str], threads: int, modules: dict[str, types.ModuleType], reason: str
) -> None:
    """Threads, and everything that touched a GPU: the reason names it."""
    found = zygote.unfit(devices, threads, modules)
    assert found.startswith(reason)
    assert bool(found) == bool(reason)


def test_open_devices_are_seen() -> None:
    """Those of this process, by name."""
    before = zygote.open_devices().count("/dev/zero")
    fd = os.open("/dev/zero", os.O_RDONLY)
    try:
        assert zygote.open_devices().count("/dev/zero") == before + 1
    finally:
        os.close(fd)


def test_frames_carry_messages_and_descriptors() -> None:
    """As they were, also in one stream, and a message that is larger than what the socket takes at once."""
    a, b = socket.socketpair()
    with a, b:
        reader, writer = os.pipe()
        zygote.write_frame(a, {"op": "x"}, [writer])
        zygote.write_frame(a, {"op": "y", "text": "ü\n"})
        os.close(writer)
        message, fds = zygote.read_frame(b, 5)
        assert message == {"op": "x"}
        os.write(fds[0], b"through")
        assert os.read(reader, 10) == b"through"
        assert not os.get_inheritable(fds[0])
        for fd in (reader, *fds):
            os.close(fd)
        assert zygote.read_frame(b, 5) == ({"op": "y", "text": "ü\n"}, [])
        a.close()
        assert zygote.read_frame(b, 5) == (None, [])


def test_a_stream_that_ends_in_a_frame_is_an_end() -> None:
    a, b = socket.socketpair()
    with a, b:
        a.send(zygote.frame({"op": "x"})[:-2])
        a.close()
        assert zygote.read_frame(b, 5) == (None, [])


def area(text: bytes) -> tuple[int, int, object]:
    """(start, end, keep) of memory with this content."""
    buffer = ctypes.create_string_buffer(text, len(text))
    start = ctypes.addressof(buffer)
    return start, start + len(text), buffer


def test_marks_are_written_in_place() -> None:
    """Only the value, only of the very name, and only when it is as long as before."""
    text = b"A=1\0XMM_LAUNCH=0000\0MM_LAUNCH=0000\0Z=MM_LAUNCH=0000\0"
    start, end, keep = area(text)
    assert zygote.write_marks(start, end, {"MM_LAUNCH": "abcd"})
    assert ctypes.string_at(start, end - start) == text.replace(b"\0MM_LAUNCH=0000", b"\0MM_LAUNCH=abcd")
    assert not zygote.write_marks(start, end, {"MM_LAUNCH": "abcde"})
    assert not zygote.write_marks(start, end, {"MISSING": "abcd"})
    assert not zygote.write_marks(start, end, {"A": "2"}), "the first entry has no end of another before it"
    assert keep is not None


def test_a_title_stays_in_its_area() -> None:
    """Cut where the area ends, filled up where it is shorter; a zero ends it, and the last byte is none."""
    start, end, keep = area(b"x" * 16)
    zygote.write_area(start, end, b"short")
    assert ctypes.string_at(start, 16) == b"short" + b"\0" * 10 + b"."
    zygote.write_area(start, end, b"y" * 40)
    assert ctypes.string_at(start, 16) == b"y" * 14 + b"\0."
    assert keep is not None


def test_the_areas_are_those_of_this_process() -> None:
    """What /proc shows as the command line and the environment lies there."""
    arg_start, arg_end, env_start, env_end = zygote.areas()
    assert ctypes.string_at(arg_start, arg_end - arg_start) == Path("/proc/self/cmdline").read_bytes()
    assert ctypes.string_at(env_start, env_end - env_start) == Path("/proc/self/environ").read_bytes()


def test_modules_that_cannot_be_imported_are_told() -> None:
    """By name, with the error; the others are imported all the same."""
    problems: list[str] = []
    zygote._import_all(["no_such_module_of_anybody", "colorsys"], problems)
    assert problems == ["no_such_module_of_anybody: ModuleNotFoundError: No module named 'no_such_module_of_anybody'"]
    assert "colorsys" in sys.modules


def test_the_script_needs_nothing_of_ours() -> None:
    """It is run by the engine's Python: the standard library alone, and the grammar of Python 3.10."""
    gc.disable()  # a collection in the middle of it makes CPython 3.11 raise "AST constructor recursion depth mismatch"
    try:
        tree = ast.parse(Path(zygote.__file__).read_text(), feature_version=(3, 10))
    finally:
        gc.enable()
    names = {a.name for node in ast.walk(tree) if isinstance(node, ast.Import) for a in node.names}
    names |= {str(node.module) for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert {name.split(".")[0] for name in names} <= sys.stdlib_module_names
