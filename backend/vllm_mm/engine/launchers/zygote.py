"""The zygote: a process that has imported an engine's code once, and forks engines from there.

This file is run as a script by the *engine's* Python, which may be another version, in another environment: standard
library only, nothing of ours is imported, and nothing newer than Python 3.10. `pool.py` starts it and talks to it over a
unix stream socket, which is its standard input; when that closes (its owner is gone), it ends.

Frames in both directions: four bytes of length, network order, then JSON. Requests:

    {"op": "prepare", "kind": "vllm"|"plain", "entry": "package.module:function", "modules": [...],
     "architectures": [...], "model_types": [...]}
        -> {"ready": true, ...what `_report` says} or {"ready": false, "reason": "..."}
    {"op": "import", "modules": [...], "architectures": [...], "model_types": [...]}     -> the same answer
    {"op": "status"}                                                                      -> the same answer
    {"op": "fork", "argv": [...], "env": {...}, "marks": {NAME: VALUE}}, with two descriptors: the log, and a socket for the answer
        -> on that socket the engine itself says {"pid": N}, with a pidfd, when it is complete, and runs on when it is told
           GO; or {"error": "..."}; its end without these is a failed fork

An engine is a grandchild, forked by a child that ends at once: so the engine's parent is whoever reaps orphans, which is
our owner (prctl(2), PR_SET_CHILD_SUBREAPER), and exit codes reach it as if it had started the engine itself. An engine
that nobody knows does not live: without GO it ends itself, whoever of the others was killed meanwhile. Until GO it stays
in the zygote's session, where the owner finds what is left of a fork that failed; then it leads a session of its own, and
returns from `main` into the entry point with the interpreter's own ending.

Forking is safe only while there is one Python thread and no GPU was touched: both are looked at before each fork.
"""

# ruff: noqa: PTH100, PTH115, PTH118, PTH119, PTH120, PTH123, PTH207, PTH208, TC003
from __future__ import annotations

import array
import contextlib
import ctypes
import gc
import glob
import importlib
import importlib.metadata
import importlib.util
import json
import os
import re
import select
import signal
import socket
import stat
import struct
import sys
import threading
import time
import types
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

CONTROL = 0
"""The descriptor of the control socket."""
TITLE_BYTES = 4000
"""Room for an engine's command line in the argument area, which `ps` shows."""
_AREA: list[int] = []
"""[start, end) of the argument area of this process, and of all that are forked from it."""
GO = b"+"
"""The owner's word to an engine that it is known."""
ARRIVAL = 15.0
"""Seconds in which the process between zygote and engine has to be gone. It takes less than a hundredth of one."""
Message = dict[str, Any]
"""What a frame holds."""
FORKING_VERSIONS = re.compile(r"0\.32\.")
"""vLLM versions whose CPU build was seen to work with its own children forked (it asks for spawn). Others start theirs as
they choose; on GPUs vLLM itself decides whether a fork is safe."""


def read_frame(channel: socket.socket, timeout: float | None = None) -> tuple[Message | None, list[int]]:
    """(message, descriptors); message is None at the end of the stream."""
    channel.settimeout(timeout)
    head, fds = _read(channel, 4)
    if head is None:
        return None, fds
    body, more = _read(channel, struct.unpack("!I", head)[0])
    fds += more
    return (None if body is None else decode(body)), fds


def _read(channel: socket.socket, size: int) -> tuple[bytes | None, list[int]]:
    data = b""
    fds: list[int] = []
    while len(data) < size:
        part, ancillary, _flags, _address = channel.recvmsg(
            size - len(data), socket.CMSG_SPACE(16 * 4), socket.MSG_CMSG_CLOEXEC
        )
        for level, kind, payload in ancillary:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                numbers: array.array[int] = array.array("i")
                numbers.frombytes(payload[: len(payload) - len(payload) % numbers.itemsize])
                fds += numbers
        if not part:
            return None, fds
        data += part
    return data, fds


def decode(body: bytes) -> Message:
    return json.loads(body)


