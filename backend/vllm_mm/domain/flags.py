"""Which arguments an engine takes, by its own word, and what of a model's arguments it would refuse. Pure."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from enum import StrEnum
from typing import TypeAlias

from vllm_mm.domain.specs import ArgValue, option_name


class Takes(StrEnum):
    """How many values stand behind an option."""

    NONE = "none"
    ONE = "one"
    ANY = "any"


@dataclass(frozen=True, slots=True)
class Flag:
    """One option of the engine's command line."""

    takes: Takes = Takes.ONE
    choices: tuple[str, ...] = ()
    """The only values; empty when it takes others."""


Flags: TypeAlias = Mapping[str, Flag]
"""By name without dashes in front, negations (`no-...`) included."""

_ANYWAY = frozenset({"enable-sleep-mode"})
"""Whose `false` is not passed on: some builds refuse its very name (`engine.command`)."""


@dataclass(frozen=True, slots=True)
class Checked:
    """What came of asking engines about the arguments of models."""

    wrong: tuple[tuple[str, str, str], ...] = ()
    """Model, argument as it is written, and what is wrong with it."""
    notes: tuple[str, ...] = ()
    """Which could not be asked, and why: what is not known is taken as it is."""


def wrong(args: Mapping[str, ArgValue], flags: Flags) -> Iterator[tuple[str, str]]:
    """Each of `args` that the engine would not take, as it is written there, and what is wrong with it. Types are not judged."""
    for written, value in args.items():
        name = option_name(written).partition(".")[0].removesuffix("+")
        if value is None or (value is False and name in _ANYWAY):
            continue
        known = _known(name, flags)
        if known is None:
            near = get_close_matches(name, flags, n=1, cutoff=0.6)
            hint = f"; did you mean `{near[0]}`?" if near else ""
            yield written, f"unknown argument: this engine has no `--{name}`{hint}"
        elif (message := _value(name, value, flags[known], flags)) is not None:
            yield written, message


def _known(name: str, flags: Flags) -> str | None:
    """The option that is meant: argparse takes the beginning of a name where only one begins so."""
    if name in flags:
        return name
    begun = [flag for flag in flags if flag.startswith(name)]
    return begun[0] if len(begun) == 1 and len(name) > 1 else None


def _value(name: str, value: ArgValue, flag: Flag, flags: Flags) -> str | None:
    if value is False:
        if f"no-{name}" in flags:
            return None
        return f"`--{name}` cannot be switched off with `false`: leave it out"
    if value is True:
        return f"`--{name}` needs a value" if flag.takes is Takes.ONE else None
    if flag.takes is Takes.NONE:
        return f"`--{name}` takes no value: write `true`, or leave it out"
    values = value if isinstance(value, list) else [value]
    for one in values:
        if flag.choices and not isinstance(one, dict) and str(one) not in flag.choices:
            near = get_close_matches(str(one), flag.choices, n=1, cutoff=0.6)
            hint = f"; did you mean `{near[0]}`?" if near else ""
            return f"{str(one)!r} is none of {', '.join(flag.choices)}{hint}"
    return None
