"""What the gateway tells of a request to whoever makes traces. Nobody does unless the configuration says so."""

from typing import TYPE_CHECKING, Protocol

from vllm_mm.gateway.ports import Headers

if TYPE_CHECKING:
    from vllm_mm.domain.usage import RequestRecord
    from vllm_mm.gateway.relay import Relay


class Traces(Protocol):
    """Neither call waits, and neither raises."""

    def sent(self, relay: "Relay", headers: Headers) -> Headers:
        """It is about to be sent to its engine, perhaps once more: the headers that go with it, with the context of its trace."""
        ...

    def done(self, relay: "Relay", row: "RequestRecord") -> None:
        """It is over."""
        ...
