"""What is measured: the product, its peers, and the engine without anything in front. Each is started on one core."""

import contextlib
import hashlib
import json
import os
import re
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from packages import Unavailable, from_debian, from_pypi

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
ROUTER = "vllm-router==0.1.17"
LITELLM = "litellm[proxy]==1.108.7"
PROXY_CORE, LOAD_CORE = "0", "1"


@dataclass(frozen=True)
class Target:
    """Something that answers requests."""

    name: str
    address: str
    pids: tuple[int, ...]
    """Whose CPU time and memory count."""
    key: str = "mm-bench"
    rss_mb: float = 0.0
    """Before any load."""
    up_s: float = 0.0
    """From the start of the process to its first answer (ours) or to an open port (the others)."""


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])


def build_tools(cache: Path) -> dict[str, Path]:
    """Our own load generator and engine without a model, compiled when their source changed."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        raise Unavailable("no C compiler: apt-get install gcc libc6-dev")
    tools = {}
    for name in ("upstream", "loadgen"):
        source = HERE / f"{name}.c"
        binary = cache / f"{name}-{hashlib.sha256(source.read_bytes()).hexdigest()[:12]}"
        if not binary.exists():
            subprocess.run([compiler, "-O2", "-w", "-o", f"{binary}.new", str(source)], check=True)
            Path(f"{binary}.new").replace(binary)
        tools[name] = binary
    return tools


@contextlib.contextmanager
def running(argv: list[str], core: str, log: Path, **more: object) -> Iterator[subprocess.Popen[bytes]]:
    """A process on one core, ended afterwards together with its children."""
    with log.open("wb") as out:
        process = subprocess.Popen(
            ["taskset", "-c", core, *argv], stdout=out, stderr=subprocess.STDOUT, start_new_session=True, **more
        )  # type: ignore[call-overload]
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGTERM)
        try:
            process.wait(15)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait(5)


def wait_for(port: int, process: subprocess.Popen[bytes], log: Path, seconds: float = 60.0) -> float:
    """Until somebody listens there; in how many seconds."""
    began = time.monotonic()
    while time.monotonic() < began + seconds:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
            return time.monotonic() - began
        if process.poll() is not None:
            break
        time.sleep(0.01)
    tail = log.read_text(errors="replace")[-800:]
    raise Unavailable(f"it did not come up on port {port}: {tail}")


def rss_mb(pids: tuple[int, ...]) -> float:
    pages = sum(int(Path(f"/proc/{pid}/statm").read_text().split()[1]) for pid in pids)
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def target(name: str, port: int, pids: tuple[int, ...], up: float, key: str = "mm-bench") -> Target:
    return Target(name, f"127.0.0.1:{port}", pids, key, rss_mb(pids), up)


@contextlib.contextmanager
def engine(tools: dict[str, Path], work: Path) -> Iterator[int]:
    """The canned engine on TCP, for the peers and for the direct measurement."""
    port = free_port()
    log = work / "upstream.log"
    with running([str(tools["upstream"]), str(port)], LOAD_CORE, log) as process:
        wait_for(port, process, log)
        yield port


@contextlib.contextmanager
def nginx(cache: Path, work: Path, upstream_port: int) -> Iterator[Target]:
    binary, env = from_debian(cache, "nginx")
    port = free_port()
    config = work / "nginx.conf"
    temp = "".join(f"{kind}_temp_path {work}/{kind};" for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi"))
    config.write_text(
        f"{'user root; ' if os.geteuid() == 0 else ''}worker_processes 1; daemon off; error_log {work}/nginx.err warn; pid {work}/nginx.pid;\n"
        "events { worker_connections 8192; }\n"
        f"http {{ access_log off; {temp} keepalive_requests 1000000000;\n"
        f" upstream u {{ server 127.0.0.1:{upstream_port}; keepalive 1024; keepalive_requests 1000000000; }}\n"
        f' server {{ listen 127.0.0.1:{port}; client_max_body_size 100m; location / {{ proxy_pass http://u; proxy_http_version 1.1; proxy_set_header Connection ""; proxy_buffering off; proxy_request_buffering off; }} }} }}\n'
    )
    log = work / "nginx.log"
    argv = [binary, "-p", str(work), "-c", str(config)]
    with running(argv, PROXY_CORE, log, env={**os.environ, **env}) as process:
        up = wait_for(port, process, log)
        yield target("nginx", port, _children(process.pid), up)


@contextlib.contextmanager
def haproxy(cache: Path, work: Path, upstream_port: int) -> Iterator[Target]:
    binary, env = from_debian(cache, "haproxy", "liblua5.3-0", "libopentracing-c-wrapper0", "libopentracing1")
    port = free_port()
    config = work / "haproxy.cfg"
    config.write_text(
        "global\n nbthread 1\n maxconn 8192\n"
        "defaults\n mode http\n timeout connect 5s\n timeout client 600s\n timeout server 600s\n http-reuse always\n option http-no-delay\n"
        f"frontend f\n bind 127.0.0.1:{port}\n default_backend b\n"
        f"backend b\n server s 127.0.0.1:{upstream_port}\n"
    )
    log = work / "haproxy.log"
    with running([binary, "-db", "-f", str(config)], PROXY_CORE, log, env={**os.environ, **env}) as process:
        up = wait_for(port, process, log)
        yield target("haproxy", port, (process.pid,), up)


@contextlib.contextmanager
def router(cache: Path, work: Path, upstream_port: int) -> Iterator[Target]:
    """vllm-router, in an environment of its own."""
    binary = from_pypi(cache, ROUTER, "vllm-router")
    port = free_port()
    argv = [
        str(binary), "--worker-urls", f"http://127.0.0.1:{upstream_port}", "--host", "127.0.0.1", "--port", str(port),
        "--prometheus-port", str(free_port()),
    ]  # fmt: skip
    log = work / "router.log"
    with running(argv, PROXY_CORE, log) as process:
        up = wait_for(port, process, log)
        yield target("vllm-router", port, (process.pid,), up)


@contextlib.contextmanager
def litellm(cache: Path, work: Path, upstream_port: int) -> Iterator[Target]:
    """LiteLLM's proxy with one worker and one model, without keys and database."""
    binary = from_pypi(cache, LITELLM, "litellm")
    port = free_port()
    config = work / "litellm.yaml"
    model = {"model": "openai/m1", "api_base": f"http://127.0.0.1:{upstream_port}/v1", "api_key": "none"}
    config.write_text(json.dumps({"model_list": [{"model_name": "m1", "litellm_params": model}]}))
    log = work / "litellm.log"
    env = {
        **os.environ,
        "LITELLM_LOG": "ERROR",
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",
        "DISABLE_SCHEMA_UPDATE": "true",
        "LITELLM_DANGEROUSLY_PERMIT_WEAK_OR_UNSET_MASTER_KEY": "true",  # it checks no key here, as the other peers
    }
    argv = [str(binary), "--config", str(config), "--host", "127.0.0.1", "--port", str(port), "--num_workers", "1"]
    with running(argv, PROXY_CORE, log, env=env, cwd=work) as process:
        up = wait_for(port, process, log, 180)
        yield target("litellm", port, (process.pid,), up)


