"""The OpenAPI document: how keys are sent, and a page that lists it where the built one is missing."""

from collections.abc import Callable, Mapping
from html import escape
from typing import Any, Final

from fastapi import FastAPI

_PAGE: Final = """<!doctype html>
<html lang="en">
<head><meta charset="utf-8"><meta name="viewport" content="width=device-width"><title>vllm-mm: the admin API</title></head>
<body>
<h1>The admin API</h1>
<p>The interactive page is not built in this checkout (<code>cd frontend &amp;&amp; npm ci &amp;&amp; npm run build</code>). This is
what there is; <a href="openapi.json">openapi.json</a> has every detail.</p>
<table>
<thead><tr><th>Method</th><th>Path</th><th>What it does</th></tr></thead>
<tbody>
{rows}
</tbody>
</table>
</body>
</html>
"""
_SCHEMES: Final[Mapping[str, Any]] = {
    "bearer": {"type": "http", "scheme": "bearer", "description": "A key of this server: `mm-...`."},
    "api-key": {"type": "apiKey", "in": "header", "name": "x-api-key"},
}


def listing(document: Mapping[str, Any]) -> str:
    """The operations of an OpenAPI document as a page without scripts."""
    rows = [
        f"<tr><td>{escape(method.upper())}</td><td><code>{escape(path)}</code></td>"
        f"<td>{escape(operation.get('description') or operation.get('summary') or '')}</td></tr>"
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
    ]
    return _PAGE.format(rows="\n".join(rows))


def say_how_keys_are_sent(app: FastAPI) -> None:
    """Name the two headers in the document of `app`: a page made from it can then ask for a key and send it."""
    make: Callable[[], dict[str, Any]] = app.openapi

    def openapi() -> dict[str, Any]:
        document = make()
        document.setdefault("components", {})["securitySchemes"] = dict(_SCHEMES)
        document["security"] = [{name: []} for name in _SCHEMES]
        return document

    app.openapi = openapi
