"""Models that are to be kept ready and can never be: told once, not at each look."""

import asyncio
import json
from typing import Any

import pytest

from hard_cases import Case, running, sim, until


async def refusals(it: Case, model: str) -> list[str]:
    """What was said of each `swap.refused`."""
    await it.written()
    rows = it.serving.rows("select kind, model, cause, data from events order by seq")
    found = [
        (cause, json.loads(data)["code"])
        for kind, about, cause, data in rows
        if (kind, about) == ("swap.refused", model)
    ]
    assert {code for _, code in found} <= {"never"}
    return [cause for cause, _ in found]


@pytest.mark.parametrize(
    "kept", [{"pinned": True}, {"preload": True}, {"schedule": ["00:00-24:00"]}], ids=lambda k: next(iter(k))
)
async def test_a_model_that_can_never_fit_is_refused_once_until_the_reason_is_another(kept: dict[str, Any]) -> None:
    """Over several looks at what is to be kept ready there is one event; another reason is told, once too; who asks is
    answered each time."""
    big = sim(weights="30GiB", model=kept)
    async with running({"big": big, "small": sim()}, memory="24GiB") as it:

        async def told(count: int) -> list[str]:
            """Once there are so many, and three more looks have added none."""

            async def there() -> bool:
                return len(await refusals(it, "big")) >= count

            await until(there, f"{count} refusals")
            await asyncio.sleep(6.5)
            found = await refusals(it, "big")
            assert len(found) == count, found
            return found

        (first,) = await told(1)
        assert "needs 32.0 GiB" in first
        assert "more than there can ever be" in first
        it.rewrite(models={"big": sim(weights="40GiB", model=kept), "small": sim()})
        await it.reload()
        if "preload" in kept:  # that is about the start of the server alone
            assert await told(1) == [first]
        else:
            _, second = await told(2)
            assert "needs 42.0 GiB" in second
        before = len(await refusals(it, "big"))
        for n in (1, 2):
            answer = await it.act("big", "start", wait=10)
            assert answer.status_code == 409
            assert "more than there can ever be" in answer.json()["error"]["message"]
            assert len(await refusals(it, "big")) == before + n
