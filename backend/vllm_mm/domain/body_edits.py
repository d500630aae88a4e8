"""A plan of `domain.request_rules` on the bytes of a JSON body: edits in the places that change, and not a byte elsewhere.

Numbers, the order and the spelling of members, blanks and repeated members of what no rule touches stay as they came. What
is not touched is passed over, not parsed.
"""

import json
import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Final, TypeAlias, cast

from vllm_mm.domain.request_rules import MAX_TOKENS, MIN_TOKENS, Field, Plan, encode, exceeds

Body: TypeAlias = bytes | bytearray
Edit: TypeAlias = tuple[int, int, bytes]
"""From where to where, and what comes there instead."""

WINDOW: Final = 1 << 16
"""Bytes that are passed over in one step; between two steps other threads run."""
STEPS: Final = 1_000_000
"""So many members and brackets within brackets are gone through in one object: a second or two in a thread."""
FEW: Final = 1000
"""Escapes in a string, and backslashes in a row, that are gone through one by one; more are passed over in windows."""
REPEATS: Final = 100
"""So often may fields that rules touch stand in one object."""

_QUOTE, _BACKSLASH, _COMMA, _COLON = b'"\\,:'
_OPEN, _CLOSE, _BRACKET, _END = b"{}[]"
_BLANK = re.compile(rb"[ \t\n\r]*+")
_SCALAR = re.compile(rb"[^ \t\n\r,\]}]++")
_PLAIN = re.compile(
    rb'(?:[^"\[\]{}]++|"[^"\\]*+(?:\\.[^"\\]*+)*+"|[\[{][^"\[\]{}]*+(?:"[^"\\]*+(?:\\.[^"\\]*+)*+"[^"\[\]{}]*+)*+[\]}])*+',
    re.DOTALL,
)
"""What may be passed over inside of a container: strings, what is between them, and containers without further ones."""
_INSIDE: Final = re.compile(rb'[^"\\]*+(?:\\.[^"\\]*+)*+', re.DOTALL)
"""What is inside of a string."""
_NUMERIC: Final = b'-0123456789"NI'
"""How numbers begin, and the text of one; Python reads NaN and Infinity as well."""


class Unreadable(ValueError):
    """The body is not JSON as far as it was read, or too odd."""


class Member:
    """A member of an object that somebody asked about: where it starts and ends, and where its value starts."""

    __slots__ = ("after", "before", "end", "key", "start", "value")

    def __init__(self, key: bytes, start: int, value: int, end: int, before: int | None) -> None:
        self.key = key
        self.start = start
        self.value = value
        self.end = end
        self.before = before
        """Where the member before it ends; None for the first."""
        self.after = end
        """Where the next member starts; the end of the last one itself."""


def edits(plan: Plan, body: Body) -> tuple[Sequence[Edit], Sequence[str]]:
    """What has to be changed in `body`, a JSON object, and the names of the rules that do it, in the order of the plan;
    both empty when it may stay as it is. Raises Unreadable."""
    found: list[Edit] = []
    names: dict[str, None] = {}
    try:
        start = _blank(body, 0)
        _expect(body, start, _OPEN)
        _object(body, start, plan, found, names)
    except IndexError:
        raise Unreadable("the body ends too early") from None
    order = dict.fromkeys([*(what.name for what in plan.fields.values()), MAX_TOKENS])
    return found, [name for name in order if name in names]


def splice(body: Body, changes: Iterable[Edit]) -> Sequence[Body | memoryview]:
    """The body with its edits, in parts; the parts that stay are not copied. Without edits it is the body itself."""
    view, parts, at = memoryview(body), list[Body | memoryview](), 0
    for start, end, text in sorted(changes):
        parts += (view[at:start], text)
        at = end
    return [part for part in (*parts, view[at:]) if part] if parts else [body]


# An object


def _object(body: Body, at: int, plan: Plan, found: list[Edit], names: dict[str, None]) -> None:
    """Find the edits of the object that opens at `at`."""
    there, first, end = members(body, at, plan.fields)
    last = {member.key: member for member in there}
    named = any(body[last[key].value] != _N and not plan.fields[key].remove for key in plan.group if key in last)
    silent = frozenset(key for key in plan.group if named and plan.fields[key].weak)
    gone: set[Member] = set()
    for member in there:
        what = plan.fields[member.key]
        sets = None if member.key in silent else what.missing
        if what.remove and sets is None:
            gone.add(member)
            names[what.name] = None
        else:
            _value(body, member, what, sets, found, names, latest=last[member.key] is member)
    added: list[bytes] = []
    for key, what in plan.fields.items():
        if key not in last and key not in silent and what.missing is not None:
            added.append(encode(key.decode()) + b":" + what.missing)
            names[what.name] = None
    _ends(there, gone, added, first, end, found)


def _value(
    body: Body,
    member: Member,
    what: Field,
    sets: bytes | None,
    found: list[Edit],
    names: dict[str, None],
    *,
    latest: bool,
) -> None:
    """The edits of a member that stays. Of several with the same name the latest counts, as for JSON parsers."""
    kind = body[member.value]
    if what.remove:
        new = sets
    elif kind == _N:
        new = sets if latest or not what.weak else None
    elif kind == _OPEN and what.inner is not None:
        inner = dict[str, None]()
        _object(body, member.value, what.inner, found, inner)
        if inner:
            names[what.name] = None
        return
    else:
        new = what.value
    if new is not None:
        if not _same(body, member, new):
            found.append((member.value, member.end, new))
            names[what.name] = None
    elif what.at_most is not None and kind in _NUMERIC and _beyond(body[member.value : member.end], what):
        found.append((member.value, member.end, encode(what.at_most)))
        names[MIN_TOKENS if what.signed else MAX_TOKENS] = None


