"""`/upstream/{model}/PATH`, llama-swap's way to a model's own server: the model is named by the path.

Nothing is passed on that the data plane does not pass on, and it goes the data plane's way: key, queue, lease, ledger. Of the
rest only the GETs of `gateway.routes.GETS` reach an engine; engines have open administrative routes.
"""

from asyncio import to_thread
from dataclasses import dataclass
from typing import Final
from urllib.parse import unquote

from vllm_mm.domain.body_edits import splice
from vllm_mm.domain.catalog import Catalog
from vllm_mm.domain.errors import BadRequest, MMError, UnknownModel, UnknownRoute
from vllm_mm.domain.keys import Key
from vllm_mm.gateway.compressed import coding_of, plain
from vllm_mm.gateway.head import read_head
from vllm_mm.gateway.relay import Call
from vllm_mm.gateway.rename import model_edit
from vllm_mm.gateway.routes import GETS, ROUTES, UPLOADS, Route, about_response, route_of

PREFIX: Final = "/upstream/"
_AT_ONCE: Final = 1 << 16
"""Bytes of a body that are looked through on the event loop."""
_BOM: Final = b"\xef\xbb\xbf"


@dataclass(frozen=True, slots=True)
class Upstream:
    """What is asked for of which model."""

    model: str
    """As it was named: an id, an alias or an adapter."""
    route: Route
    subject: str = ""
    """As `Call.subject`."""


def upstream_of(path: bytes, method: str, catalog: Catalog, key: Key) -> Upstream:
    """`path` as it was sent, with the prefix. Raises UnknownModel, or UnknownRoute for what is not passed on."""
    parts = path.removeprefix(PREFIX.encode()).split(b"/")
    names = [unquote(b"/".join(parts[:n]).decode("latin-1")) for n in range(len(parts), 0, -1)]
    name = next((n for n in names if n in catalog.names()), None)
    spec = catalog.resolve(names[-1] if name is None else name)
    if name is None or not key.may_use(spec.id):
        raise UnknownModel(f"The model `{name}` does not exist, or this key may not use it.")
    below = parts[len(parts) - names.index(name) :]
    rest = b"/" + b"/".join(below)
    if method == "GET" and (route := GETS.get(rest)) is not None:
        return Upstream(name, route, name)
    if (about := about_response(rest)) is not None and about[0].method.decode() == method:
        return Upstream(name, *about)
    known = route_of(rest)
    if known is not None and known.method.decode() == method:
        return Upstream(name, known)
    shown = ", ".join(sorted(r.name for r in (*ROUTES.values(), *UPLOADS.values())))
    gets = ", ".join(sorted(r.name for r in GETS.values()))
    raise UnknownRoute(
        f"{method} {rest.decode('latin-1')[:200]} is not passed on to {spec.id}. What is: POST {shown}; GET {gets} "
        "(docs/compatibility.md)."
    )


def check_form(call: Call, model: str, catalog: Catalog) -> None:
    """Have a form refused that names another model than the path: it is passed on as it is."""

    def check(name: str) -> None:
        if catalog.resolve(name) is not catalog.resolve(model):
            raise BadRequest(f"The path says `{model}`, the form's field `model` says `{name}`.", param="model")

    if call.upload is not None:
        call.upload.check = check


async def name_model(call: Call, model: str, limit: int) -> None:
    """Have the call name `model`, whatever its body says. `limit`: bytes of the plain body. What else is wrong with it is left
    to be found where it is read."""
    if call.subject or call.refused is not None:
        return
    try:
        coding = coding_of(read_head(call.headers).encoding)
        if coding is not None:
            call.body = await plain(call.body, coding, limit)
            call.headers = [field for field in call.headers if field[0] != b"content-encoding"]
    except MMError as error:
        call.refused = error
        return
    call.body = named(call.body, model) if len(call.body) <= _AT_ONCE else await to_thread(named, call.body, model)


def named(body: bytes | bytearray, model: str) -> bytes:
    """A JSON object with `model` for its model; anything else as it is."""
    text = bytes(body).removeprefix(_BOM).strip()
    if not text.startswith(b"{") or not text.endswith(b"}"):
        return bytes(body)
    if not text[1:-1].strip():
        text = b'{"model":""}'
    return b"".join(splice(text, (model_edit(text, model),)))
