"""The processes of a simulated engine: their tree, their signals, their exit codes. All of it is what vLLM was seen to do."""

import os
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import httpx
import pytest

from contract.engines import BACKEND, Sim, chat_body, events, look_at, raw_stream, until

CHAT = "/v1/chat/completions"
LONG = chat_body(stream=True, max_tokens=4000, ignore_eos=True)


def gone(sim: Sim) -> None:
    """Nothing of the launch is left."""
    until(lambda: not sim.tree(), "the whole tree to be gone")


def test_the_log_tells_every_phase_in_order() -> None:
    """The phases that vLLM logs, each in its own words, in order; progress comes with carriage returns."""
    args = ("--sim", "compile=10ms", "--sim", "graphs=10ms", "--sim", "weights=1GiB", "--sim", "load_bandwidth=50GiB/s")
    with Sim(args) as sim:
        sim.wait_for_log("Application startup complete")
        log = sim.log()
    position = 0
    for pattern in (
        r"\(APIServer pid=\d+\) INFO \d\d-\d\d \d\d:\d\d:\d\d \[[\w.]+:\d+\] vLLM server version (\S+)",
        r"Resolved architecture: (\S+)",
        r"\(EngineCore pid=\d+\) INFO .* Initializing a V1 LLM engine",
        r"Starting to load model",
        r"\r.*Loading safetensors checkpoint shards:\s+(\d+)% Completed \| (\d+)/(\d+)",
        r"Loading safetensors checkpoint shards:\s+100% Completed \| 4/4",
        r"Loading weights took ([\d.]+) seconds",
        r"Model loading took ([\d.]+) GiB memory and ([\d.]+) seconds",
        r"torch.compile took ([\d.]+) s in total",
        r"Available KV cache memory: (-?[\d.]+) GiB",
        r"KV cache size: ([\d,]+) tokens, Maximum concurrency for ([\d,]+) tokens per request: ([\d.]+)x",
        r"Capturing CUDA graphs \((.+?)\):\s+(\d+)%",
        r"init engine .* took ([\d.]+) s",
        r"Supported tasks: (\[.*\])",
        r"Application startup complete",
    ):
        found = re.compile(pattern).search(log, position)
        assert found, f"{pattern!r} is not in the log after what came before:\n{log[position:]}"
        position = found.start()


def test_bad_arguments_exit_with_2() -> None:
    """argparse's code and message, for an unknown option and for a value that is no size."""
    for args, said in (
        (["--nope"], "unrecognized arguments: --nope"),
        (["--sim", "weights=5 bananas"], "weights: '5 bananas' is not a size"),
        (["--sim", "wieghts=5GiB"], "did you mean `weights`?"),
        (["--sim", "fault=nope"], "no fault is named 'nope'"),
    ):
        done = subprocess.run(
            [sys.executable, "-m", "vllm_mm.sim", "m", *args],
            env={**os.environ, "PYTHONPATH": str(BACKEND)}, capture_output=True, text=True, timeout=20, check=False,
        )  # fmt: skip
        assert done.returncode == 2
        assert said in done.stderr


def test_help_explains_keys_and_faults() -> None:
    """--help names every key of the profile and every fault."""
    done = subprocess.run(
        [sys.executable, "-m", "vllm_mm.sim", "--help"],
        env={**os.environ, "PYTHONPATH": str(BACKEND)}, capture_output=True, text=True, timeout=20, check=True,
    )  # fmt: skip
    for word in ("tokens_per_second", "ledger", "crash_after_tokens", "leave_session", "--served-model-name"):
        assert word in done.stdout


def test_a_stale_socket_file_is_an_exit_with_1() -> None:
    """vLLM does not remove what it finds at --uds: it fails."""
    with Sim(wait=False) as first:
        first.process.kill()
        until(lambda: Path(first.socket).exists() or first.process.poll() is not None, "the first engine to bind")
        Path(first.socket).touch()
        second = subprocess.run(
            [sys.executable, "-m", "vllm_mm.sim", "m", "--uds", first.socket],
            env={**os.environ, "PYTHONPATH": str(BACKEND)}, capture_output=True, text=True, timeout=20, check=False,
        )  # fmt: skip
    assert second.returncode == 1
    assert "Address already in use" in second.stderr


