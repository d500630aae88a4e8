"""Which model can serve which route, and what is said when it cannot."""

from dataclasses import dataclass, replace
from typing import Any, cast

import pytest

from vllm_mm.domain.catalog import Catalog
from vllm_mm.domain.keys import ANONYMOUS, Key
from vllm_mm.domain.lifecycle import State
from vllm_mm.domain.specs import EngineKind, ModelSpec, Task
from vllm_mm.gateway.abilities import Abilities, WrongModel
from vllm_mm.gateway.ports import Leases
from vllm_mm.gateway.routes import ROUTES, Route
from vllm_mm.store.routes import MissingRoute

CHAT, EMBEDDINGS, RERANK = (ROUTES[p] for p in (b"/v1/chat/completions", b"/v1/embeddings", b"/v1/rerank"))
MODEL = ModelSpec(id="chatty", aliases=("c",))
BGE = ModelSpec(id="bge", task=Task.EMBED)
RANKER = ModelSpec(id="ranker", task=Task.SCORE)
SIM = ModelSpec(id="sim", engine=EngineKind.SIM)


@dataclass
class Now:
    state: State = State.STOPPED
    generation: int = 0


class Looking:
    """A catalog and the state of everything in it."""

    def __init__(self, *specs: ModelSpec, state: Now | None = None) -> None:
        self.catalog = Catalog(specs)
        self.state = state or Now()

    def describe(self, model: str) -> Now:
        return self.state


def looking(*specs: ModelSpec, state: Now | None = None) -> Leases:
    return cast("Leases", Looking(*specs, state=state))


ALL = looking(MODEL, BGE, RANKER, SIM)


def refused(abilities: Abilities, spec: ModelSpec, route: Route, leases: Leases = ALL, key: Key = ANONYMOUS) -> str:
    """The refusal's message; empty when there is none."""
    try:
        abilities.check(spec, route, key, leases)
    except WrongModel as error:
        return error.message
    return ""


@pytest.mark.parametrize(
    ("spec", "serves"),
    [
        (MODEL, "chat embeddings rerank"),
        (BGE, "embeddings rerank"),
        (RANKER, "rerank"),
        (SIM, "chat"),
        (replace(SIM, sim={"task": "embed"}), "embeddings rerank"),
        (replace(MODEL, args={"runner": "generate"}), "chat"),
        (replace(MODEL, args={"runner": "pooling"}), "embeddings rerank"),
        (replace(MODEL, args={"convert": "classify"}), "rerank"),
        (replace(MODEL, args={"runner": ["x"]}), "chat embeddings rerank"),
        (replace(MODEL, engine=EngineKind.COMMAND), "chat embeddings rerank"),
    ],
)
def test_what_is_known_before_the_first_start(spec: ModelSpec, serves: str) -> None:
    """A declared task, the simulator's profile and vLLM's arguments settle it; the default task of the others does not."""
    able = {"chat": CHAT, "embeddings": EMBEDDINGS, "rerank": RERANK}
    assert [n for n, route in able.items() if not refused(Abilities(), spec, route)] == serves.split()
    assert not refused(Abilities(), spec, ROUTES[b"/tokenize"])


def test_the_refusal_says_what_it_can_and_who_can() -> None:
    """Only models that the key may use are named; without any, that is said."""
    message = refused(Abilities(), BGE, CHAT)
    assert message == (
        "The model `bge` cannot serve /v1/chat/completions: it makes embeddings. Models that can: `chatty`, `sim`."
    )
    only = replace(ANONYMOUS, models=frozenset({"bge", "sim"}))
    assert refused(Abilities(), BGE, CHAT, key=only).endswith("Models that can: `sim`.")
    assert refused(Abilities(), SIM, EMBEDDINGS).endswith("it generates text. Models that can: `bge`.")
    assert refused(Abilities(), SIM, EMBEDDINGS, looking(SIM, MODEL)).endswith("No model here is declared to do it.")
    many = looking(BGE, *(ModelSpec(id=f"m{n}") for n in range(20)))
    assert refused(Abilities(), BGE, CHAT, many).endswith("`m7`, others (GET /v1/models).")


def test_what_an_engine_said_is_kept() -> None:
    """For that route of that declaration, over restarts, and it is not offered as one that can."""
    told: list[MissingRoute] = []
    abilities = Abilities(remember=told.append)
    assert not refused(abilities, MODEL, CHAT)
    abilities.learn(MODEL, CHAT, 3)
    message = refused(abilities, MODEL, CHAT)
    assert "its engine has no such route" in message
    assert "declare `task: embed`" in message
    assert not refused(abilities, MODEL, EMBEDDINGS)
    assert not refused(abilities, replace(MODEL, args={"max-model-len": 1}), CHAT), "another declaration"
    assert refused(abilities, BGE, CHAT).endswith("Models that can: `sim`.")
    assert told == [MissingRoute(MODEL.fingerprint, "/v1/chat/completions", 3)]
    assert refused(Abilities(told), replace(MODEL, priority=3), CHAT), "after a restart, in another order"


@pytest.mark.parametrize(
    ("state", "asked"),
    [
        (Now(State.READY, 3), False),
        (Now(State.READY, 4), True),
        (Now(State.READY, 1), True),
        (Now(State.STOPPED, 4), False),
        (Now(State.STARTING, 4), False),
        (Now(State.SLEEPING, 4), False),
    ],
)
def test_another_launch_is_asked_again_and_none_is_started_for_it(state: Now, asked: bool) -> None:
    """The program may have been updated; a running engine can be asked, one that would have to start is not."""
    abilities = Abilities([MissingRoute(MODEL.fingerprint, CHAT.name, 3)])
    assert bool(refused(abilities, MODEL, CHAT, looking(MODEL, state=state))) is not asked


def test_what_was_declared_is_not_asked_again() -> None:
    """A declaration holds for every launch."""
    ready: Any = Now(State.READY, 9)
    assert refused(Abilities(), BGE, CHAT, looking(BGE, state=ready))