def _ends(
    there: Sequence[Member], gone: set[Member], added: Sequence[bytes], first: int, end: int, found: list[Edit]
) -> None:
    """Members that go, with a comma each, and those that come, behind the last one that stays."""
    tail, kept = end, end > first
    for member in reversed(there):
        if member not in gone or member.end != tail:
            break
        gone.discard(member)
        tail, kept = (member.start, False) if member.before is None else (member.before, True)
    found += [(member.start, member.after, b"") for member in there if member in gone]
    text = b",".join(added)
    if tail < end or text:
        found.append((tail, end, b"," + text if kept and text else text))


def members(body: Body, at: int, wanted: Collection[bytes]) -> tuple[list[Member], int, int]:
    """The members of the object that opens at `at` whose names are `wanted`, where its first member starts, and where its
    last one ends (the same place, if it has none). Raises Unreadable, or IndexError where the body ends too early."""
    found: list[Member] = []
    longest = 6 * max(map(len, wanted), default=0) + 2
    before: int | None = None
    open_one: Member | None = None
    first = at + 1
    for start, key_end, value, end in _each(body, at):
        if open_one is not None:
            open_one.after = start
            open_one = None
        if before is None:
            first = start
        if key_end - start <= longest:
            key = bytes(body[start + 1 : key_end - 1])
            if b"\\" in key:
                key = _spelled(body[start:key_end])
            if key in wanted:
                if len(found) == REPEATS:
                    raise Unreadable(f"fields that rules touch stand there more than {REPEATS} times")
                open_one = Member(key, start, value, end, before)
                found.append(open_one)
        before = end
    return found, first, first if before is None else before


def _each(body: Body, at: int) -> Iterator[tuple[int, int, int, int]]:
    """For each member: where its name starts and ends, where its value starts and ends."""
    at, steps = _blank(body, at + 1), STEPS
    if body[at] == _CLOSE:
        return
    while True:
        start = at
        _expect(body, at, _QUOTE)
        key_end = _string(body, at)
        at = _blank(body, key_end)
        _expect(body, at, _COLON)
        value = _blank(body, at + 1)
        end, steps = _past(body, value, steps - 1)
        if steps < 0:
            raise Unreadable("it has too many members, or too many brackets within brackets")
        yield start, key_end, value, end
        at = _blank(body, end)
        if body[at] == _CLOSE:
            return
        _expect(body, at, _COMMA)
        at = _blank(body, at + 1)


# Bytes


_N: Final = ord("n")
"""How null begins."""


def _blank(body: Body, at: int) -> int:
    return cast("re.Match[bytes]", _BLANK.match(body, at)).end()


def _expect(body: Body, at: int, mark: int) -> None:
    if body[at] != mark:
        raise Unreadable(f"byte {at} of the body is not {chr(mark)!r}")


def _past(body: Body, at: int, steps: int) -> tuple[int, int]:
    """Where the value that starts at `at` ends, and how many of the `steps` are left."""
    kind = body[at]
    if kind == _QUOTE:
        return _string(body, at), steps
    if kind in {_OPEN, _BRACKET}:
        return _container(body, at, steps)
    match = _SCALAR.match(body, at)
    if match is None:
        raise Unreadable(f"byte {at} of the body is no value")
    return match.end(), steps


def _string(body: Body, at: int) -> int:
    quote = at
    for _ in range(FEW):
        quote = body.find(b'"', quote + 1)
        if quote < 0:
            raise Unreadable(f"the string at byte {at} of the body has no end")
        first = quote
        while body[first - 1] == _BACKSLASH and quote - first < FEW:
            first -= 1
        if quote - first == FEW:
            break
        if (quote - first) % 2 == 0:
            return quote + 1
    return _string_with_many_escapes(body, at)


def _string_with_many_escapes(body: Body, at: int) -> int:
    end = at + 1
    while end < len(body):
        if body[end] == _QUOTE:
            return end + 1
        after = cast("re.Match[bytes]", _INSIDE.match(body, end, end + WINDOW)).end()
        if after == end:
            break
        end = after
    raise Unreadable(f"the string at byte {at} of the body has no end")


def _container(body: Body, at: int, steps: int) -> tuple[int, int]:
    depth = 0
    while steps >= 0:
        steps -= 1
        mark = body[at]
        at = _string(body, at) if mark == _QUOTE else at + 1
        if mark in {_OPEN, _BRACKET}:
            depth += 1
        elif mark in {_CLOSE, _END}:
            depth -= 1
            if depth == 0:
                break
        at = cast("re.Match[bytes]", _PLAIN.match(body, at, at + WINDOW)).end()
    return at, steps


def _spelled(name: Body) -> bytes:
    """A member's name that has escapes in it."""
    try:
        return json.loads(name).encode("utf-8", "surrogatepass")
    except ValueError:
        raise Unreadable("a member of the body has a name that is no string") from None


def _same(body: Body, member: Member, new: bytes) -> bool:
    """Whether it says so already. What is much longer is not looked at: writing it again is no harm."""
    if member.end - member.value > 6 * len(new) + 64:
        return False
    try:
        return encode(json.loads(body[member.value : member.end])) == new
    except (ValueError, RecursionError):
        return False


def _beyond(text: Body, what: Field) -> bool:
    try:
        return what.at_most is not None and exceeds(json.loads(text), what.at_most, signed=what.signed)
    except ValueError:
        return True  # a number of thousands of digits
