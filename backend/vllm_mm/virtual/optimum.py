"""The least mean wait that any order of service could have reached, knowing the future: by exhaustive search, for small windows.

For memory for one model, nothing loaded at first, and engines without a limit on concurrency. The search may do what no policy
can: know what will come, and cut a stay to the second. It may not load a model before somebody asked for it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf

from vllm_mm.virtual.engine import EngineTimes
from vllm_mm.virtual.trace import Request


@dataclass(frozen=True, slots=True)
class _Stay:
    """Where the search stands: who is resident, and since when it can serve."""

    model: str
    ready: float


def least_mean_wait(requests: Sequence[Request], times: Mapping[str, EngineTimes]) -> float:
    """Seconds from arrival to lease, on average. Meant for up to about 8 requests over 3 models.

    Service times are those of requests that run alone: with `batch_slowdown` they are lower bounds, and so is the result.
    """
    by_model: dict[str, list[Request]] = {}
    for request in sorted(requests, key=lambda r: r.at):
        by_model.setdefault(request.model, []).append(request)
    return _Search(by_model, times).run() / len(requests)


class _Search:
    """Depth first over (next model, when to leave), with a bound."""

    def __init__(self, by_model: Mapping[str, list[Request]], times: Mapping[str, EngineTimes]) -> None:
        self._by_model = by_model
        self._times = times
        self._best = inf

    def run(self) -> float:
        """The least sum of waits."""
        left = dict.fromkeys(self._by_model, 0)
        for model, requests in self._by_model.items():
            begin = requests[0].at
            self._stay(_Stay(model, begin + self._times[model].load), left, 0.0)
        return self._best

    def _stay(self, stay: _Stay, done: dict[str, int], cost: float) -> None:
        """`model` is ready; `done` counts who was served before. Try every sensible moment to leave, and every successor."""
        if cost + self._least(done, stay) >= self._best:
            return
        own = self._by_model[stay.model]
        others = [m for m in self._by_model if m != stay.model and done[m] < len(self._by_model[m])]
        if not others:
            self._best = min(self._best, cost + sum(max(0.0, stay.ready - r.at) for r in own[done[stay.model] :]))
            return
        for other in others:
            earliest = max(stay.ready, self._by_model[other][done[other]].at)
            later = [r.at for r in own[done[stay.model] :] if r.at > earliest]
            for leave in (earliest, *later):
                self._go(stay, other, leave, done, cost)

    def _go(self, stay: _Stay, other: str, leave: float, done: dict[str, int], cost: float) -> None:
        """Serve who comes until `leave`, let them finish, and load `other`."""
        own = self._by_model[stay.model]
        now_done, ends = done[stay.model], leave
        for request in own[now_done:]:
            if request.at > leave:
                break
            leased = max(stay.ready, request.at)
            cost += leased - request.at
            ends = max(ends, leased + self._service(request))
            now_done += 1
        ready = ends + self._times[stay.model].stop + self._times[other].load
        self._stay(_Stay(other, ready), {**done, stay.model: now_done}, cost)

    def _service(self, request: Request) -> float:
        times = self._times[request.model]
        return request.prompt / times.prefill + request.output / times.decode

    def _least(self, done: Mapping[str, int], stay: _Stay) -> float:
        """What those who wait cannot be spared: until it is ready, and another stop and load for the other models."""
        total = 0.0
        for model, requests in self._by_model.items():
            soonest = stay.ready
            if model != stay.model:
                soonest += self._times[stay.model].stop + self._times[model].load
            total += sum(max(0.0, soonest - r.at) for r in requests[done[model] :])
        return total
