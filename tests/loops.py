"""Which event loops the byte path's tests run on."""

import asyncio
from collections.abc import Callable

import uvloop

LoopFactory = Callable[[], asyncio.AbstractEventLoop]

UVLOOP: dict[str, LoopFactory] = {"uvloop": uvloop.new_event_loop}
"""The product's."""
BOTH: dict[str, LoopFactory] = {**UVLOOP, "asyncio": asyncio.new_event_loop}
