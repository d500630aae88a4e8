"""What lies in the cache of Hugging Face, and taking it away. Blocking: looks at every file.

The layout is huggingface_hub's (2.4): `models--ORG--NAME` with `blobs`, `refs` and `snapshots`; a part of a file ends with `.incomplete`.
"""

import os
import shutil
import stat
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

_PREFIX: Final = "models--"
_PART: Final = ".incomplete"


@dataclass(frozen=True, slots=True)
class Cached:
    """A model in a cache."""

    repo: str
    cache: Path
    size: int
    """Bytes on the disk, parts of files included."""
    partial: int
    """Of these, parts of files of downloads that are not over, or were not finished."""
    changed_at: float
    """Unix time at which the newest of its files was written."""

    @property
    def folder(self) -> Path:
        return self.cache / f"{_PREFIX}{self.repo.replace('/', '--')}"


def scan(caches: Iterable[Path]) -> list[Cached]:
    """All models of these caches, the largest first. What cannot be read is left out."""
    found = [cached for cache in dict.fromkeys(caches) for cached in _scan(cache)]
    return sorted(found, key=lambda c: (-c.size, c.repo))


def _scan(cache: Path) -> Iterator[Cached]:
    try:
        folders = [f for f in cache.iterdir() if f.name.startswith(_PREFIX) and f.is_dir() and not f.is_symlink()]
    except OSError:
        return
    for folder in folders:
        size, partial, changed = 0, 0, 0.0
        for path, found in _files(folder):
            size += found.st_blocks * 512
            partial += found.st_blocks * 512 if path.name.endswith(_PART) else 0
            changed = max(changed, found.st_mtime)
        yield Cached(folder.name.removeprefix(_PREFIX).replace("--", "/", 1), cache, size, partial, changed)


def remove(cached: Cached) -> int:
    """All of it; how many bytes that freed. Raises OSError."""
    shutil.rmtree(cached.folder)
    shutil.rmtree(cached.cache / ".locks" / cached.folder.name, ignore_errors=True)
    return cached.size


def parts(cached: Cached, before: float) -> int:
    """Bytes in parts of files that nobody has written since `before` (Unix time)."""
    return sum(found.st_blocks * 512 for _, found in _parts(cached, before))


def remove_parts(cached: Cached, before: float) -> int:
    """Those parts; how many bytes that freed. Raises OSError."""
    freed = 0
    for path, found in list(_parts(cached, before)):
        path.unlink(missing_ok=True)
        freed += found.st_blocks * 512
    return freed


def _parts(cached: Cached, before: float) -> Iterator[tuple[Path, os.stat_result]]:
    return ((p, s) for p, s in _files(cached.folder) if p.name.endswith(_PART) and s.st_mtime < before)


def _files(folder: Path) -> Iterator[tuple[Path, os.stat_result]]:
    for path in folder.rglob("*"):
        try:
            found = path.lstat()
        except OSError:
            continue
        if stat.S_ISREG(found.st_mode):
            yield path, found
