"""Specs from declarations: defaults merged in, the file over the database, errors for people."""

from typing import Any

import pytest

from vllm_mm.control.declared import catalog, model_config_from_api, spec_from_api, usable
from vllm_mm.domain.errors import BadRequest, ConfigError
from vllm_mm.domain.request_rules import Level, rule_set
from vllm_mm.domain.specs import (
    DeviceWish,
    EngineKind,
    IdlePolicy,
    LauncherKind,
    ModelSpec,
    RetryPolicy,
    SleepMode,
    SleepSpec,
    Source,
    StartLimits,
    Task,
)
from vllm_mm.settings import Settings


def settings(**sections: Any) -> Settings:
    return Settings.model_validate(sections)


def test_without_a_word_a_model_has_the_defaults_of_the_spec() -> None:
    """The defaults of the configuration and those of the domain are the same."""
    assert list(catalog(settings(models={"a": None}))) == [ModelSpec(id="a")]


def test_defaults_are_merged_key_by_key() -> None:
    """What a model says wins, null included; what it does not say comes from `defaults`."""
    s = settings(
        defaults={
            "engine": "vllm", "executable": "/env/vllm", "concurrency": 7, "args": {"dtype": "float32", "seed": 1, "x": 1},
            "env": {"A": "1", "B": "1"}, "idle": {"sleep_after": "1m", "stop_after": "2m"},
            "start": {"deadline": "10m"}, "retry": {"max_failures": 9}, "sleep": {"level": 2, "keeps": "1GiB"},
        },
        models={
            "a": {"args": {"dtype": "bfloat16", "x": None}, "env": {"B": "2"}, "idle": {"sleep_after": None},
                  "start": {"stall": "3s"}, "retry": {"backoff": 1}, "sleep": {"mode": "always", "keeps": "auto"}, "task": "embed", "memory": "2GiB",
                  "devices": {"ids": [0, 1]}, "aliases": ["z"], "lora": {"l": "/l"}, "priority": 2, "pinned": True,
                  "preload": True, "request_defaults": {"temperature": 0}, "request_overrides": {"n": 1}, "model": "org/a"},
            "s": {"engine": "sim", "sim": {"weights": "1GiB"}, "concurrency": 1, "devices": {"count": 2}},
        },
    )  # fmt: skip
    a, sim = catalog(s)
    assert a == ModelSpec(
        id="a", engine=EngineKind.VLLM, model="org/a", executable="/env/vllm", args={"dtype": "bfloat16", "seed": 1},
        env={"A": "1", "B": "2"}, task=Task.EMBED, aliases=("z",), devices=DeviceWish(2, ("0", "1")), memory=2**31,
        pinned=True, preload=True, priority=2, concurrency=7, idle=IdlePolicy(None, 120.0),
        start=StartLimits(stall=3.0, deadline=600.0), retry=RetryPolicy(backoff=1.0, max_failures=9),
        sleep=SleepSpec(SleepMode.ALWAYS, 2, None),
        request_defaults={"temperature": 0}, request_overrides={"n": 1}, lora={"l": "/l"}, source=Source.FILE,
        request_rules=dict.fromkeys("azl", rule_set(Level.MODEL, {"temperature": 0}, {"n": 1})),
    )  # fmt: skip
    assert sim.request_rules == {}
    assert sim.engine is EngineKind.SIM
    assert sim.args == {}
    assert sim.sim == {"weights": "1GiB"}
    assert (sim.concurrency, sim.devices) == (1, DeviceWish(2))


def test_the_launcher_is_the_models_own_or_the_default_one() -> None:
    """`defaults.launcher`, unless the model says otherwise; it changes how a process is made, not which (the fingerprint)."""
    s = settings(
        defaults={"launcher": "local"}, models={"a": None, "b": {"launcher": "warm"}, "c": {"launcher": "auto"}}
    )
    assert [m.launcher for m in catalog(s)] == [LauncherKind.LOCAL, LauncherKind.WARM, LauncherKind.AUTO]
    assert ModelSpec("a", launcher=LauncherKind.WARM).fingerprint == ModelSpec("a").fingerprint


def test_rules_of_all_levels_meet_by_name() -> None:
    """`defaults`, the model, and an alias or an adapter of its own; they are no business of the process."""
    s = settings(
        defaults={"request_defaults": {"temperature": 1}, "request_limits": {"max_tokens": 9, "max_tokens_if_missing": True}},
        models={
            "a": {
                "request_overrides": {"top_k": None}, "request_limits": {"max_tokens": 5},
                "aliases": ["x", {"name": "y", "request_defaults": {"temperature": 2}}],
                "lora": {"l": "/l", "m": {"path": "/m", "request_limits": {"max_tokens": None}}},
            },
            "b": None,
        },
    )  # fmt: skip
    a, b = catalog(s)
    system = rule_set(Level.SYSTEM, {"temperature": 1}, None, {"max_tokens": 9, "max_tokens_if_missing": True})
    own = rule_set(Level.MODEL, None, {"top_k": None}, {"max_tokens": 5}).over(system)
    assert a.request_rules == {
        "a": own, "x": own, "l": own, "y": rule_set(Level.ALIAS, {"temperature": 2}).over(own),
        "m": rule_set(Level.ALIAS, limits={"max_tokens": None}).over(own),
    }  # fmt: skip
    assert (a.aliases, a.lora, a.request_limits) == (("x", "y"), {"l": "/l", "m": "/m"}, {"max_tokens": 5})
    assert b.request_rules == {"b": system}
    assert b.fingerprint == ModelSpec("b").fingerprint


def test_stored_models_join_those_of_the_file() -> None:
    """The file wins over a stored model of the same id."""
    s = settings(models={"a": {"priority": 1}})
    both = catalog(s, {"a": {"priority": 2}, "b": {"priority": 3}})
    assert {m.id: (m.priority, m.source) for m in both} == {"a": (1, Source.FILE), "b": (3, Source.API)}


def test_a_stored_model_that_no_longer_fits() -> None:
    """A start sorts it out with a reason; whoever does not sort gets an error that names it."""
    s = settings(devices=["0"], models={"a": {"aliases": ["x"]}})
    stored: dict[str, dict[str, Any]] = {
        "good": {}, "wide": {"devices": {"count": 4}}, "x": {}, "a": {}, "odd": {"gone_setting": 1},
    }  # fmt: skip
    good, bad = usable(s, stored)
    assert set(good) == {"good"}
    assert set(bad) == {"wide", "x", "a", "odd"}
    assert "asks for 4 devices" in bad["wide"]
    assert "names both" in bad["x"]
    assert "configuration file" in bad["a"]
    assert [m.id for m in catalog(s, good)] == ["a", "good"]
    with pytest.raises(ConfigError, match="'odd', made over the API, cannot be used: gone_setting: unknown key"):
        catalog(s, {"odd": stored["odd"]})
    with pytest.raises(ConfigError, match="names both"):
        catalog(s, {"x": {}})


def test_a_bad_body_names_every_fault() -> None:
    """The client learns all that is wrong, and `param` is the first of it."""
    with pytest.raises(BadRequest) as caught:
        model_config_from_api("a", {"memroy": "1GiB", "idle": {"sleep_after": "soon"}}, settings())
    assert "memroy: unknown key; did you mean `memory`?" in caught.value.message
    assert "idle.sleep_after: 'soon' is not a duration" in caught.value.message
    assert caught.value.param == "idle.sleep_after"
    with pytest.raises(BadRequest, match="a model id cannot"):
        spec_from_api("../a", {}, settings())
