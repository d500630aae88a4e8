"""Streams of a busy model that has to go: what the tests of freezing share."""

import asyncio
import contextlib
import json
import re
from collections.abc import AsyncIterator

import httpx

from hard_cases import Case, running, sim

TOKENS = 400
BED = "12GiB"
"""Of the host's memory: room for one of them asleep (8 GiB each)."""
SPEED = 100
"""Tokens per second: four seconds for an answer."""
SWAP = {
    "max_wait": "300ms",
    "min_dwell": "0s",
    "quantum": "300ms",
    "drain_timeout": "200ms",
    "on_drain_timeout": "preempt",
}
COMMENT = re.compile(rb"^: [^\n]*\n\n", re.MULTILINE)


class Stream:
    """A stream of model `a` in the background."""

    def __init__(self, it: Case, *, progress: bool = True) -> None:
        self.body = b""
        self.clean: bool | None = None
        self._it = it
        self._headers = {"x-vllm-mm-progress": "1"} if progress else {}
        self.task = asyncio.create_task(self._read())

    async def _read(self) -> None:
        try:
            async with self._it.stream("a", tokens=TOKENS, headers=self._headers) as answer:
                async for chunk in answer.aiter_bytes():
                    self.body += chunk
        except httpx.RemoteProtocolError:
            self.clean = False
        else:
            self.clean = True

    @property
    def text(self) -> str:
        """Of all events; there is nothing else in the body but comments and the end."""
        *events, last = COMMENT.sub(b"", self.body).removesuffix(b"\n\n").split(b"\n\n")
        assert last == b"data: [DONE]"
        return "".join(json.loads(e.removeprefix(b"data: "))["choices"][0]["text"] for e in events)


@contextlib.asynccontextmanager
async def frozen(
    *, progress: bool = True, workers: int = 1, asleep: bool = False
) -> AsyncIterator[tuple[Case, Stream]]:
    """Two models, memory for one: `a` streams, and is frozen as soon as somebody asks for `b`. `asleep`: `b` sleeps meanwhile, and the host's
    memory has room for one of them."""
    models = {"a": sim(tokens_per_second=SPEED), "b": sim()}
    server = {"workers": workers}
    host = {"sleep_budget": BED if asleep else "60GiB"}
    async with running(models, memory="12GiB", swap=SWAP, host_memory=host, server=server) as it:
        if asleep:
            await it.ready("b")
            assert (await it.act("b", "sleep", wait=20)).json()["state"] == "sleeping"
        await it.ready("a")
        stream = Stream(it, progress=progress)
        await it.in_flight("a", 1)
        yield it, stream


async def put_aside(it: Case) -> None:
    """`a` is frozen: something else has its memory."""
    assert (await it.complete("b", wait=20)).status_code == 200
