"""Events of the Responses API that are kept, so that a client can take up a stream again."""

import asyncio

from vllm_mm.sim.web import Writer


class StoredEvents:
    """The events of one response that is made in the background."""

    def __init__(self) -> None:
        self._events: list[bytes] = []
        self._more = asyncio.Event()

    def add(self, event: bytes) -> None:
        self._events.append(event)
        self._more.set()

    async def replay(self, first: int, writer: Writer) -> None:
        """Those from number `first` on, until the response is complete. That of a cancelled one never is, and so this does not
        end by itself, as in vLLM."""
        while True:
            self._more.clear()
            while first < len(self._events):
                event = self._events[first]
                writer.write(event)
                if event.startswith(b"event: response.completed"):
                    writer.end()
                    return
                first += 1
            await self._more.wait()
