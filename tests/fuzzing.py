"""What the fuzzing tests share: how many cases, and whether the server is as it was before."""

import os
from pathlib import Path
from typing import Any

import httpx
from hypothesis import HealthCheck, Phase, settings

from hard_cases import Case, until

CASES = int(os.environ.get("MM_FUZZ_CASES", "0"))
"""0: a few, always the same ones, as CI runs them. More: so many random ones in each test, for a long run by hand."""


def bounded(few: int) -> Any:
    """The settings of a fuzzing test: `few` cases that are the same each time, or `MM_FUZZ_CASES` that are not."""
    return settings(
        max_examples=CASES or few,
        derandomize=not CASES,
        database=None,
        deadline=None,
        phases=[Phase.generate] if not CASES else [Phase.generate, Phase.shrink],
        suppress_health_check=list(HealthCheck),
    )


def descriptors(pid: int) -> int:
    return sum(1 for _ in Path(f"/proc/{pid}/fd").iterdir())


async def tasks(case: Case) -> float:
    """Of the server's event loop."""
    text = (await case.client.get(f"{case.url}/metrics")).text
    return next(float(line.split()[1]) for line in text.splitlines() if line.startswith("vllm_mm_tasks "))


class Level:
    """What a server has open, before; and that it has no more afterwards."""

    def __init__(self, case: Case) -> None:
        self._case = case
        self._before = (0, 0.0)

    async def measure(self) -> None:
        """After the server has done each kind of thing once."""
        self._before = await self._now()

    async def _now(self) -> tuple[int, float]:
        count = await tasks(self._case)
        return descriptors(self._case.serving.pid), count

    async def holds(self, spare: int = 0) -> None:
        """Nothing more is open than before, and `spare` for idle connections to engines."""

        async def level() -> bool:
            status = (await self._case.client.get(f"{self._case.url}/api/status")).json()
            now = await self._now()
            return (
                status["in_flight"] == 0
                and status["queue"]["length"] == 0
                and now[0] <= self._before[0] + spare
                and now[1] <= self._before[1]
            )

        await until(level, lambda: f"no more to be open than {self._before}", 60.0)


def healthy(status: int, where: str, body: bytes = b"") -> None:
    """Whatever was asked, the server did not fail, nor its engine: no 500, 502, 504."""
    assert status in range(100, 500) or status in {501, 503, 505}, f"{status} for {where}: {body[:500]!r}"


def is_up(client: httpx.Client, url: str) -> None:
    assert client.get(f"{url}/health").status_code == 200
