"""`plan --estimate`: the memory of a model, line by line, from a server or from a folder alone."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import typer

from vllm_mm.cli.exits import Exit, fail
from vllm_mm.cli.output import clock, count, print_json, size
from vllm_mm.cli.server import Server, model_path


def of_model(server: Server, model: str, *, json: bool) -> None:
    """Of a declared model: what its server reserves for it on each device."""
    found = server.get(model_path(model))
    if json:
        print_json({"model": found["id"], "devices": found["devices"]["count"], **found["footprint"]})
        return
    _print(found["id"], found["devices"]["count"], found["footprint"])


def of_folder(model: str, changes: Sequence[str], *, cpu: bool, json: bool) -> None:
    """Of a folder (or of an id in the cache of Hugging Face), without a server. `changes` as in a declaration."""
    from vllm_mm.cli.declarations import put  # noqa: PLC0415  # with what follows: only this command needs it
    from vllm_mm.control.declared import spec_from_api  # noqa: PLC0415  # as above
    from vllm_mm.domain.errors import BadRequest  # noqa: PLC0415  # as above
    from vllm_mm.domain.specs import GIB  # noqa: PLC0415  # as above
    from vllm_mm.engine.footprints import Footprints  # noqa: PLC0415  # as above
    from vllm_mm.settings import Settings  # noqa: PLC0415  # as above

    body: dict[str, Any] = {"engine": "vllm", "model": model}
    for change in changes:
        put(body, change)
    try:
        spec = spec_from_api("model", body, Settings())
    except BadRequest as error:
        fail(error.message, Exit.USAGE)
    known = Footprints(dict(os.environ)).estimate(spec, gpu=not cpu)
    if known.weights is None:
        fail("; ".join(known.notes) or f"there is no model at {model}", Exit.NOT_FOUND)
    kv = known.wanted_kv()
    if cpu and known.setup.kv_cache is None:
        kv = -(-kv // GIB) * GIB  # the CPU build takes whole GiB
    found = known.footprint(kv)
    cache = known.cache
    out: dict[str, Any] = {
        "per_device": found.per_device, "source": found.source, "spread": 0, "weights": found.parts.weights,
        "kv_cache": found.parts.kv_cache, "overhead": found.parts.overhead, "kv_tokens": found.kv_tokens,
        "kv_token_bytes": found.kv_token_bytes, "samples": 0, "learned_at": None, "notes": list(found.notes),
        "tensors": known.weights.tensors, "stored": known.weights.stored, "loaded": known.weights.loaded,
        "max_model_len": cache.length if cache is not None else None,
        "least_kv_cache": known.least_kv,
        "tokens_per_gib": cache.tokens(2**30) if cache is not None and cache.layers else None,
    }  # fmt: skip
    ranks = known.setup.ranks
    if json:
        print_json({"model": model, "devices": ranks, **out})
        return
    name = Path(model).name if Path(model).is_dir() else model
    _print(name, ranks, out)


def line(footprint: Mapping[str, Any]) -> str:
    """A footprint as the API gives it, in one line: how much, how that is known, and what it is made of."""
    known = [(n, footprint[k]) for n, k in (("weights", "weights"), ("KV cache", "kv_cache"), ("overhead", "overhead"))]
    parts = ", ".join(f"{name} {size(value)}" for name, value in known if value)
    return f"{size(footprint['per_device'])} on each device, {_source(footprint)}" + (f": {parts}" if parts else "")


def _print(name: str, devices: int, found: Mapping[str, Any]) -> None:
    where = f"each of {devices} devices" if devices > 1 else "its device"
    typer.echo(f"{name}, on {where}:")
    if found["weights"] or found["overhead"]:
        lines = (
            ("weights", found["weights"], _weights(found)),
            ("KV cache", found["kv_cache"], _cache(found)),
            ("overhead", found["overhead"], _overhead(found)),
        )
        for what, value, why in lines:
            typer.echo(f"  {what:<10}{size(value):>11}  {why}".rstrip())
    else:
        typer.echo("  nothing is known but the sum")
    typer.echo(f"  {'sum':<10}{size(found['per_device']):>11}  {found['source']}")
    if found["learned_at"] is not None:
        typer.echo(f"  learned from {_launches(found)}, {_latest(found)}")
    if least := found.get("least_kv_cache"):
        told = f"one request of {found['max_model_len']:,} tokens needs {size(least)} of KV cache: with less it does not start"
        typer.echo(f"  {told}")
    for note in found["notes"]:
        typer.echo(f"  note: {note}")


def _weights(found: Mapping[str, Any]) -> str:
    if "tensors" not in found:
        return ""
    stored = f"{count(found['tensors'], 'tensor')} of {found['stored']}" if found["tensors"] else found["stored"]
    return f"{stored}, loaded as {found['loaded']}"


def _cache(found: Mapping[str, Any]) -> str:
    if found["kv_tokens"] is None:
        return ""
    per_gib = f" (1 GiB holds {found['tokens_per_gib']:,})" if found.get("tokens_per_gib") else ""
    return f"{found['kv_tokens']:,} tokens of {found['kv_token_bytes']:,} bytes{per_gib}"


def _overhead(found: Mapping[str, Any]) -> str:
    if found["source"] == "learned":
        return "runtime, activations, graphs"
    return "runtime, activations, graphs: a rule of thumb until the first launch"


def _source(found: Mapping[str, Any]) -> str:
    if found["source"] != "learned":
        return str(found["source"])
    spread = f", give or take {size(found['spread'])}" if found["spread"] else ""
    return f"learned from {_launches(found)}{spread}"


def _launches(found: Mapping[str, Any]) -> str:
    return {0: "a start that failed", 1: "1 launch"}.get(found["samples"], f"{found['samples']} launches")


def _latest(found: Mapping[str, Any]) -> str:
    """When, and how far what they took beside their KV cache lies apart."""
    spread = f"{size(found['spread'])} (standard deviation)" if found["samples"] > 1 else "not known before the second"
    return f"the latest at {clock(found['learned_at'])}; spread {spread}"
