"""Keys: found without hashing twice, refused with what to do, and forgotten when they change."""

from dataclasses import replace

import pytest

from fakes import FakeClock
from vllm_mm.domain.errors import Forbidden, Unauthorized
from vllm_mm.domain.keys import ANONYMOUS, Key, Scope, digest
from vllm_mm.gateway import identity
from vllm_mm.gateway.identity import Keyring, require

GOOD = Key("k1", "ada", digest("mm-good"), frozenset({Scope.INFER}))


def ring(*keys: Key, clock: FakeClock | None = None) -> Keyring:
    made = Keyring(clock or FakeClock())
    made.replace(keys)
    return made


def test_both_headers_and_any_case_of_the_scheme() -> None:
    """`Authorization: Bearer` and `x-api-key` name the same key; the first wins when both are there."""
    keys = ring(GOOD)
    for authorization in (b"Bearer mm-good", b"bearer mm-good", b"BEARER  mm-good "):
        assert keys.identify(authorization, None) is GOOD
        assert keys.identify(authorization, b"mm-other") is GOOD
    assert keys.identify(None, b"mm-good") is GOOD


@pytest.mark.parametrize(
    ("authorization", "api_key"),
    [
        (None, None),
        (b"", None),
        (b"Bearer", None),
        (b"Bearer ", None),
        (b"Basic mm-good", None),
        (b"mm-good", None),
        (None, b"Bearer mm-good"),
        (None, b"\xff"),
        (b"Bearer mm-bad", b"mm-good"),
    ],
)
def test_refused(authorization: bytes | None, api_key: bytes | None) -> None:
    """Also right after the good forms were seen and remembered."""
    keys = ring(GOOD)
    keys.identify(b"Bearer mm-good", None)
    keys.identify(None, b"mm-good")
    with pytest.raises(Unauthorized):
        keys.identify(authorization, api_key)


def test_a_known_header_is_not_hashed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """The hot path does one lookup; only new values are hashed, and bad ones are not remembered."""
    hashed: list[str] = []

    def counting(secret: str, pepper: bytes) -> str:
        hashed.append(secret)
        return digest(secret, pepper)

    monkeypatch.setattr(identity, "digest", counting)
    keys = ring(GOOD)
    for _ in range(5):
        keys.identify(b"Bearer mm-good", None)
    assert hashed == ["mm-good"]
    for n in range(10_000):
        with pytest.raises(Unauthorized):
            keys.identify(b"Bearer bad-%d" % n, None)
    assert len(keys._seen_bearer) == 1


def test_changes_are_seen_at_once() -> None:
    """A key that was replaced, revoked or has expired does not live on in memory."""
    clock = FakeClock()
    short = Key("k2", "eve", digest("mm-short"), frozenset({Scope.INFER}), expires_at=clock.wall() + 10)
    keys = ring(GOOD, short, clock=clock)
    assert keys.identify(b"Bearer mm-good", None) is GOOD
    assert keys.identify(b"Bearer mm-short", None) is short
    clock.time += 11
    with pytest.raises(Unauthorized, match="expired"):
        keys.identify(b"Bearer mm-short", None)
    keys.replace([Key("k1", "ada", digest("mm-good"), frozenset({Scope.INFER}), revoked_at=1.0)])
    with pytest.raises(Unauthorized, match="revoked"):
        keys.identify(b"Bearer mm-good", None)
    keys.replace([])
    with pytest.raises(Unauthorized, match="Nobody issued"):
        keys.identify(b"Bearer mm-good", None)


def test_open_to_all() -> None:
    """`auth.mode: none`: everybody is the anonymous administrator, whatever they send."""
    keys = Keyring(FakeClock(), open_to_all=True)
    assert keys.identify(None, None) is ANONYMOUS
    assert keys.identify(b"Bearer x", None) is ANONYMOUS


def test_scopes() -> None:
    """A key without the scope is refused by name; one that implies it is not."""
    require(GOOD, Scope.INFER)
    require(Key("k", "op", "", frozenset({Scope.ADMIN})), Scope.READ)
    with pytest.raises(Forbidden, match=r"`ada`.*`operate`"):
        require(GOOD, Scope.OPERATE)


