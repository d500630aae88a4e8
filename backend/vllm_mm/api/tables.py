"""Rows as CSV (RFC 4180), for spreadsheets: without formulas, which a spreadsheet would run."""

import csv
import io
import json
from collections.abc import Iterable, Sequence
from typing import Any, Final

_RUNS: Final = ("=", "+", "-", "@", "\t", "\r")
"""A text that begins so is taken for a formula (OWASP, CSV injection)."""


def csv_lines(rows: Iterable[Sequence[Any]]) -> str:
    """Each row as a line. Null is empty; objects and lists are JSON; text that a spreadsheet would run has a `'` before it."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\r\n").writerows([_cell(value) for value in row] for row in rows)
    return text.getvalue()


def _cell(value: Any) -> Any:
    if value is None:
        return ""
    if isinstance(value, dict | list):
        value = json.dumps(value, ensure_ascii=False)
    return f"'{value}" if isinstance(value, str) and value.startswith(_RUNS) else value
