"""The data plane alone, for profiling: the product's gateway and protocol over one fixed engine address, with the key
check, request ids and rows, but without a manager, a database or metrics.

    python serve_static.py PORT UNIX_SOCKET [protocol|asgi]
"""

import asyncio
import contextlib
import sys
from collections.abc import AsyncIterator
from typing import Any

import uvicorn
import uvloop

from vllm_mm.api.openai import OpenAIApp
from vllm_mm.api.problems import explain
from vllm_mm.api.protocol import hot_protocol
from vllm_mm.clock import RealClock
from vllm_mm.domain.catalog import Catalog
from vllm_mm.domain.keys import Key, Scope, digest
from vllm_mm.domain.scheduling import Ticket
from vllm_mm.domain.specs import ModelSpec
from vllm_mm.engine.lease import Lease, LeaseGate
from vllm_mm.engine.ports import Address
from vllm_mm.engine.wire import InferenceChannel
from vllm_mm.gateway.forward import Gateway
from vllm_mm.gateway.identity import Keyring
from vllm_mm.gateway.memory import settle


class OneEngine:
    """The real lease and gate, always open."""

    def __init__(self, address: Address, clock: RealClock) -> None:
        self.catalog = Catalog([ModelSpec(id="m1")])
        self._clock = clock
        self._gate = LeaseGate("m1", "m1", 2048, lambda: None)
        self._gate.open(InferenceChannel(address, limit=2048), 1, clock.now())

    def lease(self, ticket: Ticket) -> "_Leasing":
        return _Leasing(self._gate, ticket, self._clock)

    def wait_info(self, ticket: Ticket) -> Any:
        raise LookupError(ticket)

    def describe(self, model: str) -> Any:
        raise LookupError(model)


class _Leasing:
    __slots__ = ("_clock", "_gate", "_lease", "_ticket")

    def __init__(self, gate: LeaseGate, ticket: Ticket, clock: RealClock) -> None:
        self._gate = gate
        self._ticket = ticket
        self._clock = clock

    async def __aenter__(self) -> Lease:
        lease = self._gate.try_acquire(self._ticket, self._clock.now())
        assert lease is not None
        self._lease = lease
        return lease

    async def __aexit__(self, *_: object) -> None:
        self._gate.release(self._lease, self._clock.now())


@contextlib.asynccontextmanager
async def _drained(rows: list[Any]) -> AsyncIterator[None]:
    async def drain() -> None:
        while True:
            await asyncio.sleep(0.2)
            rows.clear()

    task = asyncio.create_task(drain())
    yield
    task.cancel()


async def main(port: int, path: str, form: str) -> None:
    clock = RealClock()
    keys = Keyring(clock)
    keys.replace([Key("k", "bench", digest("mm-bench"), frozenset({Scope.INFER}))])
    rows: list[Any] = []
    gateway = Gateway(OneEngine(Address(socket=path), clock), keys, rows.append, explain, clock)
    app = OpenAIApp(gateway)
    config = uvicorn.Config(
        app, http="httptools" if form == "asgi" else hot_protocol(gateway), port=port, lifespan="off", access_log=False,
        log_level="warning", server_header=False, ws="none",
    )  # fmt: skip
    settle()
    async with _drained(rows):
        await uvicorn.Server(config).serve()


if __name__ == "__main__":
    uvloop.run(main(int(sys.argv[1]), sys.argv[2], sys.argv[3] if len(sys.argv) > 3 else "protocol"))
