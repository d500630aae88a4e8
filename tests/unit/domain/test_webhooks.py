"""What hooks want, what they get, and how it is signed."""

import hashlib
import hmac
import json
from typing import Any

import pytest

from vllm_mm.domain.events import Event
from vllm_mm.domain.webhooks import Delivery, Hook, Namer, body, final, headers, number, signature


def event(kind: str, model: str | None = "m", **data: Any) -> Event:
    return Event(7, 1.5, kind, model, "test", data)


def test_a_failure_and_the_end_of_it() -> None:
    """Once each: the pauses of one that fails again and again are no news, that it is given up is."""
    name = Namer()
    told = [
        name(event(f"instance.{state}"))
        for state in ("ready", "backoff", "starting", "backoff", "failed", "ready", "ready")
    ]
    assert told == [(), ("failed",), (), (), ("failed",), ("back",), ()]


def test_each_model_for_itself() -> None:
    """One that is ready is not back because another one had failed."""
    name = Namer()
    name(event("instance.failed", "a"))
    assert name(event("instance.ready", "b")) == ()
    assert name(event("instance.ready", "a")) == ("back",)


def test_who_failed_is_known_over_a_restart() -> None:
    """One that failed before is back when it is ready."""
    before = Namer()
    before(event("instance.failed", "b"))
    before(event("instance.failed", "a"))
    assert before.failing == ("a", "b")
    assert Namer(before.failing)(event("instance.ready", "b")) == ("back",)


def test_a_delivery_has_one_number() -> None:
    """Whenever it is made; another event or hook has another."""
    assert number("h", event("x")) == number("h", event("x", "other"))
    others = {
        number("h", event("x")),
        number("i", event("x")),
        number("h", Event(8, 1.5, "x", None, "", {})),
        number("h", Event(7, 2.5, "x", None, "", {})),
    }
    assert len(others) == 4


def test_devices_and_budgets() -> None:
    """They have events of their own."""
    name = Namer()
    assert [name(event(kind, None)) for kind in ("alert.device", "alert.device", "device.well", "key.over_budget", "x")] == [
        ("failed",), ("failed",), ("back",), ("over_budget",), (),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("wish", "found"),
    [
        ("failed", "failed"),
        ("back", None),
        ("instance.*", "instance.*"),
        ("instance.failed", "instance.failed"),
        ("swap.*", None),
    ],
)
def test_a_hook_wants_names_or_kinds(wish: str, found: str | None) -> None:
    """With `*` for anything in a kind; a name is no kind."""
    assert Hook("h", "http://x", (wish,)).wants(event("instance.failed"), ("failed",)) == found


def test_the_body_is_the_event_with_the_number_of_the_delivery() -> None:
    """As the events of the API have it."""
    assert json.loads(body("dlv_1", "failed", event("instance.failed", reason="größe"))) == {
        "id": "dlv_1", "event": "failed", "seq": 7, "at": 1.5, "kind": "instance.failed", "model": "m", "cause": "test",
        "data": {"reason": "größe"},
    }  # fmt: skip


def test_the_signature_is_that_of_the_page() -> None:
    """A receiver that does what docs/observability.md says finds the same."""
    expected = hmac.new(b"secret", b"1700000000." + b'{"a":1}', hashlib.sha256).hexdigest()
    assert signature("secret", 1700000000, b'{"a":1}') == f"sha256={expected}"
    assert signature("secret", 1700000001, b'{"a":1}') != f"sha256={expected}"


def test_headers() -> None:
    """Without a secret there is no signature."""
    made = Delivery("dlv_1", "h", "failed", 7, "{}", 1.0)
    signed = headers(made, "secret", 5)
    assert signed["X-VLLM-MM-Signature"] == signature("secret", 5, b"{}")
    assert (signed["X-VLLM-MM-Event"], signed["X-VLLM-MM-Delivery"], signed["X-VLLM-MM-Timestamp"]) == (
        "failed",
        "dlv_1",
        "5",
    )
    assert "X-VLLM-MM-Signature" not in headers(made, "", 5)


@pytest.mark.parametrize(
    ("status", "is_final"),
    [
        (301, True),
        (400, True),
        (404, True),
        (410, True),
        (408, False),
        (425, False),
        (429, False),
        (500, False),
        (503, False),
    ],
)
def test_which_refusals_are_final(status: int, is_final: bool) -> None:
    """A redirect too: what was signed for one address is not sent to another."""
    assert final(status) == is_final
