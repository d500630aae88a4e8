"""Captures as files that only we can read: so many bytes together, the newest, and none beyond an age."""

import contextlib
import hashlib
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

_DRAFT: Final = 60.0
"""Seconds after which a draft is one that a crash left behind."""
_NAME: Final = re.compile(r"(?P<at>[0-9]{14})\.(?P<id>[A-Za-z0-9_]{1,100})\.(?P<given>[0-9a-f]{16})\.json")


@dataclass(frozen=True, slots=True)
class Stored:
    """One capture, ready to be written."""

    id: str
    """The request's own id, which never repeats."""
    request_id: str
    """What its client saw; it may repeat."""
    at: float
    """Unix time."""
    content: bytes


class CaptureFiles:
    """A folder. All calls touch the disk: not for the event loop."""

    def __init__(self, folder: Path, total: int, age: float) -> None:
        """`total`: bytes of all together. `age`: seconds."""
        self._folder = folder
        self._total = total
        self._age = age

    def put(self, captures: Sequence[Stored], now: float) -> None:
        """Write them, and delete what is too much or too old. Repeating it does no harm. Raises OSError."""
        for capture in captures:
            name = f"{int(capture.at * 1000):014d}.{capture.id}.{_digest(capture.request_id)}.json"
            if _NAME.fullmatch(name) is None:
                raise ValueError(f"{capture.id!r} is no id of a request")
            draft = self._folder / f"{name}.new"
            with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
                file.write(capture.content)
            draft.replace(self._folder / name)
        self.prune(now)

    def find(self, request: str) -> bytes | None:
        """By the request's own id, or the newest with that `X-Request-Id`."""
        given = _digest(request)
        found = [(path, match) for path, match in self._all() if request == match["id"] or given == match["given"]]
        for path, _ in sorted(found, key=lambda one: (one[1]["id"] == request, one[1]["at"]), reverse=True):
            try:
                return path.read_bytes()
            except FileNotFoundError:  # it was deleted meanwhile
                continue
        return None

    def prune(self, now: float) -> int:
        """Delete what is too much or too old, and drafts that were left; how many that were."""
        room, deleted = self._total, 0
        oldest = int((now - self._age) * 1000)
        for draft in self._folder.glob("*.json.new"):
            with contextlib.suppress(FileNotFoundError):  # another process of this server finished it
                if now - draft.stat().st_mtime > _DRAFT:
                    draft.unlink()
        for path, match in sorted(self._all(), key=lambda one: one[1]["at"], reverse=True):
            try:
                room -= path.stat().st_size
                if room < 0 or int(match["at"]) < oldest:
                    path.unlink()
                    deleted += 1
            except FileNotFoundError:
                continue
        return deleted

    def _all(self) -> Iterator[tuple[Path, re.Match[str]]]:
        for path in self._folder.iterdir():
            match = _NAME.fullmatch(path.name)
            if match is not None:
                yield path, match


def _digest(request_id: str) -> str:
    return hashlib.sha256(request_id.encode()).hexdigest()[:16]
