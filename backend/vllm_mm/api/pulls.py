"""`/api/pulls` and `/api/weights`: weights from the Hugging Face Hub, and what of them is on the disk."""

from typing import Annotated

from fastapi import APIRouter, Query, Response
from pydantic import ConfigDict, Field

from vllm_mm.api.auditing import AuditedRoute
from vllm_mm.api.config import DryRun
from vllm_mm.api.dependencies import WAIT_MAX, Admin, Reader, Services, The, cause, operation_id
from vllm_mm.api.schemas import REFUSALS, Out
from vllm_mm.control.pulls import Pull, PullState
from vllm_mm.settings.described import Described

router = APIRouter(
    route_class=AuditedRoute, generate_unique_id_function=operation_id, prefix="/api", tags=["weights"], responses=REFUSALS
)  # fmt: skip


class PullIn(Described):
    model_config = ConfigDict(extra="forbid")

    model: str = Field(min_length=1, max_length=200)
    """Id or alias of a declared model, or an id on the hub."""
    revision: str | None = Field(default=None, min_length=1, max_length=200)
    """A branch, a tag or a commit; null means what the model's arguments say, else `main`."""


class PullOut(Out):
    """A download. Sizes in bytes, moments as Unix seconds."""

    id: str
    repo: str
    revision: str
    state: PullState
    file: str
    """The one that comes now."""
    files: int
    total: int | None
    """Null until the hub has said it."""
    done: int
    """What was there before included."""
    rate: float | None
    """Bytes a second."""
    eta_s: float | None
    reason: str
    """Why it failed, or who cancelled it."""
    path: str
    """The folder that an engine loads, once it is whole."""
    by: str
    asked_at: float
    ended_at: float | None


class CacheOut(Out):
    path: str
    free: int
    """Bytes of its disk."""
    total: int


class RepositoryOut(Out):
    repo: str
    cache: str
    size: int
    """Bytes on the disk, parts of files included."""
    partial: int
    """Of these, parts of files of downloads that were not finished."""
    changed_at: float
    used_by: list[str]
    """Declared models that name it in any place."""
    downloading: bool


class WeightsOut(Out):
    caches: list[CacheOut]
    repositories: list[RepositoryOut]
    """The largest first."""


class PruneIn(Described):
    model_config = ConfigDict(extra="forbid")

    repos: list[str] | None = Field(default=None, max_length=1000)
    """Only these; null means all that no declared model uses, and of the others what downloads left behind."""


class RemovedOut(Out):
    repo: str
    cache: str
    freed: int


class KeptOut(Out):
    repo: str
    why: str


class PrunedOut(Out):
    applied: bool
    """False for a dry run."""
    removed: list[RemovedOut]
    freed: int
    """Bytes."""
    kept: list[KeptOut]
    """What was asked for and stays."""


@router.post("/pulls", name="start_pull", status_code=202)
async def start_pull(the: The, key: Admin, body: PullIn) -> PullOut:
    """Download the weights of a model. The answer comes when the hub has said what there is to come: an id that is not there is 404,
    one that is gated or a server that is offline 409, no room on the disk 507, no hub 503, and then nothing was downloaded. One after the
    other; what was broken off is gone on with."""
    return _pull(the, await the.pulls.start(body.model, the.manager.catalog, cause(key), body.revision))


@router.get("/pulls", name="list_pulls")
async def list_pulls(the: The, _key: Reader) -> list[PullOut]:
    """Those that run or wait, and the last that are over; the latest first."""
    return [_pull(the, pull) for pull in the.pulls.all()]


@router.get("/pulls/{pull}", name="get_pull")
async def get_pull(
    the: The,
    _key: Reader,
    pull: str,
    wait: Annotated[float, Query(ge=0, le=WAIT_MAX, description="Seconds to wait for its end.")] = 0.0,
) -> PullOut:
    """How far it is."""
    return _pull(the, await the.pulls.wait(pull, wait))


@router.delete("/pulls/{pull}", name="cancel_pull")
async def cancel_pull(the: The, key: Admin, pull: str) -> PullOut:
    """End it. What has come stays on the disk for the next try."""
    return _pull(the, await the.pulls.cancel(pull, cause(key)))


@router.get("/weights", name="list_weights")
async def list_weights(the: The, response: Response, _key: Reader) -> WeightsOut:
    """What lies in the caches of Hugging Face that engines here use, and who uses it."""
    response.headers["Cache-Control"] = "no-store"
    places, stored = await the.weights.look()
    return WeightsOut(
        caches=[CacheOut(path=str(p.path), free=p.free, total=p.total) for p in places],
        repositories=[
            RepositoryOut(
                repo=s.cached.repo, cache=str(s.cached.cache), size=s.cached.size, partial=s.cached.partial,
                changed_at=s.cached.changed_at, used_by=list(s.used_by), downloading=s.downloading,
            )
            for s in stored
        ],
    )  # fmt: skip


@router.post("/weights/prune", name="prune_weights")
async def prune_weights(the: The, key: Admin, body: PruneIn, dry_run: DryRun = False) -> PrunedOut:
    """Delete weights from the disk: never those that a declared model uses, or that are being downloaded."""
    done = await the.weights.prune(body.repos, cause(key), dry_run=dry_run)
    return PrunedOut(
        applied=not dry_run, removed=[RemovedOut(repo=c.repo, cache=str(c.cache), freed=freed) for c, freed in done.removed],
        freed=sum(freed for _, freed in done.removed), kept=[KeptOut(repo=repo, why=why) for repo, why in done.kept],
    )  # fmt: skip


def _pull(the: Services, pull: Pull) -> PullOut:
    rate = pull.rate(the.clock.wall())
    over = pull.ended_at is not None
    left = None if rate is None or pull.total is None or over else max(0, pull.total - pull.done) / rate
    return PullOut(
        id=pull.id, repo=pull.repo, revision=pull.revision, state=pull.state, file=pull.file, files=pull.files,
        total=pull.total, done=pull.done, rate=rate, eta_s=left, reason=pull.reason, path=pull.path, by=pull.by,
        asked_at=pull.asked_at, ended_at=pull.ended_at,
    )  # fmt: skip
