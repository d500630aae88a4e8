"""The model of time, as a client sees it."""

import contextlib
import json
import re
import time

from contract.engines import Sim, chat_body, raw_stream, stream

CHAT = "/v1/chat/completions"


def test_a_load_takes_the_time_of_its_profile() -> None:
    """Startup, and the weights over the bandwidth."""
    began = time.monotonic()
    with Sim(("--sim", "startup=300ms", "--sim", "weights=2GiB", "--sim", "load_bandwidth=10GiB/s")) as sim:
        sim.wait_for_log("Application startup complete")
        assert 0.5 <= time.monotonic() - began < 3
        took = re.search(r"Loading weights took ([\d.]+) seconds", sim.log())
        assert took
        assert 0.2 <= float(took[1]) < 0.6


def test_decoding_keeps_its_pace() -> None:
    """A stream of 60 tokens at 100 a second takes 0.6 s, without drift."""
    with Sim(("--sim", "tokens_per_second=100", "--sim", "prefill_tokens_per_second=unlimited")) as sim:
        began = time.monotonic()
        events = stream(sim.http, CHAT, chat_body(max_tokens=60, ignore_eos=True))
        took = time.monotonic() - began
        assert len(events) > 30
        assert 0.6 <= took < 0.75


def test_a_long_prompt_takes_its_time() -> None:
    """Prefill by the prompt's tokens."""
    with Sim(("--sim", "prefill_tokens_per_second=2000", "--sim", "tokens_per_second=unlimited")) as sim:
        began = time.monotonic()
        sim.chat(messages=[{"role": "user", "content": "abcd" * 800}], max_tokens=1).raise_for_status()
        assert 0.4 <= time.monotonic() - began < 0.7


def test_a_batch_costs_little_more_than_one() -> None:
    """Twenty requests at once take about as long as one, and say what they say alone."""
    with Sim(("--sim", "tokens_per_second=100")) as sim:
        alone = sim.chat(max_tokens=30, ignore_eos=True).json()["choices"][0]["message"]["content"]
        with contextlib.ExitStack() as stack:
            began = time.monotonic()
            body = chat_body(max_tokens=30, ignore_eos=True)
            clients = [stack.enter_context(raw_stream(sim.socket, CHAT, body)) for _ in range(20)]
            answers = [json.loads(one.recv(65536).partition(b"\r\n\r\n")[2]) for one in clients]
            assert time.monotonic() - began < 1.5
        assert {answer["choices"][0]["message"]["content"] for answer in answers} == {alone}