def frame(message: Message) -> bytes:
    body = json.dumps(message).encode()
    return struct.pack("!I", len(body)) + body


def write_frame(channel: socket.socket, message: Message, fds: Sequence[int] = ()) -> None:
    data = frame(message)
    sent = socket.send_fds(channel, [data], list(fds)) if fds else channel.send(data)
    if sent < len(data):
        channel.sendall(data[sent:])


def _import_all(wanted: Iterable[str], problems: list[str]) -> None:
    for name in wanted:
        try:
            importlib.import_module(name)
        except Exception as error:  # a module of another version: the engine imports what it really needs itself
            problems.append(f"{name}: {type(error).__name__}: {error}")


def _import_models(architectures: Iterable[str], model_types: Iterable[str], problems: list[str]) -> None:
    """vLLM's module of each architecture, and what transformers has for the model type (its configuration)."""
    for name in architectures:
        try:
            registry = importlib.import_module("vllm.model_executor.models.registry")
            known = registry.ModelRegistry.models.get(name)
            if known is not None:
                # Known by its class, vLLM need not ask a process of its own about it (a lazy entry is inspected in a
                # subprocess with all the imports once more, unless the cache root has the answer of an earlier start).
                registry.ModelRegistry.register_model(name, known.load_model_cls())
        except Exception as error:
            problems.append(f"architecture {name}: {type(error).__name__}: {error}")
    for name in model_types:
        try:
            auto = importlib.import_module("transformers.models.auto.configuration_auto")
            if name in auto.CONFIG_MAPPING:
                auto.CONFIG_MAPPING[name]  # resolves the lazy import
        except Exception as error:
            problems.append(f"model type {name}: {type(error).__name__}: {error}")


_CPU_MODULES = (
    "vllm.v1.worker.cpu_worker",
    "vllm.v1.worker.cpu_model_runner",
    "vllm.distributed.elastic_ep.elastic_execute",
    "vllm.v1.pool.flash_maxsim",
    "vllm.model_executor.layers.quantization.online.base",
)
"""Imported late by engines on the CPU; on GPUs they might touch a device."""


def _import_platform(problems: list[str]) -> None:
    """The platform's worker, model runner and kernels: what EngineCore imports late."""
    try:
        platforms = importlib.import_module("vllm.platforms")
        platform = platforms.current_platform
        kind = getattr(platform, "device_type", "")
        if kind == "cpu":
            _import_all(_CPU_MODULES, problems)
        elif kind == "cuda":
            _import_all(["vllm.v1.worker.gpu_worker", "vllm.v1.worker.gpu_model_runner"], problems)
        if kind == "cpu" and hasattr(platform, "import_kernels"):
            platform.import_kernels()  # on GPUs these libraries are the engine's own business: loading them may touch the device
    except Exception as error:
        problems.append(f"platform: {type(error).__name__}: {error}")


def preload_libraries() -> str | None:
    """The libraries that vLLM's CPU build puts in front of its own children (LD_PRELOAD, vllm/platforms/cpu.py): a fork
    has them only when the zygote has. Returns the value to run with, or None when there is nothing to add."""
    try:
        if "cpu" not in importlib.metadata.version("vllm"):
            return None
    except importlib.metadata.PackageNotFoundError:
        return None
    value = os.environ.get("LD_PRELOAD", "")
    torch, vllm = importlib.util.find_spec("torch"), importlib.util.find_spec("vllm")
    if torch is None or torch.origin is None or vllm is None or vllm.origin is None:
        return None
    package = os.path.dirname(torch.origin)
    if not re.search("libomp|libgomp|libiomp", value):
        found = [
            f
            for d in (os.path.join(os.path.dirname(package), "torch.libs"), os.path.join(package, "lib"))
            for f in glob.glob(os.path.join(d, "libgomp*.so*"))
        ]
        if found:
            value = ":".join(filter(None, (value, found[0])))
    if "libtcmalloc" not in value:
        for pattern in ("libtcmalloc_minimal*.so*", "libtcmalloc.so*"):
            found = glob.glob(os.path.join(os.path.dirname(vllm.origin), "libs", pattern))
            if found:
                value = ":".join(filter(None, (found[0], value)))
                break
    return value if value != os.environ.get("LD_PRELOAD", "") else None


