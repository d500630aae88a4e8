"""A file for rows that the database does not take for now, in another directory: a controller that dies meanwhile loses none of them."""

import contextlib
import errno
import logging
import os
import stat
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Generic, TypeVar

import msgspec

T = TypeVar("T")
log = logging.getLogger(__name__)


class Spool(Generic[T]):
    """One JSON document a line. Calls wait for the disk and raise OSError: they are made in threads, but for `read`."""

    def __init__(self, path: Path, kind: type[T]) -> None:
        """`kind`: what a row is. The file is made when there is something to keep."""
        self.path = path
        self._kind = kind
        self.lines = 0
        """Rows in the file."""
        self._made = False
        self._encode = msgspec.json.Encoder(enc_hook=str).encode
        self._decode: msgspec.json.Decoder[Any] = msgspec.json.Decoder(kind)

    def read(self) -> list[T]:
        """What an earlier controller left, in order. A line that was broken off, or that another version wrote, is left out."""
        try:
            text = self.path.read_bytes()
        except FileNotFoundError:
            return []
        rows: list[T] = []
        bad = 0
        for line in text.splitlines():
            try:
                rows.append(self._decode.decode(line))
            except (msgspec.MsgspecError, ValueError):
                bad += 1
        if bad:
            log.warning("%d lines of %s cannot be read and are left out", bad, self.path)
        self.lines = len(rows)
        return rows

    def append(self, rows: Sequence[T]) -> None:
        """They are on the disk when it returns; what was half written before an error is cut off again."""
        text = b"".join(self._encode(row) + b"\n" for row in rows)
        self._make_folder()
        file = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            size = os.fstat(file).st_size
            try:
                _write_all(file, text)
                os.fdatasync(file)
            except OSError:
                with contextlib.suppress(OSError):
                    os.ftruncate(file, size)
                raise
        finally:
            os.close(file)
        self.lines += len(rows)

    def replace(self, rows: Sequence[T]) -> None:
        """These alone: as `append` to an empty file, that takes the place of the other when it is complete."""
        fresh = Spool(self.path.with_name(f".{self.path.name}.new"), self._kind)
        fresh.clear()
        fresh.append(rows)
        fresh.path.replace(self.path)
        self.lines = len(rows)

    def clear(self) -> None:
        """All of it is in the database."""
        self.path.unlink(missing_ok=True)
        self.lines = 0
        if self._made:
            with contextlib.suppress(OSError):  # others of ours have something in it
                self.path.parent.rmdir()
                self._made = False

    def _make_folder(self) -> None:
        """Only when it is needed. In a directory that everybody writes to, it has to be ours."""
        folder = self.path.parent
        with contextlib.suppress(FileExistsError):
            folder.mkdir(mode=0o700)
            self._made = True
        info = folder.lstat()
        if not stat.S_ISDIR(info.st_mode) or info.st_uid != os.geteuid():
            raise PermissionError(errno.EPERM, "its folder is somebody else's", str(folder))


def _write_all(file: int, text: bytes) -> None:
    view = memoryview(text)
    while view:
        view = view[os.write(file, view) :]
