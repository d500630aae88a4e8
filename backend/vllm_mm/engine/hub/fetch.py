"""Downloads one model into the cache of Hugging Face, in a process of its own: `python -m vllm_mm.engine.hub.fetch`.

It is told what to do by a line of JSON on stdin, says how far it is in lines of JSON on stdout, and ends when stdin does: so it never
outlives who started it. The environment has what huggingface_hub looks for (HF_ENDPOINT, HF_TOKEN, HF_HUB_OFFLINE).

Files are fetched over HTTP with byte ranges into `blobs/ETAG.incomplete`, which stays when a download ends early and is gone on with
by the next one: huggingface_hub itself (2.4) throws a part of a file away. Its own cache layout, and links, are made by it at the end.
"""

import contextlib
import fnmatch
import hashlib
import json
import os
import shutil
import sys
import threading
import time
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlparse

from huggingface_hub import (
    HfApi,
    constants,
    get_hf_file_metadata,  # pyright: ignore[reportUnknownVariableType]  # its stubs leave type arguments out
    hf_hub_url,
    snapshot_download,  # pyright: ignore[reportUnknownVariableType]  # as above
)
from huggingface_hub.errors import (
    GatedRepoError,
    HfHubHTTPError,
    HFValidationError,
    OfflineModeIsEnabled,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)
from huggingface_hub.file_download import http_get  # pyright: ignore[reportUnknownVariableType]  # as above
from huggingface_hub.utils import build_hf_headers  # pyright: ignore[reportUnknownVariableType]  # as above

EVERY: Final = 0.5
"""Seconds between two lines about how far it is."""
MARGIN: Final = 2**30
"""Bytes of the disk that are left free."""
CHUNK: Final = 256 * 1024
"""Bytes that are written at a time: no more of a file is lost when its connection breaks. The library's own are 10 MiB."""
NOT_LOADED: Final = ("*.h5", "*.msgpack", "*.onnx", "*.onnx_data", "*.tflite", "*.ot", "*.mlmodel", "onnx/*", "openvino/*", "original/*", "*.pdf", "*.png", "*.jpg", "*.gif", "*.mp4")  # fmt: skip
"""What vLLM loads nothing of."""


