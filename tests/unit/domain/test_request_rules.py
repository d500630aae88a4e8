"""What rules are, what becomes of them when they meet, and what they do to the bytes of a body."""

import contextlib
import json
import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vllm_mm.domain import body_edits
from vllm_mm.domain.body_edits import Unreadable, edits, splice
from vllm_mm.domain.request_rules import Kind, Level, Limit, RuleSet, encode, exceeds, rule_set

CHAT = ("max_completion_tokens", "max_tokens")
PLAIN = ("max_tokens",)

names = st.sampled_from(["a", "b", "max_tokens", "max_completion_tokens", "ü", 'q"q'])
scalars = st.none() | st.booleans() | st.integers(-5, 5000) | st.sampled_from(["", "9999", "x\\y", "é", 0.5])
values = st.recursive(
    scalars,
    lambda inner: st.dictionaries(names, inner, max_size=3) | st.lists(inner, max_size=2),
    max_leaves=6,
)
said = st.dictionaries(names, values, max_size=3)
limits = st.fixed_dictionaries(
    {}, optional={"max_tokens": st.none() | st.integers(1, 4000), "max_tokens_if_missing": st.booleans()}
)
levels = st.sampled_from(list(Level))
rule_sets = st.builds(rule_set, levels, said, said, limits)
tokens = st.sampled_from([(), CHAT, PLAIN, ("max_output_tokens",)])
documents = st.dictionaries(names | st.text(max_size=3), values, max_size=5)


@st.composite
def bodies(draw: st.DrawFn) -> bytes:
    """An object as a client may spell it: blanks, escapes, repeated members."""
    members = draw(st.lists(st.tuples(names, values, st.sampled_from(["", " ", "\n\t"]), st.booleans()), max_size=6))
    parts = [
        f"{gap}{json.dumps(k, ensure_ascii=a)}{gap}:{gap}{json.dumps(v, ensure_ascii=a)}{gap}"
        for k, v, gap, a in members
    ]
    return (draw(st.sampled_from(["", " "])) + "{" + ",".join(parts) + "}").encode()


def apply(rules: RuleSet, body: bytes, tokens: tuple[str, ...] = ()) -> bytes:
    changes, _ = edits(rules.plan(tokens), body)
    return b"".join(splice(body, changes))


def touched(rules: RuleSet, body: bytes, tokens: tuple[str, ...] = ()) -> list[str]:
    return list(edits(rules.plan(tokens), body)[1])


def model(
    *, defaults: Any = None, overrides: Any = None, limit: int | None = None, if_missing: bool = False
) -> RuleSet:
    limits = {} if limit is None else {"max_tokens": limit, "max_tokens_if_missing": if_missing}
    return rule_set(Level.MODEL, defaults, overrides, limits)


# A second account of the rules, on parsed values and without levels


def filled(defaults: Any, document: dict[str, Any]) -> dict[str, Any]:
    result = dict(document)
    for name, value in defaults.items():
        if isinstance(result.get(name), dict) and isinstance(value, dict):
            result[name] = filled(value, result[name])
        elif result.get(name) is None and makes(value):
            result[name] = filled(value, {}) if isinstance(value, dict) else value
    return result


def overridden(overrides: Any, document: dict[str, Any], defaults: Any = None) -> dict[str, Any]:
    """An object that comes where the client had something else has its defaults too."""
    result = dict(document)
    for name, value in overrides.items():
        inner = defaults[name] if isinstance(defaults, dict) and isinstance(defaults.get(name), dict) else {}
        if value is None:
            result.pop(name, None)
        elif not isinstance(value, dict):
            result[name] = value
        elif isinstance(result.get(name), dict):
            result[name] = overridden(value, result[name], inner)
        elif makes(value):
            result[name] = overridden(value, filled(inner, {}), inner)
    return result


def makes(value: Any) -> bool:
    return (not value or any(map(makes, value.values()))) if isinstance(value, dict) else value is not None


@settings(max_examples=200)
@given(said, said, bodies())
def test_bytes_become_what_the_rules_say(defaults: Any, overrides: Any, body: bytes) -> None:
    """Parsed, the edited body is the parsed body with the defaults and then the overrides on it. Of members that stand
    twice the last counts."""
    wanted = overridden(overrides, filled(defaults, json.loads(body)), defaults)
    assert json.loads(apply(model(defaults=defaults, overrides=overrides), body)) == wanted


