"""A form between its client and its engine: what is held, and where."""

import asyncio
import errno
import tempfile
import threading
from typing import Any

import pytest

from vllm_mm.domain.errors import MMError, Unavailable
from vllm_mm.gateway import upload as module
from vllm_mm.gateway.multipart import Form
from vllm_mm.gateway.ports import Rules
from vllm_mm.gateway.upload import IN_MEMORY, Upload

HEAD = b'--b\r\ncontent-disposition: form-data; name="model"\r\n\r\nwhisper\r\n'
FILE = b'--b\r\ncontent-disposition: form-data; name="file"; filename="a"\r\n\r\n'
END = b"\r\n--b--\r\n"


REAL = tempfile.TemporaryFile


class Spy:
    """A temporary file that tells which threads were at it, and can be full."""

    made: list["Spy"]
    full = False

    def __init__(self, **given: Any) -> None:
        self._file = REAL(**given)
        self.threads: set[int] = set()
        Spy.made.append(self)

    def write(self, data: Any) -> int:
        self.threads.add(threading.get_ident())
        if Spy.full:
            raise OSError(errno.ENOSPC, "No space left on device")
        return self._file.write(data[:100_000])  # a file may take less than it is given

    def read(self, size: int) -> bytes:
        self.threads.add(threading.get_ident())
        return self._file.read(size)

    def seek(self, at: int) -> int:
        self.threads.add(threading.get_ident())
        return self._file.seek(at)

    def close(self) -> None:
        self.threads.add(threading.get_ident())
        self._file.close()

    @property
    def closed(self) -> bool:
        return self._file.closed


@pytest.fixture(autouse=True)
def spies(monkeypatch: pytest.MonkeyPatch) -> list[Spy]:
    Spy.made, Spy.full = [], False
    monkeypatch.setattr(module.tempfile, "TemporaryFile", Spy)
    return Spy.made


def upload(**rules: int) -> Upload:
    return Upload(Form(b"multipart/form-data; boundary=b"), None, Rules(**rules))  # type: ignore[arg-type]


async def feed(it: Upload, data: bytes, size: int) -> None:
    for at in range(0, len(data), size):
        await it.room()
        it.push(data[at : at + size])
    it.complete()


async def discarded(spies: list[Spy]) -> None:
    """Files are closed by threads: until they are."""
    async with asyncio.timeout(20):
        while not all(spy.closed for spy in spies):
            await asyncio.to_thread(lambda: None)


@pytest.mark.parametrize("size", [1_000, 7_777, 65_536, 3_000_000])
@pytest.mark.parametrize("first", ["model", "file"])
async def test_a_large_form_is_held_in_a_file_that_the_loop_never_touches(
    spies: list[Spy], size: int, first: str
) -> None:
    """It comes out as it went in, with the engine's own name for the model, and only a bounded part of it was in memory."""
    sound = FILE + bytes(range(256)) * 10_000 + b"\r\n"
    parts = (HEAD, sound) if first == "model" else (sound, HEAD)
    data = b"".join(parts)[:-2] + END
    it = upload()
    largest = 0
    for at in range(0, len(data), size):
        await it.room()
        it.push(data[at : at + size])
        largest = max(largest, sum(map(len, it._held)))
    it.complete()
    assert largest <= IN_MEMORY + size
    assert (await it.named())[0] == "whisper"
    it.rename("org/whisper-large")
    out = b"".join([piece async for piece in it.pieces()])
    assert out == data.replace(b"whisper\r\n", b"org/whisper-large\r\n")
    it.close()
    await discarded(spies)
    assert len(spies) == (1 if size < len(data) else 0)
    assert threading.get_ident() not in {thread for spy in spies for thread in spy.threads}


async def test_a_small_form_needs_no_file(spies: list[Spy]) -> None:
    """Most fit into memory."""
    it = upload()
    await feed(it, HEAD + FILE + b"x" * 1000 + END, 100)
    assert b"".join([piece async for piece in it.pieces()]) == HEAD + FILE + b"x" * 1000 + END
    it.close()
    assert spies == []


async def test_a_full_disk_is_told(spies: list[Spy]) -> None:
    """503 with what is wrong, for who serves the request too; the file is closed."""
    Spy.full = True
    told: list[MMError] = []
    it = upload()
    it.on_fail = told.append
    with pytest.raises(MMError):
        await feed(it, HEAD + FILE + b"x" * 2_000_000 + END, 65_536)
    with pytest.raises(Unavailable):
        await it.named()
    assert isinstance(told[0], Unavailable)
    assert "No space left" in told[0].message
    it.close()
    await discarded(spies)


async def test_a_request_that_ends_while_its_form_is_written_leaves_no_file(
    spies: list[Spy], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whichever of the two comes first."""
    began, go = threading.Event(), threading.Event()
    write = Spy.write

    def slow(self: Spy, data: Any) -> int:
        began.set()
        go.wait(20)
        return write(self, data)

    monkeypatch.setattr(Spy, "write", slow)
    it = upload()
    feeding = asyncio.ensure_future(feed(it, HEAD + FILE + b"x" * 2_000_000 + END, 65_536))
    await asyncio.to_thread(began.wait, 20)
    it.close()
    feeding.cancel()
    go.set()
    with pytest.raises((asyncio.CancelledError, MMError)):
        await feeding
    await discarded(spies)
    assert len(spies) == 1
