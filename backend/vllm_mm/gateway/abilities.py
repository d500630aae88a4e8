"""Which model can serve which route: from what was declared, and from what engines said. So that a request for the wrong
model is refused before anything is started or sent."""

from collections.abc import Callable, Iterable, Mapping
from typing import Final

from vllm_mm.domain.errors import BadRequest
from vllm_mm.domain.keys import Key
from vllm_mm.domain.lifecycle import State
from vllm_mm.domain.specs import EngineKind, ModelSpec, Task
from vllm_mm.gateway.ports import Leases
from vllm_mm.gateway.routes import (
    ANY,
    CLASSIFIES,
    COMPARES,
    EMBEDS,
    GENERATES,
    REALTIME,
    ROUTES,
    SCORES,
    TRANSCRIBES,
    UPLOADS,
    Route,
)
from vllm_mm.store.routes import MissingRoute

NAMED: Final = 8
"""So many models are named in a refusal; the list has the others."""
_DOES: Final[Mapping[Task, str]] = {
    Task.GENERATE: "generates text",
    Task.EMBED: "makes embeddings",
    Task.SCORE: "scores and classifies texts",
    Task.CLASSIFY: "classifies texts",
    Task.TRANSCRIBE: "transcribes speech",
    Task.REALTIME: "transcribes speech while it is spoken",
}
_REALTIME: Final = frozenset({Task.GENERATE, Task.TRANSCRIBE, Task.REALTIME})
"""vLLM gives such a model the routes of all three (`get_supported_generation_tasks`)."""
_BY_ARGUMENT: Final[Mapping[tuple[str, object], frozenset[Task]]] = {
    ("runner", "generate"): GENERATES,
    ("runner", "pooling"): COMPARES | CLASSIFIES,
    ("convert", "embed"): EMBEDS,
    ("convert", "classify"): CLASSIFIES,
    ("task", "generate"): GENERATES,
    ("task", "embed"): EMBEDS,
    ("task", "classify"): CLASSIFIES,
    ("task", "score"): SCORES,
}
"""Arguments of `vllm serve` that settle it (`vllm serve --help`; `task` in releases before `runner`)."""
_OF_SIM: Final[Mapping[object, frozenset[Task]]] = {
    "embed": EMBEDS, "score": SCORES, "classify": frozenset({Task.CLASSIFY}), "transcribe": TRANSCRIBES, "realtime": _REALTIME,
}  # fmt: skip


class WrongModel(BadRequest):
    """The model cannot do what the route is for."""

    code = "model_cannot"


def possible(spec: ModelSpec) -> frozenset[Task]:
    """What a model may turn out to do, before anybody asked its engine. `generate` is the default, and says nothing about a
    model of which nobody said anything; the other tasks were declared."""
    if spec.task is not Task.GENERATE:
        return _REALTIME if spec.task is Task.REALTIME else frozenset({spec.task})
    if spec.engine is EngineKind.SIM:
        return _OF_SIM.get(spec.sim.get("task"), GENERATES)
    if spec.engine is EngineKind.VLLM:
        for name, value in spec.args.items():
            found = _BY_ARGUMENT.get((name, value)) if isinstance(value, str) else None
            if found is not None:
                return found
    return ANY


class Abilities:
    """What is known of all models. Asked for every request: one look into a dictionary, unless the answer is no."""

    def __init__(
        self, missing: Iterable[MissingRoute] = (), remember: Callable[[MissingRoute], None] | None = None
    ) -> None:
        """`missing`: what was learned before. `remember` is called with what is learned, and must not wait."""
        self._missing: dict[str, dict[str, int]] = {}
        """By fingerprint and route: the launch that said so."""
        for row in missing:
            self._missing.setdefault(row.fingerprint, {})[row.route] = row.generation
        self._remember = remember
        self._judged: dict[str, tuple[ModelSpec, frozenset[Route]]] = {}
        """By id: the spec that was judged, and the routes that it cannot serve."""

    def check(self, spec: ModelSpec, route: Route, key: Key, leases: Leases) -> None:
        """Raises WrongModel, with what the model does and who does what was asked, when it is known that `spec` cannot."""
        judged = self._judged.get(spec.id)
        if judged is None or judged[0] is not spec:
            judged = self._judge(spec)
        if route in judged[1] and not self._may_have_changed(spec, route, leases):
            raise self.refusal(spec, route, key, leases)

    def learn(self, spec: ModelSpec, route: Route, generation: int) -> None:
        """Its engine, in that launch, has no such route."""
        fingerprint = spec.fingerprint
        self._missing.setdefault(fingerprint, {})[route.name] = generation
        self._judged.pop(spec.id, None)
        if self._remember is not None:
            self._remember(MissingRoute(fingerprint, route.name, generation))

    def taught(self, row: MissingRoute) -> None:
        """What another process learned, and remembers."""
        self._missing.setdefault(row.fingerprint, {})[row.route] = row.generation
        self._judged.clear()

    def refusal(self, spec: ModelSpec, route: Route, key: Key, leases: Leases) -> WrongModel:
        able = [
            f"`{other.id}`"
            for other in leases.catalog
            if other is not spec and key.may_use(other.id) and self._likely(other, route)
        ]
        tasks = possible(spec)
        if tasks & route.tasks:
            what = "its engine has no such route"
            if spec.task is Task.GENERATE and route.tasks == GENERATES:
                what += " (if it makes embeddings or scores, declare `task: embed` or `task: score`)"
        else:
            what = "it " + " or ".join(_DOES[task] for task in Task if task in tasks)
        if len(able) > NAMED:
            able[NAMED:] = ["others (GET /v1/models)"]
        who = f"Models that can: {', '.join(able)}." if able else "No model here is declared to do it."
        return WrongModel(f"The model `{spec.id}` cannot serve {route.name}: {what}. {who}", param="model")

    def _judge(self, spec: ModelSpec) -> tuple[ModelSpec, frozenset[Route]]:
        tasks, missing = possible(spec), self._missing.get(spec.fingerprint, {})
        unable = frozenset(
            r for r in (*ROUTES.values(), *UPLOADS.values(), REALTIME) if not tasks & r.tasks or r.name in missing
        )
        self._judged[spec.id] = judged = (spec, unable)
        return judged

    def _may_have_changed(self, spec: ModelSpec, route: Route, leases: Leases) -> bool:
        """What an engine said is true of that launch. Another one that runs now may be of another version of its program:
        asking it costs nothing. None is started to see."""
        if not possible(spec) & route.tasks:
            return False
        now = leases.describe(spec.id)
        said = self._missing.get(spec.fingerprint, {}).get(route.name)
        return now.state is State.READY and now.generation != said

    def _likely(self, spec: ModelSpec, route: Route) -> bool:
        tasks = possible(spec)
        if tasks is ANY:
            tasks = frozenset({spec.task})  # nothing is known: as it is declared
        return bool(tasks & route.tasks) and route.name not in self._missing.get(spec.fingerprint, {})
