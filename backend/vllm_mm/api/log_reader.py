"""One reader of engines' logs: a bounded queue, filled by the logs' own callbacks, so that no reader can slow an engine, the
controller or another reader."""

import asyncio
import secrets
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from vllm_mm.domain.loglines import Wanted
from vllm_mm.engine.instance import ModelInstance
from vllm_mm.engine.logtail import RING_LINES

BEHIND: Final = 1000
"""Log lines that a reader may be behind."""
_RUN: Final = secrets.token_hex(3)
"""Of this process: lines are counted anew by the next one."""


class Line(NamedTuple):
    """A line, and its number: `RUN.LAUNCH.LINE`, for `after`. Empty where there is none."""

    number: str
    text: str


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
        after: str = "",
        wanted: Callable[[], Wanted] | None = None,
        named: bool = False,
        behind: int = BEHIND,
    ) -> None:
        """`after`: the number of a line of one model: those since come first, instead of the tail, as far as they are still
        there. `wanted`: makes the filter for one model's lines. `named`: each line has its model in front."""
        self._sources = sources
        self._make = wanted
        self._filters: dict[str, Wanted] = {}
        self._named = named
        self._behind = behind
        self._lines: deque[Line] = deque()
        self._followed: dict[str, _Followed] = {}
        self._wake = asyncio.Event()
        self.lost = 0
        """Lines left out since `taken` was last called."""
        self._attach(tail, after)

    def _attach(self, tail: int | None = None, after: str = "") -> None:
        """Follow the launches that run now. With `tail` for the first time; afterwards a launch that was not there is read
        from its first line on."""
        for instance in self._sources():
            record, model = instance.record, instance.spec.id
            known = self._followed.get(model)
            if tail is not None:
                self._put_all(self._first(instance, tail, after))
            if record is None or (known is not None and known.token == record.token):
                continue
            if known is not None:
                known.stop()
            if tail is None:
                self._put_all(self._chosen(instance, self._behind))
            self._followed[model] = _Followed(record.token, instance.follow(self._taker(instance)))

    def _first(self, instance: ModelInstance, tail: int, after: str) -> Iterable[Line]:
        seen = self._seen(instance, after) if after else None
        if seen is not None:
            # A line that took the place of another has a number and no place: rather one twice than one too few.
            missed = max(0, instance.written - seen)
            there = len(instance.tail(RING_LINES))
            self.lost += max(0, missed - there) if self._make is None else 0
            return self._chosen(instance, missed) if missed else ()
        if not tail:
            return ()
        return self._chosen(instance, tail) if self._make is None else self._chosen(instance, RING_LINES)[-tail:]

    @staticmethod
    def _seen(instance: ModelInstance, after: str) -> int | None:
        """How far somebody came who saw that line last: 0 for one of an earlier launch, None for what is no number."""
        run, _, rest = after.partition(".")
        launch, _, line = rest.partition(".")
        if not (launch.isdecimal() and line.isdecimal()) or len(after) > 60:
            return None
        same = run == _RUN and instance.record is not None and instance.record.generation == int(launch)
        return int(line) if same else 0

    def _chosen(self, instance: ModelInstance, count: int) -> Sequence[Line]:
        """Those of the last `count` lines that are wanted."""
        lines = instance.tail(count) if count else ()
        wanted = self._filter(instance.spec.id)
        first = instance.written - len(lines) + 1
        return [self._line(instance, first + n, text) for n, text in enumerate(lines) if wanted is None or wanted(text)]

    def _line(self, instance: ModelInstance, number: int, text: str) -> Line:
        if self._named:
            return Line("", f"[{instance.spec.id}] {text}")
        record = instance.record
        return Line("" if record is None or number < 1 else f"{_RUN}.{record.generation}.{number}", text)

    def _filter(self, model: str) -> Wanted | None:
        if self._make is not None and model not in self._filters:
            self._filters[model] = self._make()
        return self._filters.get(model)

    def _taker(self, instance: ModelInstance) -> Callable[[str], None]:
        wanted = self._filter(instance.spec.id)

        def take(text: str) -> None:
            if wanted is None or wanted(text):
                self._put(self._line(instance, instance.written, text))
                self._wake.set()

        return take

    def _put_all(self, lines: Iterable[Line]) -> None:
        for line in lines:
            self._put(line)

    def _put(self, line: Line) -> None:
        if len(self._lines) > self._behind:
            self._lines.popleft()
            self.lost += 1
        self._lines.append(line)

    def taken(self) -> list[Line]:
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
