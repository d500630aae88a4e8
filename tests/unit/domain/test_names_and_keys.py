"""Catalog, keys, errors, specs and the small records: what others build on without thinking."""

import hmac
from dataclasses import fields, replace
from pathlib import Path

import pytest

from vllm_mm.domain import errors
from vllm_mm.domain.catalog import Catalog
from vllm_mm.domain.events import Event
from vllm_mm.domain.keys import ANONYMOUS, Key, Limits, Right, Scope, digest, ended, is_pattern, limits_of, same
from vllm_mm.domain.launches import Address, LaunchRecord
from vllm_mm.domain.specs import DeviceWish, EngineKind, ModelSpec, Source
from vllm_mm.domain.usage import Outcome, RequestRecord, Usage

A = ModelSpec("org/a", aliases=("gpt", "small"), lora={"a-sql": "/adapters/sql"})
B = ModelSpec("b")


def test_every_name_of_a_model_leads_to_it() -> None:
    """Id, aliases and adapters; lookup by id takes no alias."""
    catalog = Catalog([A, B])
    assert {n: catalog.resolve(n).id for n in ("org/a", "gpt", "small", "a-sql")} == dict.fromkeys(
        ("org/a", "gpt", "small", "a-sql"), "org/a"
    )
    assert (catalog.get("b"), catalog.get("gpt")) == (B, None)
    assert set(catalog.names()) == {"org/a", "gpt", "small", "a-sql", "b"}
    assert (len(catalog), list(catalog), "b" in catalog, "gpt" in catalog) == (2, [A, B], True, False)


def test_unknown_names_get_the_nearest_one() -> None:
    """A typo is answered with what was probably meant, anything else with where to look."""
    catalog = Catalog([A, B])
    with pytest.raises(errors.UnknownModel, match="Did you mean `small`"):
        catalog.resolve("smal")
    for name, near in (("B", "b"), ("SMALL", "small"), ("ORG/AA", "org/a")):
        with pytest.raises(errors.UnknownModel, match=f"Did you mean `{near}`"):
            catalog.resolve(name)
    with pytest.raises(errors.UnknownModel, match="GET /v1/models lists"):
        catalog.resolve("zzzzzz")


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (ModelSpec("b"), "two models have the id 'b'"),
        (ModelSpec("c", aliases=("gpt",)), "'gpt' names both 'org/a' and 'c'"),
        (ModelSpec("c", lora={"b": "/x"}), "'b' names both 'b' and 'c'"),
    ],
)
def test_no_two_models_share_a_name(spec: ModelSpec, message: str) -> None:
    """The message names both and says what to do."""
    with pytest.raises(errors.ConfigError, match=message):
        Catalog([A, B, spec])


def test_a_model_may_say_its_own_name_twice() -> None:
    """An alias that equals the id is harmless."""
    assert Catalog([ModelSpec("b", aliases=("b",))]).resolve("b").id == "b"


def test_catalogs_change_by_copy() -> None:
    """Adding replaces the spec with the same id; the old catalog stays as it was."""
    catalog = Catalog([A, B])
    pinned = replace(B, pinned=True)
    assert catalog.with_spec(pinned).get("b") == pinned
    assert catalog.get("b") == B
    assert [s.id for s in catalog.without("b")] == ["org/a"]


def test_scopes_imply_the_weaker_ones_and_nothing_else() -> None:
    """ADMIN operates and reads, OPERATE reads; INFER is apart."""
    granted = {s: {t for t in Scope if Key("1", "k", "", frozenset({s})).allows(t)} for s in Scope}
    assert granted == {
        Scope.INFER: {Scope.INFER},
        Scope.READ: {Scope.READ},
        Scope.OPERATE: {Scope.OPERATE, Scope.READ},
        Scope.ADMIN: {Scope.ADMIN, Scope.OPERATE, Scope.READ},
    }
    assert all(ANONYMOUS.allows(s) for s in Scope)


