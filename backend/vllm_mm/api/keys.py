"""`/api/keys`: who may do what."""

from fastapi import APIRouter, HTTPException

from vllm_mm.api.auditing import AuditedRoute
from vllm_mm.api.dependencies import Admin, The, cause, operation_id, resolve
from vllm_mm.api.inputs import KeyIn
from vllm_mm.api.schemas import REFUSALS, KeyOut, NewKeyOut
from vllm_mm.domain.keys import Key

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
    return [_shown(key, the.clock.wall()) for key in await the.keys.all()]


@router.post("", name="create_key", status_code=201)
async def create_key(the: The, key: Admin, body: KeyIn) -> NewKeyOut:
    """A new key. Its secret is in the answer and can never be had again."""
    # A key is for models, not for names: an alias may be given to another model later.
    models = None if body.models is None else list(dict.fromkeys(resolve(the, m).id for m in body.models))
    now = the.clock.wall()
    made, secret = await the.keys.create(
        body.name, body.scopes, models=models, expires_at=now + body.expires_in if body.expires_in else None
    )
    the.keyring.replace(await the.keys.all())
    the.journal.emit(
        "key.created", cause=cause(key), data={"id": made.id, "name": made.name, "scopes": sorted(made.scopes)}
    )
    return NewKeyOut(**_shown(made, now).model_dump(), secret=secret)


@router.delete("/{id}", name="revoke_key")
async def revoke_key(the: The, key: Admin, id: str) -> KeyOut:  # noqa: A002  # the path's name
    """Revoke a key; it stops working at once. Its row stays, for the ledger names it."""
    revoked = await the.keys.revoke(id)
    if revoked is None:
        raise HTTPException(404, f"There is no key with the id {id!r}. GET /api/keys lists them.")
    the.keyring.replace(await the.keys.all())
    the.journal.emit("key.revoked", cause=cause(key), data={"id": revoked.id, "name": revoked.name})
    return _shown(revoked, the.clock.wall())


def _shown(key: Key, wall: float) -> KeyOut:
    return KeyOut(
        id=key.id, name=key.name, scopes=sorted(key.scopes), models=None if key.models is None else sorted(key.models),
        created_at=key.created_at, expires_at=key.expires_at, revoked_at=key.revoked_at, active=key.active(wall),
    )  # fmt: skip
