"""Takes samples for the time series: what is counted anyway is read a few times a minute, and nothing is asked of a request."""

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import Final

from vllm_mm.clock import Clock
from vllm_mm.domain.lifecycle import State
from vllm_mm.domain.series import HELD, STEPS, Kind, Row, Totals, Values, merged, of_engine, of_model, start_of
from vllm_mm.engine.instance import ModelInstance
from vllm_mm.engine.manager import ProcessManager
from vllm_mm.engine.queue import InferenceQueue

log = logging.getLogger(__name__)

EVERY: Final = 5.0
"""Seconds between two looks."""
LATE: Final = 3 * EVERY
"""A look that comes later than this after the one before says nothing of the time between: the machine stood still."""
ENGINE_DEADLINE: Final = 1.0
"""Seconds that an engine may take to tell its metrics."""
NO_ENGINE: Final = frozenset({State.STOPPED, State.SLEEPING, State.FAILED, State.BACKOFF})
"""States in which there is nothing to say of a model for which nobody waits."""
_STEP: Final = STEPS[0]


class Sampler:
    """Looks at models, queue and devices; hands over the rows of each 10 seconds that are over, together."""

    def __init__(
        self,
        manager: ProcessManager,
        queue: InferenceQueue,
        totals: Callable[[], Mapping[str, Totals]],
        add: Callable[[Row], None],
        clock: Clock,
    ) -> None:
        """`totals`: of the requests of each model since the server began. `add`: takes a row, at once."""
        self._manager = manager
        self._queue = queue
        self._totals = totals
        self._add = add
        self._clock = clock
        self._looked: float | None = None
        self._before: Mapping[str, Totals] = {}
        self._made: dict[str, tuple[int, float]] = {}
        """By model: the launch whose engine tells how many tokens it made, and how many that were."""
        self._adopted: dict[str, int] = {}
        """Launches that were there at the first look: what they made before is not of this time."""
        self._at: int | None = None
        self._values: dict[tuple[Kind, str], dict[str, float]] = {}

    async def run(self) -> None:
        """Until cancelled. What was seen last is handed over at the end as well."""
        try:
            while True:
                try:
                    await self.look()
                except Exception:  # an engine, a device: the next look may be luckier, and charts are no reason to end
                    log.exception("a sample for the time series could not be taken")
                await self._clock.sleep(EVERY)
        finally:
            self.hand_over()

    async def look(self) -> None:
        """One sample."""
        instances = {i.spec.id: i for i in self._manager.instances()}
        told = await self._ask(instances)
        now, totals = self._clock.now(), self._totals()
        seconds = None if self._looked is None else now - self._looked
        before, self._looked, self._before = self._before, now, totals
        if seconds is None:
            self._adopted = {m: i.snapshot.generation for m, i in instances.items()}
        made = {m: self._grown(m, instances[m].snapshot.generation, tokens) for m, (_, tokens) in told.items()}
        if seconds is None or not 0 < seconds <= LATE:
            return
        at = start_of(self._clock.wall() - seconds / 2, _STEP)
        if self._at is None or at > self._at:
            self.hand_over()
            self._at = at
        for model in dict.fromkeys((*instances, *totals)):
            instance = instances.get(model)
            queued = self._queue.count(model)
            values = of_model(
                seconds, before.get(model, Totals()), totals.get(model, Totals()), queued=queued,
                oldest=self._queue.oldest_age(model) if queued else 0.0,
                in_flight=0 if instance is None else instance.gate.count,
            )  # fmt: skip
            asleep = instance is None or instance.state in NO_ENGINE
            if asleep and not queued and not values["requests"]:
                continue
            counted = totals.get(model, Totals()).tokens - before.get(model, Totals()).tokens
            values["tokens"] = self._tokens(model, instance, made.get(model), counted)
            share = told[model][0] if model in told else None
            if share is not None:
                values |= {"kv": share * seconds, "kv_s": seconds}
            self._put(Kind.MODEL, model, values)
        self._devices(seconds)

    def hand_over(self) -> None:
        """The rows of the 10 seconds that are over."""
        if self._at is not None:
            for (kind, subject), values in self._values.items():
                self._add(Row(_STEP, kind, subject, self._at, values))
        self._values = {}

    def _put(self, kind: Kind, subject: str, values: Values) -> None:
        self._values[kind, subject] = merged((self._values.get((kind, subject), {}), values))

    def _devices(self, seconds: float) -> None:
        ledger = self._manager.ledger
        for device in ledger.devices:
            values = {"s": seconds, "foreign": ledger.foreign(device) * seconds, "free": ledger.free(device) * seconds}
            for reservation in ledger.reservations.values():
                if held := reservation.shown(device):
                    values[f"{HELD}{reservation.model}"] = held * seconds
            self._put(Kind.DEVICE, device, values)

    async def _ask(self, instances: Mapping[str, ModelInstance]) -> dict[str, tuple[float | None, float | None]]:
        """What engines tell of themselves, of those that are ready."""
        ready = [i for i in instances.values() if i.state in {State.READY, State.DRAINING}]
        texts = await asyncio.gather(*(_metrics(i) for i in ready))
        return {i.spec.id: of_engine(text) for i, text in zip(ready, texts, strict=True) if text}

    def _grown(self, model: str, generation: int, tokens: float | None) -> float | None:
        """By how many tokens an engine's own count grew; None where it has none."""
        if tokens is None:
            return None
        launch, before = self._made.get(model, (-1, 0.0))
        self._made[model] = (generation, tokens)
        if launch != generation:
            before = tokens if self._adopted.get(model) == generation else 0.0
        return max(0.0, tokens - before)

    def _tokens(self, model: str, instance: ModelInstance | None, made: float | None, counted: int) -> float:
        """An engine's own count says when tokens were made. Where there is none they count as their requests end."""
        if made is not None:
            return made
        tells = instance is not None and self._made.get(model, (-1, 0.0))[0] == instance.snapshot.generation
        return 0.0 if tells else float(counted)


async def _metrics(instance: ModelInstance) -> str:
    try:
        async with asyncio.timeout(ENGINE_DEADLINE):
            return await instance.metrics()
    except Exception as error:  # whatever an engine does, the rest is looked at
        log.debug("%s: no metrics: %r", instance.spec.id, error)
        return ""