def unfit(
    devices: Iterable[str] | None = None, threads: int | None = None, modules: Mapping[str, Any] | None = None
) -> str:
    """Why no engine may be forked from this process, or an empty text."""
    threads = threading.active_count() if threads is None else threads
    if threads != 1:
        names = ", ".join(sorted(t.name for t in threading.enumerate()))
        return f"{threads} Python threads run in it ({names})"
    modules = sys.modules if modules is None else modules
    for module, attribute in (("torch.cuda", "CUDA"), ("torch.xpu", "XPU")):
        check = getattr(modules.get(module), "is_initialized", None)
        if check is not None and check():
            return f"{attribute} was initialised by an import"
    for name in open_devices() if devices is None else devices:
        if re.match(r"/dev/(nvidia\d+|nvidia-uvm$|kfd$|dri/renderD)", name):
            return f"an import opened the device {name}"
    return ""


def open_devices() -> list[str]:
    found: list[str] = []
    for fd in os.listdir("/proc/self/fd"):
        try:
            name = os.readlink("/proc/self/fd/" + fd)
        except OSError:
            continue
        if name.startswith("/dev/"):
            found.append(name)
    return found


def memory() -> tuple[int, int]:
    """(private, proportional) bytes of this process; proportional counts a page shared by n processes as 1/n. Private are
    pages that were written and that nobody shares: unchanged pages of files are the page cache's, whoever maps them."""
    private = shared = 0
    try:
        with open("/proc/self/smaps_rollup") as file:
            for line in file:
                name, _, rest = line.partition(":")
                if name == "Private_Dirty":
                    private = int(rest.split()[0]) * 1024
                elif name == "Pss":
                    shared = int(rest.split()[0]) * 1024
    except OSError:
        pass
    return private, shared


def room_for(title: str) -> str:
    """The last argument of a zygote: what it is called, and the room for longer titles."""
    return title.ljust(TITLE_BYTES)


def write_area(start: int, end: int, text: bytes) -> None:
    """Over this process's own argument area: what ps shows. Where its last byte is not zero, the kernel shows the text up to the
    first zero (`get_mm_cmdline` in fs/proc/base.c); else all of the area, so that thousands of blanks would follow."""
    size = end - start
    ctypes.memmove(start, text[: size - 2].ljust(size - 1, b"\0") + b".", size)


def _name(text: str) -> None:
    """What /proc/PID/comm and `top` show: 15 bytes (prctl(2), PR_SET_NAME)."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(15, text.encode()[:15], 0, 0, 0)


def _keep_titles_short() -> None:
    """setproctitle, with which vLLM names its processes, fills the argument area with zeros up to its end: mark that again."""
    try:
        module = importlib.import_module("setproctitle")
    except ImportError:
        return
    module.getproctitle()  # it finds the area by its first contents, so it has to look before we write there
    original = module.setproctitle

    def setproctitle(title: str) -> None:
        original(title)
        if _AREA:
            ctypes.memmove(_AREA[1] - 1, b".", 1)

    setattr(module, "setproctitle", setproctitle)  # noqa: B010 - before anybody else imports it


def areas() -> tuple[int, int, int, int]:
    """(arg_start, arg_end, env_start, env_end) of this process: fields 48 to 51 of /proc/PID/stat, proc(5)."""
    with open("/proc/self/stat", "rb") as file:
        fields = file.read().rpartition(b")")[2].split()
    return int(fields[45]), int(fields[46]), int(fields[47]), int(fields[48])


def write_marks(env_start: int, env_end: int, marks: Mapping[str, str]) -> bool:
    """Put the values into the environment area itself, which others read as /proc/PID/environ: after a fork it still shows
    the zygote's. In place, so each value has to be as long as the one that stands there. Returns whether all could be."""
    area = ctypes.string_at(env_start, env_end - env_start)
    for name, value in marks.items():
        key = b"\0" + name.encode() + b"="
        at = area.find(key)
        stop = area.find(b"\0", at + len(key)) if at >= 0 else -1
        if stop < 0 or stop - at - len(key) != len(value.encode()):
            return False
        ctypes.memmove(env_start + at + len(key), value.encode(), len(value.encode()))
    return True


