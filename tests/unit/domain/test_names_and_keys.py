"""Catalog, keys, errors, specs and the small records: what others build on without thinking."""

from dataclasses import replace
from pathlib import Path

import pytest

from vllm_mm.domain import errors
from vllm_mm.domain.catalog import Catalog
from vllm_mm.domain.events import Event
from vllm_mm.domain.keys import ANONYMOUS, Key, Scope, digest, same
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
    """None means all; an empty set means none."""
    key = Key("1", "k", "", frozenset())
    assert key.may_use("b")
    assert replace(key, models=frozenset({"b"})).may_use("b")
    assert not replace(key, models=frozenset()).may_use("b")


def test_secrets_are_stored_as_sha256() -> None:
    """The known digest of a known text, so that stored keys survive every refactoring."""
    assert digest("abc") == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
    assert same(digest("abc"), digest("abc"))
    assert not same(digest("abc"), digest("abd"))


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
