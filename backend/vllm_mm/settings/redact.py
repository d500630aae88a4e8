"""The settings as they may be shown: in `config show`, in the admin API, in a bug report."""

import re
from typing import Any
from urllib.parse import urlsplit

from vllm_mm.settings.root import Settings

MASK = "***"
_SECRET = re.compile(r"token|key|secret|passw|credential|auth", re.IGNORECASE)
_URL_PASSWORD = re.compile(r"(://[^:/@]*:)[^@]*@")


def host_only(url: str) -> str:
    """The address of a webhook without what is often its secret: a password, the path, the query."""
    parts = urlsplit(url)
    rest = f"/{MASK}" if parts.path.strip("/") or parts.query else ""
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{rest}"


def redacted(settings: Settings) -> dict[str, Any]:
    """JSON-ready, with what looks like a secret masked: variables and arguments by their names, passwords in URLs."""
    data = settings.model_dump(mode="json")
    data["database"]["url"] = _URL_PASSWORD.sub(rf"\1{MASK}@", data["database"]["url"])
    for hook in data["webhooks"]:
        hook["url"] = host_only(hook["url"])
        hook["secret"] = MASK if hook["secret"] else ""
    for owner in (data["defaults"], *data["models"].values()):
        for section in ("env", "args"):
            values: dict[str, Any] = owner[section]
            owner[section] = {k: MASK if _SECRET.search(k) and isinstance(v, str) else v for k, v in values.items()}
    return data
