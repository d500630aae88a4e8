"""What another declaration comes to: which models it touches, in what, and whether an engine notices."""

from dataclasses import replace
from typing import Any

import pytest

from vllm_mm.domain.changes import Effect, FieldChange, ModelChange, change, changes, summary, version
from vllm_mm.domain.request_rules import Level, rule_set
from vllm_mm.domain.specs import DeviceWish, IdlePolicy, ModelSpec, SleepMode, SleepSpec, Source

A = ModelSpec("a", args={"max-model-len": 8192}, env={"X": "1"})


@pytest.mark.parametrize(
    ("new", "effect", "fields"),
    [
        ({"pinned": True}, Effect.UPDATED, [("pinned", False, True)]),
        ({"idle": IdlePolicy(1.0, None)}, Effect.UPDATED, [("idle.sleep_after", 300.0, 1.0), ("idle.stop_after", 3600.0, None)]),
        ({"source": Source.API}, Effect.UPDATED, [("source", Source.FILE, Source.API)]),
        ({"nicknames": ("n",)}, Effect.UPDATED, [("nicknames", (), ("n",))]),
        ({"args": {"max-model-len": 4096}}, Effect.RESTARTED, [("args.max-model-len", 8192, 4096)]),
        ({"args": {}}, Effect.RESTARTED, [("args.max-model-len", 8192, None)]),
        ({"env": {"X": "1", "Y": "2"}}, Effect.RESTARTED, [("env.Y", None, "2")]),
        ({"devices": DeviceWish(2)}, Effect.RESTARTED, [("devices.count", 1, 2)]),
        ({"sleep": SleepSpec(SleepMode.NEVER)}, Effect.RESTARTED, [("sleep.mode", "auto", "never")]),
        (
            {"request_rules": {"a": rule_set(Level.SYSTEM, {"top": {"k": 1}}, {"n": 2})}},
            Effect.UPDATED,
            [("request_rules.a", None, ["default top.k = 1 (system)", "override n = 2 (system)"])],
        ),
    ],
)  # fmt: skip
def test_a_change_names_its_keys_and_whether_the_engine_notices(
    new: dict[str, Any], effect: Effect, fields: list[tuple[str, object, object]]
) -> None:
    """Keys are those of the configuration; what the process depends on makes it new, all else does not."""
    found = change(A, replace(A, **new))
    assert found is not None
    assert (found.model, found.effect) == ("a", effect)
    assert [(f.key, f.before, f.after) for f in found.fields] == fields


def test_no_difference_is_no_change() -> None:
    """Nor is a model that is on neither side."""
    assert change(A, replace(A)) is None
    assert change(None, None) is None
    assert changes([A], [replace(A)]) == ()


def test_the_effect_is_told_to_people() -> None:
    """With what becomes of the engine, where there is one."""
    other = replace(A, args={})
    told = {
        "new": change(None, A),
        "removed": change(A, None),
        "removed: drains and stops": change(A, None, running=True),
        "restarts a after drain, when it is next wanted": change(A, other, running=True),
        "it does not run: its next start is the new one": change(A, other),
        "no restart": change(A, replace(A, pinned=True), running=True),
    }
    assert {text: found.text for text, found in told.items() if found is not None} == {text: text for text in told}


def test_changes_of_all_models() -> None:
    """Those that stay or come in their order, then those that go; untouched ones are not there."""
    b, c, d = ModelSpec("b"), ModelSpec("c"), ModelSpec("d")
    found = changes([A, b, c], [d, replace(b, priority=1), replace(A, args={})], running={"a", "c"})
    assert [(f.model, f.effect, f.running) for f in found] == [
        ("d", Effect.NEW, False), ("b", Effect.UPDATED, False), ("a", Effect.RESTARTED, True), ("c", Effect.REMOVED, True),
    ]  # fmt: skip
    assert summary(found) == "added: d; removed: c; new when next wanted: a; changed in place: b"
    assert summary(()) == "no model changed"


def test_a_version_is_that_of_the_declaration() -> None:
    """Another for every other one, the pin included; what a profile adds is no part of it."""
    assert version(A) == version(replace(A))
    assert version(A) == version(replace(A, nicknames=("n",)))
    assert len({version(A), version(replace(A, pinned=True)), version(replace(A, args={}))}) == 3


def test_changes_are_values() -> None:
    """Two that say the same are the same."""
    assert ModelChange("a", Effect.NEW) == ModelChange("a", Effect.NEW, ())
    assert FieldChange("a", 1, 2) != FieldChange("a", 1, 3)
