"""What is measured: the product, its peers, and the engine without anything in front. Each is started on one core."""

import contextlib
import hashlib
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
ROUTER = "vllm-router==0.1.17"
PROXY_CORE, LOAD_CORE = "0", "1"


class Unavailable(Exception):
    """A peer that cannot be measured here; the message is the reason."""


@dataclass(frozen=True)
class Target:
    """Something that answers requests."""

    name: str
    address: str
    pids: tuple[int, ...]
    """Whose CPU time and memory count."""
    key: str = "mm-bench"


def cache_dir() -> Path:
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    path = base / "vllm-mm" / "bench"
    path.mkdir(parents=True, exist_ok=True)
    return path


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


def wait_for(port: int, process: subprocess.Popen[bytes], log: Path, seconds: float = 60.0) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
            return
        if process.poll() is not None:
            break
        time.sleep(0.05)
    tail = log.read_text(errors="replace")[-800:]
    raise Unavailable(f"it did not come up on port {port}: {tail}")


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
    binary = _find_nginx(cache)
    port = free_port()
    config = work / "nginx.conf"
    temp = "".join(f"{kind}_temp_path {work}/{kind};" for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi"))
    config.write_text(
        f"worker_processes 1; daemon off; error_log {work}/nginx.err warn; pid {work}/nginx.pid;\n"
        "events { worker_connections 8192; }\n"
        f"http {{ access_log off; {temp} keepalive_requests 1000000000;\n"
        f" upstream u {{ server 127.0.0.1:{upstream_port}; keepalive 1024; keepalive_requests 1000000000; }}\n"
        f' server {{ listen 127.0.0.1:{port}; client_max_body_size 100m; location / {{ proxy_pass http://u; proxy_http_version 1.1; proxy_set_header Connection ""; proxy_buffering off; }} }} }}\n'
    )
    log = work / "nginx.log"
    with running([binary, "-p", str(work), "-c", str(config)], PROXY_CORE, log) as process:
        wait_for(port, process, log)
        yield Target("nginx", f"127.0.0.1:{port}", _children(process.pid))


def _find_nginx(cache: Path) -> str:
    """The system's, or Debian's package unpacked into the cache (nothing is installed)."""
    found = shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin")
    if found is not None:
        return found
    unpacked = cache / "nginx" / "usr" / "sbin" / "nginx"
    if not unpacked.exists():
        if shutil.which("apt-get") is None or shutil.which("dpkg-deb") is None:
            raise Unavailable("nginx is not installed, and this is no Debian to get it from")
        got = subprocess.run(["apt-get", "download", "nginx"], cwd=cache, capture_output=True, text=True, check=False)
        packages = sorted(cache.glob("nginx_*.deb"))
        if got.returncode or not packages:
            raise Unavailable(f"apt-get download nginx: {got.stderr.strip()[-300:]} (apt-get update first?)")
        subprocess.run(["dpkg-deb", "-x", str(packages[-1]), str(cache / "nginx")], check=True)
    works = subprocess.run([str(unpacked), "-v"], capture_output=True, text=True, check=False)
    if works.returncode:
        raise Unavailable(f"nginx does not run: {works.stderr.strip()[-300:]}")
    return str(unpacked)


@contextlib.contextmanager
def router(cache: Path, work: Path, upstream_port: int) -> Iterator[Target]:
    """vllm-router, in an environment of its own."""
    home = cache / ROUTER.replace("==", "-")
    binary = home / "bin" / "vllm-router"
    if not binary.exists():
        made = subprocess.run([sys.executable, "-m", "venv", str(home)], capture_output=True, text=True, check=False)
        if not made.returncode:
            made = subprocess.run(
                [str(home / "bin" / "pip"), "install", "-q", ROUTER], capture_output=True, text=True, check=False
            )
        if made.returncode or not binary.exists():
            shutil.rmtree(home, ignore_errors=True)
            raise Unavailable(f"pip install {ROUTER}: {made.stderr.strip()[-300:]}")
    port = free_port()
    argv = [
        str(binary),
        "--worker-urls",
        f"http://127.0.0.1:{upstream_port}",
        "--host",
        "127.0.0.1",
        "--port",
        str(port),
    ]
    argv += ["--prometheus-port", str(free_port())]
    log = work / "router.log"
    with running(argv, PROXY_CORE, log) as process:
        wait_for(port, process, log)
        yield Target("vllm-router", f"127.0.0.1:{port}", (process.pid,))


@contextlib.contextmanager
def product(tools: dict[str, Path], work: Path) -> Iterator[Target]:
    """The real `vllm-mm serve`, everything on, with the canned engine as an `engine: command` on its unix socket."""
    port, state = free_port(), work / "state"
    config = work / "vllm-mm.yaml"
    command = ["taskset", "-c", LOAD_CORE, str(tools["upstream"]), "0", "{socket}"]
    config.write_text(
        json.dumps(
            {
                "server": {"host": "127.0.0.1", "port": port},
                "devices": "cpu",
                "queue": {"max_size": 4096},
                "models": {
                    "m1": {
                        "engine": "command",
                        "command": command,
                        "memory": "64MiB",
                        "concurrency": 4096,
                        "preload": True,
                        "pinned": True,
                    }
                },
            }
        )
    )
    log = work / "product.log"
    argv = [str(Path(sys.executable).with_name("vllm-mm")), "serve", "--config", str(config), "--data-dir", str(state)]
    if not Path(argv[0]).exists():
        raise Unavailable(
            "vllm-mm is not installed beside this Python: scripts/run or scripts/test makes the environment"
        )
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    with running(argv, PROXY_CORE, log, env=environment) as process:
        wait_for(port, process, log)
        key = _token(log)
        _until_served(port, key, log)
        yield Target("vllm-mm", f"127.0.0.1:{port}", (process.pid,), key)


@contextlib.contextmanager
def bare(tools: dict[str, Path], work: Path, form: str) -> Iterator[Target]:
    """The data plane alone (serve_static.py), to see what the rest costs."""
    path, port = work / "bare.sock", free_port()
    log = work / f"bare-{form}.log"
    with running([str(tools["upstream"]), "0", str(path)], LOAD_CORE, work / "bare-upstream.log"):
        argv = [sys.executable, str(HERE / "serve_static.py"), str(port), str(path), form]
        with running(argv, PROXY_CORE, log) as process:
            wait_for(port, process, log)
            yield Target(f"bare-{form}", f"127.0.0.1:{port}", (process.pid,))


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
