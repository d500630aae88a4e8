"""Keys at their limits: who is let in, what a request is expected to use, and what its answer tells of it."""

from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final, Protocol, TypeAlias, cast

import msgspec

from vllm_mm.clock import Clock
from vllm_mm.domain.errors import BudgetSpent, RateLimited, Unavailable
from vllm_mm.domain.keys import Key
from vllm_mm.domain.limits import WINDOW, Book, Limit, Periods, Refusal, Spent, Standing, expected
from vllm_mm.domain.specs import ModelSpec
from vllm_mm.domain.usage import RequestRecord, Usage, device_seconds
from vllm_mm.gateway.ports import Gate, Headers

Spending: TypeAlias = Callable[[float, float], Awaitable[Mapping[str, Spent]]]
"""What each key has used from the one moment to before the other (Unix time), by the request ledger."""
_PER_MINUTE: Final = frozenset({Limit.CONCURRENCY, Limit.REQUESTS, Limit.TOKENS})
AGAIN: Final = 3600.0
"""Seconds for which a spent budget is not told again."""
_MOST: Final = 10**9
"""Tokens; what is said beyond that is taken for it."""


@dataclass(frozen=True, slots=True)
class Told:
    """`gateway.ports.Entered`."""

    refusal: Refusal | None
    standing: Standing | None


class LimitBook:
    """The controller's book (`domain.limits`) beside the clock; it is exact for all processes, for all of them ask here."""

    def __init__(self, clock: Clock, spending: Spending | None = None) -> None:
        """`spending`: where to find what was used before this process began."""
        self._clock = clock
        self._spending = spending
        self.book: Final = Book()
        self.on_over_budget: Callable[[str, Refusal], object] | None = None
        """Told, if set, the id of a key that has used up a budget, at its first refusal of a day or month."""
        self._told: dict[tuple[str, Limit], float] = {}
        """When each budget that was told is there again; Unix time."""

    def use(self, keys: Iterable[Key]) -> None:
        """All keys, from now on."""
        self.book.use(keys, self._clock.wall())

    async def recall(self) -> None:
        """Read what keys with new limits used before."""
        if self._spending is None or not self.book.unloaded:
            return
        periods = Periods(self._clock.wall())
        month = await self._spending(periods.month, periods.month_ends)
        day = month if periods.day == periods.month else await self._spending(periods.day, periods.day_ends)
        self.book.load(day, month)

    async def enter(self, place: str, key: str, tokens: int) -> Told:
        return self.enter_now(place, key, tokens)

    def enter_now(self, place: str, key: str, tokens: int) -> Told:
        """As `enter`."""
        now, wall = self._clock.now(), self._clock.wall()
        refusal = self.book.enter(place, key, tokens, now, wall)
        if refusal is not None and refusal.limit not in _PER_MINUTE:
            self._tell(key, refusal, wall)
        return Told(refusal, self.book.standing(key, now, wall))

    def runs(self, place: str, key: str) -> None:
        self.book.runs(place, key)

    async def look(self, key: str) -> Standing | None:
        return self.standing(key)

    def _tell(self, key: str, refusal: Refusal, wall: float) -> None:
        """Once until the budget is there again, and at most once in `AGAIN`: at its edge a small request may still fit."""
        if self.on_over_budget is None or wall < self._told.get((key, refusal.limit), 0.0):
            return
        self._told = {k: until for k, until in self._told.items() if until > wall}
        self._told[key, refusal.limit] = wall + max(refusal.retry_after, AGAIN)
        self.on_over_budget(key, refusal)

    def leave(self, place: str, tokens: int | None, device_seconds: float) -> None:
        self.book.leave(place, tokens, device_seconds, self._clock.now(), self._clock.wall())

    def standing(self, key: str) -> Standing | None:
        return self.book.standing(key, self._clock.now(), self._clock.wall())


def refused(refusal: Refusal) -> RateLimited:
    """The error of a request that is not let in."""
    kind = RateLimited if refusal.limit in _PER_MINUTE else BudgetSpent
    return kind(refusal.message, retry_after=refusal.retry_after)


class Comer(Protocol):
    """A request or a session, as far as limits go."""

    own_id: str
    key: Key | None
    entered: bool
    """It came by here, and has to leave."""
    standing: Standing | None
    spec: ModelSpec | None


