"""`/api/keys`: who may do what, and how much of it."""

from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any

from fastapi import APIRouter

from vllm_mm.api.auditing import ActingRoute, AuditedRoute, about
from vllm_mm.api.dependencies import Admin, Services, The, cause, operation_id, resolve
from vllm_mm.api.inputs import KeyIn, KeyPatch, RotateIn
from vllm_mm.api.key_schemas import (
    FORM,
    ImportedOut,
    KeyOut,
    KeysFile,
    LimitsOut,
    NewKeyOut,
    StandingOut,
    exported,
    imported,
    limits_of,
)
from vllm_mm.api.schemas import REFUSALS
from vllm_mm.domain.errors import NotFound
from vllm_mm.domain.keys import Key, Limits, is_pattern

router = APIRouter(
    route_class=AuditedRoute,
    generate_unique_id_function=operation_id,
    prefix="/api/keys",
    tags=["keys"],
    responses=REFUSALS,
)


@router.get("", name="list_keys")
async def list_keys(the: The, _key: Admin) -> list[KeyOut]:
    """Every key ever issued, the revoked ones too; never a secret."""
    return [_shown(the, key) for key in await the.keys.all()]


@router.post("", name="create_key", status_code=201)
async def create_key(the: The, key: Admin, body: KeyIn) -> NewKeyOut:
    """A new key. Its secret is in the answer and can never be had again."""
    made, secret = await the.keys.create(
        body.name, body.scopes, models=_models(the, body.models), acts=body.acts, weight=body.weight, progress=body.progress,
        limits=limits_of(body.limits),
        expires_at=the.clock.wall() + body.expires_in if body.expires_in else None,
    )  # fmt: skip
    await _in_force(the)
    the.journal.emit(
        "key.created", cause=cause(key), data={"id": made.id, "name": made.name, "scopes": sorted(made.scopes)}
    )
    return _with_secret(the, made, secret)


async def export_keys(the: The, key: Admin) -> KeysFile:
    """All keys with their hashes and without secrets: for a server with the same `auth.secret`."""
    keys = await the.keys.all()
    the.journal.emit("key.exported", cause=cause(key), data={"keys": len(keys)})
    about("all", after={"keys": len(keys)})
    return KeysFile(form=FORM, secret=the.keys.mark, keys=[exported(k) for k in keys])


router.add_api_route(
    "/export",
    export_keys,
    methods=["GET"],
    name="export_keys",
    response_model=KeysFile,
    route_class_override=ActingRoute,
)


@router.post("/import", name="import_keys", status_code=201)
async def import_keys(the: The, key: Admin, body: KeysFile) -> ImportedOut:
    """Take over exported keys, all or none; 409 when one is here already or they belong to another server's secret."""
    keys = [imported(k) for k in body.keys]
    await the.keys.add(keys, body.secret)
    await _in_force(the)
    about("all", after={"ids": [k.id for k in keys]})
    the.journal.emit("key.imported", cause=cause(key), data={"ids": [k.id for k in keys][:1000]})
    return ImportedOut(imported=len(keys))


@router.get("/{id}", name="get_key")
async def get_key(the: The, _key: Admin, id: str) -> KeyOut:  # noqa: A002  # the path's name
    """One key: what it may, and what it uses now."""
    return _shown(the, await _find(the, id))


@router.patch("/{id}", name="change_key")
async def change_key(the: The, key: Admin, id: str, body: KeyPatch) -> KeyOut:  # noqa: A002  # the path's name
    """Change what a key may do; in force at once, also for the next request of a connection that is open."""
    before = await _find(the, id)
    changes = _changes(the, before, body)
    after = await the.keys.edit(id, changes)
    if after is None:
        raise _unknown(id)
    await _in_force(the)
    shown = _shown(the, after).model_dump(mode="json")
    told = {name: shown[name] for name in sorted(changes)}
    the.journal.emit("key.changed", cause=cause(key), data={"id": id, "name": after.name, "changed": told})
    return _shown(the, after)


