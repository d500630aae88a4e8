"""Memory of simulated devices: claims in the shared ledger, and loads that do not fit."""

import os
import signal
from pathlib import Path

from contract.engines import Sim, until
from vllm_mm.sim.ledger import Claim, start_ticks, usage

GIB = 2**30


def options(ledger: Path, weights: str = "5GiB", *more: str) -> tuple[str, ...]:
    pairs = [f"ledger={ledger}", f"weights={weights}", "kv_cache=1GiB", "device_memory=10GiB", *more]
    return ("--enable-sleep-mode", *(word for pair in pairs for word in ("--sim", pair)))


def held(ledger: Path) -> int:
    return sum(claim.size for claims in usage(ledger).values() for claim in claims)


def test_the_core_holds_the_claim(tmp_path: Path) -> None:
    """One file, named by the core's pid and start, with the bytes in it; gone with the engine."""
    with Sim(options(tmp_path)) as sim:
        core = sim.core()
        assert usage(tmp_path) == {"sim0": (Claim("sim0", core.pid, start_ticks(core.pid) or 0, 6 * GIB),)}
        file = tmp_path / "sim0" / f"{core.pid}-{start_ticks(core.pid)}"
        assert file.read_text() == str(6 * GIB)
        sim.process.terminate()
        sim.process.wait(5)
        assert held(tmp_path) == 0


def test_an_orphan_keeps_its_memory(tmp_path: Path) -> None:
    """A killed leader frees nothing; a killed core frees everything."""
    with Sim(options(tmp_path)) as sim:
        core = sim.core()
        sim.process.kill()
        sim.process.wait(5)
        assert held(tmp_path) == 6 * GIB
        os.kill(core.pid, signal.SIGKILL)
        until(lambda: held(tmp_path) == 0, "the memory to be free")


def test_what_does_not_fit_fails_with_vllms_words(tmp_path: Path) -> None:
    """The second engine exits with 1 and vLLM's message; the first is not touched."""
    with Sim(options(tmp_path)):
        with Sim(options(tmp_path), wait=False) as second:
            assert second.process.wait(10) == 1
            assert (
                "Free memory on device sim0 (4.00/10.00 GiB) on startup is less than desired GPU memory utilization "
                "(0.60, 6.00 GiB)." in second.log()
            )
            assert "Engine core initialization failed." in second.log()
        assert held(tmp_path) == 6 * GIB


def test_two_starts_at_once_hurt_each_other(tmp_path: Path) -> None:
    """Both see enough memory at their start, and then at least one fails in its load, as on a real device."""
    slow = ("load_bandwidth=10GiB/s",)
    with (
        Sim(options(tmp_path, "4GiB", *slow, "startup=100ms"), wait=False) as first,
        Sim(options(tmp_path, "6GiB", *slow, "startup=200ms"), wait=False) as second,
    ):
        until(lambda: any(sim.process.poll() == 1 for sim in (first, second)), "one of them to fail")
        log = first.log() + second.log()
        assert "No available memory for the cache blocks" in log or "CUDA out of memory" in log
        assert "Free memory on device" not in log


def test_sleep_gives_memory_back_and_wake_takes_it(tmp_path: Path) -> None:
    """Level 1 leaves the residual, the wake restores the claim; while a neighbour holds the memory the wake is a 500."""
    with Sim(options(tmp_path, "5GiB", "sleep_residual=1GiB")) as sim:
        sim.http.post("/sleep?level=1").raise_for_status()
        assert held(tmp_path) == GIB
        with Sim(options(tmp_path, "7GiB")):
            refused = sim.post_once("/wake_up")
            assert refused.status_code == 500
            assert "out of memory" in refused.json()["error"]["message"]
            assert sim.http.get("/is_sleeping").json() == {"is_sleeping": True}
        sim.http.post("/wake_up").raise_for_status()
        assert held(tmp_path) == 6 * GIB
        assert sim.chat().status_code == 200


