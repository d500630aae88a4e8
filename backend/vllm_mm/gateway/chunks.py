"""Reading a chunked body that is relayed as it is: what is in its chunks, however the bytes are split."""


class Unframed:
    """Of framing that the connection's parser has found to be valid."""

    def __init__(self) -> None:
        self._size_line = b""
        self._left = 0
        """Bytes of the chunk that are missing, with the line end behind it."""
        self._over = False

    @property
    def inside(self) -> bool:
        """In the middle of a chunk, or of its size."""
        return bool(self._left or self._size_line)

    def feed(self, data: bytes) -> tuple[bytes, bytes]:
        """What was in chunks, and the end of the body as it is: the last chunk's size and the trailers."""
        if self._size_line:
            data, self._size_line = self._size_line + data, b""
        parts: list[bytes] = []
        at, size = 0, len(data)
        while at < size and not self._over:
            if self._left:
                end = min(size, at + self._left)
                text_end = min(end, at + self._left - 2)
                if text_end > at:
                    parts.append(data[at:text_end])
                self._left -= end - at
                at = end
                continue
            line = data.find(b"\r\n", at)
            if line < 0:
                self._size_line = data[at:]
                return b"".join(parts), b""
            try:
                length = int(data[at:line].partition(b";")[0], 16)
            except ValueError:  # it was not read from the beginning: all that follows passes as it is
                length = 0
            if length:
                at, self._left = line + 2, length + 2
            else:
                self._over = True
        return b"".join(parts), data[at:]
