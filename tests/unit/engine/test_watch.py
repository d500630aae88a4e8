"""An engine that is suspected has to make a token at once, however long it may usually be silent."""

import asyncio

from fakes import FakeClock
from vllm_mm.domain.errors import Conflict
from vllm_mm.domain.specs import ModelSpec, Task
from vllm_mm.engine.watch import Checks


class Control:
    """Healthy; makes tokens or not."""

    def __init__(self) -> None:
        self.good = True
        self.probes = 0

    async def healthy(self) -> bool:
        return True

    async def metrics(self) -> str:
        return ""  # it tells nothing of its work

    async def probe(self, name: str, task: Task) -> str:
        self.probes += 1
        if not self.good:
            raise Conflict("no token came")
        return "x"


async def test_a_suspected_engine_is_probed() -> None:
    """Once for each suspicion; one that makes its token goes on, one that does not is of no use, and the reason says why it was asked."""
    clock, control, suspicions = FakeClock(), Control(), 7
    checks = Checks(control, ModelSpec("m"), "m", clock)  # type: ignore[arg-type]  # a part of it
    watching = asyncio.create_task(
        checks.until_useless(5.0, 3600.0, reads=lambda: 1, count=lambda: 2, suspicions=lambda: suspicions)
    )
    await clock.advance(20.0)
    assert control.probes == 0, "what was suspected before is another launch's"
    suspicions = 8
    await clock.advance(20.0)
    assert (control.probes, watching.done()) == (1, False)
    control.good, suspicions = False, 9
    await clock.advance(6.0)
    assert await watching == "a stream of it was given up, for nothing came, and a probe failed: no token came"
    assert control.probes == 2
