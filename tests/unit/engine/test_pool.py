"""What is guaranteed of the pool's decisions: who shares a zygote, when one is given up, and when it goes. Forked processes
are in tests/process."""

import asyncio
import socket
import struct
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from fakes import FakeClock
from vllm_mm.engine.launchers import forker, pool, zygote
from vllm_mm.engine.launchers.forker import Unfit, ZygoteError, ZygoteReport
from vllm_mm.engine.launchers.pool import ZygotePool
from vllm_mm.engine.launchers.recipe import Needs, Recipe, Warmth

A = Recipe("/py", "vllm", "m:main", ("m",), (("X", "1"),), "stamp")
B = replace(A, env=(("X", "2"),))
LLAMA, QWEN = Needs(("Llama",), ("llama",)), Needs(("Qwen",), ("qwen",))


def warmth(recipe: Recipe = A, needs: Needs = LLAMA) -> Warmth:
    return Warmth(recipe, ("vllm",), None, needs)


@dataclass
class Script:
    """What the zygotes of a test do."""

    prepare: list[Exception | asyncio.Event | None] = field(default_factory=list)
    """One for each zygote; None for those that follow."""
    learn: dict[Needs, Exception] = field(default_factory=dict)
    fork: list[Exception | None] = field(default_factory=list)
    made: list["FakeForker"] = field(default_factory=list)


class FakeForker:
    """A zygote without a process."""

    script: Script

    def __init__(
        self, recipe: Recipe, clock: FakeClock, *, on_end: Callable[["FakeForker"], object], **_: float
    ) -> None:
        self.recipe = recipe
        self.report = ZygoteReport()
        self.forks = 0
        self.used = clock.now()
        self.ready = False
        self.ended = ""
        self.busy = False
        self.pid: int | None = None
        self.killed = 0
        self.learned: set[Needs] = set()
        self.on_end = on_end
        self.script.made.append(self)

    def spawn(self, owner: str, log: Path, tmp: Path) -> None:
        self.pid = 1000 + len(self.script.made)

    async def prepare(self) -> None:
        step = self.script.prepare.pop(0) if self.script.prepare else None
        if isinstance(step, asyncio.Event):
            await step.wait()
        elif step is not None:
            raise step
        self.ready = True

    async def learn(self, needs: Needs) -> None:
        if needs in self.script.learn:
            raise self.script.learn[needs]
        self.learned.add(needs)

    async def status(self) -> None:
        if self.ended:
            raise ZygoteError(self.ended)

    async def fork(self, warmth: Warmth, env: dict[str, str], log: int) -> tuple[int, int]:
        step = self.script.fork.pop(0) if self.script.fork else None
        if step is not None:
            raise step
        self.forks += 1
        return self.forks, -1

    def end(self) -> asyncio.Task[None]:
        async def gone() -> None:
            self.killed += 1

        return asyncio.get_running_loop().create_task(gone())


@dataclass
class Bench:
    pool: ZygotePool
    clock: FakeClock
    script: Script
    told: list[tuple[str, dict[str, Any]]]

    async def fork(self, recipe: Recipe = A, needs: Needs = LLAMA) -> tuple[int, int]:
        return await self.pool.fork(warmth(recipe, needs), {}, 0)

    def kinds(self) -> list[str]:
        return [kind.removeprefix("zygote.") for kind, _ in self.told]


