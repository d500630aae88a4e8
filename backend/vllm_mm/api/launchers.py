"""`/api/launchers`: how engines come into being here, and what is kept in memory for the next one."""

from fastapi import APIRouter

from vllm_mm.api.dependencies import Reader, The, operation_id
from vllm_mm.api.schemas import REFUSALS, Out

router = APIRouter(generate_unique_id_function=operation_id, prefix="/api", tags=["launchers"], responses=REFUSALS)


class ZygoteOut(Out):
    """A process that has an engine's code imported, from which engines are forked."""

    key: str
    python: str
    """The engine's Python."""
    kind: str
    state: str
    """`importing`, `ready`, or `failed`: given up, see `reason`."""
    reason: str
    pid: int | None
    forks: int
    idle_s: float
    imports_s: float
    private: int
    """Bytes of memory that only it uses: what would be free without it. What it shares with engines is counted with them."""
    threads: int
    """Of the operating system."""
    problems: list[str]
    """Imports that failed; engines then import what they need themselves."""


class DistrustOut(Out):
    """A model whose warm starts failed; it starts the other way until its declaration or its packages change."""

    model: str
    zygote: str
    reason: str


class CachedWeightsOut(Out):
    """The weights of one model. Bytes."""

    model: str
    size: int
    """0 when they are not on this machine (yet)."""
    cached: int
    """In the page cache, as last measured."""
    measured: bool
    """False where the system does not tell; then `cached` is what was read ahead here."""
    kept: bool
    """Whether it has a part of the budget now."""


class ReadAheadOut(Out):
    """Reading weights into the page cache before they are asked for (`warm.read_ahead`). Bytes, since the server started."""

    budget: int
    """0: it is off, and nothing is looked at."""
    read: int
    """Read ahead."""
    starts: int
    """Of engines whose weights were looked at before."""
    wanted: int
    """Weights that those starts read."""
    hits: int
    """What of `wanted` was in memory at the last look before the start, whoever put it there."""
    models: list[CachedWeightsOut]


class LaunchersOut(Out):
    """What the launchers did since the server started."""

    starts: dict[str, int]
    """Of processes, by launcher: `local`, `warm`."""
    fallbacks: int
    """Warm starts that were tried or asked for and became local ones."""
    last_fallback: str
    zygotes: list[ZygoteOut]
    distrusted: list[DistrustOut]
    read_ahead: ReadAheadOut


@router.get("/launchers", name="list_launchers")
async def list_launchers(the: The, _key: Reader) -> LaunchersOut:
    """Zygotes, their memory, and how engines were started."""
    view = the.launchers()
    return LaunchersOut(
        starts=dict(view.starts), fallbacks=view.fallbacks, last_fallback=view.last_reason,
        zygotes=[
            ZygoteOut(
                key=z.key, python=z.python, kind=z.kind, state=z.state, reason=z.reason, pid=z.pid, forks=z.forks,
                idle_s=z.idle_s, imports_s=z.report.seconds, private=z.report.private, threads=z.report.threads,
                problems=list(z.report.problems),
            )
            for z in view.zygotes
        ],
        distrusted=[DistrustOut(model=d.model, zygote=d.key, reason=d.reason) for d in view.distrusted],
        read_ahead=ReadAheadOut.model_validate(the.read_ahead(), from_attributes=True),
    )  # fmt: skip