@settings(max_examples=200)
@given(rule_sets, bodies(), tokens)
def test_twice_is_once(rules: RuleSet, body: bytes, tokens: tuple[str, ...]) -> None:
    """What was changed by rules is not changed by them again: the very same bytes come back, and no rule is named."""
    once = apply(rules, body, tokens)
    changes, named = edits(rules.plan(tokens), once)
    assert (changes, named) == ([], [])
    assert splice(once, changes)[0] is once


@settings(max_examples=200)
@given(rule_sets, rule_sets, rule_sets, tokens)
def test_merging_may_be_grouped_in_any_way(a: RuleSet, b: RuleSet, c: RuleSet, tokens: tuple[str, ...]) -> None:
    """The order counts, the grouping does not."""
    assert c.over(b).over(a).plan(tokens) == c.over(b.over(a)).plan(tokens)


@settings(max_examples=200)
@given(said, said, bodies())
def test_merged_overrides_are_one_after_the_other(far: Any, near: Any, body: bytes) -> None:
    """The nearer level acts on what the farther one made, objects and all."""
    both = rule_set(Level.ALIAS, None, near).over(rule_set(Level.MODEL, None, far))
    assert json.loads(apply(both, body)) == overridden(near, overridden(far, json.loads(body)))


@settings(max_examples=200)
@given(rule_sets, bodies(), st.sampled_from([CHAT, PLAIN]))
def test_no_answer_is_longer_than_the_limit(rules: RuleSet, body: bytes, tokens: tuple[str, ...]) -> None:
    """Whatever the client and the other rules say; with `if_missing` one of the names is there."""
    after = json.loads(apply(rules, body, tokens))
    limit = rules.limit
    if limit is not None:
        assert not any(exceeds(after.get(name), limit.at_most) for name in tokens)
        assert not limit.if_missing or any(after.get(name) is not None for name in tokens)


@given(st.binary(max_size=60) | st.text(alphabet='{}[]":,\\a 1n', max_size=40).map(str.encode))
def test_what_is_no_json_ends(body: bytes) -> None:
    """It is refused, or read as far as needed; nothing else is raised, and nothing hangs."""
    rules = model(overrides={"a": {"b": 1}}, defaults={"n": 1}, limit=3)
    with contextlib.suppress(Unreadable):
        apply(rules, body, CHAT)


# In words


def test_an_override_goes_into_the_objects_of_a_default() -> None:
    """However deep, where the request has nothing."""
    rules = model(defaults={"a": {"b": {"c": 1}}}, overrides={"a": {"b": {"d": 2}}})
    assert json.loads(apply(rules, b"{}")) == {"a": {"b": {"c": 1, "d": 2}}}


def test_only_what_changes_is_written() -> None:
    """Digits, blanks, the order and the spelling of members, repeated ones: as the client sent them."""
    body = '{ "model":"m", "seed" : 12345678901234567890123, "temperature":1.10 , "x":1, "x":2,"caf\\u00e9":"é\\n" }'.encode()
    after = apply(model(defaults={"top_p": 0.5}, overrides={"temperature": 0}), body)
    assert after == body.replace(b"1.10", b"0").replace('"é\\n"'.encode(), '"é\\n","top_p":0.5'.encode())
    assert touched(model(defaults={"top_p": 0.5}, overrides={"temperature": 0}), body) == ["top_p", "temperature"]


@pytest.mark.parametrize(
    ("body", "after"),
    [
        ('{"a":1}', "{}"), ('{"a":1,"x":2}', '{"x":2}'), ('{"x":2,"a":1}', '{"x":2}'), ('{"x":2 , "a":1 }', '{"x":2 }'),
        ('{"a":1,"x":2,"a":3}', '{"x":2}'), ('{"a":1,"a":2}', "{}"), ('{"x":1,"a":[],"a":{},"y":2}', '{"x":1,"y":2}'),
        ('{"x":1,"a":1,"a":2}', '{"x":1}'), ('{"\\u0061":1,"x":1}', '{"x":1}'), ('{ "x" : {"a":1} }', '{ "x" : {"a":1} }'),
        ("{ }", "{ }"),
    ],
)  # fmt: skip
def test_null_takes_a_field_away(body: str, after: str) -> None:
    """With its comma, wherever it stands, and as often as it does."""
    assert apply(model(overrides={"a": None}), body.encode()).decode() == after


