"""Files in the system's page cache: how much of them is there, reading them in, dropping them. Blocking, all of it."""

import ctypes
import mmap
import os
import stat
from collections.abc import Callable, Iterable
from pathlib import Path

CHUNK = 8 * 2**20
"""Bytes read at a time."""
_WINDOW = 2**30
"""Bytes that are mapped at a time to be looked at; mincore's answer is a byte for each page of them."""
_PAGE = mmap.PAGESIZE


def cached(path: Path, start: int = 0, end: int | None = None) -> int | None:
    """Bytes of the file, or of a stretch that begins at a page, that are in the page cache. None when the system does not tell: mincore(2) says "all of it" to
    who could not write to the file (Linux 5.2), and some sandboxes refuse it. Raises OSError when it cannot be opened."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        info = os.fstat(fd)
        if not _told(path, info):
            return None
        pages, end = 0, info.st_size if end is None else min(end, info.st_size)
        for offset in range(start, end, _WINDOW):
            found = _resident(fd, offset, min(_WINDOW, end - offset))
            if found is None:
                return None
            pages += found
        return min(pages * _PAGE, max(0, end - start))
    finally:
        os.close(fd)


def _told(path: Path, info: os.stat_result) -> bool:
    return stat.S_ISREG(info.st_mode) and (info.st_uid == os.geteuid() or os.access(path, os.W_OK))


def _resident(fd: int, offset: int, size: int) -> int | None:
    """Pages of the stretch that are in memory. By ctypes, for Python's mmap gives no address of a read-only map."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, *(ctypes.c_int,) * 3, ctypes.c_long)
    libc.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
    libc.mincore.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_char_p)
    address = libc.mmap(None, size, mmap.PROT_READ, mmap.MAP_SHARED, fd, offset)
    if address in (None, ctypes.c_void_p(-1).value):
        return None
    try:
        told = ctypes.create_string_buffer((size + _PAGE - 1) // _PAGE)
        if libc.mincore(address, size, told) != 0:
            return None
        raw = told.raw  # the lowest bit is the answer; the others may come to mean something
        return sum(raw.count(byte) for byte in set(raw) if byte & 1)
    finally:
        libc.munmap(address, size)


def share(files: Iterable[Path]) -> float | None:
    """Of all bytes of the files, from 0 to 1; None when the system does not tell."""
    total = there = 0
    for path in files:
        part = cached(path)
        if part is None:
            return None
        there += part
        total += path.stat().st_size
    return there / total if total else None


def read(path: Path, start: int, end: int, goes_on: Callable[[], bool] = lambda: True) -> int:
    """Read the stretch into the page cache; returns how many bytes were read, fewer when the file ends or `goes_on`,
    which is asked before each chunk, says no. Reading, and not posix_fadvise(WILLNEED): that returns before anything is
    there and cannot be stopped. Raises OSError."""
    done = 0
    buffer = bytearray(min(CHUNK, max(0, end - start)))
    with path.open("rb", buffering=0) as file:
        file.seek(start)
        while start + done < end and goes_on():
            got = file.readinto(memoryview(buffer)[: end - start - done])
            if not got:
                break
            done += got
    return done


def drop(path: Path) -> None:
    """Ask the system to forget the file's pages; those that somebody has mapped stay. Raises OSError."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(fd)


def unused_memory() -> int:
    """Bytes that hold nothing at all (MemFree), not even cached files: what can be filled without evicting anything."""
    for line in Path("/proc/meminfo").read_text().splitlines():
        name, _, rest = line.partition(":")
        if name == "MemFree":
            return int(rest.split()[0]) * 1024
    return 0
