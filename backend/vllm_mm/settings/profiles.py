"""The sections about changes while the server runs: reloading, and profiles."""

import re
from typing import Annotated

from pydantic import AfterValidator, Field

from vllm_mm.settings.fields import ModelId, Section, Switch
from vllm_mm.settings.models import TimeOfTheWeek


def _profile_name(value: str) -> str:
    """As it may be used in paths. Raises ValueError."""
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", value):
        raise ValueError(f"{value!r} is no name for a profile: letters, digits, `.`, `_` and `-`, at most 64")
    if value == "none":
        raise ValueError("`none` stands for no profile; choose another name")
    return value


ProfileName = Annotated[str, AfterValidator(_profile_name)]


class ReloadConfig(Section):
    watch: Switch = False
    """Reload when the configuration file changes, or comes; without it on SIGHUP, `POST /api/config/reload` and `vllm-mm config reload` only."""


class ProfileConfig(Section):
    """A named set of pins, preloads and aliases; one at a time is active, or none."""

    pins: tuple[ModelId, ...] | None = None
    """The models that are pinned while it is active, and no others; null leaves pins as the models say."""
    preloads: tuple[ModelId, ...] | None = None
    """The models that are loaded when it becomes active or the server starts, and no others; null leaves them as the models say."""
    aliases: dict[ModelId, ModelId] = Field(default={})
    """More names that clients may use while it is active, each with the id of its model; an alias of another model is taken from it."""
    schedule: tuple[TimeOfTheWeek, ...] = ()
    """Times of the week in which it is active by itself, as in `models.*.schedule`; the first profile whose time it is counts."""
