"""What the admin API says of changes: of models, of the configuration, of profiles."""

from typing import Any, Literal

from vllm_mm.api.schemas import FootprintOut, Out
from vllm_mm.domain.changes import Effect
from vllm_mm.domain.fits import Fits


class FieldChangeOut(Out):
    key: str
    """As in the configuration: `args.max-model-len`."""
    before: Any
    """Null where it was not there. Values that look like secrets are hidden."""
    after: Any


class ModelChangeOut(Out):
    """What changes of one model."""

    model: str
    effect: Effect
    """`restarted`: its engine finishes what runs and stops, and is new when next wanted. `updated`: its engine does not notice."""
    text: str
    """The effect, for people."""
    fields: list[FieldChangeOut]
    """Empty for a model that is new or removed."""


class FitOut(Out):
    """Whether a device has room for the model, or for one of its ranks."""

    device: str
    fits: Fits
    """`now`; `room`: when `victims` make room; `held`: large enough, but whoever has it would not go now; `never`; `out`: out of use."""
    free: int
    capacity: int
    victims: list[str]
    """Models that would have to go, in the order of eviction."""
    reason: str
    """Why not; empty where it fits."""


class DryRunOut(Out):
    """What a change would do. Nothing was changed."""

    dry_run: Literal[True] = True
    change: ModelChangeOut
    footprint: FootprintOut | None
    """The memory that the model would take; null for one that is removed."""
    fits: list[FitOut]
    """Of each device that it may use; empty for a model that is removed."""
    notes: list[str]
    """What could not be checked, and why."""


class ReloadOut(Out):
    """What a reload changed, or would."""

    applied: bool
    """False for a dry run."""
    file: str | None
    """The configuration file; null where there is none."""
    changes: list[ModelChangeOut]
    """Only the models that change; all others do not notice."""
    at_restart: list[str]
    """Settings that differ from those with which the server was started: they take effect when it is started again."""
    warnings: list[str]


class SettingOut(Out):
    key: str
    value: Any
    """Without secrets."""
    source: Literal["flag", "environment", "file", "default"]
    where: str
    """File and line, or the variable; empty for a default."""
    live: bool
    """A reload applies a change of it; else it takes effect when the server is started again."""


class SettingsOut(Out):
    """The configuration as it was read last."""

    file: str | None
    """Null where there is none."""
    problem: str | None
    """Why the last reload was refused; null after a good one."""
    at_restart: list[str]
    """Settings that were changed since the server was started, and are not in force before it is started again."""
    settings: list[SettingOut]
    """All of the server; of models and profiles what is written somewhere."""


class ProfileOut(Out):
    name: str
    active: bool
    pins: list[str] | None
    """Null: pins are as the models say."""
    preloads: list[str] | None
    aliases: dict[str, str]
    """Name to model."""
    schedule: list[str]
    missing: list[str]
    """Models that it names and that are not there."""


class ProfilesOut(Out):
    active: str | None
    since: float | None
    """Unix time of the last switch; null when there never was one."""
    by: str
    """Who or what switched last."""
    profiles: list[ProfileOut]


class ActivatedOut(Out):
    """What a switch of the profile changed, or would."""

    applied: bool
    """False for a dry run."""
    profile: str | None
    before: str | None
    changes: list[ModelChangeOut]
    missing: list[str]
    """Models that the profile names and that are not there."""