def test_keys_end() -> None:
    """A key is good until it is revoked or its time is over, to the second."""
    key = Key("1", "k", "", frozenset())
    assert key.active(5.0)
    assert not replace(key, revoked_at=4.0).active(5.0)
    assert replace(key, expires_at=5.1).active(5.0)
    assert not replace(key, expires_at=5.0).active(5.0)


def test_keys_are_for_all_models_or_for_some() -> None:
    """None means all; an empty set means none; patterns are compared with the whole id, in its own case of letters."""
    key = Key("1", "k", "", frozenset())
    assert key.may_use("b")
    assert replace(key, models=frozenset({"b"})).may_use("b")
    assert not replace(key, models=frozenset()).may_use("b")
    some = replace(key, models=frozenset({"org/*-7b", "tiny-?", "x"}))
    assert [m for m in ("org/a-7b", "org/a/b-7b", "org/a-7b-it", "ORG/a-7b", "tiny-1", "tiny-11", "x", "xx") if some.may_use(m)] == [
        "org/a-7b", "org/a/b-7b", "tiny-1", "x",
    ]  # fmt: skip
    assert [is_pattern(text) for text in ("a", "a*", "a?", "[ab]", "org/a.b-c")] == [False, True, True, True, False]


def test_acts_are_allowed_one_by_one() -> None:
    """All of them unless some are taken away."""
    key = Key("1", "k", "", frozenset())
    assert all(key.may(act) for act in Right)
    assert [act for act in Right if replace(key, acts=frozenset({Right.LOGS})).may(act)] == [Right.LOGS]


def test_secrets_are_stored_as_hmac_of_the_servers_secret() -> None:
    """The known digest of a known text (RFC 4231, 4.3), so that stored keys survive every refactoring; another server's secret makes
    another one of it."""
    known = "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843"
    assert digest("what do ya want for nothing?", b"Jefe") == known
    assert digest("what do ya want for nothing?", b"Jeff") != known
    assert same(digest("abc"), digest("abc"))
    assert not same(digest("abc"), digest("abd"))


def test_digests_are_compared_in_constant_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """By the library's function that is made for it: whoever measures how long a refusal takes learns nothing of a digest."""
    compared: list[tuple[str, str]] = []

    def compare(a: str, b: str) -> bool:
        compared.append((a, b))
        return True

    monkeypatch.setattr(hmac, "compare_digest", compare)
    assert same("a", "b")
    assert compared == [("a", "b")]


def test_keys_that_ended_are_those_that_were_good() -> None:
    """Revoked, or not there any more; not one whose time was over before, and not one that changed."""
    key = Key("1", "k", "", frozenset(), expires_at=10.0)
    assert ended([key], [replace(key, revoked_at=5.0)], 5.0) == ("1",)
    assert ended([key], [], 5.0) == ("1",)
    assert ended([key], [replace(key, weight=2.0)], 5.0) == ()
    assert ended([key], [], 10.0) == ()
    assert ended([replace(key, revoked_at=4.0)], [replace(key, revoked_at=4.0)], 5.0) == ()


def test_limits_know_whether_they_limit() -> None:
    """So that a key with none of them costs nothing on a request's way."""
    assert not Limits().any
    assert all(Limits(**{field.name: 1}).any for field in fields(Limits))
    assert [f.name for f in fields(Limits) if Limits(**{f.name: 1}).budgets] == [
        "tokens_per_day", "tokens_per_month", "device_seconds_per_day", "device_seconds_per_month",
    ]  # fmt: skip


def test_errors_carry_what_the_edges_need() -> None:
    """Message and extras as given; what tells callers to try again is a property of the class."""
    error = errors.StartFailed("m did not start", phase="weights", log_tail=("boom",), retry_after=2.0)
    assert (str(error), error.message, error.phase, error.log_tail, error.retry_after) == (
        "m did not start", "m did not start", "weights", ("boom",), 2.0,
    )  # fmt: skip
    assert errors.BadRequest("no", param="model").param == "model"
    died = errors.UpstreamDied("gone", sent=True, started=False)
    assert (died.sent, died.started, died.retryable) == (True, False, True)
    assert not errors.UnknownModel("x").retryable