def test_a_field_comes_behind_the_last_that_stays() -> None:
    """Also where the last one goes, or all of them, or there was none."""
    rules = model(defaults={"d": [1, {"e": None}]}, overrides={"a": None})
    for body, after in (
        ("{}", '{"d":[1,{"e":null}]}'), ('{"a":1}', '{"d":[1,{"e":null}]}'), ('{"x":1,"a":1 }', '{"x":1,"d":[1,{"e":null}] }'),
        ('{"a":1,"x":1}', '{"x":1,"d":[1,{"e":null}]}'), ('{"d":0}', '{"d":0}'), ('{"d":null}', '{"d":[1,{"e":null}]}'),
    ):  # fmt: skip
        assert apply(rules, body.encode()).decode() == after


def test_of_repeated_members_the_last_counts() -> None:
    """A default stays away when the last one says something; an override is laid over each, for parsers differ."""
    assert apply(model(defaults={"a": 1}), b'{"a":null,"a":2}') == b'{"a":null,"a":2}'
    assert apply(model(defaults={"a": 1}), b'{"a":2,"a":null}') == b'{"a":2,"a":1}'
    assert apply(model(overrides={"a": 1}), b'{"a":null,"a":2}') == b'{"a":1,"a":1}'
    many = b"{" + b",".join([b'"a":2'] * 101) + b"}"
    with pytest.raises(Unreadable, match="more than 100 times"):
        edits(model(overrides={"a": 1}).plan(), many)


@pytest.mark.parametrize("inside", ["\\", '"', '\\"', "x" * 70_000 + '"\\', "\n"])
@pytest.mark.parametrize("times", [1, 999, 1000, 1001, 70_000])
def test_strings_with_many_escapes(inside: str, times: int) -> None:
    """Where they end is found whatever is in them, and without going through each escape of very many."""
    text = json.dumps(inside * (times if len(inside) < 9 else 3))
    body = f'{{"x":{text},"a":1,"y":[{text}]}}'.encode()
    assert apply(model(overrides={"a": 2}), body) == body.replace(b'"a":1', b'"a":2')
    for cut in (body[: len(text)], body[: len(text) + 3]):
        with pytest.raises(Unreadable):
            apply(model(overrides={"a": 2}), cut)


def test_too_many_brackets_are_too_much(monkeypatch: pytest.MonkeyPatch) -> None:
    """The work on one object is bounded: members, and brackets within brackets. Flat lists of any length are passed over."""
    monkeypatch.setattr(body_edits, "STEPS", 1000)
    rules = model(overrides={"a": 2})
    for value in ("[[[]]]," * 400 + "0", '{"x":[[]]},' * 400 + "0", "[" * 900 + "]" * 900):
        with pytest.raises(Unreadable, match="too many"):
            apply(rules, f'{{"x":[{value}],"a":1}}'.encode())
    members = ",".join(f'"k{n}":0' for n in range(1000))
    with pytest.raises(Unreadable, match="too many"):
        apply(rules, f'{{{members},"a":1}}'.encode())
    for value in ("[1,2]," * 100_000 + "0", "0," * 100_000 + "0"):
        assert apply(rules, f'{{"x":[{value}],"a":1}}'.encode()).endswith(b'"a":2}')


def test_objects_are_merged_and_all_else_is_replaced() -> None:
    """To any depth; where the client has something else, the rule's object comes in its place."""
    rules = model(defaults={"k": {"think": True, "n": 1}}, overrides={"k": {"m": {"x": 1}, "l": [1]}})
    after = apply(rules, b'{"k":{"think":false,"m":{"y":2},"l":[2,3]}}')
    assert json.loads(after) == {"k": {"think": False, "n": 1, "m": {"y": 2, "x": 1}, "l": [1]}}
    assert json.loads(apply(rules, b'{"k":5}')) == json.loads(apply(rules, b"{}"))
    assert json.loads(apply(rules, b"{}")) == {"k": {"think": True, "n": 1, "m": {"x": 1}, "l": [1]}}
    assert touched(rules, b'{"k":5}') == ["k"]
    assert apply(model(overrides={"k": {"a": None}}), b'{"x":1}') == b'{"x":1}'


def test_what_says_the_same_already_is_left_alone() -> None:
    """However it is spelled; a number is another one when its kind is."""
    rules = model(overrides={"a": "é", "b": 1})
    assert touched(rules, b'{"a":"\\u00e9","b": 1}') == []
    assert touched(rules, b'{"a":"e","b":1.0}') == ["a", "b"]
    assert apply(rules, b'{"a":"\\ud800","b":%b}' % (b"1" * 5000)) == '{"a":"é","b":1}'.encode()
    assert apply(rules, b'{"a":"","b":%b}' % (b"[" * 33 + b"]" * 33)) == '{"a":"é","b":1}'.encode()
    deep = b'{"b":' + b"[" * 400 + b"]" * 400 + b"}"
    assert json.loads(apply(model(overrides={"b": "x" * 500}), deep)) == {"b": "x" * 500}


