"""`/api/session`: signing in to the dashboard, and out."""

from enum import StrEnum
from typing import Annotated, Final

from fastapi import APIRouter, Query, Request, Response
from pydantic import ConfigDict, Field

from vllm_mm.api.auditing import AuditedRoute, about, audited
from vllm_mm.api.dependencies import The, operation_id, require
from vllm_mm.api.schemas import REFUSALS, Out
from vllm_mm.api.signing import COOKIE, check_own_page
from vllm_mm.domain.errors import Conflict
from vllm_mm.domain.keys import Key, Right, Scope
from vllm_mm.settings.described import Described

router = APIRouter(
    route_class=AuditedRoute,
    generate_unique_id_function=operation_id,
    prefix="/api",
    tags=["session"],
    responses=REFUSALS,
)

_ALL: Final = tuple(Scope)


class SignInIn(Described):
    model_config = ConfigDict(extra="forbid")

    key: str = Field(min_length=1, max_length=1000)
    """The secret of a key with the scope `read` at least. It is not kept."""


class By(StrEnum):
    """By what somebody is known."""

    KEY = "key"
    SESSION = "session"
    PROXY = "proxy"
    NONE = "none"
    """`auth.mode: none`."""


class SessionOut(Out):
    """Who asks, and what they may do."""

    key: str
    """The key's id."""
    name: str
    scopes: list[Scope]
    """All that it may do, those included that follow from others."""
    acts: list[Right]
    by: By
    expires_at: float | None
    """When they have to sign in again, or the key ends."""


class SignedOutOut(Out):
    sessions: int
    """How many ended."""


@router.post("/session", name="sign_in", status_code=201)
async def sign_in(the: The, request: Request, response: Response, body: SignInIn) -> SessionOut:
    """Sign in with a key: the answer sets a cookie that only this server reads (HttpOnly, SameSite=Strict) and that ends by itself
    (`auth.session`). After too many wrong keys 429 (`auth.sign_in_tries`)."""
    if the.keyring.open_to_all:
        raise Conflict("This server has no keys (auth.mode: none): everybody is an administrator, and nobody signs in.")
    key, session, cookie = await the.sign_ins.begin(request, body.key)
    response.set_cookie(
        COOKIE, cookie, max_age=max(1, int(session.expires_at - the.clock.wall())), httponly=True, samesite="strict",
        secure=request.url.scheme == "https", path="/",
    )  # fmt: skip
    response.headers["Cache-Control"] = "no-store"
    the.journal.emit("session.began", cause=f"operator {key.name}", data={"key": key.id})
    if audited():
        about(key.id)
    else:  # who signs in was not known before
        source = request.client.host if request.client is not None else ""
        the.audit.record(
            "sign_in", actor=key.id, name=key.name, source=source, kind="session", object=key.id, status=201
        )
        await the.audit.secure()
    return _who(key, By.SESSION, session.expires_at)


@router.get("/session", name="get_session")
async def get_session(the: The, request: Request, response: Response) -> SessionOut:
    """Who asks, by key, session or proxy, and what they may do. Any good key."""
    key, session, by = the.sign_ins.who(request)
    response.headers["Cache-Control"] = "no-store"
    return _who(key, By(by), key.expires_at if session is None else session.expires_at)


@router.delete("/session", name="sign_out")
async def sign_out(the: The, request: Request, response: Response) -> SignedOutOut:
    """Sign out here. Harmless for who is not signed in."""
    check_own_page(request)
    session = the.sign_ins.session(request)
    response.delete_cookie(COOKIE, path="/", httponly=True, samesite="strict")
    if session is not None:
        await the.sign_ins.end(session)
        the.journal.emit("session.ended", data={"key": session.key, "sessions": 1})
    return SignedOutOut(sessions=int(session is not None))


@router.delete("/sessions", name="sign_out_everywhere")
async def sign_out_everywhere(
    the: The,
    request: Request,
    response: Response,
    everybody: Annotated[bool, Query(description="Those of all keys; needs the scope `admin`.")] = False,
) -> SignedOutOut:
    """End all sessions of this key, on whatever machine."""
    key = the.sign_ins.caller(request)
    if everybody:
        require(key, Scope.ADMIN)
    ended = await the.sign_ins.end_all(None if everybody else key.id)
    response.delete_cookie(COOKIE, path="/", httponly=True, samesite="strict")
    the.journal.emit(
        "session.ended", cause=f"operator {key.name}", data={"key": None if everybody else key.id, "sessions": ended}
    )
    return SignedOutOut(sessions=ended)


def _who(key: Key, by: By, expires_at: float | None) -> SessionOut:
    return SessionOut(
        key=key.id,
        name=key.name,
        scopes=[s for s in _ALL if key.allows(s)],
        acts=sorted(key.acts),
        by=by,
        expires_at=expires_at,
    )
