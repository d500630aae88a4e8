"""Guessing at the sign-in is slowed down, and takes no memory."""

from vllm_mm.domain.tries import ALL, WINDOW, Tries


def test_one_address_may_try_so_often() -> None:
    """Then it waits until its oldest try is a minute old; others do not wait for it."""
    tries = Tries(2)
    for at in (0.0, 10.0):
        assert tries.wait("a", at) is None
        tries.failed("a", at)
    assert tries.wait("a", 20.0) == 40.0
    assert tries.wait("b", 20.0) is None
    assert tries.wait("a", WINDOW) is None
    tries.failed("a", WINDOW)
    assert tries.wait("a", WINDOW) == 10.0


def test_many_addresses_together_may_not_try_much_more() -> None:
    """Whoever has many addresses is slowed down too, and what is remembered has an end."""
    tries = Tries(1)
    for n in range(ALL):
        assert tries.wait(f"a{n}", float(n)) is None
        tries.failed(f"a{n}", float(n))
    assert tries.wait("new", 30.0) == 30.0
    assert len(tries._failed) == ALL
    assert tries.wait("new", WINDOW) is None
