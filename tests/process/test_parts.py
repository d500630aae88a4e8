"""Which processes below a leader an engine cannot do without, and that the end of one of them is seen at once."""

import asyncio
import os
import signal
from pathlib import Path

import pytest

from rig import Rig, until
from vllm_mm.engine.ports import ExitStatus, Loss
from vllm_mm.engine.process import LocalProcess

TITLES = """
from setproctitle import setproctitle

def titled(title, act):
    def run():
        setproctitle(title)
        act()
    return fork(run)

def idle(name):
    note(name, os.getpid())
    forever()

"""
CORE = TITLES + "titled('VLLM::EngineCore', lambda: idle('core'))\nnote('up', os.getpid())\n"


async def loss(process: LocalProcess, seconds: float = 2.0) -> Loss:
    async with asyncio.timeout(seconds):
        return await process.lost()


async def no_loss(process: LocalProcess) -> None:
    """For longer than a look and the callbacks of its pidfds take."""
    await process.take_stock()
    with pytest.raises(TimeoutError):
        await loss(process, 0.3)


@pytest.mark.parametrize("title", ["VLLM::EngineCore", "VLLM::EngineCore_DP1", "VLLM::Worker", "mine::Worker_TP0_EP0"])
async def test_parts_by_their_titles(rig: Rig, title: str) -> None:
    """Killed, a part is told with its title, pid and signal at once, though its parent lives and does not notice."""
    process = await rig.start(TITLES + f"titled({title!r}, lambda: idle('part'))\nforever()")
    part = await rig.note("part")
    await process.take_stock()
    os.kill(part, signal.SIGKILL)
    assert await loss(process, 0.5) == Loss(part, title, ExitStatus(None, signal.SIGKILL))


async def test_the_exit_code_of_a_part_is_known_while_nobody_has_asked_for_it(rig: Rig) -> None:
    """A zombie tells how it ended."""
    script = "titled('VLLM::EngineCore', lambda: (note('part', os.getpid()), time.sleep(0.4), os._exit(3)))\nforever()"
    process = await rig.start(TITLES + script)
    await rig.note("part")
    await process.take_stock()
    assert (await loss(process)).status == ExitStatus(3)


@pytest.mark.parametrize(
    "script",
    [
        "fork(lambda: idle('other'))",
        "titled('VLLM::APIServer_0', lambda: idle('other'))",
        "titled('not VLLM::Worker', lambda: idle('other'))",
        "titled('VLLM::Workers', lambda: idle('other'))",
        "titled('VLLM::Worker', lambda: (fork(lambda: idle('other')), idle('part')))",
    ],
    ids=["untitled", "api-server", "text-before", "text-behind", "fork-of-a-part"],
)
async def test_helpers_come_and_go(rig: Rig, script: str) -> None:
    """The end of a process that only looks like a part, or of a fork that a part made for an errand, is no loss."""
    process = await rig.start(TITLES + script + "\nforever()")
    other = await rig.note("other")
    await process.take_stock()
    os.kill(other, signal.SIGKILL)
    await no_loss(process)


async def test_a_child_that_names_itself_later_is_found_by_the_next_look(rig: Rig) -> None:
    """Looks come by themselves, once a second."""
    process = await rig.start(
        TITLES
        + "fork(lambda: (note('early', os.getpid()), time.sleep(0.3), setproctitle('VLLM::Worker'), idle('named')))\n"
        "forever()"
    )
    early = await rig.note("early")
    await process.take_stock()
    assert await rig.note("named") == early
    until_looked = asyncio.get_running_loop().time() + 1.2
    await until(lambda: asyncio.get_running_loop().time() > until_looked, "a look of its own accord")
    os.kill(early, signal.SIGKILL)
    assert (await loss(process, 0.5)).name == "VLLM::Worker"


async def test_the_end_of_a_part_in_a_stop_is_no_loss(rig: Rig) -> None:
    """From the moment of the stop on, also when the leader takes its time."""
    process = await rig.start(CORE + "signal.signal(signal.SIGTERM, signal.SIG_IGN)\nnote('deaf', 1)\nforever()")
    core = await rig.note("core")
    await rig.note("deaf")
    await process.take_stock()
    stop = asyncio.create_task(process.stop(graceful=True, grace=0.4, deadline=5))
    await asyncio.sleep(0)
    os.kill(core, signal.SIGKILL)
    with pytest.raises(TimeoutError):
        await loss(process, 0.2)
    assert not (await stop).survivors


async def test_no_descriptor_is_left_of_a_watched_tree(rig: Rig) -> None:
    """One pidfd for each part, and none after the stop."""
    before = len(list(Path("/proc/self/fd").iterdir()))
    process = await rig.start(CORE + "titled('VLLM::Worker', lambda: idle('worker'))\nforever()")
    await rig.note("core")
    await rig.note("worker")
    await process.take_stock()
    await process.take_stock()
    assert len(list(Path("/proc/self/fd").iterdir())) == before + 4  # the log, the leader and two parts
    await process.stop(graceful=False, grace=0, deadline=5)
    assert len(list(Path("/proc/self/fd").iterdir())) == before
