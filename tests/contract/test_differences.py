"""The simulated engine refuses what vLLM refuses, and docs/differences.md says what is so."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from contract.engines import Sim
from differential import Teller, documented
from generated import UNLISTED, Ask, asks
from real_vllm import EMBED, A
from recorded import STATUSES

PAGE = Path(__file__).parents[2] / "docs" / "differences.md"


@dataclass(frozen=True)
class Simplified:
    """Requests that the simulated engine judges otherwise."""

    name: str
    reason: str
    of: Callable[[Ask], bool]


SIMPLIFIED = (
    Simplified(
        "`dimensions`",
        "Taken; vLLM refuses it for models that were not trained for shorter vectors.",
        lambda ask: "dimensions" in ask.told,
    ),
    Simplified(
        "messages to an embedding model",
        "Taken; vLLM refuses them where the model's tokenizer has no chat template.",
        lambda ask: ask.path == "/v1/embeddings" and "messages" in ask.told,
    ),
    Simplified(
        "a text that has no tokens",
        "Every text has one here.",
        lambda ask: ask.told.get("add_special_tokens") is False and ask.told.get("input") == "\0",
    ),
    Simplified(
        "a token that the vocabulary has not, in a stream",
        "400; vLLM says so as an event of the stream.",
        lambda ask: bool(ask.told.get("stream")) and 99999999 in ask.told.get("allowed_token_ids", []),
    ),
    Simplified("a slash at the end", "404; vLLM redirects.", lambda ask: ask.path.endswith("/")),
    Simplified(
        "routes that no client of vllm-mm reaches",
        "/invocations and /v1/chat/completions/batch are not there.",
        lambda ask: (ask.method, ask.path) in UNLISTED,
    ),
)


def documented_simulated() -> str:
    """The table as it is in docs/differences.md."""
    return "| what | how it differs |\n|---|---|\n" + "".join(f"| {s.name} | {s.reason} |\n" for s in SIMPLIFIED)


def test_the_page_shows_the_tables() -> None:
    """Both, as they are tested."""
    text = PAGE.read_text()
    assert documented() in text
    assert documented_simulated() in text


@pytest.mark.parametrize("model", [A, EMBED])
def test_the_simulated_engine_judges_as_vllm_does(model: str) -> None:
    """Hundreds of requests, valid and broken, get the status that real vLLM gave them."""
    embeds = model == EMBED
    more: Mapping[bool, tuple[str, ...]] = {True: ("--sim", "task=embed"), False: ()}
    length = ("--served-model-name", model, "--max-model-len", "256" if embeds else "2048")
    with Sim((*length, "--sim", "tokens_per_second=5000", *more[embeds]), model=model) as sim:
        teller = Teller(sim.socket)
        try:
            said = {ask.name: (ask, teller.ask(ask, 0).status) for ask in asks(model, embeds=embeds)}
        finally:
            teller.close()
    assert said.keys() == STATUSES[model].keys(), (
        "record them anew: MM_RECORD_TRANSCRIPTS=1 with tests/real/test_differential.py"
    )
    other = {name: (ask, status) for name, (ask, status) in said.items() if status != STATUSES[model][name]}
    wrong = {
        name: f"vLLM says {STATUSES[model][name]}, and this {status}"
        for name, (ask, status) in other.items()
        if not any(s.of(ask) for s in SIMPLIFIED)
    }
    assert not wrong
