"""The request ledger as the API shows it: `RequestRecord`, with its usage in one piece. Derived, so that a field is named once."""

from typing import Any, Final, get_type_hints

import msgspec
from pydantic import create_model

from vllm_mm.api.schemas import Out
from vllm_mm.domain.running import Listing, Running
from vllm_mm.domain.usage import Gaps, RequestRecord, Usage

_USAGE: Final = "usage"
_GAPS: Final = "gaps"
_PERCENTILES: Final = {"p50": "itl_p50_s", "p95": "itl_p95_s", "p99": "itl_p99_s"}


def _columns() -> dict[str, Any]:
    """Names and types, those of the usage in the place of `usage`; of gaps only the percentiles, with their unit."""
    own, usage = get_type_hints(RequestRecord), get_type_hints(Usage)
    columns: dict[str, Any] = {}
    for name in RequestRecord.__struct_fields__:
        if name == _USAGE:
            inner = usage
        elif name == _GAPS:
            inner = dict.fromkeys(_PERCENTILES.values(), float | None)
        else:
            inner = {name: own[name]}
        columns |= {name: (kind, ...) for name, kind in inner.items()}
    return columns


_Columns: type[Out] = create_model("_Columns", __base__=Out, **_columns())


class RequestOut(_Columns):
    """A row of the request ledger."""

    @classmethod
    def of(cls, record: RequestRecord) -> "RequestOut":
        values = msgspec.structs.asdict(record)
        usage: Usage = values.pop(_USAGE)
        gaps: Gaps | None = values.pop(_GAPS)
        percentiles = {shown: None if gaps is None else getattr(gaps, name) for name, shown in _PERCENTILES.items()}
        return cls(**values, **percentiles, **msgspec.structs.asdict(usage))


_listed: dict[str, Any] = {name: (kind, ...) for name, kind in get_type_hints(Running).items()}
_Listed: type[Out] = create_model("_Listed", __base__=Out, **_listed)


class RunningOut(_Listed):
    """A request or realtime session that is not over. Times are seconds after its arrival; null for what it has not reached."""


class UnderWayOut(Out):
    requests: list[RunningOut]
    """The oldest first."""
    total: int
    """How many there are, of which these are the oldest."""

    @classmethod
    def of(cls, listing: Listing) -> "UnderWayOut":
        rows = [RunningOut(**msgspec.structs.asdict(row)) for row in listing.requests]
        return cls(requests=rows, total=listing.total)


class RequestsOut(Out):
    requests: list[RequestOut]
    next: int | None
    """Give it as `before` for the next page; null when this was the last."""