def test_a_taken_port_is_an_exit_with_1() -> None:
    """Also over TCP."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        done = subprocess.run(
            [sys.executable, "-m", "vllm_mm.sim", "m", "--port", str(taken.getsockname()[1])],
            env={**os.environ, "PYTHONPATH": str(BACKEND)}, capture_output=True, text=True, timeout=20, check=False,
        )  # fmt: skip
    assert done.returncode == 1
    assert "Address already in use" in done.stderr


def test_it_serves_over_tcp() -> None:
    """--host and --port instead of --uds."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with subprocess.Popen(
        [sys.executable, "-m", "vllm_mm.sim", "m", "--host", "127.0.0.1", "--port", str(port)],
        env={**os.environ, "PYTHONPATH": str(BACKEND)}, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    ) as process:  # fmt: skip

        def connects() -> bool:
            with socket.socket() as connection:
                return connection.connect_ex(("127.0.0.1", port)) == 0

        try:
            until(connects, "the engine to listen")
            assert httpx.get(f"http://127.0.0.1:{port}/health").status_code == 200
        finally:
            process.terminate()
        assert process.wait(5) == 0


def test_nothing_listens_before_it_is_ready() -> None:
    """The socket file is there from the start, and refuses until the engine is ready."""
    with Sim(("--sim", "startup=400ms"), wait=False) as sim:
        until(lambda: Path(sim.socket).exists(), "the socket file")
        with socket.socket(socket.AF_UNIX) as early, pytest.raises(ConnectionRefusedError):
            early.connect(sim.socket)
        until(sim.answers, "the engine to be ready")


def test_the_tree() -> None:
    """A leader and a core named as vLLM names it, in one session and group, with the launch's mark in the environment."""
    with Sim() as sim:
        leader = sim.process.pid
        core = sim.core()
        assert (core.parent, core.session, core.group) == (leader, leader, leader)
        assert {process.pid for process in sim.tree()} == {leader, core.pid}


def test_the_tree_with_tensor_parallelism() -> None:
    """One worker a rank, children of the core."""
    with Sim(("--tensor-parallel-size", "2", "--sim", "device=sim0,sim1")) as sim:
        core = sim.core()
        workers = [process for process in sim.children() if process.pid != core.pid]
        assert sorted(process.name for process in workers) == ["VLLM::Worker_TP0", "VLLM::Worker_TP1"]
        assert {process.parent for process in workers} == {core.pid}
        assert {process.session for process in workers} == {sim.process.pid}
        sim.process.terminate()
        assert sim.process.wait(5) == 0
        assert not sim.tree()


def test_term_when_idle_is_a_clean_end() -> None:
    """Exit 0 within half a second, nothing left; the socket file stays, as vLLM leaves it."""
    with Sim() as sim:
        sim.http.get("/health")  # an idle kept-alive connection does not hold it up
        began = time.monotonic()
        sim.process.terminate()
        assert sim.process.wait(5) == 0
        assert time.monotonic() - began < 0.5
        assert not sim.tree()
        assert Path(sim.socket).exists()


def test_term_during_the_load_is_swallowed() -> None:
    """The server comes up anyway."""
    with Sim(("--sim", "startup=500ms"), wait=False) as sim:
        sim.wait_for_log("Initializing a V1 LLM engine")
        sim.process.terminate()
        until(sim.answers, "the engine to be ready")


def test_term_to_the_group_during_the_load_leaves_the_server_waiting() -> None:
    """The core dies of it; the server neither ends nor ever gets ready."""
    with Sim(("--sim", "startup=60s"), wait=False) as sim:
        sim.wait_for_log("Initializing a V1 LLM engine")
        os.killpg(sim.process.pid, signal.SIGTERM)
        until(lambda: not sim.children(), "the core to be gone")
        with pytest.raises(subprocess.TimeoutExpired):
            sim.process.wait(0.3)