def test_the_nearer_level_wins_and_null_takes_back() -> None:
    """For each kind of rule; each value knows where it was said."""
    system = rule_set(Level.SYSTEM, {"t": 1, "k": {"a": 1}, "p": 1}, {"n": 1}, {"max_tokens": 100})
    own = rule_set(
        Level.MODEL, {"t": 2, "p": None}, {"n": None, "o": {"x": 1}}, {"max_tokens": 9, "max_tokens_if_missing": True}
    )
    alias = rule_set(Level.ALIAS, {"k": {"b": 2}}, {}, {"max_tokens": 50})
    rules = alias.over(own.over(system))
    assert [(r.kind, ".".join(r.path), r.value, r.source) for r in rules.rules()] == [
        (Kind.DEFAULT, "t", 2, Level.MODEL), (Kind.DEFAULT, "k.a", 1, Level.SYSTEM), (Kind.DEFAULT, "k.b", 2, Level.ALIAS),
        (Kind.DEFAULT, "p", None, Level.MODEL),
        (Kind.OVERRIDE, "n", None, Level.MODEL), (Kind.OVERRIDE, "o.x", 1, Level.MODEL),
        (Kind.LIMIT, "max_tokens", 50, Level.ALIAS), (Kind.LIMIT, "max_tokens_if_missing", True, Level.MODEL),
    ]  # fmt: skip
    assert rules.limit == Limit(50, True)
    assert json.loads(apply(rules, b'{"n":5}')) == {"t": 2, "k": {"a": 1, "b": 2}, "o": {"x": 1}}
    assert rule_set(Level.ALIAS, limits={"max_tokens": None}).over(system).limit is None
    assert rule_set(Level.ALIAS, limits={"max_tokens": 7}).over(own).limit == Limit(7, True)
    assert rules
    assert not RuleSet()
    assert RuleSet().limit is None


def test_an_object_over_something_else_replaces_it() -> None:
    """A nearer object where a farther level removes, or sets something else."""
    near = rule_set(Level.ALIAS, None, {"k": {"b": {"c": 1}}})
    assert apply(near.over(model(overrides={"k": 5})), b'{"k":{"a":1}}') == b'{"k":{"b":{"c":1}}}'
    assert apply(near.over(model(overrides={"k": {"b": 5}})), b'{"k":{"a":1,"b":2}}') == b'{"k":{"a":1,"b":{"c":1}}}'
    assert apply(near.over(model(overrides={"k": {"b": 5}})), b"{}") == b'{"k":{"b":{"c":1}}}'
    filled_first = model(defaults={"k": {"b": {"d": 1}}}, overrides={"k": {"b": 5}})
    assert apply(near.over(filled_first), b"{}") == b'{"k":{"b":{"c":1}}}'
    nothing = rule_set(Level.ALIAS, None, {"k": {"b": None}})
    assert apply(nothing.over(model(overrides={"k": None})), b'{"k":{"a":1}}') == b"{}"


@pytest.mark.parametrize(
    ("tokens", "body", "after"),
    [
        (PLAIN, '{"max_tokens":4096}', '{"max_tokens":4096}'), (PLAIN, '{"max_tokens":4097}', '{"max_tokens":4096}'),
        (PLAIN, '{"max_tokens":"99999"}', '{"max_tokens":4096}'), (PLAIN, '{"max_tokens":"many"}', '{"max_tokens":"many"}'),
        (PLAIN, '{"max_tokens":1e9}', '{"max_tokens":4096}'), (PLAIN, '{"max_tokens":-1}', '{"max_tokens":4096}'),
        (PLAIN, '{"max_tokens":true}', '{"max_tokens":true}'), (PLAIN, '{"max_tokens":[9999]}', '{"max_tokens":[9999]}'),
        (PLAIN, '{"max_tokens":{"a":1}}', '{"max_tokens":{"a":1}}'),
        (PLAIN, '{"max_tokens":%s}' % ("9" * 5000), '{"max_tokens":4096}'),
        (PLAIN, '{"max_tokens":9999,"max_tokens":1}', '{"max_tokens":4096,"max_tokens":1}'),
        (PLAIN, '{"max_tokens":null}', '{"max_tokens":null}'), (PLAIN, "{}", "{}"),
        (PLAIN, '{"max_tokens":NaN}', '{"max_tokens":4096}'),
        (CHAT, '{"max_tokens":9999}', '{"max_tokens":4096}'),
        (CHAT, '{"max_completion_tokens":9999,"max_tokens":5}', '{"max_completion_tokens":4096,"max_tokens":5}'),
        (("max_output_tokens",), '{"max_output_tokens":9999,"max_tokens":9999}', '{"max_output_tokens":4096,"max_tokens":9999}'),
        ((), '{"max_tokens":9999}', '{"max_tokens":9999}'),
    ],
)  # fmt: skip
def test_a_limit_holds_for_the_field_of_each_api(tokens: tuple[str, ...], body: str, after: str) -> None:
    """A larger number becomes the limit, in every way in which engines read one; what is none is for the engine to refuse."""
    rules = model(limit=4096)
    assert apply(rules, body.encode(), tokens).decode() == after
    assert touched(rules, body.encode(), tokens) == (["max_tokens"] if body != after else [])


