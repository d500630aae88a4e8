"""Sleep, wake and pause of a simulated engine, with vLLM's traps."""

import threading
import time
from collections.abc import Generator
from typing import Any

import httpx
import pytest

from contract.engines import Sim, chat_body, client, raw_stream, stream, until

CHAT = "/v1/chat/completions"


@pytest.fixture(scope="module")
def shared() -> Generator[Sim, None, None]:
    """A fast engine with sleep mode."""
    with Sim(("--enable-sleep-mode", "--sim", "tokens_per_second=100")) as engine:
        yield engine


@pytest.fixture
def sim(shared: Sim) -> Sim:
    """The engine, awake, with good weights, and with nothing to do."""
    shared.http.post("/abort_requests", json={}).raise_for_status()
    shared.http.post("/wake_up").raise_for_status()
    shared.http.post("/collective_rpc", json={"method": "reload_weights"}).raise_for_status()
    shared.http.post("/resume").raise_for_status()
    return shared


def in_background(sim: Sim, **fields: Any) -> tuple[threading.Thread, list[httpx.Response]]:
    """A chat in a thread; its answer lands in the list."""
    answers: list[httpx.Response] = []

    def ask() -> None:
        with client(sim.socket) as http:
            answers.append(http.post(CHAT, json=chat_body(**fields)))

    thread = threading.Thread(target=ask)
    thread.start()
    return thread, answers


def test_asleep_it_queues_in_silence(sim: Sim) -> None:
    """Asleep, /health is 200, requests wait without a word, and the counters show nothing; after the wake they are answered."""
    assert sim.http.post("/sleep?level=1").json() == {"status": "sleeping", "level": 1}
    assert sim.http.get("/is_sleeping").json() == {"is_sleeping": True}
    thread, answers = in_background(sim)
    time.sleep(0.2)
    assert sim.http.get("/health").status_code == 200
    stats = sim.stats()
    assert (stats["vllm:num_requests_running"], stats["vllm:num_requests_waiting"]) == (0, 0)
    assert not answers
    assert sim.http.post("/wake_up").json() == {"status": "awake", "tags": None}
    thread.join(5)
    assert answers[0].status_code == 200
    assert sim.http.get("/is_sleeping").json() == {"is_sleeping": False}


def test_the_level_is_a_query_parameter(sim: Sim) -> None:
    """A level in a JSON body is not looked at: it is level 1. A level that does not exist is a 400."""
    assert sim.http.post("/sleep", json={"level": 2}).json()["level"] == 1
    assert sim.http.post("/sleep?level=3").status_code == 400
    assert sim.http.post("/sleep?mode=nope").status_code == 400


def test_the_metrics_show_the_level(sim: Sim) -> None:
    """`vllm:engine_sleep_state` names the state."""
    for level, state in ((1, "weights_offloaded"), (2, "discard_all")):
        sim.http.post(f"/sleep?level={level}")
        lines = [line for line in sim.http.get("/metrics").text.splitlines() if f'sleep_state="{state}"' in line]
        assert lines[0].endswith(" 1.0")
        sim.http.post("/wake_up")


def test_sleep_aborts_what_runs(sim: Sim) -> None:
    """mode=abort, the default: the request ends with the finish reason `abort`."""
    thread, answers = in_background(sim, max_tokens=4000, ignore_eos=True)
    until(lambda: sim.stats()["vllm:num_requests_running"] == 1, "the request to run")
    sim.http.post("/sleep").raise_for_status()
    thread.join(5)
    assert answers[0].json()["choices"][0]["finish_reason"] == "abort"


def test_sleep_can_wait_for_what_runs(sim: Sim) -> None:
    """mode=wait: the answer is complete when /sleep returns."""
    thread, answers = in_background(sim, max_tokens=30, ignore_eos=True)
    until(lambda: sim.stats()["vllm:num_requests_running"] == 1, "the request to run")
    sim.http.post("/sleep?mode=wait").raise_for_status()
    thread.join(5)
    assert answers[0].json()["usage"]["completion_tokens"] == 30
    assert sim.http.get("/is_sleeping").json() == {"is_sleeping": True}