def test_term_with_requests_under_way_hangs_until_the_clients_leave() -> None:
    """The core is ended, the client gets nothing more, and the process ends when the client does."""
    with Sim(("--sim", "tokens_per_second=20")) as sim:
        with raw_stream(sim.socket, CHAT, LONG) as client:
            until(lambda: sim.stats()["vllm:num_requests_running"] == 1, "the request to run")
            client.recv(65536)
            sim.process.terminate()
            until(lambda: not sim.children(), "the core to be gone")
            with pytest.raises(subprocess.TimeoutExpired):
                sim.process.wait(0.3)
            sim.process.terminate()  # a second one changes nothing
            with pytest.raises(subprocess.TimeoutExpired):
                sim.process.wait(0.2)
        assert sim.process.wait(5) == 0


def test_term_with_a_shutdown_timeout_drains() -> None:
    """`--shutdown-timeout`: what runs is finished, new requests get 500, /health stays 200."""
    args = ("--shutdown-timeout", "20", "--sim", "tokens_per_second=50")
    with Sim(args) as sim, raw_stream(sim.socket, CHAT, chat_body(max_tokens=40, ignore_eos=True)) as client:
        until(lambda: sim.stats()["vllm:num_requests_running"] == 1, "the request to run")
        sim.process.terminate()
        sim.wait_for_log("mode=drain")
        assert sim.http.get("/health").status_code == 200
        assert sim.chat().status_code == 500
        assert b'"finish_reason":"length"' in client.recv(65536)
        assert sim.process.wait(5) == 0


def test_a_killed_leader_orphans_the_core() -> None:
    """The core stays, with the same session and group and another parent; TERM ends it."""
    with Sim(("--tensor-parallel-size", "2")) as sim:
        core = sim.core()
        workers = [process for process in sim.children() if process.pid != core.pid]
        sim.process.kill()
        assert sim.process.wait(5) == -signal.SIGKILL
        orphan = until(lambda: (now := look_at(core.pid)) and now.parent != sim.process.pid and now, "a new parent")
        assert orphan
        assert (orphan.session, orphan.group) == (core.session, core.group)
        time.sleep(0.2)
        assert {process.pid for process in sim.tree()} == {core.pid, *(worker.pid for worker in workers)}
        os.kill(core.pid, signal.SIGTERM)
        gone(sim)


def test_a_killed_core_ends_the_server_with_0() -> None:
    """An engine that died looks like a clean end: /health is 503 at once, the exit code 0 at the watchdog's next look."""
    with Sim(("--sim", "watchdog=300ms")) as sim:
        os.kill(sim.core().pid, signal.SIGKILL)
        until(lambda: sim.process.poll() is not None or sim.http.get("/health").status_code == 503, "a 503")
        assert sim.process.wait(5) == 0
        assert not sim.tree()


def test_a_request_to_a_dead_core_is_a_500_and_the_end() -> None:
    """The server does not wait for its watchdog when a request finds out."""
    with Sim(("--sim", "watchdog=60s")) as sim:
        os.kill(sim.core().pid, signal.SIGKILL)
        until(lambda: sim.http.get("/health").status_code == 503, "a 503")
        answer = sim.chat()
        assert answer.status_code == 500
        assert answer.json()["error"]["type"] == "InternalServerError"
        assert sim.process.wait(5) == 0


def test_workers_outlive_a_killed_core() -> None:
    """By the time of `worker_linger`."""
    args = ("--tensor-parallel-size", "2", "--sim", "worker_linger=1500ms", "--sim", "watchdog=20ms")
    with Sim(args) as sim:
        os.kill(sim.core().pid, signal.SIGKILL)
        assert sim.process.wait(5) == 0
        assert len(sim.tree()) == 2
        gone(sim)


def workers(sim: Sim) -> list[int]:
    return sorted(process.pid for process in sim.children() if process.name.startswith("VLLM::Worker"))


def test_a_killed_worker_takes_its_core_and_the_server_with_it() -> None:
    """The executor notices, the core dies of it, and the server answers 500 to what runs and ends with 0: nothing is left."""
    args = ("--tensor-parallel-size", "2", "--sim", "worker_linger=100ms", "--sim", "watchdog=100ms")
    with Sim((*args, "--sim", "tokens_per_second=20")) as sim:
        with raw_stream(sim.socket, CHAT, chat_body(max_tokens=4000, ignore_eos=True)) as client:
            until(lambda: sim.stats()["vllm:num_requests_running"] == 1, "the request to run")
            os.kill(workers(sim)[1], signal.SIGKILL)
            assert b" 500 " in client.recv(65536).split(b"\r\n")[0]
        assert sim.process.wait(5) == 0
        log = sim.log()
        assert not sim.tree()
    assert "Worker proc VllmWorker-1 died unexpectedly (exit code: -9), shutting down executor." in log
    assert "EngineCore encountered a fatal error." in log