@pytest.mark.parametrize(
    ("tokens", "body", "after"),
    [
        (PLAIN, "{}", '{"max_tokens":9}'), (PLAIN, '{"max_tokens":null}', '{"max_tokens":9}'), (PLAIN, '{"max_tokens":3}', '{"max_tokens":3}'),
        (CHAT, "{}", '{"max_completion_tokens":9}'), (CHAT, '{"max_tokens":3}', '{"max_tokens":3}'),
        (CHAT, '{"max_completion_tokens":null,"max_tokens":3}', '{"max_completion_tokens":null,"max_tokens":3}'),
        ((), "{}", "{}"),
    ],
)  # fmt: skip
def test_a_limit_may_be_set_where_there_is_none(tokens: tuple[str, ...], body: str, after: str) -> None:
    """`if_missing`: once, by the name that the API has now, and not where another name says it."""
    rules = model(limit=9, if_missing=True)
    assert apply(rules, body.encode(), tokens).decode() == after
    assert touched(rules, body.encode(), tokens) == (["max_tokens"] if body != after else [])


def test_two_names_of_one_thing_do_not_contradict_each_other() -> None:
    """`max_tokens` and `max_completion_tokens` of a chat: a default for one of them stays away when the client says the other,
    an override of one takes the other away, and of two levels the nearer one's name is used."""
    default = model(defaults={"max_completion_tokens": 7})
    assert apply(default, b'{"max_tokens":3}', CHAT) == b'{"max_tokens":3}'
    assert apply(default, b'{"max_tokens":null}', CHAT) == b'{"max_tokens":null,"max_completion_tokens":7}'
    assert json.loads(apply(default, b'{"max_tokens":3}', PLAIN)) == {"max_tokens": 3, "max_completion_tokens": 7}
    nearer = rule_set(Level.ALIAS, {"max_tokens": 5})
    assert apply(nearer.over(default), b"{}", CHAT) == b'{"max_tokens":5}'
    override = model(overrides={"max_tokens": 5})
    assert apply(override, b'{"max_completion_tokens":900}', CHAT) == b'{"max_tokens":5}'
    assert touched(override, b'{"max_completion_tokens":900,"max_tokens":5}', CHAT) == ["max_tokens"]
    both = rule_set(Level.ALIAS, None, {"max_completion_tokens": 6}).over(override)
    assert apply(both, b'{"max_tokens":1}', CHAT) == b'{"max_completion_tokens":6}'
    missing = model(overrides={"max_completion_tokens": None}, limit=9, if_missing=True)
    assert apply(missing, b'{"max_completion_tokens":1}', CHAT) == b'{"max_completion_tokens":9}'
    assert apply(missing, b'{"max_completion_tokens":1,"max_tokens":2}', CHAT) == b'{"max_tokens":2}'


def test_other_rules_keep_the_limit() -> None:
    """A default and an override beyond it are cut to it; one within it stays."""
    rules = model(defaults={"max_tokens": 100}, limit=50)
    assert apply(rules, b"{}", PLAIN) == b'{"max_tokens":50}'
    assert apply(model(overrides={"max_tokens": 100}, limit=50), b'{"max_tokens":1}', PLAIN) == b'{"max_tokens":50}'
    assert apply(model(overrides={"max_tokens": 10}, limit=50), b'{"max_tokens":90}', PLAIN) == b'{"max_tokens":10}'


