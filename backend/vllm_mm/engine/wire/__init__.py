"""The only place that opens connections to engines.

`InferenceChannel` carries requests and is reachable only through a `Lease`; `ControlChannel` can only ask what the
instance itself needs: health, the readiness probe, sleep and wake, metrics.
"""

from vllm_mm.engine.exchange import Exchange, ResponseSink, Session, SessionSink, UpstreamRequest
from vllm_mm.engine.wire.control import ControlChannel
from vllm_mm.engine.wire.inference import InferenceChannel

__all__ = [
    "ControlChannel", "Exchange", "InferenceChannel", "ResponseSink", "Session", "SessionSink", "UpstreamRequest",
]  # fmt: skip
