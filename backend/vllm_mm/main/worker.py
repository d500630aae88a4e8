"""A worker process: accepts connections and moves bytes, with leases that the controller lends. Started by `main.workers` alone."""

import argparse
import asyncio
import contextlib
import ctypes
import logging
import os
import pickle
import signal
import socket
import sys
from collections.abc import Callable, Generator, Iterable
from typing import Final

import uvicorn
import uvloop

from vllm_mm import __version__
from vllm_mm.api.handing import HandingOver, misdirected, worker_protocol
from vllm_mm.api.problems import explain
from vllm_mm.clock import RealClock
from vllm_mm.domain.keys import Key
from vllm_mm.domain.running import Listing
from vllm_mm.engine.lending import messages as say
from vllm_mm.engine.lending.borrower import Borrower
from vllm_mm.engine.lending.link import Link
from vllm_mm.gateway.abilities import Abilities
from vllm_mm.gateway.capture_book import CaptureBook
from vllm_mm.gateway.forward import Gateway
from vllm_mm.gateway.identity import Keyring
from vllm_mm.gateway.memory import settle
from vllm_mm.gateway.underway import under_way
from vllm_mm.main.accepting import Acceptor, Counts, make_protocol
from vllm_mm.main.logs import log_to_stderr
from vllm_mm.main.setup import Setup
from vllm_mm.main.traces import Tracer, provider_of
from vllm_mm.store.routes import MissingRoute

log = logging.getLogger(__name__)

_PR_SET_PDEATHSIG: Final = 1
PARTING: Final = 5.0
"""Seconds for the last rows to reach the controller."""


class Worker:
    """Made of what the controller sends."""

    def __init__(self, given: argparse.Namespace) -> None:
        self._given = given
        self._loop = asyncio.get_running_loop()
        self._clock = RealClock()
        self._listener = socket.socket(fileno=given.listener)
        self._link = Link[say.Down](say.Down, self._heard, self._silent)
        self._borrower = Borrower(self._link, self._clock, self)
        self._hand = HandingOver(socket.socket(fileno=given.hand))
        self._counts = Counts(given.counts, given.workers)
        self._keyring: Keyring | None = None
        self._captures: CaptureBook | None = None
        self._tracer: Tracer | None = None
        self._abilities = Abilities()
        self._server: _Server | None = None
        self._gateway: Gateway | None = None
        self._over = self._loop.create_future()
        self._closed = False

    async def run(self) -> None:
        """Until the controller says that it is over, or is gone."""
        await self._loop.create_unix_connection(lambda: self._link, sock=socket.socket(fileno=self._given.link))
        self._link.send(say.Hello(say.VERSION, self._given.number))
        await self._over
        self._borrower.flush()
        if self._captures is not None:
            await self._captures.close()
        if self._tracer is not None:
            await asyncio.to_thread(self._tracer.close)
        self._closed = True
        self._link.close()
        await asyncio.sleep(PARTING)  # ends earlier, by `_silent`

    # What the controller says

    def _heard(self, message: say.Down) -> None:
        if isinstance(message, say.Setup):
            # From the controller, whose child this process is.
            self._build(pickle.loads(message.content))  # noqa: S301
        elif isinstance(message, say.End):
            if self._server is not None:  # else it was not even made yet, for `Setup` comes first
                self._server.end()
        else:
            self._borrower.obey(message)

    def _silent(self, fault: str) -> None:
        """Without the controller nothing can be granted, counted or obeyed: its successor needs the port, and has its own workers."""
        if not self._closed:
            log.error("the controller is gone%s; this worker ends", f" ({fault})" if fault else "")
        os._exit(0 if self._closed else 1)

    def keys(self, keys: Iterable[Key]) -> None:
        if self._keyring is not None:
            self._keyring.replace(keys)

    def learned(self, fingerprint: str, route: str, generation: int) -> None:
        self._abilities.taught(MissingRoute(fingerprint, route, generation))

    def cancel(self, request: str, cause: str) -> bool:
        return self._gateway is not None and self._gateway.cancel(request, cause)

    def listing(self, most: int) -> Listing:
        return Listing([], 0) if self._gateway is None else under_way(self._gateway, most)

    # What it is made of

    def _build(self, setup: Setup) -> None:
        log_to_stderr(setup.log_level, setup.log_form, f"worker-{self._given.number + 1} ")
        self._keyring = Keyring(
            self._clock, open_to_all=setup.open_to_all, any_host=setup.any_host, origins=setup.rules.origins,
            pepper=setup.pepper,
        )  # fmt: skip
        self._abilities = Abilities(
            setup.missing, lambda row: self._borrower.learn(row.fingerprint, row.route, row.generation)
        )
        self._captures = CaptureBook(setup.captures, setup.captured, self._clock)
        self._gateway = gateway = Gateway(
            self._borrower, self._keyring, self._borrower.record, explain, self._clock, setup.rules, self._abilities,
            self._captures.start(), self._borrower.limits,
        )  # fmt: skip
        if (provider := provider_of(setup.traces, __version__)) is not None:
            gateway.traces = self._tracer = Tracer(provider, self._clock)
        config = uvicorn.Config(
            misdirected,
            http=worker_protocol(gateway, self._hand.hand, self._lost),
            ws="none",
            lifespan="off",
            access_log=False,
            log_config=None,
            log_level="warning",
            server_header=False,
            timeout_keep_alive=int(setup.keep_alive),
            timeout_graceful_shutdown=int(setup.grace) + 5,
        )
        self._server = _Server(config, self._listener, self._counts, self._given.number, self._serves)
        serving = self._loop.create_task(self._server.serve())
        serving.add_done_callback(self._served)

    def _served(self, serving: asyncio.Task[None]) -> None:
        if not serving.cancelled() and serving.exception() is not None:
            log.error("this worker cannot serve", exc_info=serving.exception())
        if not self._over.done():
            self._over.set_result(None)

    def _serves(self) -> None:
        settle()
        self._link.send(say.Serves())

    def _lost(self) -> None:
        if self._server is not None and self._server.acceptor is not None:
            self._server.acceptor.tell()