@pytest.mark.parametrize(
    ("rules", "tokens", "body", "after"),
    [
        (model(limit=50), PLAIN, '{"min_tokens":80,"max_tokens":90}', '{"min_tokens":50,"max_tokens":50}'),
        (model(limit=50), PLAIN, '{"min_tokens":80}', '{"min_tokens":50}'),
        (model(limit=50), CHAT, '{"min_tokens":50}', '{"min_tokens":50}'),
        (model(limit=50), CHAT, '{"min_tokens":-1}', '{"min_tokens":-1}'),  # not ours to mend
        (model(limit=50), CHAT, '{"min_tokens":"80"}', '{"min_tokens":50}'),
        (model(limit=50), CHAT, '{"min_tokens":null}', '{"min_tokens":null}'),
        (model(limit=50), (), '{"min_tokens":80}', '{"min_tokens":80}'),
        (model(overrides={"max_tokens": 7}), PLAIN, '{"min_tokens":8}', '{"min_tokens":7,"max_tokens":7}'),
        (model(overrides={"max_tokens": 7}, limit=9), CHAT, '{"min_tokens":8,"max_tokens":7}', '{"min_tokens":7,"max_tokens":7}'),
        (model(overrides={"max_tokens": "x"}), PLAIN, '{"min_tokens":8,"max_tokens":"x"}', '{"min_tokens":8,"max_tokens":"x"}'),
        (model(defaults={"max_tokens": 7}), PLAIN, '{"min_tokens":8,"max_tokens":9}', '{"min_tokens":8,"max_tokens":9}'),
        (model(defaults={"min_tokens": 80}, limit=50), PLAIN, "{}", '{"min_tokens":50}'),
        (model(overrides={"min_tokens": 80}, limit=50), PLAIN, '{"min_tokens":1}', '{"min_tokens":50}'),
    ],
)  # fmt: skip
def test_an_answer_that_is_made_shorter_has_no_longer_least(
    rules: RuleSet, tokens: tuple[str, ...], body: str, after: str
) -> None:
    """An engine refuses `min_tokens` above `max_tokens`; where a rule has brought that about, it is not the client's fault."""
    assert json.loads(apply(rules, body.encode(), tokens)) == json.loads(after)
    assert ("min_tokens" in touched(rules, body.encode(), tokens)) == (
        json.loads(body).get("min_tokens") != json.loads(after).get("min_tokens")
    )


def test_without_a_rule_for_an_api_there_is_nothing_to_do() -> None:
    """Such a body need not be looked at; plans are made once."""
    rules = model(limit=5)
    assert not rules.plan().fields
    assert rules.plan(CHAT) is rules.plan(CHAT)


def test_what_is_passed_over() -> None:
    """Strings and containers of any size and depth, quotes and brackets in strings, in windows of any size."""
    odd = json.dumps({"s": 'a"]}\\', "d": [[{"x": ["}", [1, {"y": "\\\\"}]]}], "]"], "l": list(range(50))})
    body = f'{{"x":{odd},"y":"{"z" * 300}\\\\\\"","a":1}}'.encode()
    with pytest.MonkeyPatch.context() as patch:
        for window in (1, 2, 7, 64, 1 << 16):
            patch.setattr(body_edits, "WINDOW", window)
            assert apply(model(overrides={"a": 2}), body) == body[:-2] + b"2}"
            assert apply(model(overrides={"a": 2}), bytearray(body)) == body[:-2] + b"2}"  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "body",
    [b"", b"[1]", b"{", b'{"a', b'{"a"', b'{"a"1}', b'{"a":}', b'{"a":1', b'{"a":[1}', b'{"a":1]', b'{"a":1,}', b"{a:1}",
     b'{"\\x":1}', b'{"a":"b}', b'{"a":[[[', b'{"b":1'],
)  # fmt: skip
def test_what_cannot_be_read_is_refused(body: bytes) -> None:
    """Bodies were checked before; where that was wrong, nothing is made up."""
    if body == b'{"a":[1}':
        body += b'"'
    with pytest.raises(Unreadable):
        edits(model(overrides={"a": {"b": 1}, "c": 1}).plan(), body)


def test_values_are_written_as_json() -> None:
    """Short, in UTF-8; text without one is refused."""
    assert encode({"é": [1, 0.5, None]}) == '{"é":[1,0.5,null]}'.encode()
    with pytest.raises(ValueError, match="surrogate"):
        encode("\ud800")
    assert exceeds(math.nan, 1)
    assert not exceeds(None, 1)