@pytest.fixture
async def bench(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> AsyncIterator[Bench]:
    clock, script, told = FakeClock(), Script(), list[tuple[str, dict[str, Any]]]()
    monkeypatch.setattr(FakeForker, "script", script, raising=False)
    monkeypatch.setattr(pool, "Forker", FakeForker)
    made = ZygotePool(
        "o", clock, logs=tmp_path, tmp=tmp_path, idle_after=600, tell=lambda kind, data: told.append((kind, data))
    )
    yield Bench(made, clock, script, told)
    await made.close()
    assert all(z.killed == 1 for z in script.made), "each is ended, once"


async def test_one_zygote_for_all_who_wait(bench: Bench) -> None:
    """Starts at the same time share the making; the making goes on when one of them gives up."""
    gate = asyncio.Event()
    bench.script.prepare = [gate]
    tasks = [asyncio.create_task(bench.fork()) for _ in range(3)]
    await bench.clock.settle()
    assert [view.state for view in bench.pool.views()] == ["importing"]
    tasks[0].cancel()
    gate.set()
    assert [t[0] for t in await asyncio.gather(*tasks[1:])] == [1, 2]
    assert tasks[0].cancelled()
    assert (len(bench.script.made), bench.pool.views()[0].state) == (1, "ready")
    assert await bench.fork(B) == (1, -1)
    assert len(bench.script.made) == 2


async def test_three_failures_without_an_engine_are_the_end(bench: Bench) -> None:
    """The reason is kept, and no further process is made."""
    bench.script.prepare = [ZygoteError(f"no {n}") for n in (1, 2, 3)]
    for number in (1, 2, 3):
        with pytest.raises(ZygoteError, match=f"no {number}"):
            await bench.fork()
    with pytest.raises(ZygoteError, match=r"its zygote failed 3 times: no 3 \(its log is .*zygote-"):
        await bench.fork()
    assert len(bench.script.made) == 3
    (view,) = bench.pool.views()
    assert (view.state, view.key) == ("failed", A.key)
    assert bench.kinds() == ["started", "died"] * 3


async def test_a_zygote_that_is_ready_but_never_forks_is_given_up_too(bench: Bench) -> None:
    """Being ready is no success; an engine is."""
    bench.script.fork = [
        ZygoteError("no"),
        ZygoteError("no"),
        None,
        ZygoteError("no"),
        ZygoteError("no"),
        ZygoteError("no"),
    ]
    outcomes: list[bool] = []
    for _ in range(7):
        try:
            await bench.fork()
            outcomes.append(True)
        except ZygoteError:
            outcomes.append(False)
    assert outcomes == [False, False, True, False, False, False, False]
    assert bench.script.fork == []
    assert bench.pool.refusal(A).startswith("its zygote failed 3 times: no")
    assert bench.pool.refusal(B) == ""


async def test_a_death_is_counted_once(bench: Bench) -> None:
    """Whoever of those who use it notices first."""
    await bench.fork()
    zygote_ = bench.script.made[0]
    zygote_.ended = "it was killed by signal 9"
    bench.script.fork = [ZygoteError("it ended during the fork")]
    with pytest.raises(ZygoteError):
        await bench.fork()
    zygote_.on_end(zygote_)
    await bench.pool.tidy()
    assert bench.kinds() == ["started", "ready", "died"]
    assert bench.pool.refusal(A) == ""


async def test_imports_that_spoil_a_zygote_are_not_tried_again(bench: Bench) -> None:
    """Only for the models that need them: the others get another zygote, which stays."""
    bench.script.learn = {QWEN: Unfit("2 Python threads run in it")}
    await bench.fork()
    with pytest.raises(ZygoteError, match="2 Python threads"):
        await bench.fork(needs=QWEN)
    await bench.fork()
    for _ in range(5):
        with pytest.raises(ZygoteError, match="what the model imports does not go with forking: 2 Python threads"):
            await bench.fork(needs=QWEN)
    await bench.fork()
    assert len(bench.script.made) == 2
    assert bench.kinds() == ["started", "ready", "retired", "started", "ready"]


async def test_a_change_of_what_is_installed_makes_everything_new(bench: Bench) -> None:
    """The old zygote goes, what failed with it is forgotten; those of other environments stay."""
    bench.script.prepare = [None, None, *[ZygoteError("no")] * 3]
    await bench.fork(A)
    await bench.fork(B)
    broken = replace(A, env=())
    for _ in range(3):
        with pytest.raises(ZygoteError):
            await bench.fork(broken)
    bench.pool.outdated(replace(A, stamp="new"))
    assert [view.key for view in bench.pool.views() if view.state == "ready"] == [B.key]
    assert bench.pool.refusal(broken)
    bench.pool.outdated(replace(broken, stamp="new"))
    assert not bench.pool.refusal(broken)
    bench.pool.outdated(B)
    assert [view.key for view in bench.pool.views()] == [B.key]


async def test_who_is_idle_goes_and_who_is_used_stays(bench: Bench) -> None:
    """After `idle_after`; one that is in the middle of something is not idle."""
    await bench.fork(A)
    await bench.fork(B)
    a, b = bench.script.made
    b.busy = True
    await bench.clock.advance(599)
    assert len(bench.pool.views()) == 2
    await bench.clock.advance(151)
    assert [view.key for view in bench.pool.views()] == [B.key]
    b.busy = False
    await bench.fork(B)
    await bench.clock.advance(500)
    assert (a.killed, b.killed) == (1, 0)
    await bench.clock.advance(300)
    assert bench.pool.views() == ()
    assert [data["reason"][:8] for kind, data in bench.told if kind == "zygote.retired"] == ["idle for"] * 2


async def test_room_is_made_by_who_was_idle_longest(bench: Bench) -> None:
    """Never by one that is busy."""
    recipes = [replace(A, env=(("N", str(n)),)) for n in range(5)]
    for recipe in recipes[:4]:
        await bench.fork(recipe)
        await bench.clock.advance(1)
    bench.script.made[0].busy = True
    await bench.fork(recipes[4])
    assert [z.killed for z in bench.script.made] == [0, 1, 0, 0, 0]


async def test_nothing_is_made_after_the_end(bench: Bench) -> None:
    """A start that waits for a zygote when the server ends is told; so is one that comes later."""
    bench.script.prepare = [asyncio.Event()]
    task = asyncio.create_task(bench.fork())
    await bench.clock.settle()
    await bench.pool.close()
    with pytest.raises(ZygoteError, match="the server is ending"):
        await task
    with pytest.raises(ZygoteError, match="the server is ending"):
        await bench.fork()


# The stream from a zygote.


async def test_frames_are_read_whole_however_they_come() -> None:
    """Byte by byte; several at once; the end is None, in the middle of a frame too."""
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    with ours, theirs:
        reading = asyncio.create_task(forker._receive(ours, []))
        for byte in zygote.frame({"text": "ü" * 50}):
            theirs.send(bytes([byte]))
            await asyncio.sleep(0)
        assert await reading == {"text": "ü" * 50}
        theirs.send(zygote.frame({"n": 1}) + zygote.frame({"n": 2}) + zygote.frame({"n": 3})[:-1])
        theirs.close()
        assert [await forker._receive(ours, []) for _ in range(3)] == [{"n": 1}, {"n": 2}, None]


@pytest.mark.parametrize("data", [struct.pack("!I", 1 << 31), struct.pack("!I", 3) + b"{x}"], ids=["size", "content"])
async def test_nonsense_is_an_error(data: bytes) -> None:
    """What is written over the socket by accident does not take memory, and does not pass."""
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    with ours, theirs:
        theirs.send(data)
        with pytest.raises(ValueError, match=r"bytes|property name"):
            await forker._receive(ours, [])


async def test_a_large_request_is_sent_whole() -> None:
    """Larger than the socket's buffer, while the other side reads slowly."""
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    with ours, theirs:
        message = {"env": {"A": "x" * 3_000_000}}
        sending = asyncio.create_task(forker._send(ours, message, (0,)))
        found, fds = await asyncio.to_thread(zygote.read_frame, theirs, 10)
        await sending
        assert found == message
        assert len(fds) == 1
        for fd in fds:
            socket.close(fd)
