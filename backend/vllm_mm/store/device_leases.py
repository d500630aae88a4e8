"""Leases on device memory, over restarts."""

from collections.abc import Sequence
from typing import Final

import msgspec

from vllm_mm.domain.device_leases import DeviceLease
from vllm_mm.store.database import Database
from vllm_mm.store.meta import read_meta, write_meta

_NAME: Final = "device_leases"


class DeviceLeaseStore:
    """A list in the `meta` table: there are few, and they are short-lived."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def all(self) -> Sequence[DeviceLease]:
        async with self._database.read() as connection:
            text = await read_meta(connection, _NAME)
        return [] if text is None else msgspec.json.decode(text, type=list[DeviceLease])

    async def save(self, leases: Sequence[DeviceLease]) -> None:
        """In place of all that were there."""
        async with self._database.write() as connection:
            await write_meta(self._database, connection, _NAME, msgspec.json.encode(list(leases)).decode())
