"""Traces: who asked which model for how much, and when.

Read are our own CSV (`timestamp, model, prompt_tokens, output_tokens`; the model may be left out), the CSV of Azure's LLM
inference traces (`TIMESTAMP, ContextTokens, GeneratedTokens`), and the JSON lines of Mooncake's (`timestamp` in milliseconds,
`input_length`, `output_length`). Times become seconds since the first request.
"""

import csv
import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TextIO, cast

SHIPPED = Path(__file__).with_name("traces")
"""Small generated traces, to be named without a path."""
COLUMNS = ("timestamp", "model", "prompt_tokens", "output_tokens")
_ALIASES = {
    "contexttokens": "prompt_tokens", "generatedtokens": "output_tokens",
    "input_length": "prompt_tokens", "output_length": "output_tokens",
}  # fmt: skip
_NEEDED = frozenset(COLUMNS) - {"model"}


class TraceError(Exception):
    """A trace that cannot be used; the message names the file, the line and what would be right."""


@dataclass(frozen=True, slots=True)
class Request:
    """One request of a trace."""

    at: float
    """Seconds since the first one."""
    model: str
    """Empty where the trace does not say."""
    prompt: int
    """Prompt tokens."""
    output: int
    """Generated tokens; none for an embedding, say."""


def shipped() -> tuple[str, ...]:
    """The names of the traces that come with the product."""
    return tuple(sorted(path.stem for path in SHIPPED.glob("*.csv")))


def find(name: str) -> Path:
    """The file that `name` means: a path, or else the name of a shipped trace. Raises TraceError."""
    path = Path(name)
    if path.is_file():
        return path
    if path.is_dir():
        raise TraceError(f"{name} is a folder; name a file in it")
    inside = SHIPPED / f"{name}.csv"
    if inside.is_file() and inside.parent == SHIPPED:
        return inside
    raise TraceError(f"there is no file {name}; the traces that come with the product are {', '.join(shipped())}")


def read(path: Path) -> tuple[Request, ...]:
    """All requests, in the order of their times. Raises TraceError."""
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            return parse(file, path.name)
    except OSError as error:
        raise TraceError(f"{path}: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise TraceError(f"{path}: it is not text in UTF-8 ({error.reason})") from error


def parse(lines: Iterable[str], name: str) -> tuple[Request, ...]:
    """As `read`; `name` is how errors call the source."""
    numbered = [(number, line) for number, line in enumerate(lines, 1) if line.strip()]
    if not numbered:
        raise TraceError(f"{name}: it is empty")
    rows = _json_lines(numbered, name) if numbered[0][1].lstrip().startswith("{") else _csv(numbered, name)
    found: list[Request] = []
    first: tuple[int, bool] | None = None
    for number, row, parse_time in rows:
        found.append(_request(row, f"{name}:{number}", parse_time))
        first = first or (number, _dated(row))
        if _dated(row) != first[1]:
            here, there = ("a date", "seconds") if _dated(row) else ("seconds", "a date")
            raise TraceError(
                f"{name}:{number}: timestamp: this is {here}, but line {first[0]} has {there}; write all of them in one way"
            )
    found.sort(key=_at)
    if not found:
        raise TraceError(f"{name}: it has a head but no requests")
    start = found[0].at
    return tuple(replace(r, at=r.at - start) for r in found)


def write(requests: Sequence[Request], file: TextIO) -> None:
    """As CSV, times to the millisecond."""
    out = csv.writer(file, lineterminator="\n")
    out.writerow(COLUMNS)
    out.writerows((f"{r.at:.3f}", r.model, r.prompt, r.output) for r in requests)


_Row = tuple[int, Mapping[str, Any], Callable[[Any], float]]


def _at(request: Request) -> float:
    return request.at


def _dated(row: Mapping[str, Any]) -> bool:
    """Whether its time is a date. Only for a time that could be read."""
    try:
        float(row["timestamp"])
    except ValueError:
        return True
    return False


def _csv(numbered: Sequence[tuple[int, str]], name: str) -> Iterator[_Row]:
    (first, head), *rest = numbered
    columns = [_canonical(cell) for cell in next(csv.reader([head]))]
    missing = sorted(_NEEDED - set(columns))
    if missing:
        raise TraceError(
            f"{name}:{first}: there is no column for {', '.join(missing)}; the columns are timestamp, model (may be left out), "
            "prompt_tokens, output_tokens, or Azure's TIMESTAMP, ContextTokens, GeneratedTokens"
        )
    for number, line in rest:
        cells = next(csv.reader([line]))
        if len(cells) != len(columns):
            raise TraceError(f"{name}:{number}: {len(cells)} cells, but the head has {len(columns)}")
        yield number, dict(zip(columns, cells, strict=True)), _time


def _json_lines(numbered: Sequence[tuple[int, str]], name: str) -> Iterator[_Row]:
    for number, line in numbered:
        try:
            value = json.loads(line)
        except ValueError as error:
            raise TraceError(f"{name}:{number}: it is not JSON ({error})") from error
        if not isinstance(value, dict):
            raise TraceError(f"{name}:{number}: an object was expected, with timestamp, input_length and output_length")
        row = {_canonical(key): cell for key, cell in cast("dict[str, Any]", value).items()}
        missing = sorted(_NEEDED - set(row))
        if missing:
            raise TraceError(
                f"{name}:{number}: {', '.join(missing)} is missing (Mooncake: timestamp, input_length, output_length)"
            )
        yield number, row, _milliseconds


def _canonical(column: str) -> str:
    plain = column.strip().lower()
    return _ALIASES.get(plain, plain)


def _request(row: Mapping[str, Any], where: str, parse_time: Callable[[Any], float]) -> Request:
    try:
        at = parse_time(row["timestamp"])
    except ValueError as error:
        raise TraceError(f"{where}: timestamp: {error}") from error
    return Request(
        at,
        str(row.get("model") or "").strip(),
        _tokens(row, "prompt_tokens", where),
        _tokens(row, "output_tokens", where),
    )


def _tokens(row: Mapping[str, Any], column: str, where: str) -> int:
    try:
        number = float(row[column])
    except (TypeError, ValueError):
        number = math.nan
    if not (number >= 0 and number.is_integer()):
        raise TraceError(f"{where}: {column}: {row[column]!r} is no number of tokens")
    return int(number)


def _time(value: Any) -> float:
    """Seconds from a number, or from a date with a time (Azure). Raises ValueError."""
    text = str(value).strip()
    try:
        number = float(text)
    except ValueError:
        pass
    else:
        if math.isfinite(number) and number >= 0:
            return number
        raise ValueError(f"{text!r} is no time; write seconds from 0, or a date")
    try:
        moment = datetime.fromisoformat(text)
    except ValueError as error:
        raise ValueError(f"{text!r} is neither seconds nor a date such as 2024-05-10 00:00:00.25") from error
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()


def _milliseconds(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or value < 0:
        raise ValueError(f"{value!r} is no number of milliseconds from 0")
    return value / 1000
