"""Words about requests that the configuration and the gateway read alike."""

from collections.abc import Mapping
from typing import Final

PROTECTED: Final[Mapping[str, str]] = {
    "model": "it decides where the request goes",
    "stream": "the client reads the answer in the way that it asked for",
}
"""Fields that no rule may touch, and why."""