class Refused(Exception):
    """It cannot be had. `code` is one of `control.pulls.Refusal`."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


@dataclass(frozen=True, slots=True)
class Wanted:
    """What was asked for."""

    repo: str
    revision: str
    cache: Path


@dataclass(frozen=True, slots=True)
class File:
    name: str
    size: int


def say(**line: Any) -> None:
    """A line for whoever started this."""
    sys.stdout.write(json.dumps(line) + "\n")
    sys.stdout.flush()


def main() -> None:
    wanted = json.loads(sys.stdin.readline())
    constants.DOWNLOAD_CHUNK_SIZE = CHUNK
    threading.Thread(target=_end_with_stdin, daemon=True).start()
    try:
        fetch(Wanted(wanted["repo"], wanted["revision"], Path(wanted["cache"])))
    except Refused as error:
        say(refused=error.code, message=str(error))
        sys.exit(1)


def _end_with_stdin() -> None:
    while sys.stdin.read(1):
        pass
    os._exit(2)


def fetch(wanted: Wanted) -> None:
    """Raises Refused with the reason; nothing was downloaded then, unless that is the network."""
    with _told(wanted):
        sha, files = look(wanted)
        repository = wanted.cache / f"models--{wanted.repo.replace('/', '--')}"
        total, there = sum(f.size for f in files), _present(repository / "snapshots" / sha, files)
        parts = sum(p.stat().st_size for p in (repository / "blobs").glob("*.incomplete"))
        missing = max(0, total - there - parts)
        free = _free(wanted.cache)
        if missing + MARGIN > free:
            raise Refused(
                "no_room",
                f"{wanted.repo} needs {missing:,} bytes more in {wanted.cache}, and {free:,} are free there "
                f"({MARGIN:,} are left alone). `vllm-mm models disk` shows what is there, `vllm-mm models prune` makes room.",
            )
        say(plan={"sha": sha, "files": len(files), "total": total, "there": there})
        progress = _Progress(there)
        (repository / "blobs").mkdir(parents=True, exist_ok=True)
        for file in sorted(files, key=lambda f: f.size):  # the configuration first: its size can be estimated by then
            if not (repository / "snapshots" / sha / file.name).exists():
                _file(wanted, sha, file, repository / "blobs", progress)
        path = snapshot_download(
            wanted.repo,
            revision=wanted.revision,
            cache_dir=wanted.cache,
            allow_patterns=[_escaped(f.name) for f in files],
        )
        say(done=total, path=path)


@contextlib.contextmanager
def _told(wanted: Wanted) -> Generator[None]:
    """What goes wrong, in words that say what to do."""
    endpoint = constants.ENDPOINT
    try:
        yield
    except Refused:
        raise
    except OfflineModeIsEnabled as error:
        raise Refused(
            "offline",
            f"HF_HUB_OFFLINE is set: {wanted.repo} is not downloaded. Unset it, or copy the model into {wanted.cache}.",
        ) from error
    except GatedRepoError as error:
        raise Refused(
            "gated",
            f"{wanted.repo} is gated: ask for access on {endpoint}/{wanted.repo}, then set HF_TOKEN (of the server, or of the model's `env`) "
            "to a token of who got it.",
        ) from error
    except RevisionNotFoundError as error:
        raise Refused(
            "not_found", f"{wanted.repo} has no revision {wanted.revision!r}; see {endpoint}/{wanted.repo}."
        ) from error
    except RepositoryNotFoundError as error:
        raise Refused(
            "not_found",
            f"there is no model {wanted.repo} on {endpoint}, or it is private and HF_TOKEN is not of one who may see it.",
        ) from error
    except HFValidationError as error:
        raise Refused("not_found", f"{wanted.repo!r} is no id of a model on the hub: {error}") from error
    except HfHubHTTPError as error:
        status = error.response.status_code
        raise Refused("unreachable", f"{endpoint} answered {status}: try it again later.") from error
    except OSError as error:
        if error.errno == 28:  # ENOSPC
            raise Refused(
                "no_room", f"the disk of {wanted.cache} is full; what has come stays for the next try."
            ) from error
        raise Refused(
            "unreachable", f"the download from {endpoint} broke off: {error}; what has come stays for the next try."
        ) from error
    except Exception as error:  # of the HTTP library, whose errors are no OSErrors
        if type(error).__module__.split(".")[0] not in {"httpx", "httpx2", "httpcore", "httpcore2"}:
            raise
        raise Refused(
            "unreachable",
            f"{endpoint} cannot be reached ({type(error).__name__}: {error}): try it again later; what had come stays.",
        ) from error


def look(wanted: Wanted) -> tuple[str, list[File]]:
    """The commit, and the files that an engine wants of it."""
    api = HfApi()
    info = api.model_info(wanted.repo, revision=wanted.revision, files_metadata=True, timeout=30)
    if info.gated:
        api.auth_check(wanted.repo)
    siblings = [File(s.rfilename, s.size or 0) for s in info.siblings or ()]
    if info.sha is None or not siblings:
        raise Refused("not_found", f"{wanted.repo} has no files at {wanted.revision!r}")
    return info.sha, chosen(siblings)


def chosen(files: Sequence[File]) -> list[File]:
    """Without what vLLM does not load, and without the same weights in older forms."""
    kept = [f for f in files if not any(fnmatch.fnmatch(f.name, pattern) for pattern in NOT_LOADED)]
    if any(f.name.endswith(".safetensors") for f in kept):
        kept = [f for f in kept if not f.name.endswith((".bin", ".pt", ".pth", ".gguf", ".bin.index.json"))]
    if any(f.name.endswith(".safetensors") and not f.name.startswith("consolidated") for f in kept):
        kept = [f for f in kept if not f.name.startswith("consolidated")]
    return kept


class _Progress:
    """Tells, not too often, how many bytes are there."""

    def __init__(self, there: int) -> None:
        self._done = there
        self._told = 0.0

    def at(self, file: str, size: int) -> None:
        """So much of a file is there, beside those that are whole."""
        now = time.monotonic()
        if now - self._told >= EVERY:
            self._told = now
            say(done=self._done + size, file=file)

    def whole(self, size: int) -> None:
        self._done += size


def _file(wanted: Wanted, sha: str, file: File, blobs: Path, progress: _Progress) -> None:
    url = hf_hub_url(wanted.repo, file.name, revision=sha)
    found = get_hf_file_metadata(url, timeout=30, retry_on_errors=True)
    if found.etag is None:
        raise Refused("unreachable", f"{url} has no ETag: this is no hub")
    headers = build_hf_headers()
    if urlparse(url).netloc != urlparse(found.location).netloc:
        headers.pop("authorization", None)  # it is for the hub alone
    whole, part = blobs / found.etag, blobs / f"{found.etag}.incomplete"
    if not whole.exists() and (found.size or 0) <= constants.MAX_HTTP_DOWNLOAD_SIZE:
        with part.open("ab") as opened:
            before = opened.tell()
            if found.size is not None and before > found.size:
                opened.truncate(before := 0)
            watched = threading.Event()
            watching = threading.Thread(target=_watch, args=(part, file.name, progress, watched), daemon=True)
            watching.start()
            try:
                http_get(found.location, opened, resume_size=before, headers=headers, expected_size=found.size)
            finally:
                watched.set()
                watching.join()
        if before and len(found.etag) == 64 and _sha256(part) != found.etag:
            part.unlink()
            raise Refused(
                "unreachable", f"{file.name} came together wrongly from its parts; it is fetched anew by the next try."
            )
        part.replace(whole)
    progress.whole(file.size)


def _watch(part: Path, name: str, progress: _Progress, end: threading.Event) -> None:
    while not end.wait(EVERY):
        with contextlib.suppress(OSError):
            progress.at(name, part.stat().st_size)


def _sha256(path: Path) -> str:
    with path.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()


def _present(snapshot: Path, files: Sequence[File]) -> int:
    return sum(f.size for f in files if (snapshot / f.name).exists())


def _free(cache: Path) -> int:
    """Of the disk that `cache` is on, or will be."""
    place = next((p for p in (cache, *cache.parents) if p.exists()), Path("/"))
    return shutil.disk_usage(place).free


def _escaped(name: str) -> str:
    """A name as a pattern that is only itself."""
    return "".join(f"[{c}]" if c in "*?[" else c for c in name)


if __name__ == "__main__":
    main()
