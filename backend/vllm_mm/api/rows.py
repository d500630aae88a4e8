"""The request ledger as the API shows it: `RequestRecord`, with its usage in one piece. Derived, so that a field is named once."""

from dataclasses import fields
from typing import Any, Final, get_type_hints

from pydantic import create_model

from vllm_mm.api.schemas import Out
from vllm_mm.domain.usage import RequestRecord, Usage

_USAGE: Final = "usage"


def _columns() -> dict[str, Any]:
    """Names and types, those of the usage in the place of `usage`."""
    own, usage = get_type_hints(RequestRecord), get_type_hints(Usage)
    columns: dict[str, Any] = {}
    for field in fields(RequestRecord):
        inner = usage if field.name == _USAGE else {field.name: own[field.name]}
        columns |= {name: (kind, ...) for name, kind in inner.items()}
    return columns


_Columns: type[Out] = create_model("_Columns", __base__=Out, **_columns())


class RequestOut(_Columns):
    """A row of the request ledger."""

    @classmethod
    def of(cls, record: RequestRecord) -> "RequestOut":
        values = {field.name: getattr(record, field.name) for field in fields(record)}
        usage: Usage = values.pop(_USAGE)
        return cls(**values, **{field.name: getattr(usage, field.name) for field in fields(usage)})


class RequestsOut(Out):
    requests: list[RequestOut]
    next: int | None
    """Give it as `before` for the next page; null when this was the last."""