def test_sleep_can_freeze_what_runs(sim: Sim) -> None:
    """mode=keep: a running stream stands still, goes on after the wake, and its text is the same as without the sleep."""
    body = chat_body(max_tokens=40, ignore_eos=True)
    whole = "".join(chunk["choices"][0]["delta"].get("content", "") for _, chunk in stream(sim.http, CHAT, body)[:-1])
    thread, answers = in_background(sim, max_tokens=40, ignore_eos=True)
    until(lambda: sim.stats()["vllm:num_requests_running"] == 1, "the request to run")
    sim.http.post("/sleep?mode=keep").raise_for_status()
    thread.join(0.6)
    assert not answers
    sim.http.post("/wake_up").raise_for_status()
    thread.join(5)
    assert answers[0].json()["choices"][0]["message"]["content"] == whole


def test_level_2_needs_its_weights_again(sim: Sim) -> None:
    """A wake from level 2 without a reload gives gibberish without an error; with the whole sequence the answers are the old ones."""
    before = sim.chat().json()["choices"][0]["message"]["content"]
    sim.http.post("/sleep?level=2").raise_for_status()
    assert sim.http.post("/wake_up").json()["status"] == "awake"
    assert sim.chat().json()["choices"][0]["message"]["content"] == "!" * 8

    sim.http.post("/sleep?level=2").raise_for_status()
    assert sim.http.post("/wake_up?tags=weights").json() == {"status": "sleeping", "tags": ["weights"]}
    assert sim.http.get("/is_sleeping").json() == {"is_sleeping": True}
    sim.http.post("/collective_rpc", json={"method": "reload_weights"}).raise_for_status()
    assert sim.http.post("/wake_up?tags=kv_cache").json()["status"] == "awake"
    assert sim.http.post("/reset_prefix_cache").json() == {"success": True}
    assert sim.chat().json()["choices"][0]["message"]["content"] == before


def test_sleep_and_wake_take_their_time() -> None:
    """The weights over the bandwidth, each way."""
    args = ("--enable-sleep-mode", "--sim", "weights=1GiB", "--sim", "sleep_bandwidth=4GiB/s")
    with Sim(args) as sim:
        for path in ("/sleep", "/wake_up"):
            began = time.monotonic()
            sim.http.post(path).raise_for_status()
            assert 0.25 <= time.monotonic() - began < 0.6


def test_pause_and_resume(sim: Sim) -> None:
    """Paused, requests queue in silence; /resume lets them go."""
    assert sim.http.post("/pause").json() == {"status": "paused"}
    assert sim.http.get("/is_paused").json() == {"is_paused": True}
    thread, answers = in_background(sim)
    thread.join(0.3)
    assert not answers
    assert sim.http.get("/health").status_code == 200
    assert sim.http.post("/resume").json() == {"status": "resumed"}
    thread.join(5)
    assert answers[0].status_code == 200
    assert sim.http.get("/is_paused").json() == {"is_paused": False}


def test_pause_aborts_what_runs(sim: Sim) -> None:
    """A stream gets a last chunk with the finish reason `abort`, then [DONE]."""
    with raw_stream(sim.socket, CHAT, chat_body(stream=True, max_tokens=4000, ignore_eos=True)) as client:
        until(lambda: sim.stats()["vllm:num_requests_running"] == 1, "the request to run")
        sim.http.post("/pause?mode=abort").raise_for_status()
        text = b""
        while b"[DONE]" not in text:
            text += client.recv(65536)
        assert b'"finish_reason":"abort"' in text
    sim.http.post("/resume").raise_for_status()
    assert sim.chat().status_code == 200


def test_abort_requests(sim: Sim) -> None:
    """Everything under way ends, and new requests are served."""
    thread, answers = in_background(sim, max_tokens=4000, ignore_eos=True)
    until(lambda: sim.stats()["vllm:num_requests_running"] == 1, "the request to run")
    assert sim.http.post("/abort_requests", json={}).json() == {"status": "aborted", "aborted": 1}
    thread.join(5)
    assert answers[0].json()["choices"][0]["finish_reason"] == "abort"
    assert sim.chat().status_code == 200
