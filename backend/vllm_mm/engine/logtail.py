"""Following an engine's log file: bounded lines, a bounded ring, subscribers that cannot hurt, rotation in place.

The engine writes to the file itself (opened for appending), not to a pipe, so that it can outlive its controller; the
controller reads behind it.
"""

import asyncio
import contextlib
import logging
import os
import re
from collections import deque
from collections.abc import Callable
from pathlib import Path

from vllm_mm.clock import Clock

_LOG = logging.getLogger(__name__)
_SEPARATOR = re.compile(rb"[\r\n]")
_ESCAPE = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")

RING_LINES = 2000
LINE_BYTES = 8192
CHUNK_BYTES = 1 << 16
"""Read and given to subscribers at a time; some milliseconds of the event loop."""
HISTORY_BYTES = 1 << 18
"""Read of what is there already: at an adoption, and of a backlog that is too long to be read whole."""
LAG_BYTES = 1 << 20
"""A longer backlog is skipped."""
ROTATE_BYTES = 16 << 20
OLD_FILES = 1
FAST_SECONDS = 0.05
SLOW_SECONDS = 0.25
QUIET_SECONDS = 5.0
"""No line for so long: look less often."""


class LineSplitter:
    """Bytes to lines. Both \\n and \\r end one (tqdm rewrites its line with \\r); blank ones are dropped, overlong ones cut."""

    __slots__ = ("_cutting", "_pending", "_replaces")

    def __init__(self) -> None:
        self._pending = b""
        self._cutting = False
        self._replaces = False

    def feed(self, data: bytes) -> list[tuple[str, bool]]:
        """(line, whether it took the place of the line before on a terminal) of each complete line."""
        lines: list[tuple[str, bool]] = []
        start = 0
        for match in _SEPARATOR.finditer(data):
            piece = self._pending + data[start : match.start()]
            self._pending = b""
            self._line(piece, lines)
            self._cutting = False
            # A carriage return before anything stands on the line replaces nothing.
            self._replaces = match.group() == b"\r" and (self._replaces or bool(piece.strip()))
            start = match.end()
        self._pending += data[start:]
        if len(self._pending) > LINE_BYTES:
            self._line(self._pending, lines)
            self._pending, self._cutting = b"", True
        return lines

    def flush(self) -> list[tuple[str, bool]]:
        """What came last without an end of line: nothing more will come."""
        lines: list[tuple[str, bool]] = []
        self._line(self._pending, lines)
        self._pending, self._cutting, self._replaces = b"", False, False
        return lines

    def _line(self, piece: bytes, into: list[tuple[str, bool]]) -> None:
        if self._cutting:
            return
        cut = " [...]" if len(piece) > LINE_BYTES else ""
        text = piece[:LINE_BYTES].decode(errors="replace").rstrip() + cut
        if "\x1b" in text:
            text = _ESCAPE.sub("", text)
        if text.strip():
            into.append((text, self._replaces))


