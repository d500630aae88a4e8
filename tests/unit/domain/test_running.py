"""Lists of what is under way in several processes become one."""

from vllm_mm.domain.running import Listing, Running, Stage, together


def running(name: str, at: float) -> Running:
    return Running(
        id=name, request_id=name, at=at, route="chat", model="m", asked="m", key="k", stream=True, stage=Stage.ANSWERS,
        queued_s=0.0, load_s=0.0, ttft_s=0.1, total_s=1.0, frozen_s=0.0, frozen=False, bytes_in=1, bytes_out=1,
        generation=1, retried=False, ending=False,
    )  # fmt: skip


def test_the_oldest_of_all_processes_come_first() -> None:
    """No more than were asked for; how many there are in all is told."""
    one = Listing([running("a", 1.0), running("c", 3.0)], 7)
    two = Listing([running("b", 2.0), running("d", 4.0)], 2)
    found = together([one, Listing([], 0), two], 3)
    assert [row.id for row in found.requests] == ["a", "b", "c"]
    assert found.total == 9
