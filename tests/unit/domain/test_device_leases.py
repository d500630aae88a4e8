"""The life of a lease on device memory."""

from vllm_mm.domain.device_leases import PATIENCE, DeviceLease, Evicted, Stage

ASKED = DeviceLease("1", "gpu0", 10, 60.0, "a game", "operator ada", asked_at=100.0)


def test_it_is_held_for_its_time_from_the_moment_at_which_the_room_is_there() -> None:
    """And not from when it was asked for."""
    assert (ASKED.name, ASKED.ends_at, ASKED.due(100.0)) == ("lease:1", None, "")
    held = ASKED.waits("room: b is loading").holds(150.0, 7)
    assert (held.stage, held.reason, held.foreign, held.ends_at) == (Stage.HELD, "", 7, 210.0)
    assert (held.due(209.9), held.due(210.0)) == ("", "its time is over")
    ended = held.ends(205.0, "ended by ada")
    assert (ended.stage, ended.ended_at, ended.due(1e9)) == (Stage.ENDED, 205.0, "")


def test_it_waits_for_its_room_no_longer_than_patience_lasts() -> None:
    """The reason says what was in the way."""
    assert ASKED.due(100.0 + PATIENCE - 1) == ""
    assert ASKED.waits("b is loading").due(100.0 + PATIENCE) == "there was no room for it in 600 s: b is loading"
    assert ASKED.due(100.0 + PATIENCE).endswith("nobody looked")


def test_who_was_wanted_comes_back_the_dearest_first() -> None:
    """Sleepers that nobody used do not."""
    lease = ASKED.evicts((Evicted("asleep", wanted=False), Evicted("cheap", wanted=True)))
    lease = lease.evicts((Evicted("dear", wanted=True),))
    assert lease.to_restore == ("dear", "cheap")
    assert lease.reason == "waits until the memory is free"