def test_wake_by_parts(tmp_path: Path) -> None:
    """Each tag takes its own memory."""
    with Sim(options(tmp_path)) as sim:
        sim.http.post("/sleep?level=2").raise_for_status()
        assert held(tmp_path) == 0
        sim.http.post("/wake_up?tags=weights").raise_for_status()
        assert held(tmp_path) == 5 * GIB
        sim.http.post("/wake_up?tags=kv_cache").raise_for_status()
        assert held(tmp_path) == 6 * GIB


def test_without_sleep_mode_sleep_frees_nothing(tmp_path: Path) -> None:
    """/sleep answers 200 all the same: only the memory tells."""
    with Sim(options(tmp_path)[1:]) as sim:
        assert sim.http.post("/sleep").status_code == 200
        assert held(tmp_path) == 6 * GIB
        sim.http.post("/wake_up").raise_for_status()
        assert sim.chat().status_code == 200


def test_ranks_share_the_load(tmp_path: Path) -> None:
    """With tensor parallelism each worker holds its share on its own device."""
    args = ("--tensor-parallel-size", "2", *options(tmp_path, "4GiB", "device=sim0,sim1"))
    with Sim(args) as sim:
        workers = sorted((process for process in sim.children() if "Worker" in process.name), key=lambda p: p.name)
        found = usage(tmp_path)
        assert {name: claims[0].pid for name, claims in found.items()} == {
            "sim0": workers[0].pid,
            "sim1": workers[1].pid,
        }
        assert [claim.size for claims in found.values() for claim in claims] == [5 * GIB // 2] * 2


def test_a_context_that_the_cache_cannot_hold(tmp_path: Path) -> None:
    """vLLM's message names the longest context that fits."""
    args = ("--max-model-len", "100000", "--sim", "kv_cache=1GiB")
    with Sim(args, wait=False) as sim:
        assert sim.process.wait(10) == 1
        assert (
            "To serve at least one request with the model's max seq len (100000), (2.15 GiB KV cache is needed"
            in sim.log()
        )
        assert "the estimated maximum model length is 46603" in sim.log()


def test_a_share_of_the_device_is_taken_whole_and_the_cache_has_what_is_left(tmp_path: Path) -> None:
    """As vLLM does with --gpu-memory-utilization: 0.8 of 10 GiB, of which 5 are weights and 1 overhead."""
    with Sim((*options(tmp_path, "5GiB", "overhead=1GiB"), "--gpu-memory-utilization", "0.8")) as sim:
        assert held(tmp_path) == 8 * GIB
        assert "Available KV cache memory: 2.00 GiB" in sim.log()
        with Sim((*options(tmp_path, "1GiB"), "--gpu-memory-utilization", "0.3"), wait=False) as second:
            assert second.process.wait(10) == 1
            assert (
                "(2.00/10.00 GiB) on startup is less than desired GPU memory utilization (0.30, 3.00 GiB)"
                in second.log()
            )


def test_a_share_that_leaves_nothing_for_the_cache_fails_with_vllms_words(tmp_path: Path) -> None:
    """After it was told how much is missing, which a controller learns from."""
    with Sim((*options(tmp_path), "--gpu-memory-utilization", "0.4"), wait=False) as sim:
        assert sim.process.wait(10) == 1
        assert "Available KV cache memory: -1.00 GiB" in sim.log()
        assert "No available memory for the cache blocks" in sim.log()
        assert held(tmp_path) == 0


def test_a_cache_in_bytes_is_of_each_rank(tmp_path: Path) -> None:
    """--kv-cache-memory-bytes wins over the share, but for the look at the free memory."""
    two = ("--tensor-parallel-size", "2", "--kv-cache-memory-bytes", "3GiB", "--gpu-memory-utilization", "0.6")
    with Sim((*options(tmp_path, "4GiB", "device=sim0,sim1"), *two)) as sim:
        assert [sum(c.size for c in usage(tmp_path)[d]) for d in ("sim0", "sim1")] == [5 * GIB, 5 * GIB]
        assert f"{6 * GIB // 23040:,} tokens" in sim.log()
