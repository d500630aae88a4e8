"""Real vLLM on the CPU: where it is, how it is asked directly, and configurations for it."""

import asyncio
import contextlib
import os
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import httpx

from contract.forked import Forked, Forkery
from serving import MARK, REAL_STARTS, Serving, marked, reap
from vllm_mm.engine import children
from vllm_mm.engine.launchers.recipe import Warmth, warmth
from vllm_mm.engine.ports import Address, LaunchPlan

A = "smollm2-135m"
B = "smollm2-135m-poet"
EMBED = "all-minilm-l6-v2"
TINY = "tiny-random-llama"
ADAPTER = "smollm2-135m-adapter"
"""Of the first."""
WHISPER = "tiny-random-whisper"
EARS = "tiny-random-voxtral-realtime"
"""For /v1/realtime."""
START = 240.0
"""Seconds within which a start has to be done: 25 to 40 alone on two cores, more when others load at the same time."""
DEV = {"VLLM_SERVER_DEV_MODE": "1"}
"""With the routes /sleep and /wake_up, which we give to engines that can sleep."""
EAGER = {"TORCHDYNAMO_DISABLE": "1"}
"""Or the first request for logprobs compiles for half a minute."""
ENGINE_ENV = {
    "VLLM_CPU_KVCACHE_SPACE": "1", "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1",
    "OMP_NUM_THREADS": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind",
}  # fmt: skip
"""One thread that goes where there is room: several, each on a processor of its own, wait for one another after every operation,
and beside other work 64 tokens of a small model took over two minutes."""


@dataclass(frozen=True)
class Installation:
    """What scripts/install-vllm-cpu made."""

    vllm: Path
    models: Path

    def declare(self, model: str, **more: Any) -> dict[str, Any]:
        """The model for the configuration file: float32, one GiB of KV cache, and its measured size."""
        length = {EMBED: 256, WHISPER: 448}.get(model, 2048)
        memory = {EMBED: "2GiB", TINY: "3GiB", WHISPER: "3GiB", EARS: "3GiB"}.get(model, "3.5GiB")
        return {
            "engine": "vllm",
            "executable": str(self.vllm),
            "model": str(self.models / model),
            "args": {"enforce-eager": True, "dtype": "float32", "max-model-len": length},
            "env": ENGINE_ENV,
            "memory": memory,
            **more,
        }


def find(environ: Mapping[str, str]) -> Installation | str:
    """The installation, or why there is none."""
    data = environ.get("XDG_DATA_HOME") or f"{environ.get('HOME', '/nonexistent')}/.local/share"
    folder = Path(environ.get("VLLM_MM_VLLM_CPU") or f"{data}/vllm-mm/vllm-cpu")
    found = Installation(folder / "bin" / "vllm", folder.parent / "models")
    if not (folder / ".vllm-mm-complete").is_file() or not found.vllm.is_file():
        return f"real vLLM is not installed in {folder}: run scripts/install-vllm-cpu"
    missing = [
        m for m in (A, B, EMBED, TINY, ADAPTER, WHISPER, EARS) if not (found.models / m / ".vllm-mm-model").is_file()
    ]
    if missing:
        return f"model folders are missing in {found.models}: {', '.join(missing)}: run scripts/install-vllm-cpu"
    return found


async def engine_socket(serving: Serving, model: str) -> str:
    """The unix socket of an engine of a server, which is there."""
    async with httpx.AsyncClient(timeout=30) as client:
        instance = (await serving.instances(client))[model]
    words = Path(f"/proc/{instance['pid']}/cmdline").read_bytes().decode().replace("\0", " ").split()
    return words[words.index("--uds") + 1]


_ZYGOTES: list[Forkery] = []
"""At most one: made when it is first needed, and ended with the test run."""


def _warmth(vllm: Path, folder: str) -> Warmth:
    argv = (str(vllm), "serve", folder)
    found = warmth(LaunchPlan("m", 1, "", argv, {**os.environ, **ENGINE_ENV}, Address(), Path(), Path(), ""))
    assert isinstance(found, Warmth), found
    return found


def _zygote(warm: Warmth) -> Forkery:
    if not _ZYGOTES:
        _ZYGOTES.append(Forkery(MARK, warm, {**os.environ, **ENGINE_ENV}, blank="0" * 16))
    return _ZYGOTES[0]


