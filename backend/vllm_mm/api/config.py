"""`/api/config` and `/api/settings`: reading the configuration again, and what is in force of it."""

import asyncio
from typing import Annotated

from fastapi import APIRouter, Query

from vllm_mm.api import present
from vllm_mm.api.auditing import AuditedRoute
from vllm_mm.api.change_schemas import ReloadOut, SettingOut, SettingsOut
from vllm_mm.api.dependencies import Admin, The, cause, operation_id
from vllm_mm.api.schemas import REFUSALS
from vllm_mm.settings import at_restart, effective

router = APIRouter(
    route_class=AuditedRoute,
    generate_unique_id_function=operation_id,
    prefix="/api",
    tags=["configuration"],
    responses=REFUSALS,
)

DryRun = Annotated[bool, Query(description="Check everything and say what would change, and change nothing.")]


@router.post("/config/reload", name="reload_config")
async def reload_config(the: The, key: Admin, dry_run: DryRun = False) -> ReloadOut:
    """Read the configuration again, as SIGHUP does, and apply the difference. A configuration with an error changes nothing: 422
    names each error with its line."""
    done = await the.configuration.reload(cause(key), dry_run=dry_run)
    file = the.configuration.loaded.file
    return ReloadOut(
        applied=done.applied, file=None if file is None else str(file),
        changes=[present.change(c) for c in done.changes], at_restart=list(done.at_restart), warnings=list(done.warnings),
    )  # fmt: skip


@router.get("/settings", name="get_settings")
async def get_settings(the: The, _key: Admin) -> SettingsOut:
    """Every setting: its value without secrets, where it was said, and whether a reload can change it."""
    loaded = the.configuration.loaded
    found = await asyncio.to_thread(effective, loaded)
    return SettingsOut(
        file=None if loaded.file is None else str(loaded.file), problem=the.configuration.problem(),
        at_restart=list(at_restart(the.settings, loaded.settings)),
        settings=[SettingOut.model_validate(one, from_attributes=True) for one in found],
    )  # fmt: skip
