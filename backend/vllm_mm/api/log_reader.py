"""One reader of engines' logs: a bounded queue, filled by the logs' own callbacks, so that no reader can slow an engine, the
controller or another reader."""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from vllm_mm.domain.loglines import Wanted
from vllm_mm.engine.instance import ModelInstance
from vllm_mm.engine.logtail import RING_LINES

BEHIND: Final = 1000
"""Log lines that a reader may be behind."""


@dataclass(slots=True)
class _Followed:
    """The launch of a model whose log is read."""

    token: str
    stop: Callable[[], None]


class LogReader:
    """Reads the log of each model that `sources` names, over restarts, from the last `tail` lines on. Close it."""

    def __init__(
        self,
        sources: Callable[[], Sequence[ModelInstance]],
        *,
        tail: int,
        wanted: Callable[[], Wanted] | None = None,
        named: bool = False,
        behind: int = BEHIND,
    ) -> None:
        """`wanted`: makes the filter for one model's lines. `named`: each line has its model in front."""
        self._sources = sources
        self._make = wanted
        self._filters: dict[str, Wanted] = {}
        self._named = named
        self._behind = behind
        self._lines: deque[str] = deque()
        self._followed: dict[str, _Followed] = {}
        self._wake = asyncio.Event()
        self.lost = 0
        """Lines left out since `taken` was last called."""
        self._attach(tail)

    def _attach(self, tail: int | None = None) -> None:
        """Follow the launches that run now. With `tail` for the first time; afterwards a launch that was not there is read
        from its first line on."""
        for instance in self._sources():
            record, model = instance.record, instance.spec.id
            known = self._followed.get(model)
            if tail is not None:
                self._put_all(model, self._last(model, instance, tail))
            if record is None or (known is not None and known.token == record.token):
                continue
            if known is not None:
                known.stop()
            if tail is None:
                self._put_all(model, self._chosen(model, instance.tail(self._behind)))
            self._followed[model] = _Followed(record.token, instance.follow(self._taker(model)))

    def _last(self, model: str, instance: ModelInstance, tail: int) -> Sequence[str]:
        if not tail:
            return ()
        return instance.tail(tail) if self._make is None else self._chosen(model, instance.tail(RING_LINES))[-tail:]

    def _chosen(self, model: str, lines: Sequence[str]) -> Sequence[str]:
        wanted = self._filter(model)
        return lines if wanted is None else tuple(wanted.among(lines))

    def _filter(self, model: str) -> Wanted | None:
        if self._make is not None and model not in self._filters:
            self._filters[model] = self._make()
        return self._filters.get(model)

    def _taker(self, model: str) -> Callable[[str], None]:
        wanted = self._filter(model)

        def take(line: str) -> None:
            if wanted is None or wanted(line):
                self._put(model, line)
                self._wake.set()

        return take

    def _put_all(self, model: str, lines: Sequence[str]) -> None:
        for line in lines:
            self._put(model, line)

    def _put(self, model: str, line: str) -> None:
        if len(self._lines) > self._behind:
            self._lines.popleft()
            self.lost += 1
        self._lines.append(f"[{model}] {line}" if self._named else line)

    def taken(self) -> list[str]:
        """What has come; `lost` counts what is missing in front of it."""
        lines = list(self._lines)
        self._lines.clear()
        return lines

    async def wait(self, seconds: float) -> None:
        """Until there is something, or for so long."""
        self._attach()
        if self._lines:
            return
        self._wake.clear()
        try:
            async with asyncio.timeout(seconds):
                await self._wake.wait()
        except TimeoutError:
            self._attach()

    def close(self) -> None:
        for followed in self._followed.values():
            followed.stop()
