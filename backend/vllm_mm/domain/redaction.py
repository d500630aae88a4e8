"""Values that are nobody's business, taken out of the text of JSON: also of text that was cut off, or that is events of a stream."""

import json
import re
from collections.abc import Collection, Iterator
from typing import Final

HIDDEN: Final = "***"
"""What stands where a value was."""

_TOKEN: Final = re.compile(r'"(?:[^"\\]|\\.)*+"?|[{}\[\]:,]|[^\s{}\[\]:,"]+', re.DOTALL)
_OPEN: Final = frozenset("{[")
_CLOSE: Final = frozenset("}]")


def redact(text: str, names: Collection[str]) -> str:
    """`text` with `***` for the value of every member with one of the `names` (in any case of letters), at any depth. What is not JSON stays, but
    for such members in it."""
    wanted = {name.lower() for name in names}
    if not wanted:
        return text
    parts: list[str] = []
    at = 0
    for start, end in _values(text, wanted):
        parts += (text[at:start], f'"{HIDDEN}"')
        at = end
    return "".join((*parts, text[at:]))


def _values(text: str, wanted: Collection[str]) -> Iterator[tuple[int, int]]:
    """Where the values of the wanted members stand."""
    tokens = [(match.start(), match.end(), match.group()) for match in _TOKEN.finditer(text)]
    i = 0
    while i + 2 < len(tokens):
        if tokens[i + 1][2] == ":" and tokens[i][2][0] == '"' and _spelled(tokens[i][2]).lower() in wanted:
            last = _last(tokens, i + 2)
            yield tokens[i + 2][0], tokens[last][1]
            i = last
        i += 1


def _last(tokens: list[tuple[int, int, str]], at: int) -> int:
    """The last token of the value that begins with the one at `at`; the last of all, where the text was cut off in it."""
    depth = 0
    for i in range(at, len(tokens)):
        mark = tokens[i][2]
        if mark in _OPEN:
            depth += 1
        elif mark in _CLOSE:
            depth -= 1
        if depth <= 0:
            return i
    return len(tokens) - 1


def _spelled(name: str) -> str:
    """A member's name without its escapes."""
    if "\\" not in name:
        return name.strip('"')
    try:
        return str(json.loads(name))
    except ValueError:
        return name