@contextlib.contextmanager
def product(tools: dict[str, Path], work: Path, models: int = 0, rows: int = 0, workers: int = 0) -> Iterator[Target]:
    """The real `vllm-mm serve`, everything on, with the canned engine as an `engine: command` on its unix socket.

    `models` are so many others that nobody asks for; `rows` are in its ledger before it starts. With `workers` it has so many, and both
    cores, one of which is the engine's and the load's as well.
    """
    name = "vllm-mm" + (f"+{models}-models" if models else "") + (f"+{rows}-rows" if rows else "")
    name += f"+{workers}-workers" if workers else ""
    home = work / name
    home.mkdir()
    port, state = free_port(), home / "state"
    config = home / "vllm-mm.yaml"
    command = ["taskset", "-c", LOAD_CORE, str(tools["upstream"]), "0", "{socket}"]
    measured = {"engine": "command", "command": command, "memory": "64MiB", "concurrency": 4096, "preload": True, "pinned": True}  # fmt: skip
    others = {f"other-{n}": {"engine": "sim", "sim": {"weights": "1GiB"}} for n in range(models)}
    settings = {
        "server": {"host": "127.0.0.1", "port": port, "workers": workers or 1},
        "devices": "cpu",
        "queue": {"max_size": 4096},
        "models": {"m1": measured, **others},
    }
    config.write_text(json.dumps(settings))
    log = home / "product.log"
    binary = Path(sys.executable).with_name("vllm-mm")
    if not binary.exists():
        raise Unavailable(
            "vllm-mm is not installed beside this Python: scripts/run or scripts/test makes the environment"
        )
    if rows:
        _fill(binary, config, state, rows)
    argv = [str(binary), "serve", "--config", str(config), "--data-dir", str(state)]
    cores = f"{PROXY_CORE},{LOAD_CORE}" if workers else PROXY_CORE
    with running(argv, cores, log, env={**os.environ, "PYTHONUNBUFFERED": "1"}) as process:
        began = time.monotonic()
        wait_for(port, process, log)
        key = _token(log)
        _until_served(port, key, log)
        up = time.monotonic() - began
        yield target(name, port, (process.pid, *_workers(process.pid, workers)), up, key)


