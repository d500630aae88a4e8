"""A form's body on its way to an engine: held while nobody can take it (in a temporary file, up to a limit), then passed on as it
comes, with a bounded part of it in memory."""

import asyncio
import tempfile
from collections import deque
from collections.abc import AsyncIterator, Callable
from typing import Final

from vllm_mm.domain.errors import BadRequest, MMError, PayloadTooLarge
from vllm_mm.gateway.multipart import Form
from vllm_mm.gateway.ports import Rules

IN_MEMORY: Final = 1 << 18
"""Bytes held in memory, both before there is a file and while the engine reads slower than the client sends."""
PIECE: Final = 1 << 16


class Upload:
    """`push` and `complete` by who reads from the client; `named`, `pieces` by who serves the request."""

    def __init__(self, form: Form, declared: int | None, rules: Rules) -> None:
        """`declared`: the length that the client announced."""
        self._form = form
        self._declared = declared
        self._most = rules.upload
        self._holds = rules.upload_held
        self._held = tempfile.SpooledTemporaryFile[bytes](max_size=IN_MEMORY)
        self._passing: deque[bytes] | None = None
        self._size = 0
        self._over = False
        self._error: MMError | None = None
        self._changed = asyncio.Event()
        self._name: bytes | None = None
        self.on_fail: Callable[[MMError], None] | None = None
        """Told what is wrong with the body, wherever its request waits."""

    # The client's side

    @property
    def size(self) -> int:
        """Bytes that came."""
        return self._form.size

    def push(self, data: bytes) -> None:
        """Raises BadRequest or PayloadTooLarge; whoever serves the request gets that too."""
        try:
            self._form.feed(data)
            if self._form.size > self._most:
                raise too_large(self._most)
            if self._passing is not None:
                self._passing.append(data)
                self._size += len(data)
            else:
                self._held.write(data)
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
        while self._full and self._error is None:
            await self._change()

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
        for start, end in self._stretches():
            self._held.seek(start)
            left = end - start
            while left and (piece := self._held.read(min(left, PIECE))):
                left -= len(piece)
                yield piece
            if self._name is not None and self._form.span is not None and end == self._form.span[0]:
                yield self._name
        self._held.close()
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

    def _stretches(self) -> list[tuple[int, int]]:
        """Of what is held: before and behind the name that is replaced."""
        end = self._held.seek(0, 2)
        if self._name is None or self._form.span is None:
            return [(0, end)]
        return [(0, self._form.span[0]), (self._form.span[1], end)]

    def close(self) -> None:
        """The request is over."""
        self._held.close()
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
