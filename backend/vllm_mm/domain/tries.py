"""Wrong keys at the sign-in: so many a minute by one address, and so many by all. Pure: times are arguments."""

from collections import deque
from typing import Final

WINDOW: Final = 60.0
"""Seconds in which tries are counted."""
ALL: Final = 10
"""All addresses together may try so many times what one may."""


class Tries:
    """What failed lately. It holds no more than what all addresses together may try."""

    def __init__(self, most: int) -> None:
        """`most`: wrong keys that one address may try within the window."""
        self._most = most
        self._failed: deque[tuple[float, str]] = deque()

    def wait(self, address: str, now: float) -> float | None:
        """Seconds until `address` may try again; None: it may."""
        while self._failed and self._failed[0][0] <= now - WINDOW:
            self._failed.popleft()
        own = [at for at, who in self._failed if who == address]
        if len(own) >= self._most:
            return own[-self._most] + WINDOW - now
        if len(self._failed) >= self._most * ALL:
            return self._failed[-self._most * ALL][0] + WINDOW - now
        return None

    def failed(self, address: str, now: float) -> None:
        """It tried a wrong key."""
        self._failed.append((now, address))