class LogTail:
    """Reads one log file from `offset` on, for as long as it is open. All methods belong to the event loop's thread."""

    def __init__(
        self, path: Path, clock: Clock, *, offset: int, rotate_bytes: int = ROTATE_BYTES, old_files: int = OLD_FILES
    ) -> None:
        """`rotate_bytes`: size at which the file is rotated. `old_files`: so many are kept beside it."""
        self._path = path
        self._clock = clock
        self._offset = offset
        self._rotate_bytes = rotate_bytes
        self._old_files = old_files
        self._split = LineSplitter()
        self._ring: deque[str] = deque(maxlen=RING_LINES)
        self._followers: dict[int, Callable[[str], None]] = {}
        self._next = 0
        self.written = 0
        """Lines that came so far; one that took the place of another counts too. While a follower is called, its line is the last."""
        self._fd: int | None = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self._task: asyncio.Task[None] | None = None

    @classmethod
    def resumed(
        cls, path: Path, clock: Clock, *, rotate_bytes: int = ROTATE_BYTES, old_files: int = OLD_FILES
    ) -> "LogTail":
        """For an engine that has been writing already: the ring starts with what is there, and nobody is called for it."""
        try:
            size = path.stat().st_size
        except OSError:
            size = 0
        offset = max(0, size - HISTORY_BYTES)
        tail = cls(path, clock, offset=offset, rotate_bytes=rotate_bytes, old_files=old_files)
        while tail.poll():
            pass
        return tail

    def start(self) -> None:
        """Begin to look at the file by itself (needs a running loop)."""
        self._task = asyncio.get_running_loop().create_task(self._run(), name=f"log {self._path.name}")

    def follow(self, on_line: Callable[[str], None]) -> Callable[[], None]:
        """See `EngineProcess.follow`. A subscriber that raises is dropped, and the log says so."""
        number = self._next
        self._next += 1
        self._followers[number] = on_line

        def stop() -> None:
            self._followers.pop(number, None)

        return stop

    def lines(self, count: int) -> tuple[str, ...]:
        """The last `count` lines, oldest first. Of a progress bar only the latest state is kept."""
        if count <= 0:
            return ()
        return tuple(self._ring)[-count:]

    def poll(self, lag: int = LAG_BYTES) -> int:
        """Take in what is new, at most one chunk; returns the bytes taken. Of a backlog of more than `lag` bytes only the
        end is read. Never raises for a file in trouble."""
        if self._fd is None:
            return 0
        try:
            size = os.fstat(self._fd).st_size
            if size < self._offset:  # truncated by somebody
                self._offset = 0
            if size - self._offset > lag:
                skipped = size - HISTORY_BYTES - self._offset
                self._offset = size - HISTORY_BYTES
                self._split.flush()
                self._emit(
                    f"[{skipped} bytes of log left out here: the engine writes faster than it can be read]", False
                )
            data = os.pread(self._fd, CHUNK_BYTES, self._offset)
        except OSError as error:
            _LOG.warning("cannot read the engine's log %s: %s", self._path, error)
            return 0
        self._offset += len(data)
        for line, replaces in self._split.feed(data):
            self._emit(line, replaces)
        return len(data)

    def catch_up(self) -> None:
        """Take in what is there by now; of a writer who goes on writing, no more than a backlog."""
        for _ in range(LAG_BYTES // CHUNK_BYTES):
            if self.poll() < CHUNK_BYTES:
                return

    def drain(self) -> None:
        """The writer is gone: take the end of what is left, the unfinished last line too."""
        while self.poll(lag=HISTORY_BYTES):
            pass
        for line, replaces in self._split.flush():
            self._emit(line, replaces)

    async def close(self) -> None:
        """Stop looking; what the ring holds can still be read."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
        self._followers.clear()
        self.release()

    def release(self) -> None:
        """Give back the file of a tail that was never started."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None

    def _emit(self, line: str, replaces: bool) -> None:
        if replaces and self._ring:
            self._ring.pop()
        self._ring.append(line)
        self.written += 1
        for number, follower in list(self._followers.items()):
            try:
                follower(line)
            except Exception:
                _LOG.exception("a reader of the log %s failed and is dropped", self._path)
                self._followers.pop(number, None)

    async def _run(self) -> None:
        last = self._clock.now()
        while True:
            taken = self.poll()
            now = self._clock.now()
            if taken:
                last = now
            if self._offset >= self._rotate_bytes:
                await self._rotate()
            if taken >= CHUNK_BYTES:
                await asyncio.sleep(0)
                continue
            await self._clock.sleep(FAST_SECONDS if now - last < QUIET_SECONDS else SLOW_SECONDS)

    async def _rotate(self) -> None:
        """Copy and truncate: the engine keeps its descriptor, and appends at the new end. The latest old file is `.1`."""
        old = self._old(1)
        try:
            await asyncio.to_thread(self._make_room)
            done = await asyncio.to_thread(self._copy, old, 0, True)
            # What came meanwhile is copied without leaving the loop, so that next to nothing falls between.
            while self.poll():
                pass
            self._copy(old, done, False)
            if self._fd is not None:
                os.ftruncate(self._fd, 0)
                self._offset = 0
        except OSError as error:
            _LOG.warning("cannot rotate the engine's log %s: %s", self._path, error)
            self._rotate_bytes *= 2

    def _old(self, number: int) -> Path:
        return self._path.with_name(f"{self._path.name}.{number}")

    def _make_room(self) -> None:
        """Each old file becomes the next older one; the oldest goes."""
        for number in range(self._old_files - 1, 0, -1):
            with contextlib.suppress(FileNotFoundError):
                self._old(number).replace(self._old(number + 1))

    def _copy(self, target: Path, start: int, fresh: bool) -> int:
        with self._path.open("rb") as source, target.open("wb" if fresh else "ab") as out:
            source.seek(start)
            while data := source.read(1 << 20):
                out.write(data)
                start += len(data)
        return start
