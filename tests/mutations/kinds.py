"""What a mutant is."""

from dataclasses import dataclass

MANAGER = "tests/unit/manager/test_manager.py"
STRANGERS = "tests/unit/manager/test_strangers.py"


@dataclass(frozen=True)
class Mutant:
    """`old` must occur exactly once in `file`."""

    name: str
    what: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]
    more: tuple[tuple[str, str], ...] = ()
    """Further (old, new) in the same file, where two protections cover one another."""


def manager(name: str, what: str, file: str, old: str, new: str, *tests: str) -> Mutant:
    return Mutant(name, what, f"backend/vllm_mm/{file}", old, new, tuple(f"{MANAGER}::{t}" for t in tests))