def _workers(pid: int, number: int) -> tuple[int, ...]:
    """The worker processes of a server."""
    found = tuple(
        child for child in _children(pid) if b"vllm_mm.main.worker" in Path(f"/proc/{child}/cmdline").read_bytes()
    )
    if len(found) != (number if number > 1 else 0):
        raise Unavailable(f"{len(found)} workers are there instead of {number}")
    return found


def _fill(binary: Path, config: Path, state: Path, rows: int) -> None:
    """A ledger as a busy installation has it."""
    upgrade = [str(binary), "db", "upgrade", "--config", str(config), "--data-dir", str(state)]
    subprocess.run(upgrade, check=True, capture_output=True)
    with contextlib.closing(sqlite3.connect(state / "state.db")) as database, database:
        columns = database.execute("pragma table_info(requests)").fetchall()
        wanted = {
            name: ("'r-' || n" if kind.upper().startswith(("VARCHAR", "TEXT")) else "n")
            for _, name, kind, required, default, _ in columns
            if required and default is None
        }
        now = time.time()
        wanted |= {
            name: f"{now} - n"
            for _, name, kind, *_ in columns
            if kind.upper().startswith("FLOAT") and name.endswith("_at")
        }
        database.execute(
            f"with recursive c(n) as (select 1 union all select n + 1 from c where n < {rows}) "  # noqa: S608
            f"insert into requests ({', '.join(wanted)}) select {', '.join(wanted.values())} from c"
        )


@contextlib.contextmanager
def bare(tools: dict[str, Path], work: Path, form: str) -> Iterator[Target]:
    """The data plane alone (serve_static.py), to see what the rest costs."""
    path, port = work / "bare.sock", free_port()
    log = work / f"bare-{form}.log"
    with running([str(tools["upstream"]), "0", str(path)], LOAD_CORE, work / "bare-upstream.log"):
        argv = [sys.executable, str(HERE / "serve_static.py"), str(port), str(path), form]
        with running(argv, PROXY_CORE, log) as process:
            up = wait_for(port, process, log)
            yield target(f"bare-{form}", port, (process.pid,), up)


def _token(log: Path) -> str:
    end = time.monotonic() + 10
    while time.monotonic() < end:
        found = re.search(r"Admin token[^:]*: *(\S+)", log.read_text(errors="replace"))
        if found:
            return found[1]
        time.sleep(0.05)
    raise Unavailable(f"no admin token was printed: {log.read_text(errors='replace')[-500:]}")


def _until_served(port: int, key: str, log: Path) -> None:
    body = json.dumps({"model": "m1", "messages": [{"role": "user", "content": "hi"}]}).encode()
    headers = {"authorization": f"Bearer {key}", "content-type": "application/json", "x-vllm-mm-wait": "60"}
    request = urllib.request.Request(f"http://127.0.0.1:{port}/v1/chat/completions", body, headers)
    try:
        urllib.request.urlopen(request, timeout=90).read()  # noqa: S310  # our own address
    except OSError as error:
        detail = getattr(error, "read", lambda: b"")().decode(errors="replace")
        raise Unavailable(f"no answer: {error} {detail} {log.read_text(errors='replace')[-500:]}") from error


def _children(pid: int) -> tuple[int, ...]:
    end = time.monotonic() + 5
    while time.monotonic() < end:
        listed = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        if listed:
            return tuple(map(int, listed))
        time.sleep(0.02)
    return (pid,)
