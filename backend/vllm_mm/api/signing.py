"""Who asks, where that is not said by a key: somebody who is signed in (a cookie), or whom a trusted proxy names (a header).

Both come with whatever a browser sends, also when the page of somebody else makes it send something. So what changes anything
has to show that it comes from our own page: by `X-VLLM-MM-Session: 1`, which no other page can send, or by its Origin.
"""

import hmac
import secrets
from collections import OrderedDict
from hashlib import sha256
from ipaddress import ip_address, ip_network
from typing import Final

from fastapi import Request

from vllm_mm.api.openai import PEER
from vllm_mm.clock import Clock
from vllm_mm.domain.errors import Forbidden, RateLimited, Unauthorized
from vllm_mm.domain.keys import Key, Scope
from vllm_mm.domain.tries import Tries
from vllm_mm.gateway.identity import Keyring
from vllm_mm.settings import AuthConfig
from vllm_mm.store.secret import derived
from vllm_mm.store.sessions import Sessions, StoredSession

COOKIE: Final = "vllm_mm_session"
MARK: Final = "x-vllm-mm-session"
"""The header with which a page shows that it is ours."""
SAFE: Final = frozenset({"GET", "HEAD", "OPTIONS"})
"""Methods that change nothing (RFC 9110, 9.2.1)."""
MOST: Final = 100
"""Sessions of one key; the oldest ends when there is one more."""
_PROXIED: Final = "proxy:"
"""How ids of those begin whom a proxy names."""
_NAME: Final = 100
"""Characters of a user's name that count."""


