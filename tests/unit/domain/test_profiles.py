"""Profiles, laid over the models that are declared."""

from datetime import UTC, datetime
from typing import Any

import pytest

from vllm_mm.domain.catalog import Catalog
from vllm_mm.domain.errors import ConfigError
from vllm_mm.domain.profiles import Profile, missing, overlaid, scheduled
from vllm_mm.domain.request_rules import Level, rule_set
from vllm_mm.domain.schedules import parse
from vllm_mm.domain.specs import ModelSpec

RULES = rule_set(Level.MODEL, {"temperature": 0}, {})
MODELS = Catalog([
    ModelSpec("big", aliases=("gpt",), pinned=True, request_rules={"big": RULES}),
    ModelSpec("small", preload=True, lora={"tuned": "/l"}),
])  # fmt: skip


def flags(catalog: Catalog) -> dict[str, tuple[bool, bool]]:
    return {s.id: (s.pinned, s.preload) for s in catalog}


def test_without_a_profile_all_is_as_declared() -> None:
    """The very same models."""
    assert overlaid(MODELS, None) is MODELS


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ({}, {"big": (True, False), "small": (False, True)}),
        ({"pins": ("small",)}, {"big": (False, False), "small": (True, True)}),
        ({"pins": ()}, {"big": (False, False), "small": (False, True)}),
        ({"preloads": ("big", "nobody")}, {"big": (True, True), "small": (False, False)}),
    ],
)
def test_pins_and_preloads_are_those_and_no_others(
    said: dict[str, Any], expected: dict[str, tuple[bool, bool]]
) -> None:
    """Where it says nothing of them, they are as the models say. No process depends on any of it."""
    found = overlaid(MODELS, Profile("p", **said))
    assert flags(found) == expected
    assert [s.fingerprint for s in found] == [s.fingerprint for s in MODELS]


def test_an_alias_is_a_name_that_the_engine_does_not_know() -> None:
    """It is taken from a model that has it, gets the rules of its own model, and needs no new start."""
    found = overlaid(MODELS, Profile("p", aliases={"gpt": "small", "best": "big", "big": "big", "tuned": "small"}))
    assert found.resolve("gpt").id == "small"
    assert found.resolve("best").id == "big"
    assert found.resolve("best").request_rules["best"] == RULES
    assert found.resolve("tuned").id == "small"
    assert {s.id: s.nicknames for s in found} == {"big": ("best",), "small": ("gpt",)}
    assert [s.fingerprint for s in found] == [s.fingerprint for s in MODELS]


def test_an_id_is_taken_from_nobody() -> None:
    """Nobody would reach that model any more."""
    with pytest.raises(ConfigError, match="'big' is to be a name of 'small', but it is the id of a model"):
        overlaid(MODELS, Profile("p", aliases={"big": "small"}))


def test_models_that_are_not_there_are_named() -> None:
    """They have no effect, and may come later."""
    profile = Profile("p", ("big", "x"), ("y",), {"n": "z", "m": "small"})
    assert missing(MODELS, profile) == ("x", "y", "z")
    assert missing(MODELS, Profile("p")) == ()
    assert overlaid(MODELS, profile).resolve("m").id == "small"


def test_the_first_profile_whose_time_it_is() -> None:
    """None at other times."""
    day = Profile("day", windows=(parse("mon-fri 09:00-18:00"),))
    always = Profile("all", windows=(parse("daily 00:00-12:00"),))
    monday = datetime(2026, 11, 30, 10, tzinfo=UTC)
    assert scheduled([day, always], monday, UTC) == "day"
    assert scheduled([always, day], monday, UTC) == "all"
    assert scheduled([day, always], monday.replace(hour=8), UTC) == "all"
    assert scheduled([day, always, Profile("never")], monday.replace(hour=20), UTC) is None
