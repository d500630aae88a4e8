"""Simulated engines as subprocesses, for tests: started, spoken to over their unix socket, and cleaned up with their whole tree."""

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, Self, TypeVar

import httpx

from contract.forked import Forked, Forkery
from serving import reap

T = TypeVar("T")
BACKEND = Path(__file__).parents[2] / "backend"
MARK = "MM_TEST_TREE"
FORKERY: list[Forkery] = []
"""While it is not empty, engines are forked from there."""
JSON = {"content-type": "application/json"}


def client(address: str, *, timeout: float = 20) -> httpx.Client:
    """An HTTP client for the engine at a unix socket."""
    # No TLS here, and a context for it would take longer than the requests.
    transport = httpx.HTTPTransport(uds=address, verify=False, trust_env=False)
    return httpx.Client(transport=transport, base_url="http://engine", timeout=timeout)


def until(look: Callable[[], T], what: str, *, timeout: float = 10.0) -> T:
    """The first true value of `look`; fails with `what` after `timeout` seconds."""
    deadline = time.monotonic() + timeout
    while not (found := look()):
        assert time.monotonic() < deadline, f"waited {timeout} s for: {what}"
        time.sleep(0.005)
    return found


@dataclass(frozen=True)
class Proc:
    """A process as /proc shows it."""

    pid: int
    parent: int
    group: int
    session: int
    name: str
    state: str


def look_at(pid: int) -> Proc | None:
    """The process, unless it is gone."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes().decode()
        title = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[0].decode()
    except OSError:
        return None
    fields = stat[stat.rindex(")") + 2 :].split()
    return Proc(pid, int(fields[1]), int(fields[2]), int(fields[3]), title, fields[0])


@dataclass
class Sim:
    """One simulated engine. Leave the `with` block and nothing of it is left."""

    args: tuple[str, ...] = ()
    env: dict[str, str] = field(default_factory=dict)
    wait: bool = True
    model: str = "sim-model"

    def __enter__(self) -> Self:
        self.mark = uuid.uuid4().hex
        self.folder = Path(tempfile.mkdtemp(prefix="mmsim-"))
        self.socket = str(self.folder / "s")
        self.log_path = self.folder / "log"
        with self.log_path.open("wb") as log:
            self.process = self._launch(log)
        self.http = client(self.socket)
        try:
            if self.wait:
                until(self.answers, "the engine to be ready")
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def _launch(self, log: BinaryIO) -> "subprocess.Popen[bytes] | Forked":
        env = {
            **os.environ, "PYTHONPATH": str(BACKEND), "VLLM_SERVER_DEV_MODE": "1", MARK: self.mark, **self.env,
        }  # fmt: skip
        args = [self.model, "--uds", self.socket, *self.args]
        if FORKERY:
            return FORKERY[-1].fork(args, env, log)
        return subprocess.Popen(
            [sys.executable, "-m", "vllm_mm.sim", *args], env=env, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
            start_new_session=True,
        )  # fmt: skip

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.http.close()
        deadline = time.monotonic() + 5
        seen = {self.process.pid, *(process.pid for process in self.tree())}
        while self.tree() and time.monotonic() < deadline:
            for process in self.tree():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process.pid, signal.SIGKILL)
            self.process.poll()
            time.sleep(0.005)
        self.process.wait(5)
        reap(seen)
        shutil.rmtree(self.folder)

    def answers(self) -> bool:
        """Whether /health is 200; fails when the process has ended."""
        assert self.process.poll() is None, f"exited with {self.process.returncode}:\n{self.log()}"
        # Not over httpx, which leaves the socket of a refused connection to the garbage collector.
        with socket.socket(socket.AF_UNIX) as connection:
            try:
                connection.connect(self.socket)
            except (FileNotFoundError, ConnectionRefusedError):
                return False
        return self.http.get("/health").status_code == 200

    def log(self) -> str:
        """stdout and stderr so far."""
        return self.log_path.read_bytes().decode()

    def wait_for_log(self, text: str) -> None:
        """Returns when the log contains the text."""
        until(lambda: text in self.log(), f"{text!r} in the log")

    def tree(self) -> list[Proc]:
        """Every living process of this launch, whatever it calls itself and whoever its parent is."""
        found: list[Proc] = []
        for entry in Path("/proc").iterdir():
            if entry.name.isdecimal():
                with contextlib.suppress(OSError):
                    if f"{MARK}={self.mark}".encode() in (entry / "environ").read_bytes():
                        process = look_at(int(entry.name))
                        if process is not None and process.state != "Z":
                            found.append(process)
        return found

    def children(self) -> list[Proc]:
        """The tree without the leader."""
        return [process for process in self.tree() if process.pid != self.process.pid]

    def core(self) -> Proc:
        """The engine core."""
        return until(
            lambda: next((process for process in self.tree() if process.name == "VLLM::EngineCore"), None),
            "the engine core to exist",
        )

    def post_once(self, path: str) -> httpx.Response:
        """POST on a connection of its own: after a 500 that nobody caught, the server closes without a word."""
        with client(self.socket) as http:
            return http.post(path)

    def stats(self) -> dict[str, float]:
        """The counters of /metrics without labels, by name."""
        return metrics(self.http)

    def fault(self, text: str) -> None:
        """Turn a fault on."""
        self.http.post("/sim/fault", json={"fault": text}).raise_for_status()

    def chat(self, **fields: Any) -> httpx.Response:
        """A chat completion."""
        return self.http.post("/v1/chat/completions", json=chat_body(**fields))


def chat_body(**fields: Any) -> dict[str, Any]:
    """A request for eight tokens; `fields` go on top."""
    return {"messages": [{"role": "user", "content": "Say something."}], "max_tokens": 8, "temperature": 0, **fields}


def metrics(http: httpx.Client) -> dict[str, float]:
    """The samples of /metrics by name; those with further labels are added up."""
    found: dict[str, float] = {}
    for line in http.get("/metrics").text.splitlines():
        if line.startswith("vllm:"):
            sample, _, value = line.rpartition(" ")
            name = sample.partition("{")[0]
            found[name] = found.get(name, 0.0) + float(value)
    return found


def events(response: httpx.Response) -> Iterator[tuple[str, str]]:
    """(event, data) of a stream of server-sent events."""
    for block in "".join(response.iter_text()).split("\n\n"):
        if block:
            lines = dict(line.split(": ", 1) for line in block.split("\n"))
            yield lines.get("event", ""), lines["data"]


def stream(http: httpx.Client, path: str, body: dict[str, Any]) -> list[tuple[str, Any]]:
    """The events of a stream to its end; data that is JSON is parsed."""
    with http.stream("POST", path, json={**body, "stream": True}) as response:
        assert response.status_code == 200, response.read()
        assert response.headers["content-type"].startswith("text/event-stream")
        return [(event, data if data == "[DONE]" else json.loads(data)) for event, data in events(response)]


@contextlib.contextmanager
def raw_stream(address: str, path: str, body: dict[str, Any]) -> Generator[socket.socket, None, None]:
    """A connection on which a request was sent, to be read or cut by hand."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(10)
        connection.connect(address)
        content = json.dumps(body).encode()
        connection.sendall(
            f"POST {path} HTTP/1.1\r\nhost: e\r\ncontent-type: application/json\r\n"
            f"content-length: {len(content)}\r\n\r\n".encode()
            + content
        )
        yield connection
