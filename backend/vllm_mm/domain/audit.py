"""The audit: who did what to which object, from where, and what that object was before and after. Without secrets."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, cast

from vllm_mm.domain.redaction import HIDDEN

LARGEST: Final = 64 * 1024
"""Characters of JSON that are kept of an object as it was before, and after."""
DEEPEST: Final = 40
"""Levels of nesting that are looked into; no configuration is deeper."""

_NAME: Final = re.compile(
    r"token$|secret|passw|credential|authorization|api[_-]?key$|(^|[_-])key$|digest|(^|_)hash$", re.IGNORECASE
)
_URL: Final = re.compile(r"(://[^:/@\s]*:)[^@\s]*@")
_ISSUED: Final = re.compile(r"\b(mm-|sk-|hf_|ghp_|glpat-|xox[bp]-)[A-Za-z0-9_\-]{12,}")
_FLAG: Final = re.compile(r"(-{1,2}[A-Za-z0-9][\w.-]*)(=.*)?", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Entry:
    """One act. `before` and `after` are JSON."""

    id: str
    """Never repeats."""
    at: float
    """Unix time of the end of the act."""
    actor: str
    """The id of the key that acted, or who else did: `local` (a command on the server's machine), `signal`, `file`, `schedule`."""
    name: str
    """The actor's name, as it was then."""
    source: str
    """From where: the client's address, or how else it came."""
    act: str
    """What was asked for, as operations are called in the OpenAPI document: `start_model`."""
    kind: str
    """What it was done to: `models`, `keys`, ..."""
    object: str
    """Which of them; empty where there is only one."""
    status: int
    """As HTTP tells it: 403 is an act that was refused."""
    before: Any = None
    after: Any = None
    """What was different: members that stayed as they were are left out, and secrets are never told. Null where there was nothing, or
    nothing is known."""
    request: str = ""
    """`X-Request-Id` of the answer, to find it in logs."""


def difference(before: Any, after: Any) -> tuple[Any, Any]:
    """Both without what is the same in both, and without secrets, bounded in size.

    A secret that changed is seen to have changed: it is hidden after the comparison.
    """
    if isinstance(before, Mapping) and isinstance(after, Mapping):
        old, new = cast("Mapping[str, Any]", before), cast("Mapping[str, Any]", after)
        before = {k: v for k, v in old.items() if k not in new or new[k] != v}
        after = {k: v for k, v in new.items() if k not in old or old[k] != v}
    return _bounded(without_secrets(before)), _bounded(without_secrets(after))


def without_secrets(value: Any, depth: int = 0) -> Any:
    """`value`, which is JSON, with `***` for what is nobody's business: texts under names such as `token` or `api_key`, the
    values of such options in command lines, passwords in URLs, and anything that looks like an issued key."""
    if depth > DEEPEST:
        return HIDDEN
    if isinstance(value, str):
        return _ISSUED.sub(rf"\1{HIDDEN}", _URL.sub(rf"\1{HIDDEN}@", value))
    if isinstance(value, Mapping):
        members = cast("Mapping[str, Any]", value)
        return {
            name: HIDDEN
            if isinstance(inner, str) and inner and _NAME.search(name)
            else without_secrets(inner, depth + 1)
            for name, inner in members.items()
        }
    if isinstance(value, Sequence):
        return _words(cast("Sequence[Any]", value), depth)
    return value


def _words(words: Sequence[Any], depth: int) -> list[Any]:
    """A list, which may be a command line: `--api-key x` and `--api-key=x`."""
    shown: list[Any] = []
    hide = False
    for word in words:
        flag = _FLAG.fullmatch(word) if isinstance(word, str) else None
        secret = flag is not None and _NAME.search(flag[1]) is not None
        if flag is not None and secret and flag[2]:
            shown.append(f"{flag[1]}={HIDDEN}")
        else:
            shown.append(HIDDEN if hide and isinstance(word, str) else without_secrets(word, depth + 1))
        hide = secret and flag is not None and not flag[2]
    return shown


def _bounded(value: Any) -> Any:
    text = json.dumps(value, default=str, ensure_ascii=False)
    return value if len(text) <= LARGEST else {"cut": text[:LARGEST], "characters": len(text)}