@pytest.mark.parametrize(
    ("host", "origin", "good"),
    [
        (b"127.0.0.1:8000", None, True),
        (b"localhost:8000", None, True),
        (b"[::1]:8000", None, True),
        (b"192.168.1.5:8000", None, True),
        (None, None, True),
        (b"127.0.0.1:8000", b"http://127.0.0.1:8000", True),
        (b"127.0.0.1:8000", b"https://chat.example.org", True),
        (b"127.0.0.1:8000", b"https://evil.example.org", False),
        (b"127.0.0.1:8000", b"null", False),
        (b"evil.example.org:8000", b"http://evil.example.org:8000", False),
        (b"evil.example.org:8000", None, False),
    ],
)
def test_without_keys_other_pages_are_kept_out(host: bytes | None, origin: bytes | None, good: bool) -> None:
    """`auth.mode: none`: the person at this machine may do everything, the web pages in their browser may not."""
    keys = Keyring(FakeClock(), open_to_all=True, origins=[b"https://chat.example.org"])
    if good:
        assert keys.identify(None, None, host, origin) is ANONYMOUS
    else:
        with pytest.raises(Forbidden, match=r"auth\.mode"):
            keys.identify(None, None, host, origin)


def test_a_forced_open_server_answers_to_any_name() -> None:
    """`auth.force`: behind a reverse proxy with a name of its own."""
    assert Keyring(FakeClock(), open_to_all=True, any_host=True).identify(None, None, b"gpu.lan", None) is ANONYMOUS


def test_a_new_set_is_told() -> None:
    """Whoever else has the keys hears of each new set, as often as there is one."""
    key = Key("k", "k", digest("mm-x"), frozenset({Scope.INFER}))
    made = ring()
    told: list[tuple[Key, ...]] = []
    made.on_replace = lambda keys: told.append(tuple(keys))
    made.replace([key])
    made.replace([])
    assert told == [(key,), ()]


def test_keys_are_hashed_with_the_servers_secret() -> None:
    """The same secret is nobody's where the hash was made with another one."""
    peppered = replace(GOOD, digest=digest("mm-good", b"pepper"))
    keys = Keyring(FakeClock(), pepper=b"pepper")
    keys.replace([peppered])
    assert keys.identify(b"Bearer mm-good", None) is peppered
    with pytest.raises(Unauthorized):
        ring(peppered).identify(b"Bearer mm-good", None)


def test_what_is_found_is_compared_in_constant_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """The last word is a comparison of whole digests that takes as long whatever they are; without it nobody is let in."""
    monkeypatch.setattr(identity, "same", lambda _a, _b: False)
    with pytest.raises(Unauthorized):
        ring(GOOD).identify(b"Bearer mm-good", None)


def test_a_rotated_key_is_good_with_both_secrets_for_a_while() -> None:
    """Then with the new one only; the old one is looked at anew each time, so that it ends to the second."""
    clock = FakeClock()
    rotated = replace(GOOD, digest=digest("mm-new"), old_digest=digest("mm-good"), old_until=clock.wall() + 10)
    keys = ring(rotated, clock=clock)
    for _ in range(3):
        assert keys.identify(b"Bearer mm-good", None) is rotated
        assert keys.identify(None, b"mm-new") is rotated
    clock.time += 10
    with pytest.raises(Unauthorized, match="replaced by another secret"):
        keys.identify(b"Bearer mm-good", None)
    assert keys.identify(b"Bearer mm-new", None) is rotated


def test_an_old_digest_without_an_end_is_no_key() -> None:
    """Half a rotation lets nobody in."""
    with pytest.raises(Unauthorized):
        ring(replace(GOOD, digest="x", old_digest=digest("mm-good"))).identify(b"Bearer mm-good", None)


def test_a_key_by_its_secret_and_by_its_id() -> None:
    """For the sign-in, and for whom a session belongs to; the first only while it is good."""
    clock = FakeClock()
    keys = ring(GOOD, replace(GOOD, id="k2", digest=digest("mm-gone"), revoked_at=1.0), clock=clock)
    assert keys.of_secret("mm-good") is GOOD
    assert [k.id for k in keys.keys] == ["k1", "k2"]
    assert keys.get("k1") is GOOD
    assert keys.get("k3") is None
    for secret in ("mm-gone", "mm-nope", "", "\udcff"):
        with pytest.raises(Unauthorized):
            keys.of_secret(secret)