def remembered_paths(folder: str, modules: Mapping[str, Any] | None = None) -> list[tuple[str, str, str]]:
    """(module, name, rest of the path) of every constant that an import made from `folder`. The folder is the zygote's, which may
    be gone long before the engine is: torch compiles below such a path when a request first needs it, and cannot."""
    found: list[tuple[str, str, str]] = []
    if len(folder) < 2:
        return found
    for module, loaded in list((sys.modules if modules is None else modules).items()):
        # Its own table: asking a module for an attribute can set off an import.
        for name, value in list(getattr(loaded, "__dict__", {}).items()):
            if type(value) is str and (value + "/").startswith(folder + "/"):
                found.append((module, name, value[len(folder) :]))
    return found


def _become(request: Message, log: int, answer: int, remembered: Iterable[tuple[str, str, str]] = ()) -> None:
    """In the engine, right after the fork: everything a new program would have, but its imports. `answer` is kept open;
    `remembered` are constants below the zygote's TMPDIR."""
    for number in range(1, signal.NSIG):
        if number in (signal.SIGKILL, signal.SIGSTOP) or signal.getsignal(number) is None:
            continue
        with contextlib.suppress(OSError, ValueError):
            signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
    for number in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_IGN)  # as every Python begins
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.closerange(3, answer)
    os.closerange(answer + 1, 65536)
    for fd in (0, 1, 2):
        os.set_inheritable(fd, True)
    os.environ.clear()
    os.environ.update(request["env"])
    time.tzset()  # the C library read TZ when the zygote began
    arg_start, arg_end, env_start, env_end = areas()
    if not write_marks(env_start, env_end, request["marks"]):
        raise RuntimeError("the marks do not fit into the zygote's environment")
    write_area(arg_start, arg_end, " ".join(request["argv"]).encode())
    _name(os.path.basename(request.get("script") or sys.executable))
    temporary = sys.modules.get("tempfile")
    if temporary is not None:
        setattr(temporary, "tempdir", None)  # noqa: B010 - it remembers the zygote's TMPDIR
    folder = os.environ.get("TMPDIR", "")
    for module, name, rest in remembered:
        setattr(sys.modules[module], name, folder + rest)
    importlib.import_module("multiprocessing.process").current_process().authkey = os.urandom(32)
    numbers = sys.modules.get("numpy.random")
    if numbers is not None:
        numbers.seed()
    sys.argv = list(request["argv"])
    main_module = types.ModuleType("__main__")  # what multiprocessing's spawn looks at
    main_module.__dict__["__builtins__"] = __builtins__
    if request.get("script"):
        main_module.__file__ = request["script"]
    sys.modules["__main__"] = main_module
    gc.enable()


def _fork_children() -> str:
    """Let vLLM's own children (EngineCore, workers) be forked too, where that is safe. Its files stay as they are: the
    function that chooses is wrapped in this process, where it looks as it did in the versions that were tried."""
    os.environ.setdefault("VLLM_WORKER_MULTIPROC_METHOD", "fork")
    try:
        system = sys.modules["vllm.utils.system_utils"]
        original = system.get_mp_context
        version = importlib.metadata.version("vllm")
    except (KeyError, AttributeError, importlib.metadata.PackageNotFoundError):
        return "unknown version"
    platform = getattr(sys.modules.get("vllm.platforms"), "current_platform", None)
    tried = bool(FORKING_VERSIONS.match(version)) and getattr(platform, "device_type", "") == "cpu"
    multiprocessing = importlib.import_module("multiprocessing")

    def get_mp_context() -> Any:
        chosen = original()
        method = chosen.get_start_method()
        if threading.active_count() != 1 or unfit(threads=1):
            return multiprocessing.get_context("spawn") if method == "fork" else chosen
        return multiprocessing.get_context("fork") if tried else chosen

    for name, module in list(sys.modules.items()):
        # Its own table: asking a module for an attribute can set off an import.
        if name.startswith("vllm.") and getattr(module, "__dict__", {}).get("get_mp_context") is original:
            setattr(module, "get_mp_context", get_mp_context)  # noqa: B010 - a name that only that module's source knows
    os.register_at_fork(after_in_child=_let_go)
    return "fork" if tried else "vLLM's choice"


