"""Made-up traces, and model tags for traces that have none. The same seed gives the same trace."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from enum import StrEnum
from itertools import accumulate
from random import Random

from vllm_mm.virtual.trace import Request

DAY = 86_400.0
STAY = 0.8
"""In bursts, the chance that the next request is for the model of the one before."""
CALM, RUSH = 0.25, 4.0
"""In bursts, the rate of calm and of busy spells, relative to the mean; a fifth of the time is busy."""
SPELL = 60.0
"""Mean seconds of a busy spell; calm ones are four times as long."""


class Kind(StrEnum):
    """How requests come."""

    ZIPF = "zipf"
    """Evenly (Poisson); the n-th model is asked for 1/n^skew as often as the first."""
    BURSTS = "bursts"
    """Busy and calm spells, and runs of requests for the same model."""
    DAY = "day"
    """A day's rise and fall, highest at noon; each model has its own best hour, the most wanted one at noon."""


def popularity(count: int, skew: float) -> list[float]:
    """Shares of `count` models, most wanted first; they sum up to 1."""
    weights = [1 / rank**skew for rank in range(1, count + 1)]
    total = sum(weights)
    return [w / total for w in weights]


def generate(
    kind: Kind,
    models: Sequence[str],
    rate: float,
    seconds: float,
    *,
    seed: int = 0,
    skew: float = 1.0,
    prompt: float = 1000.0,
    output: float = 200.0,
) -> tuple[Request, ...]:
    """Requests at `rate` per second on average. Lengths are log-normal with the means `prompt` and `output` (tokens)."""
    rng = Random(seed)  # noqa: S311  # a reproducible trace, no secret
    untagged = [
        Request(at, "", _length(rng, prompt, 0.9, 32_000), _length(rng, output, 0.8, 4_000))
        for at in _arrivals(kind, rate, seconds, rng)
    ]
    return tag(untagged, models, kind, seed=seed + 1, skew=skew)


def tag(
    requests: Sequence[Request], models: Sequence[str], kind: Kind, *, seed: int = 0, skew: float = 1.0
) -> tuple[Request, ...]:
    """The requests without a model get one of `models`; the others keep theirs."""
    rng = Random(seed)  # noqa: S311  # as above
    steps = list(accumulate(popularity(len(models), skew)))
    tagged: list[Request] = []
    last = ""
    for request in requests:
        if request.model:
            tagged.append(request)
            continue
        if kind is not Kind.BURSTS or not last or rng.random() >= STAY:
            draw = steps if kind is not Kind.DAY else list(accumulate(_at_hour(request.at, len(models), skew)))
            last = rng.choices(models, cum_weights=draw)[0]
        tagged.append(replace(request, model=last))
    return tuple(tagged)


def _at_hour(at: float, count: int, skew: float) -> list[float]:
    return [
        share * (1 + 0.9 * math.cos(2 * math.pi * (at / DAY - 0.5 - place / count)))
        for place, share in enumerate(popularity(count, skew))
    ]


def _arrivals(kind: Kind, rate: float, seconds: float, rng: Random) -> Iterator[float]:
    """A Poisson process whose rate changes, by thinning."""
    peak = {Kind.ZIPF: 1.0, Kind.BURSTS: RUSH, Kind.DAY: 1.8}[kind]
    spells = _spells(rng)
    until, now = 0.0, 0.0
    level = 1.0
    while True:
        now += rng.expovariate(rate * peak)
        if now >= seconds:
            return
        if kind is Kind.BURSTS:
            while now >= until:
                length, level = next(spells)
                until += length
        elif kind is Kind.DAY:
            level = 1 - 0.8 * math.cos(2 * math.pi * now / DAY)
        if rng.random() < level / peak:
            yield now


def _spells(rng: Random) -> Iterator[tuple[float, float]]:
    while True:
        yield rng.expovariate(1 / (4 * SPELL)), CALM
        yield rng.expovariate(1 / SPELL), RUSH


def _length(rng: Random, mean: float, spread: float, most: int) -> int:
    return min(most, max(1, round(rng.lognormvariate(math.log(mean) - spread**2 / 2, spread))))
