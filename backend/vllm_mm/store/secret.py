"""The server's secret, with which keys are hashed and sessions are signed: from the configuration, else a file of this data directory."""

import hashlib
import hmac
import os
import secrets
from pathlib import Path
from typing import Final

from vllm_mm.domain.errors import ConfigError

FILE: Final = "auth.secret"
"""In the data directory, readable by its owner only."""
SHORTEST: Final = 32
"""Characters."""


def server_secret(data_dir: Path, configured: str | None) -> bytes:
    """`configured` (`auth.secret`), else what the file holds, which is made at the first call. Raises ConfigError.

    Whoever has it and the database can try secrets; without it not even that. Without it, too, no key is known any more.
    """
    if configured is not None:
        return configured.encode()
    path = data_dir / FILE
    try:
        return _read(path)
    except FileNotFoundError:
        _make(path)
        return _read(path)


def mark(secret: bytes) -> str:
    """What tells two secrets apart and tells nothing of them."""
    return hmac.new(secret, b"vllm-mm: which secret is this", hashlib.sha256).hexdigest()[:16]


def derived(secret: bytes, purpose: str) -> bytes:
    """A secret for another purpose."""
    return hmac.new(secret, f"vllm-mm: {purpose}".encode(), hashlib.sha256).digest()


def _read(path: Path) -> bytes:
    text = path.read_text("ascii", "replace").strip()
    if len(text) < SHORTEST:
        raise ConfigError(
            f"{path} holds no secret: it has {len(text)} characters. Put the copy of it there that belongs to this database; "
            "if there is none, delete the file and make all keys anew."
        )
    if path.stat().st_mode & 0o077:
        path.chmod(0o600)
    return text.encode()


def _make(path: Path) -> None:
    """Whole or not at all, and never over another one: two processes may start at once."""
    new = path.with_name(f"{FILE}.{secrets.token_hex(4)}")
    try:
        with os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(secrets.token_hex(32) + "\n")
            file.flush()
            os.fsync(file.fileno())
        try:
            path.hardlink_to(new)
        except OSError as error:
            if not path.exists():
                raise ConfigError(f"{path} cannot be made: {error.strerror}") from error
    finally:
        new.unlink(missing_ok=True)