def test_a_worker_killed_while_loading_fails_the_start() -> None:
    """Exit 1, and nothing is left."""
    args = ("--tensor-parallel-size", "2", "--sim", "worker_linger=50ms", "--sim", "startup=60s")
    with Sim(args, wait=False) as sim:
        sim.wait_for_log("Initializing a V1 LLM engine")
        until(lambda: len(workers(sim)) == 2, "the workers to have their names")
        os.kill(workers(sim)[0], signal.SIGKILL)
        assert sim.process.wait(5) == 1
        log = sim.log()
        assert not sim.tree()
    assert "Worker proc VllmWorker-0 died unexpectedly" in log
    assert "Engine core initialization failed. See root cause above." in log


def test_a_worker_killed_after_its_server_ends_the_orphans() -> None:
    """A core that stayed behind still has its executor."""
    with Sim(("--tensor-parallel-size", "2", "--sim", "worker_linger=50ms")) as sim:
        pids = workers(sim)
        sim.process.kill()
        assert sim.process.wait(5) == -signal.SIGKILL
        assert len(sim.tree()) == 3
        os.kill(pids[0], signal.SIGKILL)
        gone(sim)


def test_a_core_that_dies_while_loading_is_an_exit_with_1() -> None:
    """vLLM's message names the process that failed."""
    with Sim(("--sim", "startup=60s"), wait=False) as sim:
        sim.wait_for_log("Initializing a V1 LLM engine")
        os.kill(sim.core().pid, signal.SIGKILL)
        assert sim.process.wait(5) == 1
        assert "Engine core initialization failed. See root cause above." in sim.log()


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (CHAT, LONG),
        ("/v1/completions", {"prompt": "x", "stream": True, "max_tokens": 4000, "ignore_eos": True}),
        (
            "/v1/messages",
            {
                "model": "sim-model",
                "messages": LONG["messages"],
                "stream": True,
                "max_tokens": 4000,
                "ignore_eos": True,
            },
        ),
        ("/v1/responses", {"input": "x", "stream": True, "max_output_tokens": 4000, "ignore_eos": True}),
    ],
    ids=["chat", "completions", "messages", "responses"],
)
def test_a_core_that_dies_in_a_stream(path: str, body: dict[str, object]) -> None:
    """Chat and completions: an error, then [DONE]. Messages: an error event. Responses: the stream just ends."""
    args = ("--sim", "fault=crash_after_tokens:5", "--sim", "watchdog=50ms", "--sim", "tokens_per_second=200")
    with Sim(args) as sim:
        with sim.http.stream("POST", path, json=body) as response:
            assert response.status_code == 200
            found = list(events(response))
        if path == "/v1/messages":
            assert found[-1][0] == "error"
        elif path == "/v1/responses":
            assert found[-1][0] == "response.output_text.delta"
        else:
            assert '"error":' in found[-2][1]
            assert found[-1][1] == "[DONE]"
        assert sim.process.wait(5) == 0
        assert not sim.tree()


def test_a_core_that_dies_in_a_whole_answer() -> None:
    """500, and the server ends with 0."""
    with Sim(("--sim", "fault=crash_after_tokens:3", "--sim", "watchdog=60s")) as sim:
        assert sim.chat().status_code == 500
        assert sim.process.wait(5) == 0


def test_a_stopped_core_hangs_requests_while_health_stays_200() -> None:
    """/health is only a flag; when the core goes on, so do the requests."""
    with Sim() as sim:
        core = sim.core()
        os.kill(core.pid, signal.SIGSTOP)
        with pytest.raises(httpx.ReadTimeout):
            sim.http.post(CHAT, json=chat_body(), timeout=0.3)
        assert sim.http.get("/health").status_code == 200
        os.kill(core.pid, signal.SIGCONT)
        assert sim.chat().status_code == 200