@router.post("/{id}/rotate", name="rotate_key")
async def rotate_key(the: The, key: Admin, id: str, body: RotateIn | None = None) -> NewKeyOut:  # noqa: A002  # the path's name
    """Another secret for the same key, shown this once. The one of before is good for `overlap` more, at most one of them."""
    overlap = body.overlap if body is not None else 0.0
    rotated = await the.keys.rotate(id, overlap)
    if rotated is None:
        raise _unknown(id)
    made, secret = rotated
    await _in_force(the)
    data = {"id": made.id, "name": made.name, "until": made.old_until}
    the.journal.emit("key.rotated", cause=cause(key), data=data)
    return _with_secret(the, made, secret)


@router.delete("/{id}", name="revoke_key")
async def revoke_key(the: The, key: Admin, id: str) -> KeyOut:  # noqa: A002  # the path's name
    """Revoke a key; it stops working at once, and so does what waits or runs with it (`auth.revoke_running`). Its row stays, for
    the ledger names it."""
    revoked = await the.keys.revoke(id)
    if revoked is None:
        raise _unknown(id)
    await _in_force(the)
    the.journal.emit("key.revoked", cause=cause(key), data={"id": revoked.id, "name": revoked.name})
    return _shown(the, revoked)


async def _in_force(the: Services) -> None:
    """What the database has now is what everybody goes by."""
    the.keyring.replace(await the.keys.all())
    await the.limits.recall()


async def _find(the: Services, key_id: str) -> Key:
    found = next((k for k in await the.keys.all() if k.id == key_id), None)
    if found is None:
        raise _unknown(key_id)
    return found


def _unknown(key_id: str) -> NotFound:
    return NotFound(f"There is no key with the id {key_id[:100]!r}. GET /api/keys lists them.")


def _models(the: Services, asked: Sequence[str] | None) -> list[str] | None:
    """A key is for models, not for names: an alias may be given to another model later. Patterns stay as they are."""
    if asked is None:
        return None
    return list(dict.fromkeys(name if is_pattern(name) else resolve(the, name).id for name in asked))


def _changes(the: Services, before: Key, body: KeyPatch) -> dict[str, Any]:
    """What the body says, as fields of a key."""
    changes: dict[str, Any] = {}
    for name in body.model_fields_set:
        match name:
            case "scopes" | "acts":
                changes[name] = frozenset(getattr(body, name))
            case "models":
                models = _models(the, body.models)
                changes[name] = None if models is None else frozenset(models)
            case "expires_in":
                changes["expires_at"] = None if body.expires_in is None else the.clock.wall() + body.expires_in
            case "limits":
                said = body.limits.model_dump(include=body.limits.model_fields_set)
                changes[name] = replace(before.limits or Limits(), **said)
            case _:
                changes[name] = getattr(body, name)
    return changes


def _with_secret(the: Services, key: Key, secret: str) -> NewKeyOut:
    return NewKeyOut(**_shown(the, key).model_dump(), secret=secret)


def _shown(the: Services, key: Key) -> KeyOut:
    wall = the.clock.wall()
    standing = the.limits.standing(key.id)
    used = None
    if standing is not None:
        used = StandingOut(
            concurrency=standing.running, requests_per_minute=standing.requests, tokens_per_minute=standing.tokens,
            tokens_per_day=standing.day.tokens, tokens_per_month=standing.month.tokens,
            device_seconds_per_day=round(standing.day.device_seconds, 3),
            device_seconds_per_month=round(standing.month.device_seconds, 3),
        )  # fmt: skip
    return KeyOut(
        id=key.id, name=key.name, prefix=key.prefix, scopes=sorted(key.scopes),
        models=None if key.models is None else sorted(key.models), acts=sorted(key.acts), weight=key.weight,
        progress=key.progress, limits=LimitsOut(**asdict(key.limits or Limits())), used=used, created_at=key.created_at,
        expires_at=key.expires_at, revoked_at=key.revoked_at,
        rotated_until=key.old_until if key.old_until is not None and key.old_until > wall else None,
        active=key.active(wall),
    )  # fmt: skip
