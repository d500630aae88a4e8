"""Faults on demand: each does what `vllm-mm sim --help` says of it."""

import os
import signal
import subprocess
import time

import httpx
import pytest

from contract.engines import Sim, chat_body, look_at, until
from vllm_mm.vocabulary.faults import PHASES

CHAT = "/v1/chat/completions"


@pytest.mark.parametrize("phase", ["version", "weights"])
def test_hang_at(phase: str) -> None:
    """The load goes silent: no line, no end, no listener."""
    with Sim(("--sim", f"fault=hang_at:{phase}"), wait=False) as sim:
        sim.wait_for_log("Initializing a V1 LLM engine") if phase == "weights" else time.sleep(0.3)
        before = sim.log()
        with pytest.raises(subprocess.TimeoutExpired):
            sim.process.wait(0.3)
        assert sim.log() == before
        assert not sim.answers()


@pytest.mark.parametrize("phase", PHASES)
def test_die_at(phase: str) -> None:
    """The load fails in the phase, with the code that was asked for, and nothing is left."""
    args = ("--sim", f"fault=die_at:{phase}:7", "--sim", "compile=1ms", "--sim", "graphs=1ms")
    with Sim(args, wait=False) as sim:
        assert sim.process.wait(10) == 7
        assert f"simulated failure in phase {phase}" in sim.log()
        assert not sim.tree()


def test_die_at_is_1_unless_said() -> None:
    """As for any load of vLLM that fails."""
    with Sim(("--sim", "fault=die_at:weights"), wait=False) as sim:
        assert sim.process.wait(10) == 1


def test_exit_0() -> None:
    """A load that ends with code 0 before it was ready."""
    with Sim(("--sim", "fault=exit_0"), wait=False) as sim:
        assert sim.process.wait(10) == 0
        assert "Application startup complete" not in sim.log()
        assert not sim.tree()


def test_slow_health() -> None:
    """/health takes its time; other routes do not."""
    with Sim(("--sim", "fault=slow_health:300ms")) as sim:
        began = time.monotonic()
        assert sim.http.get("/health").status_code == 200
        assert time.monotonic() - began >= 0.3
        began = time.monotonic()
        assert sim.http.get("/version").status_code == 200
        assert time.monotonic() - began < 0.25


def test_ignore_term() -> None:
    """Neither the leader nor the core minds TERM; KILL still works."""
    with Sim(("--sim", "fault=ignore_term")) as sim:
        core = sim.core()
        os.killpg(sim.process.pid, signal.SIGTERM)
        time.sleep(0.2)
        assert sim.chat().status_code == 200
        assert {process.pid for process in sim.tree()} == {sim.process.pid, core.pid}


def test_leave_session() -> None:
    """The core is in a session of its own, is still the leader's child, and survives it."""
    with Sim(("--sim", "fault=leave_session")) as sim:
        core = sim.core()
        assert core.session == core.group == core.pid != sim.process.pid
        os.killpg(sim.process.pid, signal.SIGKILL)
        sim.process.wait(5)
        assert look_at(core.pid) is not None
        assert [process.pid for process in sim.tree()] == [core.pid]  # the launch's mark still finds it


def test_wipe_environment() -> None:
    """The core's mark in /proc is gone, as vLLM's is, unless SPT_NOENV=1 was set at the launch."""
    with Sim(("--sim", "fault=wipe_environment")) as sim:
        assert [process.pid for process in sim.tree()] == [sim.process.pid]
        sim.process.terminate()  # only the leader can end what the mark does not find
        assert sim.process.wait(5) == 0
    with Sim(("--sim", "fault=wipe_environment"), env={"SPT_NOENV": "1"}) as sim:
        assert len(sim.tree()) == 2


def test_refuse_wake() -> None:
    """/wake_up is a 500 and the engine stays asleep."""
    with Sim(("--enable-sleep-mode", "--sim", "fault=refuse_wake")) as sim:
        sim.http.post("/sleep").raise_for_status()
        assert sim.post_once("/wake_up").status_code == 500
        assert sim.http.get("/is_sleeping").json() == {"is_sleeping": True}


def test_lie_wake() -> None:
    """/wake_up is a 200 and what comes after it is gibberish."""
    with Sim(("--enable-sleep-mode", "--sim", "fault=lie_wake")) as sim:
        before = sim.chat().json()["choices"][0]["message"]["content"]
        sim.http.post("/sleep").raise_for_status()
        sim.http.post("/wake_up").raise_for_status()
        after = sim.chat().json()["choices"][0]["message"]["content"]
        assert (before != after, after) == (True, "!" * 8)


@pytest.mark.parametrize("fault", ["hang_requests", "no_readiness"])
def test_requests_hang_while_health_is_good(fault: str) -> None:
    """/health says 200 and nothing is answered."""
    with Sim(("--sim", f"fault={fault}")) as sim:
        with pytest.raises(httpx.ReadTimeout):
            sim.http.post(CHAT, json=chat_body(), timeout=0.3)
        assert sim.http.get("/health").status_code == 200


def test_faults_of_a_running_engine() -> None:
    """POST /sim/fault turns one on, DELETE ends it, and a wrong name is a 400."""
    with Sim() as sim:
        sim.fault("hang_requests")
        with pytest.raises(httpx.ReadTimeout):
            sim.http.post(CHAT, json=chat_body(), timeout=0.3)
        assert sim.http.delete("/sim/fault").status_code == 200
        assert sim.chat().status_code == 200
        assert sim.http.post("/sim/fault", json={"fault": "nope"}).status_code == 400
        sim.fault("leave_session")
        until(lambda: sim.core().session == sim.core().pid, "the core to leave the session")
        sim.fault("ignore_term")
        sim.process.terminate()
        with pytest.raises(subprocess.TimeoutExpired):
            sim.process.wait(0.2)
        sim.http.delete("/sim/fault")
        sim.process.terminate()
        assert sim.process.wait(5) == 0


def test_faults_need_the_development_mode() -> None:
    """Without VLLM_SERVER_DEV_MODE=1 there is no such route."""
    with Sim(env={"VLLM_SERVER_DEV_MODE": "0"}) as sim:
        for path in ("/sim/fault", "/sleep", "/wake_up", "/pause"):
            assert sim.http.post(path).json() == {"detail": "Not Found"}
