"""Connecting to an engine's unix socket."""

import asyncio
import socket


async def connect_unix(path: str) -> socket.socket:
    """Connecting to a unix socket is immediate, or fails because the listener's backlog is full: then again, soon.
    (asyncio's own loop takes that failure for a connection under way.)"""
    while True:
        made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            made.setblocking(False)
            made.connect(path)
        except BlockingIOError:
            made.close()
            await asyncio.sleep(0.01)
        except BaseException:
            made.close()
            raise
        else:
            return made