class SignIns:
    """All sessions, in memory; the database has them for the next start."""

    def __init__(self, auth: AuthConfig, pepper: bytes, keyring: Keyring, clock: Clock, store: Sessions) -> None:
        """`pepper`: the server's secret, from which the one is derived with which cookies are signed."""
        self._auth = auth
        self._secret = derived(pepper, "sessions")
        self._keyring = keyring
        self._clock = clock
        self._store = store
        self._tries = Tries(auth.sign_in_tries)
        self._sessions: OrderedDict[str, StoredSession] = OrderedDict()
        self._proxies = [ip_network(str(address)) for address in auth.proxy.addresses]

    async def recall(self) -> None:
        """Those of before the last restart."""
        for session in await self._store.all(self._clock.wall()):
            self._sessions[session.digest] = session

    # Who asks

    def caller(self, request: Request) -> Key:
        """By its key, else by its session, else by what a trusted proxy says. Raises Unauthorized, or Forbidden for what another
        page may have made a browser send."""
        key, session, _ = self.who(request)
        if session is not None or key.id.startswith(_PROXIED):
            check_own_page(request)
        return key

    def who(self, request: Request) -> tuple[Key, StoredSession | None, str]:
        """The key, the session if it is one, and by what it is known: `key`, `session`, `proxy` or `none`."""
        headers = request.headers
        if "authorization" not in headers and "x-api-key" not in headers and not self._keyring.open_to_all:
            session = self.session(request)
            if session is not None:
                key = self._keyring.get(session.key)
                if key is not None and key.active(self._clock.wall()):
                    return key, session, "session"
            named = self._proxied(request)
            if named is not None:
                return named, None, "proxy"
        found = {name: headers.get(name) for name in ("authorization", "x-api-key", "host", "origin")}
        key = self._keyring.identify(*(v.encode("latin-1") if v is not None else None for v in found.values()))
        return key, None, "none" if self._keyring.open_to_all else "key"

    def session(self, request: Request) -> StoredSession | None:
        """That of its cookie, if it is good."""
        cookie = request.cookies.get(COOKIE)
        if cookie is None:
            return None
        token, _, signature = cookie.partition(".")
        if not hmac.compare_digest(signature.encode(), self._signed(token).encode()):
            return None
        session = self._sessions.get(self._digest(token))
        return session if session is not None and self._clock.wall() < session.expires_at else None

    def _proxied(self, request: Request) -> Key | None:
        proxy = self._auth.proxy
        user = (request.headers.get(proxy.header) or "").strip()
        peer = request.scope.get(PEER) or request.scope.get("client")
        if not user or not user.isprintable() or peer is None or not self._is_proxy(peer[0]):
            return None
        name = user[:_NAME]
        return Key(id=f"{_PROXIED}{name}", name=name, digest="", scopes=frozenset(Scope(s) for s in proxy.scopes))

    def _is_proxy(self, address: str) -> bool:
        try:
            found = ip_address(address)
        except ValueError:  # a unix socket has none
            return False
        mapped = getattr(found, "ipv4_mapped", None)
        return any(a in network for a in (found, mapped) if a is not None for network in self._proxies)

    # Coming and going

    async def begin(self, request: Request, secret: str) -> tuple[Key, StoredSession, str]:
        """Sign in with a key that may read: the key, the session, and what the cookie has to hold. Raises Unauthorized, Forbidden,
        or RateLimited after too many wrong keys."""
        check_own_page(request, strict=False)
        peer = request.client.host if request.client is not None else ""
        wait = self._tries.wait(peer, self._clock.now())
        if wait is not None:
            raise RateLimited("Too many wrong keys. Wait, then try again.", retry_after=wait)
        try:
            key = self._keyring.of_secret(secret.strip())
        except Unauthorized:
            self._tries.failed(peer, self._clock.now())
            raise
        if not key.allows(Scope.READ):
            raise Forbidden(
                f"The key `{key.name}` may not look at anything here: it lacks the scope `read`. Use one that has it."
            )
        token, wall = secrets.token_urlsafe(32), self._clock.wall()
        ends = wall + self._auth.session
        ends = ends if key.expires_at is None else min(ends, key.expires_at)
        session = StoredSession(self._digest(token), key.id, wall, ends)
        over = [s.digest for s in self._sessions.values() if s.expires_at <= wall]
        mine = [s.digest for s in self._sessions.values() if s.key == key.id and s.expires_at > wall]
        gone = [*over, *mine[: max(0, len(mine) + 1 - MOST)]]
        await self._store.replace(gone, session)
        for digest in gone:
            self._sessions.pop(digest, None)
        self._sessions[session.digest] = session
        return key, session, f"{token}.{self._signed(token)}"

    async def end(self, session: StoredSession) -> None:
        """Sign out here. At once, and also where the database cannot be written: then it is an error, and over all the same."""
        self._sessions.pop(session.digest, None)
        await self._store.replace([session.digest])

    async def end_all(self, key: str | None) -> int:
        """Sign out everywhere who is signed in with that key; None: everybody. How many sessions that were."""
        gone = [s.digest for s in self._sessions.values() if key is None or s.key == key]
        for digest in gone:
            del self._sessions[digest]
        await self._store.replace(gone)
        return len(gone)

    def _signed(self, token: str) -> str:
        return hmac.new(self._secret, b"cookie " + token.encode(), sha256).hexdigest()

    def _digest(self, token: str) -> str:
        return hmac.new(self._secret, b"stored " + token.encode(), sha256).hexdigest()


def check_own_page(request: Request, *, strict: bool = True) -> None:
    """Raises Forbidden for a request that changes something and may come from somebody else's page. `strict`: it has to show that it
    does not; else it is enough that nothing shows that it does (a program that signs in sends no Origin)."""
    if request.method in SAFE or request.headers.get(MARK) == "1":
        return
    origin = request.headers.get("origin")
    if origin is None:
        site = request.headers.get("sec-fetch-site")
        own = site in {"same-origin", "none"} if site is not None else not strict
    else:
        own = origin.partition("://")[2] == request.headers.get("host")
    if not own:
        raise Forbidden(
            "This would change something and may come from a web page of somebody else. Send `X-VLLM-MM-Session: 1` with it, or use a key "
            "in the Authorization header."
        )