def _tree(error: type[errors.MMError]) -> list[type[errors.MMError]]:
    return [error, *(e for child in error.__subclasses__() for e in _tree(child))]


def test_codes_are_unique() -> None:
    """A program can tell every error by its code."""
    codes = [e.code for e in _tree(errors.MMError) if e.__module__ == errors.__name__]
    assert len(codes) == len(set(codes))
    assert len(codes) > 15


def test_fingerprints_change_with_the_process_only() -> None:
    """What starts the same engine has the same fingerprint: no restart for a pin or for the order of aliases."""
    same_engine = [
        replace(A, pinned=True), replace(A, aliases=("small", "gpt")), replace(A, priority=3), replace(A, source=Source.API),
    ]  # fmt: skip
    assert {s.fingerprint for s in same_engine} == {A.fingerprint}
    other = [
        replace(A, args={"dtype": "float32"}), replace(A, engine=EngineKind.SIM), replace(A, env={"X": "1"}),
        replace(A, devices=DeviceWish(count=2)), replace(A, lora={}), replace(A, aliases=("gpt",)),
    ]  # fmt: skip
    assert len({s.fingerprint for s in [A, *other]}) == len(other) + 1
    assert len(A.fingerprint) == 16
    assert A.served_names == ("org/a", "gpt", "small")


def test_addresses_for_people() -> None:
    """A unix socket wherever there is one."""
    assert str(Address(socket="/run/e.sock")) == "unix:/run/e.sock"
    assert str(Address(port=81)) == "127.0.0.1:81"


def test_records_hold_what_they_are_given() -> None:
    """Frozen: a ledger row, an event and a launch cannot be changed after the fact."""
    row = RequestRecord(
        "req_1", "mine", 1.0, "/v1/embeddings", "b", "b", None, False, Outcome.OK, 200, None, 0.0, 0.1, 0.2, 1, 2, Usage(3), 1
    )  # fmt: skip
    launch = LaunchRecord("b", 1, "t", 2, 3, "boot", Address(), Path("w"), Path("l"), "f", {"d0": 1}, 4.0)
    for record, name in ((row, "status"), (launch, "pid"), (Event(1, 1.0, "instance.ready"), "seq")):
        with pytest.raises(AttributeError):
            setattr(record, name, 0)


@pytest.mark.parametrize(
    ("what", "advice", "told"),
    [
        ("No room", "Try again.", "No room. Try again."),
        ("No room.", "Try again.", "No room. Try again."),
        ("No room. Free some, then try again.", "Try again.", "No room. Free some, then try again."),
        ("End that, or try again in a moment.", "Try again later.", "End that, or try again in a moment."),
        ("Try again; it may fit.", "Try again.", "Try again; it may fit. Try again."),
        ("Free some, then try again.", "It is tried again in 5 s.", "Free some, then try again. It is tried again in 5 s."),
    ],
)  # fmt: skip
def test_advice_is_given_once(what: str, advice: str, told: str) -> None:
    assert errors.advised(what, advice) == told


def test_limits_by_their_names() -> None:
    """Requests and tokens are whole; nothing is none; what cannot be is refused with its name."""
    said = {"concurrency": 2, "device_seconds_per_day": 0.5, "tokens_per_day": None}
    assert limits_of(said) == Limits(concurrency=2, device_seconds_per_day=0.5)
    for name, value in (
        ("concurrency", 1.5),
        ("requests_per_minute", 0),
        ("tokens_per_day", 10**16),
        ("device_seconds_per_month", 0.0),
    ):
        with pytest.raises(errors.BadRequest, match=f"the limit {name} is") as refused:
            limits_of({name: value})
        assert refused.value.param == name