def _let_go() -> None:
    """In a child that the engine forked: no signal is passed to the parent's event loop, and no socket is kept listening
    on behalf of a parent that may die. The numbers stay taken, for Python objects still refer to them."""
    with contextlib.suppress(ValueError):
        signal.set_wakeup_fd(-1)
    null = -1
    for name in os.listdir("/proc/self/fd"):
        fd = int(name)
        try:
            if not stat.S_ISSOCK(os.fstat(fd).st_mode):
                continue
            with socket.socket(fileno=os.dup(fd)) as other:
                if not other.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
                    continue
            if null < 0:
                null = os.open(os.devnull, os.O_RDWR)
            os.dup2(null, fd, inheritable=False)
        except OSError:
            continue
    if null >= 0:
        os.close(null)


class Zygote:
    """Serves the owner's requests, one after the other."""

    def __init__(self, channel: socket.socket) -> None:
        self.channel = channel
        self.kind = "plain"
        self.entry = ""
        self.problems: list[str] = []
        self.seconds = 0.0
        self.forks = 0
        self.remembered: list[tuple[str, str, str]] = []

    def serve(self) -> Message | None:
        """Returns in an engine with its request, and in the zygote with None when the owner is gone."""
        while True:
            try:
                message, fds = read_frame(self.channel)
            except ConnectionError:
                return None
            if message is None:
                return None
            try:
                if message["op"] == "fork":
                    if self.fork(message, fds):
                        return message
                    continue
                if message["op"] == "prepare":
                    self.kind, self.entry = message["kind"], message["entry"]
                if message["op"] in ("prepare", "import"):
                    self.load(message)
                write_frame(self.channel, self.report())
            except (BrokenPipeError, ConnectionError):
                return None
            finally:
                for fd in fds:
                    os.close(fd)

    def load(self, message: Message) -> None:
        began = time.monotonic()
        gc.unfreeze()
        gc.enable()
        _import_all(message["modules"], self.problems)
        if self.kind == "vllm":
            if message["op"] == "prepare":
                _import_platform(self.problems)
            _import_models(message["architectures"], message["model_types"], self.problems)
        self.remembered = remembered_paths(os.environ.get("TMPDIR", "").rstrip("/"))
        gc.collect()
        gc.freeze()  # the collector's marks would make every shared page private (gc docs)
        gc.disable()
        self.seconds += time.monotonic() - began

    def report(self) -> Message:
        reason = unfit()
        module, _, function = self.entry.partition(":")
        if not reason and not callable(getattr(sys.modules.get(module), function, None)):
            reason = f"the entry point {self.entry} could not be imported: {'; '.join(self.problems) or 'not found'}"
        private, proportional = memory()
        return {
            "ready": not reason,
            "reason": reason,
            "seconds": round(self.seconds, 3),
            "problems": self.problems[:20],
            "private": private,
            "proportional": proportional,
            "threads": len(os.listdir("/proc/self/task")),
            "modules": len(sys.modules),
            "forks": self.forks,
            "python": sys.version.split()[0],
        }

    def fork(self, request: Message, fds: list[int]) -> bool:
        """True in the engine, which has nothing open then but its log. The answer goes out on the request's own socket."""
        if len(fds) != 2:
            return False
        log, answer = fds
        with socket.socket(fileno=os.dup(answer)) as out:
            reason = unfit()
            if reason:
                write_frame(out, {"error": reason})
                return False
            for stream in (sys.stdout, sys.stderr):
                stream.flush()  # else every engine would write what an import left there into its own log
            try:
                between = os.fork()
            except OSError as error:
                write_frame(out, {"error": f"cannot fork: {error}"})
                return False
            if between:
                _, status = os.waitpid(between, 0)
                if status:
                    write_frame(out, {"error": f"the process between it and the engine ended with status {status}"})
                else:
                    self.forks += 1
                return False
            try:
                between = os.getpid()
                engine = os.fork()
            except OSError as error:
                write_frame(out, {"error": f"cannot fork: {error}"})
                os._exit(1)
            if engine:
                os._exit(0)
        _arrive(request, log, answer, between, self.remembered)
        self.channel.detach()
        fds.clear()
        return True