def end_zygotes() -> None:
    while _ZYGOTES:
        _ZYGOTES.pop().close()


class Direct:
    """vLLM by itself on a unix socket, with the arguments that `declare` gives it; nothing of ours in between.

    `begin` starts it, `starting` is true until it serves, and `end` leaves nothing of it.
    """

    def __init__(
        self,
        installation: Installation,
        model: str,
        *,
        names: Sequence[str] = (),
        launcher: str = "local",
        env: Mapping[str, str] | None = None,
        **args: Any,
    ) -> None:
        """`names`: under which it is served, if not its own; `launcher`: `warm` forks it from the one zygote of this test run;
        `env`: more variables; `args`: more arguments, or others in place of ours."""
        spec = installation.declare(model)
        options = [
            part
            for key, value in {**spec["args"], **args}.items()
            for part in ([f"--{key}"] if value is True else [f"--{key}", str(value)])
        ]
        self._argv = [
            *(spec["executable"], "serve", spec["model"]),
            *("--served-model-name", *(names or (model,)), "--uds"),
        ]
        self._options = options
        self._env = env or {}
        self._launcher = launcher
        self._mark = secrets.token_hex(8)

    def begin(self) -> None:
        self._served = False
        self.folder = Path(tempfile.mkdtemp(prefix="mmref-"))
        self.socket = str(self.folder / "s")
        self._until = time.monotonic() + START
        with (self.folder / "log").open("wb") as log:
            self.process = self._launch(log)

    def _launch(self, log: BinaryIO) -> "subprocess.Popen[bytes] | Forked":
        argv = [*self._argv, self.socket, *self._options]
        env = {**os.environ, **ENGINE_ENV, **DEV, "SPT_NOENV": "1", "TMPDIR": str(self.folder), MARK: self._mark}
        env |= self._env
        if self._launcher == "warm":
            warm = _warmth(Path(self._argv[0]), self._argv[2])
            zygote = _zygote(warm)
            zygote.learn(warm)
            return zygote.fork(argv, env, log)
        return subprocess.Popen(argv, env=env, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True)

    @property
    def log(self) -> str:
        return (self.folder / "log").read_text()

    def starting(self) -> bool:
        """False once `/health` is 200; fails when it ended, or took too long."""
        assert self.process.poll() is None, f"vLLM ended with {self.process.returncode}:\n{self.log[-3000:]}"
        assert time.monotonic() < self._until, f"vLLM was not ready in {START} s:\n{self.log[-3000:]}"
        # Not over httpx, which leaves the socket of a refused connection to the garbage collector.
        with socket.socket(socket.AF_UNIX) as connection:
            try:
                connection.connect(self.socket)
            except (FileNotFoundError, ConnectionRefusedError):
                return True
            connection.settimeout(10)
            connection.sendall(b"GET /health HTTP/1.1\r\nhost: e\r\n\r\n")
            if not connection.recv(64).startswith(b"HTTP/1.1 200"):
                return True
        if not self._served:
            self._served = True
            REAL_STARTS[self._launcher] += 1
        return False

    def end(self) -> None:
        """SIGTERM, on which vLLM tidies up its shared memory, then SIGKILL to what is left of the tree."""
        deadline = time.monotonic() + 10
        self.process.terminate()
        while self.process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.05)
        deadline = time.monotonic() + 20
        seen = set(marked(self._mark))
        while (left := marked(self._mark)) and time.monotonic() < deadline:
            seen |= set(left)
            for pid in left:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            self.process.poll()
            time.sleep(0.05)
        self.process.wait(5)
        reap(seen)
        children.reap_orphans()
        shutil.rmtree(self.folder)
        assert not left, f"processes of vLLM are left: {left}"


@contextlib.asynccontextmanager
async def direct(
    installation: Installation, model: str, *, launcher: str = "local", **args: Any
) -> AsyncGenerator[httpx.AsyncClient]:
    """A client of vLLM by itself; arguments as of `Direct`."""
    engine = Direct(installation, model, launcher=launcher, **args)
    engine.begin()
    try:
        while engine.starting():
            await asyncio.sleep(0.2)
        transport = httpx.AsyncHTTPTransport(uds=engine.socket)
        async with httpx.AsyncClient(transport=transport, base_url="http://engine", timeout=120) as client:
            yield client
    finally:
        engine.end()
