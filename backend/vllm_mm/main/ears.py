"""What workers report, and who is told."""

import logging
from collections.abc import Callable

from vllm_mm.domain.usage import RequestRecord
from vllm_mm.store.routes import MissingRoute

log = logging.getLogger(__name__)


class Ears:
    """`lending.office.Told`."""

    def __init__(self, record: Callable[[RequestRecord], None], taught: Callable[[MissingRoute], None]) -> None:
        self._record = record
        self._taught = taught

    def row(self, record: RequestRecord) -> None:
        self._record(record)

    def lost(self, rows: int) -> None:
        log.warning("%d rows of the request ledger are lost: a worker had no room for more", rows)

    def learned(self, fingerprint: str, route: str, generation: int) -> None:
        self._taught(MissingRoute(fingerprint, route, generation))