async def come_in(who: Comer, key: Key, gate: Gate, body: bytes | bytearray = b"") -> None:
    """Before a request of a key with limits goes on. Raises RateLimited."""
    who.entered = True
    entered = await gate.enter(who.own_id, key.id, tokens_of(body))
    who.standing = entered.standing
    if entered.refusal is not None:
        raise refused(entered.refusal)


def count_running(comers: Iterable[Comer], keys: Mapping[str, Key], gate: Gate) -> None:
    """The keys are others: what runs of those that have limits now counts, too."""
    for who in comers:
        key = None if who.entered or who.key is None else keys.get(who.key.id)
        if key is not None and key.limits is not None:
            who.entered = True
            gate.runs(who.own_id, key.id)


async def look(who: Comer, gate: Gate) -> None:
    """One whose key is known is refused before it was let in: its answer tells how the key stands all the same."""
    if who.key is not None and who.key.limits is not None and who.standing is None:
        with suppress(Unavailable):
            who.standing = await gate.look(who.key.id)


def go_out(who: Comer, row: RequestRecord, gate: Gate) -> None:
    """It is over, however that came; `row` is what the ledger says of it."""
    if row.queued_s is None:
        gate.leave(who.own_id, 0, 0.0)
    else:
        devices = 1 if who.spec is None else who.spec.devices.count
        gate.leave(who.own_id, used(row.usage), device_seconds(row, devices))


def used(usage: Usage) -> int | None:
    """Prompt and completion; None where the engine did not say."""
    if usage.prompt_tokens is None:  # it ended before the engine said; what was counted of its answer is a part
        return None
    return usage.prompt_tokens + (usage.completion_tokens or 0)


class _Asked(msgspec.Struct):
    max_tokens: Any = None
    max_completion_tokens: Any = None
    max_output_tokens: Any = None
    n: Any = None
    best_of: Any = None
    prompt: Any = None


_decode = msgspec.json.Decoder(_Asked).decode


def tokens_of(body: bytes | bytearray) -> int:
    """What a request with this body is expected to use (docs/security.md). One that is not understood goes by its size."""
    if not body:
        return 0
    try:
        asked = _decode(body)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
        return expected(len(body), None)
    most = [_count(m) for m in (asked.max_completion_tokens, asked.max_output_tokens, asked.max_tokens)]
    said = next((m for m in most if m is not None), None)
    if said is None:
        return expected(len(body), None)
    choices = max(_count(asked.n) or 1, _count(asked.best_of) or 1)
    return expected(len(body), min(_MOST, said * choices * _prompts(asked.prompt)))


def _count(value: object) -> int | None:
    if isinstance(value, bool) or not isinstance(value, int):
        return None
    return min(_MOST, max(0, value))


def _prompts(prompt: object) -> int:
    """How many: completions take a list of texts, or of lists of tokens."""
    if not isinstance(prompt, list) or not prompt:
        return 1
    several = cast("list[object]", prompt)
    return len(several) if isinstance(several[0], str | list) else 1


def told(standing: Standing) -> Headers:
    """Of a key with limits, on each of its answers: as OpenAI tells it, and how many requests may run at the same time."""
    headers: Headers = []
    if standing.requests_limit is not None:
        left = max(0, standing.requests_limit - standing.requests)
        headers += _triple(b"requests", standing.requests_limit, left, standing.requests_reset)
    if standing.tokens_limit is not None:
        headers += _triple(b"tokens", standing.tokens_limit, standing.tokens_left, standing.tokens_reset)
    if standing.concurrency is not None:
        left = max(0, standing.concurrency - standing.running)
        headers.append((b"x-vllm-mm-limit-concurrency", b"%d" % standing.concurrency))
        headers.append((b"x-vllm-mm-remaining-concurrency", b"%d" % left))
    return headers


def _triple(what: bytes, limit: int, left: int, reset: float) -> Headers:
    return [
        (b"x-ratelimit-limit-" + what, b"%d" % limit),
        (b"x-ratelimit-remaining-" + what, b"%d" % left),
        (b"x-ratelimit-reset-" + what, duration(reset)),
    ]


def duration(seconds: float) -> bytes:
    """As OpenAI writes it: `120ms`, `1.5s`, `6m0s`, `23h59m1s`."""
    if seconds <= 0:
        return b"0s"
    if seconds < 1:
        return b"%dms" % max(1, round(seconds * 1000))
    if seconds < WINDOW:
        return f"{seconds:.3f}".rstrip("0").rstrip(".").encode() + b"s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return b"%dh%dm%ds" % (hours, minutes, rest) if hours else b"%dm%ds" % (minutes, rest)
