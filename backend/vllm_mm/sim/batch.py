"""Continuous batching as a model of time. Pure: time is an argument.

Each step gives every running sequence one token. It lasts `1 / tokens_per_second` times `1 + batch_slowdown` for each further
sequence, plus the prompt tokens that it takes in over `prefill_tokens_per_second`. A sequence gets its first token at the
end of the step that took in the last of its prompt. Steps are due at absolute times, so late wake-ups do not add up.
"""

import math
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field

_CATCH_UP = 0.25
"""Seconds of lateness that are made up for; a process that was stopped for longer goes on from now."""
_STEPS_AT_ONCE = 256
"""So that a batch that takes no time still lets an abort through."""


@dataclass(slots=True)
class Sequence:
    """A request in the engine."""

    id: int
    prompt: int
    """Prompt tokens."""
    total: int
    """Tokens to generate."""
    prefilled: int = 0
    generated: int = 0

    @property
    def kv_tokens(self) -> int:
        return self.prefilled + self.generated


@dataclass(slots=True)
class Output:
    """What became known since the last look: new tokens by sequence, and which sequences are done."""

    tokens: dict[int, int] = field(default_factory=dict[int, int])
    finished: list[int] = field(default_factory=list[int])

    def __bool__(self) -> bool:
        return bool(self.tokens or self.finished)


@dataclass(frozen=True, slots=True)
class Speed:
    """The constants of the model; infinite rates take no time."""

    tokens_per_second: float = math.inf
    batch_slowdown: float = 0.0
    prefill_tokens_per_second: float = math.inf
    max_num_seqs: int = 256
    max_num_batched_tokens: int = 2048
    kv_tokens: int = 1_000_000

    def step(self, decoding: int, prefill: int) -> float:
        """Seconds of one step."""
        decode = (1 + self.batch_slowdown * max(0, decoding - 1)) / self.tokens_per_second if decoding else 0.0
        return decode + prefill / self.prefill_tokens_per_second


class Batch:
    """Waiting and running sequences, and the step under way."""

    def __init__(self, speed: Speed) -> None:
        self._speed = speed
        self._waiting: deque[Sequence] = deque()
        self._running: dict[int, Sequence] = {}
        self._due: float | None = None
        self._took_in: dict[int, int] = {}
        self.admitting = True
        """False: new sequences stay in the queue (asleep, paused, or about to be)."""
        self.preemptions = 0
        self._frozen = False
        self._kept: set[int] = set()
        """Those that ran when it was frozen."""

    @property
    def running(self) -> int:
        return len(self._running)

    @property
    def told_running(self) -> int:
        """What vLLM tells: of a frozen batch those that ran before and were not aborted since."""
        return len(self._kept) if self._frozen else len(self._running)

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    @property
    def kv_usage(self) -> float:
        """Share of the KV cache in use, 0 to 1."""
        return min(1.0, sum(s.kv_tokens for s in self._running.values()) / max(1, self._speed.kv_tokens))

    def add(self, sequence: Sequence, now: float) -> None:
        """Queue a sequence; it is admitted at the next step."""
        self._waiting.append(sequence)
        self._begin(now)

    def abort(self, ids: Iterable[int], now: float) -> list[int]:
        """Forget these sequences; returns those that were there."""
        gone: list[int] = []
        for one in ids:
            if self._running.pop(one, None) is not None:
                self._took_in.pop(one, None)
                gone.append(one)
        wanted = set(ids) - set(gone)
        self._kept -= set(ids)
        queued = [s.id for s in self._waiting if s.id in wanted]
        if queued:
            self._waiting = deque(s for s in self._waiting if s.id not in wanted)
        if not self._running:
            self._due = None
        self._begin(now)
        return gone + queued

    def abort_all(self, now: float) -> list[int]:
        return self.abort([*self._running, *(s.id for s in self._waiting)], now)

    def freeze(self, *, drop_cache: bool = True) -> None:
        """Stop in the middle: the step under way is lost, the sequences stay. With their cache gone (`drop_cache`) they are
        taken in anew when it goes on, what they had generated included."""
        if not self._frozen:
            self._kept = set(self._running)
        self.admitting = False
        self._frozen = True
        self._due = None
        self._took_in = {}
        while drop_cache and self._running:
            self._push_back(self._running.popitem()[1])

    def thaw(self, now: float) -> None:
        """Go on with everything that is running and queued."""
        self.admitting = True
        self._frozen = False
        self._due = None
        self._begin(now)

    def due(self) -> float | None:
        """When the step under way ends; None when there is nothing to do."""
        return self._due

    def poll(self, now: float) -> Output:
        """Finish the steps that are due by now."""
        output = Output()
        steps = 0
        while self._due is not None and self._due <= now and steps < _STEPS_AT_ONCE:
            at = self._due if now - self._due <= _CATCH_UP else now
            self._finish_step(output)
            self._due = None
            self._begin(at)
            steps += 1
        return output

    def _begin(self, at: float) -> None:
        if self._due is not None or self._frozen:
            return
        if self.admitting:
            self._admit()
        if not self._running:
            return
        budget = self._speed.max_num_batched_tokens
        decoding = 0
        self._took_in = {}
        for sequence in self._running.values():
            rest = sequence.prompt - sequence.prefilled
            if rest <= 0:
                decoding += 1
            elif budget > 0:
                part = min(rest, budget)
                budget -= part
                self._took_in[sequence.id] = part
                if part == rest:
                    decoding += 1
        self._due = at + self._speed.step(decoding, sum(self._took_in.values()))

    def _admit(self) -> None:
        used = sum(s.kv_tokens for s in self._running.values())
        while self._waiting and len(self._running) < self._speed.max_num_seqs:
            wanted = self._waiting[0].prompt + 1
            if self._running and used + wanted > self._speed.kv_tokens:
                return
            sequence = self._waiting.popleft()
            self._running[sequence.id] = sequence
            used += wanted

    def _finish_step(self, output: Output) -> None:
        done: list[int] = []
        for sequence in self._running.values():
            part = self._took_in.get(sequence.id, 0)
            sequence.prefilled += part
            if sequence.prefilled < sequence.prompt:
                continue
            sequence.generated += 1
            output.tokens[sequence.id] = output.tokens.get(sequence.id, 0) + 1
            if sequence.generated >= sequence.total:
                done.append(sequence.id)
        for one in done:
            del self._running[one]
        output.finished += done
        self._preempt()

    def _preempt(self) -> None:
        """Push the newest sequences back into the queue while the cache is too full; they are taken in again later."""
        used = sum(s.kv_tokens for s in self._running.values())
        while len(self._running) > 1 and used > self._speed.kv_tokens:
            _, sequence = self._running.popitem()
            used -= sequence.kv_tokens
            self._push_back(sequence)

    def _push_back(self, sequence: Sequence) -> None:
        sequence.prompt += sequence.generated
        sequence.total -= sequence.generated
        sequence.prefilled = sequence.generated = 0
        self._waiting.appendleft(sequence)
        self.preemptions += 1
