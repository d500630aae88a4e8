"""What the gateway tells of a request to whoever makes traces. Nobody does unless the configuration says so."""

from typing import TYPE_CHECKING, Protocol, TypeAlias

from vllm_mm.gateway.ports import Headers

if TYPE_CHECKING:
    from vllm_mm.domain.usage import RequestRecord
    from vllm_mm.gateway.realtime_session import RealtimeSession
    from vllm_mm.gateway.relay import Relay

Traced: TypeAlias = "Relay | RealtimeSession"
"""A request, or a session, which is one request to its end."""


class Traces(Protocol):
    """Neither call waits, and neither raises."""

    def sent(self, relay: Traced, headers: Headers) -> Headers:
        """It is about to be sent to its engine, perhaps once more: the headers that go with it, with the context of its trace."""
        ...

    def done(self, relay: Traced, row: "RequestRecord") -> None:
        """It is over."""
        ...