def _arrive(request: Message, log: int, answer: int, between: int, remembered: Iterable[tuple[str, str, str]]) -> None:
    """In the engine: become one, tell the owner, and go on only when it knows. Everything else ends the process."""
    try:
        _become(request, log, answer, remembered)
        until = time.monotonic() + ARRIVAL
        while os.getppid() == between:
            if time.monotonic() > until:
                raise RuntimeError("the process between zygote and engine does not end")
            time.sleep(0.0005)
        with socket.socket(fileno=answer) as out:
            out.settimeout(None)
            pidfd = os.pidfd_open(os.getpid())
            write_frame(out, {"pid": os.getpid()}, [pidfd])
            os.close(pidfd)
            if out.recv(1) != GO:
                os.kill(os.getpid(), signal.SIGKILL)  # as a kill from outside: it says nothing about this launch
    except ConnectionError:
        os.kill(os.getpid(), signal.SIGKILL)
    except BaseException as error:
        with contextlib.suppress(OSError), socket.socket(fileno=os.dup(answer)) as out:
            write_frame(out, {"error": f"the engine's process could not be prepared: {error}"})
        os._exit(1)
    os.setsid()


def _die_with_owner(channel: socket.socket) -> None:
    """At once, also in the middle of an import: the kernel kills us when the owner's thread that started us ends (prctl(2),
    PR_SET_PDEATHSIG). Engines do not inherit that. One that ended before has closed its side."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(1, int(signal.SIGKILL), 0, 0, 0)
    look = select.poll()
    look.register(channel, select.POLLHUP | select.POLLRDHUP)
    if look.poll(0):
        os._exit(0)


def main() -> tuple[Message, Zygote] | None:
    channel = socket.socket(fileno=os.dup(CONTROL))
    os.set_inheritable(CONTROL, False)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, CONTROL)
    os.close(null)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C in the terminal is for our owner, who ends us
    _die_with_owner(channel)
    _keep_titles_short()
    start, end = areas()[:2]
    _AREA[:] = start, end
    write_area(start, end, sys.argv[-1].rstrip().encode())
    _name("vllm-mm-zygote")
    zygote = Zygote(channel)
    request = zygote.serve()
    if request is None:
        return None
    return request, zygote


def run_entry(zygote: Zygote) -> None:
    """In the engine: what the console script does. Its ending is the interpreter's."""
    if zygote.kind == "vllm":
        _fork_children()
    module, _, function = zygote.entry.partition(":")
    sys.exit(getattr(sys.modules[module], function)())


if __name__ == "__main__":
    sys.path[:] = [p for p in sys.path if os.path.abspath(p or ".") != os.path.dirname(os.path.abspath(__file__))]
    if "--libraries" in sys.argv:
        sys.argv.remove("--libraries")
        value = preload_libraries()
        if value is not None:
            os.environ["LD_PRELOAD"] = value
            os.execv(sys.executable, [sys.executable, *sys.argv])  # noqa: S606 - the same program once more
    outcome = main()
    if outcome is None:
        os._exit(0)  # the libraries' own ending has nothing to say here
    run_entry(outcome[1])
