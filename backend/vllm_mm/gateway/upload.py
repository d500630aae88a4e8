"""A form's body on its way to an engine: held while nobody can take it (in a temporary file, up to a limit), then passed on as it
comes, with a bounded part of it in memory."""

import asyncio
import tempfile
import threading
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from typing import IO, Final

from vllm_mm.domain.errors import BadRequest, MMError, PayloadTooLarge, Unavailable
from vllm_mm.gateway.multipart import Form
from vllm_mm.gateway.ports import Rules

IN_MEMORY: Final = 1 << 18
"""Bytes held in memory, both until they are written to the file and while the engine reads slower than the client sends."""
PIECE: Final = 1 << 18
"""Bytes that are read from the file at once."""


class Upload:
    """`push` and `complete` by who reads from the client; `named`, `pieces` by who serves the request."""

    def __init__(self, form: Form, declared: int | None, rules: Rules) -> None:
        """`declared`: the length that the client announced."""
        self._form = form
        self._declared = declared
        self._most = rules.upload
        self._holds = rules.upload_held
        self._held: list[bytes] = []
        """What came and is not in the file."""
        self._held_size = 0
        self._file: IO[bytes] | None = None
        self._filed = 0
        self._filing = asyncio.Lock()
        self._closed = threading.Lock(), threading.Event()
        """A thread may be at the file when the request ends."""
        self._passing: deque[bytes] | None = None
        self._size = 0
        self._over = False
        self._error: MMError | None = None
        self._changed = asyncio.Event()
        self._name: bytes | None = None
        self.on_fail: Callable[[MMError], None] | None = None
        """Told what is wrong with the body, wherever its request waits."""
        self.check: Callable[[str], None] | None = None
        """Told, if set, the model's name; raises when it may not be that one."""

    # The client's side

    @property
    def size(self) -> int:
        """Bytes that came."""
        return self._form.size

    def push(self, data: bytes) -> None:
        """Raises BadRequest or PayloadTooLarge; whoever serves the request gets that too."""
        self._check()
        try:
            self._form.feed(data)
            if self._form.size > self._most:
                raise too_large(self._most)
            if self._passing is not None:
                self._passing.append(data)
                self._size += len(data)
            else:
                self._held.append(data)
                self._held_size += len(data)
                if self._form.model is None and self._form.size > self._holds:
                    raise PayloadTooLarge(
                        f"The form's field `model` did not come within the first {self._holds} bytes (limits.upload_held). Send it "
                        "before the file."
                    )
        except MMError as error:
            self.fail(error)
            raise
        self._changed.set()

    def complete(self) -> None:
        """Raises BadRequest for a form that is not whole."""
        try:
            self._form.finish()
        except MMError as error:
            self.fail(error)
            raise
        self._over = True
        self._changed.set()

    def fail(self, error: MMError) -> None:
        self._error = error
        self._changed.set()
        if self.on_fail is not None:
            self.on_fail(error)

    async def room(self) -> None:
        """Until more may be pushed; who serves the request ends the wait, at the latest with `close`."""
        if self._passing is None and self._held_size > IN_MEMORY:
            await self._file_away()
        while self._full and self._error is None:
            await self._change()

    async def _file_away(self) -> None:
        """Into the file, in a thread: the disk may be slow."""
        async with self._filing:
            held, self._held, self._held_size = self._held, [], 0
            try:
                self._filed += await asyncio.to_thread(self._write, held)
            except OSError as error:
                self.fail(
                    Unavailable(
                        f"There is no room to hold the form: {error.strerror}. Try again later.", retry_after=30.0
                    )
                )

    def _write(self, held: Sequence[bytes]) -> int:
        size, (lock, over) = 0, self._closed
        with lock:
            if over.is_set():
                return 0
            if self._file is None:
                self._file = tempfile.TemporaryFile(buffering=0)  # noqa: SIM115  # `_discard` closes it
            for data in held:
                size += len(data)
                view = memoryview(data)
                while view:
                    view = view[self._file.write(view) :]
        return size

    def _read(self, size: int) -> bytes:
        lock, over = self._closed
        with lock:
            return b"" if self._file is None or over.is_set() else self._file.read(size)

    def _rewind(self) -> None:
        lock, over = self._closed
        with lock:
            if self._file is not None and not over.is_set():
                self._file.seek(0)

    def _discard(self) -> None:
        lock, _ = self._closed
        with lock:
            if self._file is not None:
                self._file.close()

    @property
    def _full(self) -> bool:
        if self._passing is None:
            return self._form.model is not None and self._form.size >= self._holds
        return self._size >= IN_MEMORY

    # The side of who serves

    async def named(self) -> tuple[str, bool]:
        """The model's name, and whether a stream is wanted, as far as that came before it. Raises what `push` raised."""
        while self._form.model is None:
            self._check()
            await self._change()
        self._check()
        if self.check is not None:
            self.check(self._form.model)
        return self._form.model, self._form.stream

    def rename(self, name: str) -> None:
        """The engine knows the model by another name."""
        self._name = name.encode()

    @property
    def length(self) -> int | None:
        """Of what `pieces` will give, if the client announced it."""
        span = self._form.span
        if self._declared is None or self._name is None or span is None:
            return self._declared
        return self._declared - (span[1] - span[0]) + len(self._name)

    async def pieces(self) -> AsyncIterator[bytes]:
        """Once. Raises what `push` raised."""
        self._passing = passing = deque[bytes]()
        self._changed.set()
        at = 0
        async for held in self._all_held():
            for piece in self._renamed(held, at):
                yield piece
            at += len(held)
        while True:
            while passing:
                self._check()
                piece = passing.popleft()
                self._size -= len(piece)
                self._changed.set()
                yield piece
            self._check()
            if self._over:
                return
            await self._change()

    async def _all_held(self) -> AsyncIterator[bytes]:
        async with self._filing:
            self._check()
            left = self._filed
            if left:
                await asyncio.to_thread(self._rewind)
            while left and (piece := await asyncio.to_thread(self._read, min(left, PIECE))):
                left -= len(piece)
                yield piece
        held, self._held = self._held, []
        for piece in held:
            yield piece

    def _renamed(self, piece: bytes, at: int) -> Iterator[bytes]:
        """What stands at `at`, with the other name in the place of the model's."""
        if self._name is None or self._form.span is None:
            yield piece
            return
        start, end = self._form.span[0] - at, self._form.span[1] - at
        if start > 0:
            yield piece[:start]
        if 0 <= start < len(piece):
            yield self._name
        if end < len(piece):
            yield piece[max(0, end) :]

    def close(self) -> None:
        """The request is over."""
        self._held = []
        self._closed[1].set()
        if self._file is not None or self._filing.locked():
            # To give the room of a large file back takes a while.
            asyncio.get_running_loop().run_in_executor(None, self._discard)
        self.on_fail = None
        if self._error is None and not self._over:
            self.fail(BadRequest("The request is over before its body is."))

    def _check(self) -> None:
        if self._error is not None:
            raise self._error

    async def _change(self) -> None:
        """Each of the two sides looks again after any change; both may wait at once."""
        self._changed.clear()
        await self._changed.wait()


def too_large(limit: int) -> PayloadTooLarge:
    return PayloadTooLarge(f"The form is larger than {limit} bytes (limits.upload). Send less, or raise the limit.")