class _Server(uvicorn.Server):
    """Accepts by an `Acceptor`, and leaves signals alone."""

    def __init__(
        self, config: uvicorn.Config, listener: socket.socket, counts: Counts, number: int, serves: Callable[[], None]
    ) -> None:
        super().__init__(config)
        self._listener = listener
        self._counts = counts
        self._number = number
        self._serves = serves
        self._accepted: set[asyncio.Task[None]] = set()
        self.acceptor: Acceptor | None = None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:  # noqa: ARG002  # uvicorn's signature
        await super().startup([])
        self.acceptor = Acceptor(
            self._listener, self._counts, self._number, self._take, lambda: len(self.server_state.connections)
        )
        self.acceptor.start()
        self._serves()

    def end(self) -> None:
        """Accept no more, finish what runs."""
        if self.acceptor is not None:
            self.acceptor.stop()
        self.should_exit = True

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self.end()  # it may have begun to accept after it was told to end
        await super().shutdown(sockets)

    def _take(self, connection: socket.socket) -> None:
        if connection.family in {socket.AF_INET, socket.AF_INET6}:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        task = asyncio.get_running_loop().create_task(self._speak(connection))
        self._accepted.add(task)
        task.add_done_callback(self._accepted.discard)

    async def _speak(self, connection: socket.socket) -> None:
        with contextlib.suppress(OSError):  # it may be over already
            await asyncio.get_running_loop().connect_accepted_socket(self._protocol, connection)

    def _protocol(self) -> asyncio.Protocol:
        return make_protocol(self)

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None]:
        yield


def main(argv: list[str]) -> None:
    """Never returns normally: a worker ends with its link."""
    parser = argparse.ArgumentParser()
    for name in ("--number", "--workers", "--link", "--hand", "--listener", "--counts"):
        parser.add_argument(name, type=int, required=True)
    # What ends the controller ends a worker in its turn; a service manager and a terminal signal all processes at once.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, signal.SIG_IGN)
    with contextlib.suppress(OSError, AttributeError):
        # Should it hang when the controller dies: it holds the port.
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    given = parser.parse_args(argv)
    uvloop.run(_run(given))


async def _run(given: argparse.Namespace) -> None:
    await Worker(given).run()


if __name__ == "__main__":
    main(sys.argv[1:])
