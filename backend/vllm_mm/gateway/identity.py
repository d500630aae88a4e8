"""Who asks: keys in memory, found without a hash on the hot path, and never in the database."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from ipaddress import ip_address

from vllm_mm.clock import Clock
from vllm_mm.domain.errors import Forbidden, Unauthorized
from vllm_mm.domain.keys import ANONYMOUS, Key, Scope, digest, ended, same
from vllm_mm.domain.specs import ModelSpec

_REMEMBERED = 4096


class Keyring:
    """All issued keys. `replace` whenever one is made or revoked; nothing here waits or touches the database."""

    def __init__(
        self,
        clock: Clock,
        *,
        open_to_all: bool = False,
        any_host: bool = False,
        origins: Iterable[bytes] = (),
        pepper: bytes = b"",
    ) -> None:
        """`open_to_all`: `auth.mode: none`, everybody is the anonymous administrator; but not every web page that such
        a person looks at, unless it is one of `origins`. `any_host`: reached by other names than this machine's own
        (`auth.force`). `pepper`: the server's secret, with which keys are hashed."""
        self._clock = clock
        self._pepper = pepper
        self._open = open_to_all
        self._any_host = any_host
        self._origins = frozenset(origins)
        self._keys: tuple[Key, ...] = ()
        self._by_digest: dict[str, Key] = {}
        self._seen_bearer: dict[bytes, Key] = {}
        self._seen_plain: dict[bytes, Key] = {}
        self.on_replace: Callable[[Sequence[Key]], None] | None = None
        """Told, if set, of every new set of keys."""
        self.on_changed: Callable[[Mapping[str, Key]], None] | None = None
        """Told, if set, all good keys by their ids, after `on_replace`."""
        self.on_revoked: Callable[[str], None] | None = None
        """Told, if set, the id of every key that was good and is revoked now."""

    @property
    def open_to_all(self) -> bool:
        """`auth.mode: none`."""
        return self._open

    @property
    def keys(self) -> Sequence[Key]:
        """All, the revoked and expired ones too."""
        return self._keys

    def get(self, key_id: str) -> Key | None:
        """By its id, whether or not it is good."""
        return next((key for key in self._keys if key.id == key_id), None)

    def replace(self, keys: Iterable[Key]) -> None:
        """The whole set from now on. Revoked and expired ones may be among them."""
        before, self._keys = self._keys, tuple(keys)
        self._by_digest = {key.old_digest: key for key in self._keys if key.old_digest is not None}
        self._by_digest |= {key.digest: key for key in self._keys}
        self._seen_bearer.clear()
        self._seen_plain.clear()
        if self.on_replace is not None:
            self.on_replace(self._keys)
        if self.on_changed is not None:
            self.on_changed({key.id: key for key in self._keys if key.revoked_at is None})
        if self.on_revoked is not None:
            for key_id in ended(before, self._keys, self._clock.wall()):
                self.on_revoked(key_id)

    def of_secret(self, secret: str) -> Key:
        """The key with that secret. Raises Unauthorized."""
        key = self._look_up(b"", secret.encode("utf-8", "replace"), {})
        if not key.active(self._clock.wall()):
            raise Unauthorized("This API key is revoked or has expired. Ask for a new one.")
        return key

    def identify(
        self, authorization: bytes | None, api_key: bytes | None, host: bytes | None = None, origin: bytes | None = None
    ) -> Key:
        """The key behind `Authorization: Bearer` or `x-api-key`. Raises Unauthorized.

        Header values that were good once are remembered as they are; bad ones never, so guessing costs the guesser a
        hash and us no memory.
        """
        if self._open:
            self._check_page(host, origin)
            return ANONYMOUS
        if authorization is not None:
            key = self._seen_bearer.get(authorization)
            if key is None:
                scheme, _, secret = authorization.partition(b" ")
                if scheme.lower() != b"bearer":
                    raise Unauthorized("The Authorization header has to be `Bearer KEY`.")
                key = self._look_up(authorization, secret.strip(), self._seen_bearer)
        elif api_key is not None:
            key = self._seen_plain.get(api_key)
            if key is None:
                key = self._look_up(api_key, api_key.strip(), self._seen_plain)
        else:
            raise Unauthorized(
                "This needs an API key: send `Authorization: Bearer KEY` (or `x-api-key: KEY`). "
                "`vllm-mm keys create` makes one."
            )
        if not key.active(self._clock.wall()):
            raise Unauthorized("This API key is revoked or has expired. Ask for a new one.")
        return key

    def _check_page(self, host: bytes | None, origin: bytes | None) -> None:
        """Without keys a browser's user would lend its access to each page it opens. Raises Forbidden for a page of
        another origin, and for a host name that is not this machine's: a page can have its own name point here."""
        if origin is not None and not self._origins & {origin, b"*"} and origin.partition(b"://")[2] != host:
            raise Forbidden(
                "A web page of another origin may not use this server while it has no keys (auth.mode: none). "
                "Add the page's origin to cors.origins, or use auth.mode: keys."
            )
        if host is not None and not self._any_host and not _is_local(host):
            raise Forbidden(
                f"This server has no keys (auth.mode: none) and answers to localhost and IP addresses only, not to "
                f"`{host.decode('latin-1')}`. Use auth.mode: keys to give it a name."
            )

    def _look_up(self, presented: bytes, secret: bytes, seen: dict[bytes, Key]) -> Key:
        hashed = digest(secret.decode("latin-1"), self._pepper)
        # Who guesses can neither choose nor foresee the hash that is looked for, so how long that takes tells nothing.
        key = self._by_digest.get(hashed)
        known = key is not None and same(hashed, key.digest)
        if key is None or not (known or self._was_rotated_out(key, hashed)):
            raise Unauthorized("Nobody issued this API key. Check that it is complete (it begins with `mm-`).")
        if known:  # the secret of before a rotation is looked at anew each time, for it ends by itself
            if len(seen) >= _REMEMBERED:
                seen.clear()
            seen[presented] = key
        return key

    def _was_rotated_out(self, key: Key, hashed: str) -> bool:
        """Whether it is the secret of before the last rotation. Raises Unauthorized when its time is over."""
        if key.old_digest is None or key.old_until is None or not same(hashed, key.old_digest):
            return False
        if self._clock.wall() >= key.old_until:
            raise Unauthorized(
                "This API key was replaced by another secret (rotated), and its time is over. Ask for the new one."
            )
        return True


def _is_local(host: bytes) -> bool:
    """An IP address or localhost, with or without a port: names that no page can have made point here."""
    name = host.decode("latin-1").lower()
    name = name[1:].partition("]")[0] if name.startswith("[") else name.partition(":")[0]
    if name == "localhost" or name.endswith(".localhost"):
        return True
    try:
        ip_address(name)
    except ValueError:
        return False
    return True


def require(key: Key, scope: Scope) -> None:
    """Raises Forbidden when the key may not do this kind of thing."""
    if scope not in key.scopes and not key.allows(scope):
        raise Forbidden(f"The key `{key.name}` lacks the scope `{scope.value}`. Make one that has it.")


def require_model(key: Key, spec: ModelSpec, name: str) -> None:
    """Raises Forbidden when the key may not use the model that was asked for as `name`."""
    if not key.may_use(spec.id):
        raise Forbidden(f"The key `{key.name}` may not use the model `{name}`. Ask for a key that lists it.")
