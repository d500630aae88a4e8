"""`/api/profiles`: named sets of pins, preloads and aliases."""

from fastapi import APIRouter

from vllm_mm.api import present
from vllm_mm.api.auditing import AuditedRoute
from vllm_mm.api.change_schemas import ActivatedOut, ProfileOut, ProfilesOut
from vllm_mm.api.config import DryRun
from vllm_mm.api.dependencies import MayLoad, Reader, The, cause, operation_id
from vllm_mm.api.schemas import REFUSALS
from vllm_mm.control.profiles import Activated

router = APIRouter(
    route_class=AuditedRoute,
    generate_unique_id_function=operation_id,
    prefix="/api/profiles",
    tags=["profiles"],
    responses=REFUSALS,
)


@router.get("", name="list_profiles")
async def list_profiles(the: The, _key: Reader) -> ProfilesOut:
    """All that are declared, and which one is active."""
    now = the.profiles.active
    declared = the.configuration.loaded.settings.profiles
    return ProfilesOut(
        active=now.active, since=now.since, by=now.by,
        profiles=[
            ProfileOut(
                name=p.name, active=p.name == now.active, pins=None if p.pins is None else list(p.pins),
                preloads=None if p.preloads is None else list(p.preloads), aliases=dict(p.aliases),
                schedule=list(declared[p.name].schedule) if p.name in declared else [], missing=list(the.profiles.missing(p)),
            )
            for p in the.profiles.all()
        ],
    )  # fmt: skip


@router.post("/deactivate", name="deactivate_profile")
async def deactivate_profile(the: The, key: MayLoad, dry_run: DryRun = False) -> ActivatedOut:
    """No profile: pins, preloads and aliases are as the models say."""
    return _shown(await the.profiles.activate(None, cause(key), dry_run=dry_run), dry_run)


@router.post("/{name}/activate", name="activate_profile")
async def activate_profile(the: The, key: MayLoad, name: str, dry_run: DryRun = False) -> ActivatedOut:
    """Make it the active one: its pins, preloads and aliases hold from now on, also after a restart, until another one is active. What
    runs is not disturbed."""
    return _shown(await the.profiles.activate(name, cause(key), dry_run=dry_run), dry_run)


def _shown(done: Activated, dry_run: bool) -> ActivatedOut:
    return ActivatedOut(
        applied=not dry_run, profile=done.profile, before=done.before, changes=[present.change(c) for c in done.changes],
        missing=list(done.missing),
    )  # fmt: skip
