"""What a shell offers for an argument when Tab is pressed. Never fails, and takes no longer than a person would wait."""

import json
import os
from collections.abc import Sequence

DEADLINE = 1.0
"""Seconds for the server to answer."""


def model_names(incomplete: str) -> Sequence[str]:
    """Names of models that begin so, as the server of the environment lists them; none when it does not answer."""
    from urllib.request import Request, urlopen  # noqa: PLC0415  # only here, and quicker to import than httpx

    from vllm_mm.cli.server import DEFAULT_URL  # noqa: PLC0415  # as above

    url, token = os.environ.get("VLLM_MM_URL") or DEFAULT_URL, os.environ.get("VLLM_MM_TOKEN")
    if not url.startswith(("http://", "https://")):
        return []
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    try:
        with urlopen(Request(f"{url.rstrip('/')}/v1/models", headers=headers), timeout=DEADLINE) as answer:  # noqa: S310  # see above
            listed = json.load(answer)["data"]
        return [name for model in listed if (name := str(model["id"])).startswith(incomplete)]
    except (OSError, ValueError, KeyError, TypeError):
        return []
