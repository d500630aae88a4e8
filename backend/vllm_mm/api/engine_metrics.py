"""The engines' own Prometheus text, put together: each sample gets a `model` label, each family stands once.

The exposition format (version 0.0.4) wants all lines of a family in one block, so that texts of several engines cannot
simply follow one another. Text is moved, not parsed into numbers: engines have hundreds of series, and this runs on the
event loop.
"""

import asyncio
import logging
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from vllm_mm.engine.instance import ModelInstance

_LOG = logging.getLogger(__name__)
DEADLINE = 1.0
"""Seconds that a scrape waits for the engines; one that is slower is left out."""
_OURS = ("vllm_mm_", "python_", "process_")
"""Families that are not passed on: ours, and those of every Python process, which a scrape of one target has once."""
_SUFFIXES = ("_bucket", "_sum", "_count", "_total", "_created", "_info")
_NAME = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")
_OWN_LABEL = re.compile(r'([{,]\s*)model="')


@dataclass(slots=True)
class _Family:
    head: list[str] = field(default_factory=list[str])
    samples: list[str] = field(default_factory=list[str])


async def scrape(instances: Iterable[ModelInstance]) -> dict[str, str]:
    """Each engine's text by model. Asks through the control channel: no lease, no use, nothing is woken."""
    chosen = list(instances)
    texts = await asyncio.gather(*(_one(i) for i in chosen))
    return {i.spec.id: text for i, text in zip(chosen, texts, strict=True) if text}


async def _one(instance: ModelInstance) -> str:
    try:
        async with asyncio.timeout(DEADLINE):
            return await instance.metrics()
    except Exception as error:  # whatever an engine does, the other metrics have to come
        _LOG.debug("%s: no metrics: %r", instance.spec.id, error)
        return ""


def merge(texts: Mapping[str, str]) -> str:
    """One text from those of several engines, by model."""
    families: dict[str, _Family] = {}
    for model, text in texts.items():
        label = f'model="{_escaped(model)}"'
        current = ""
        for line in text.splitlines():
            if line.startswith("#"):
                current = _comment(line, families, current)
            elif (match := _NAME.match(line)) is not None:
                name = match.group()
                family = current if current and _belongs(name, current) else name
                if not family.startswith(_OURS):
                    families.setdefault(family, _Family()).samples.append(_labelled(line, name, label))
    blocks = ("\n".join([*f.head, *f.samples]) for f in families.values() if f.samples)
    return "".join(f"{block}\n" for block in blocks)


def _comment(line: str, families: dict[str, _Family], current: str) -> str:
    """Keeps the first HELP and TYPE of a family; returns the family that the lines after it belong to."""
    parts = line.split(maxsplit=3)
    if len(parts) < 3 or parts[1] not in {"HELP", "TYPE"}:
        return current
    family = families.setdefault(parts[2], _Family())
    if not any(h.startswith(f"# {parts[1]} ") for h in family.head):
        family.head.append(line)
    return parts[2]


def _belongs(name: str, family: str) -> bool:
    return name == family or (name.startswith(family) and name[len(family) :] in _SUFFIXES)


def _labelled(line: str, name: str, label: str) -> str:
    rest = line[len(name) :]
    if not rest.startswith("{"):
        return f"{name}{{{label}}}{rest}"
    rest = _OWN_LABEL.sub(r'\1exported_model="', rest)
    inner = rest[1:].lstrip()
    return f"{name}{{{label}{'' if inner.startswith('}') else ','}{inner}"


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
