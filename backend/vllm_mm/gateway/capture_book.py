"""Captures behind the requests: taken in, made text without secrets, written, found again."""

import asyncio
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from vllm_mm.clock import Clock
from vllm_mm.domain.errors import NotFound
from vllm_mm.engine.ports import Journal
from vllm_mm.gateway.capture_text import document
from vllm_mm.gateway.captures import Captured, Captures
from vllm_mm.settings import CapturesConfig
from vllm_mm.store.behind import WriteBehind
from vllm_mm.store.captures import CaptureFiles, Stored

log = logging.getLogger(__name__)

WAITING: Final = 32 * 1024**2
"""Bytes of bodies that may wait to be written; beyond that the oldest captures are dropped."""
_LOOKS: Final = 5
INTERVAL: Final = 600.0
"""Seconds between two looks for what is too old."""


class CaptureBook:
    """All captures."""

    def __init__(self, config: CapturesConfig, folder: Path, clock: Clock) -> None:
        """`folder`: one that only we can enter."""
        self._config = config
        self._clock = clock
        self._files = CaptureFiles(folder, config.total, config.age)
        self._writer = WriteBehind[Captured](
            self._write, clock, name="captures", batch=20, limit=max(8, WAITING // (2 * max(1, config.body)))
        )

    @property
    def on(self) -> bool:
        """Something is captured."""
        return bool(self._config.models or self._config.keys)

    def start(self) -> Captures | None:
        """For the gateway; None when nothing is to be captured."""
        if not self.on:
            return None
        self._writer.start()
        config = self._config
        return Captures(frozenset(config.models), frozenset(config.keys), config.body, self._writer.add)

    def tell(self, journal: Journal) -> None:
        """That something is captured is an event, at every start."""
        if self.on:
            models, keys = sorted(self._config.models), sorted(self._config.keys)
            journal.emit("captures.on", cause="settings", data={"models": models, "keys": keys})
            log.warning("requests are captured (captures.models: %s, captures.keys: %s)", models, keys)

    async def run(self) -> None:
        """Deletes what is too old, until cancelled; also when nothing is captured any more."""
        while True:
            try:
                await asyncio.to_thread(self._files.prune, self._clock.wall())
            except OSError as error:
                log.warning("cannot delete old captures now: %s", error)
            await self._clock.sleep(INTERVAL)

    async def close(self) -> None:
        """Write what waits."""
        if self.on:
            await self._writer.close()

    async def get(self, request: str) -> dict[str, Any]:
        """The capture of a request, by its id. Raises NotFound."""
        await self._writer.flush()
        content = await asyncio.to_thread(self._files.find, request)
        for _ in range(_LOOKS if self.on else 0):
            if content is None:  # a worker may be about to write it
                await self._clock.sleep(0.1)
                content = await asyncio.to_thread(self._files.find, request)
        if content is None:
            off = "" if self.on else " Nothing is captured now: captures.models and captures.keys name none."
            raise NotFound(
                f"There is no capture of the request `{request[:200]}`. They are kept for {self._config.age:g} s (captures.age), in "
                f"{self._config.total} bytes (captures.total).{off}"
            )
        return msgspec.json.decode(content)

    async def _write(self, captured: Sequence[Captured]) -> None:
        await asyncio.to_thread(self._put, captured)

    def _put(self, captured: Sequence[Captured]) -> None:
        stored = [
            Stored(c.record.id, c.record.request_id, c.record.at, msgspec.json.encode(document(c, self._config.redact)))
            for c in captured
        ]
        self._files.put(stored, self._clock.wall())
