"""`vllm-mm simulate`: what it takes, what it prints, and what it says when something is wrong."""

import json
import shlex
import sys
from dataclasses import fields
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from cli_rig import Cli
from vllm_mm.virtual.engine import EngineTimes
from vllm_mm.virtual.policies import POLICIES
from vllm_mm.virtual.trace import shipped

CONFIG = """\
devices: [{id: sim0, memory: 24GiB, simulated: true}]
swap: {max_wait: 10s, min_dwell: 2s}
defaults: {engine: sim}
models:
  small: {sim: {weights: 1GiB, load_bandwidth: 1GiB/s, kv_cache: 1GiB}, aliases: [gpt]}
  large: {sim: {weights: 15GiB, load_bandwidth: 3GiB/s, kv_cache: 8GiB}}
"""
TRACE = "timestamp,model,prompt_tokens,output_tokens\n0,gpt,10,100\n1,large,10,100\n60,small,10,100\n"


@pytest.fixture
def cli(tmp_path: Path) -> Cli:
    (tmp_path / "vllm-mm.yaml").write_text(CONFIG)
    (tmp_path / "t.csv").write_text(TRACE)
    return Cli(tmp_path)


def results(cli: Cli, *args: str) -> dict[str, Any]:
    done = cli.now("simulate", *args, "--json")
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


def test_a_trace_over_the_configuration(cli: Cli) -> None:
    """Aliases count; times, sizes and rules are the configuration's own: loads of 1 s and 5 s, evicted after 2 s."""
    found = results(cli, "t.csv")
    assert found["devices"] == {"sim0": 24 * 2**30}
    assert found["models"] == {"small": 2 * 2**30, "large": 23 * 2**30}
    assert (found["terms"]["max_wait"], found["terms"]["min_dwell"]) == (10.0, 2.0)
    (brain,) = found["policies"]
    assert (brain["policy"], brain["starts"], brain["swaps"], brain["bound_held"]) == ("brain", 3, 3, True)
    assert [m["wait"]["p50_s"] for m in brain["by_model"].values()] == pytest.approx([1.0, 8.0], abs=1.01)


def test_programs_find_what_they_rely_on(cli: Cli) -> None:
    """The shape of the contract, and the trace as an option as well as by its place; waits are from arrival to service."""
    found = results(cli, "--trace", "t.csv", "--config", "vllm-mm.yaml", "--policy", "fifo,lru,brain")
    assert found == results(cli, "t.csv", "--policy", "fifo,lru,brain")
    assert [p["policy"] for p in found["policies"]] == ["fifo", "lru", "brain"]
    needed = {"policy", "wait", "ttft", "swaps", "swap_time_s", "requests", "bound_s", "bound_held", "by_model"}
    for policy in found["policies"]:
        assert needed - policy.keys() == set()
        for spread in (policy["wait"], policy["ttft"], *(m["wait"] for m in policy["by_model"].values())):
            assert {"mean_s", "p50_s", "p95_s", "p99_s", "max_s"} - spread.keys() == set()
            assert 0 <= spread["p50_s"] <= spread["p95_s"] <= spread["p99_s"] <= spread["max_s"]
        assert set(policy["by_model"]) == {"small", "large"}
        assert policy["requests"] == sum(m["requests"] for m in policy["by_model"].values()) == 3
        assert policy["ttft"]["mean_s"] > policy["wait"]["mean_s"] > 1.0  # the first one waits for a load of a second
        assert (type(policy["bound_held"]), policy["bound_s"] >= 10.0) == (bool, True)
        assert policy["swap_time_s"] == pytest.approx(1 + 5 + 1 + 2, abs=0.1)  # three loads, two stops before


def test_a_trace_is_named_once(cli: Cli) -> None:
    done = cli.now("simulate", "t.csv", "--trace", "t.csv")
    assert (done.exit_code, "name the trace once" in done.stderr) == (2, True)


def test_what_ifs_change_the_answer(cli: Cli) -> None:
    """48 GiB hold both: no eviction. A sleep budget turns starts into wakes. An engine that takes longer is waited for."""
    assert [r["evictions"] for r in results(cli, "t.csv", "--policy", "brain,lru")["policies"]] == [2, 2]
    assert results(cli, "t.csv", "--memory", "48GiB")["policies"][0]["evictions"] == 0
    slept = results(cli, "t.csv", "--sleep-budget", "64GiB")["policies"][0]
    assert (slept["starts"], slept["wakes"]) == (2, 1)
    slow = results(cli, "t.csv", "--load", "100s")["policies"][0]
    assert slow["wait"]["max_s"] > 100
    assert results(cli, "t.csv", "--load", "100s", "--patience", "50s")["policies"][0]["timed_out"] == 2
    assert results(cli, "t.csv", "--max-wait", "1m", "--min-dwell", "0")["terms"]["max_wait"] == 60.0


def test_the_configurations_budget_for_sleep_counts(cli: Cli) -> None:
    """In bytes, and the option goes before it; `auto` says nothing of the machine that is meant."""

    def wakes(budget: str, *args: str) -> tuple[int, int]:
        (cli.cwd / "vllm-mm.yaml").write_text(f"{CONFIG}host_memory: {{sleep_budget: {budget}}}\n")
        found = results(cli, "t.csv", *args)
        return found["terms"]["sleep_budget"], found["policies"][0]["wakes"]

    assert wakes("64GiB") == (64 * 2**30, 1)
    assert wakes("64GiB", "--sleep-budget", "0") == (0, 0)
    assert wakes("0", "--sleep-budget", "64GiB") == (64 * 2**30, 1)
    assert wakes("0") == wakes("auto") == (0, 0)


def test_what_is_not_simulated_is_told_in_one_line(cli: Cli) -> None:
    """Where the configuration has it and no option stands for it; else nothing is said."""
    assert cli.now("simulate", "t.csv").stderr == ""
    settings = "host_memory: {sleep_budget: auto}\nqueue: {max_size: 3, max_wait: 5s, workers: 2}\n"
    (cli.cwd / "vllm-mm.yaml").write_text(CONFIG.replace("large: {", "large: {schedule: ['09:00-10:00'], ") + settings)
    told = "not simulated: the `schedule` of large; `queue.max_size`{} (docs/simulate.md)\n"
    done = cli.now("simulate", "t.csv", "--json")
    assert done.stderr == told.format(
        "; `queue.max_wait` (give --patience); `host_memory.sleep_budget` (give --sleep-budget)"
    )
    assert json.loads(done.stdout)["requests"] == 3
    assert cli.now("simulate", "t.csv", "--patience", "9s", "--sleep-budget", "1GiB").stderr == told.format("")
    assert cli.now("simulate", "zipf6", "--models", "6").stderr == ""


def test_models_that_nobody_asks_for_have_no_row(cli: Cli) -> None:
    """How many there are is said; JSON has them."""
    (cli.cwd / "t.csv").write_text("timestamp,model,prompt_tokens,output_tokens\n0,gpt,10,100\n")
    done = cli.now("simulate", "t.csv", "--policy", "brain,lru")
    assert [line.split()[:2] for line in done.stdout.splitlines() if " small " in line] == [
        ["brain", "small"],
        ["lru", "small"],
    ]
    assert "large" not in done.stdout
    assert "left out: 1 of the models, which the trace never asks for" in done.stdout
    assert set(results(cli, "t.csv")["policies"][0]["by_model"]) == {"small", "large"}
    assert "left out" not in cli.now("simulate", "zipf6", "--models", "6").stdout


def test_times_come_from_a_file_too(cli: Cli) -> None:
    """By model, with a default; options are stronger."""
    (cli.cwd / "times.yaml").write_text("default: {load: 50s}\nlarge: {load: 70s, decode: 10}\n")
    waits = [
        m["wait"]["max_s"] for m in results(cli, "t.csv", "--times", "times.yaml")["policies"][0]["by_model"].values()
    ]
    assert waits[0] >= 50
    assert waits[1] >= 50 + 70
    assert results(cli, "t.csv", "--times", "times.yaml", "--load", "1s")["policies"][0]["wait"]["max_s"] < 50
    for text, told in (
        ("- 1\n", "times.yaml: expected model ids"), ("\nsmall: 3\n", "times.yaml:2: small: expected times"),
        ("large: {load: 3}\nsmall:\n  wake: 1s\n  lod: 3\n", "times.yaml:4: the times of small: lod is unknown"),
        ("default: {load: -3s}\n", "times.yaml:1: the times of default: load: '-3s' is not a duration"),
        ("default: {load: 3s}\nsmal: {load: 3s}\n", "times.yaml:2: smal is none of the models; did you mean small?"),
        ("gpt: {load: 3s}\n", "times.yaml:1: gpt is none of the models; they are small, large, or `default` for all"),
        ("a: [\n", "it is not YAML"),
    ):  # fmt: skip
        (cli.cwd / "times.yaml").write_text(text)
        done = cli.now("simulate", "t.csv", "--times", "times.yaml")
        assert (done.exit_code, told in done.stderr) == (1, True), done.stderr


def test_tables_for_people(cli: Cli) -> None:
    """Policies side by side, then by model."""
    done = cli.now("simulate", "zipf6", "--models", "6", "--policy", "brain,lru,fifo")
    assert done.exit_code == 0, done.output
    assert "584 requests in 1.00 h over 6 models on sim0 (10GiB)" in done.stdout
    rows = [line.split()[0] for line in done.stdout.splitlines() if line.split()[:1] not in ([], ["POLICY"])]
    assert rows[1:4] == ["brain", "lru", "fifo"]
    assert rows.count("brain") == 7
    assert "BROKEN" in next(line for line in done.stdout.splitlines() if line.startswith("fifo"))


def test_a_trace_without_models_is_tagged(cli: Cli) -> None:
    """With those of the configuration, the same ones for the same seed."""
    rows = "".join(f"{i},10,10\n" for i in range(0, 600, 3))
    (cli.cwd / "azure.csv").write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n" + rows)
    first = results(cli, "azure.csv", "--tags", "bursts", "--seed", "4")
    assert first == results(cli, "azure.csv", "--tags", "bursts", "--seed", "4")
    counts = [m["wait"]["count"] for m in first["policies"][0]["by_model"].values()]
    assert sum(counts) == 200
    assert min(counts) > 0


def test_a_made_up_trace_is_printed(cli: Cli) -> None:
    """For the models of the configuration, or for so many; it can be simulated."""
    own = cli.now("simulate", "--generate", "zipf", "--rate", "0.1/s", "--seed", "2")
    assert own.stdout.splitlines()[0] == "timestamp,model,prompt_tokens,output_tokens"
    assert {line.split(",")[1] for line in own.stdout.splitlines()[1:]} == {"small", "large"}
    six = cli.now("simulate", "--generate", "bursts", "--models", "6", "--rate", "603/h", "--hours", "2")
    assert len(six.stdout.splitlines()) == pytest.approx(1206, rel=0.5)
    (cli.cwd / "own.csv").write_text(own.stdout)
    assert results(cli, "own.csv")["requests"] == len(own.stdout.splitlines()) - 1


@pytest.mark.parametrize(
    ("args", "code", "told"),
    [
        ((), 2, "which trace?"),
        (("nothing.csv",), 1, "there is no file nothing.csv; the traces that come with the product are"),
        (
            ("zipf6",),
            1,
            "zipf6 asks for model-1, model-2, model-3, model-4, model-5, ..., but the models are small, large",
        ),
        (("/tmp",), 1, "/tmp is a folder; name a file in it"),
        (("t.csv", "--policy", "best"), 2, "best is no policy; there are brain"),
        (("t.csv", "--memory", "much"), 2, "'much' is not a size"),
        (("t.csv", "--tags", "odd"), 2, "odd is no kind of trace; there are zipf, bursts, day"),
        (("--generate", "zipf", "--rate", "fast"), 2, "'fast' is no rate"),
        (("t.csv", "--learned", "--data-dir", "nowhere"), 1, "nothing has been learned yet"),
        (("t.csv", "--config", "missing.yaml"), 1, "the configuration cannot be used"),
        (("t.csv", "--times", "missing.yaml"), 1, "missing.yaml: No such file"),
    ],
)
def test_mistakes_are_told(cli: Cli, args: tuple[str, ...], code: int, told: str) -> None:
    """With what would be right, and the exit code of its kind."""
    done = cli.now("simulate", *args)
    assert (done.exit_code, told in done.stderr) == (code, True), done.stderr


def test_a_refusal_names_the_model(cli: Cli) -> None:
    """Once for each, in words."""
    done = cli.now("simulate", "t.csv", "--memory", "10GiB", "--policy", "brain,lru")
    (line,) = done.stderr.splitlines()
    assert line.startswith("refused: large: needs 23.0 GiB on ")


def test_no_models_is_told(cli: Cli) -> None:
    (cli.cwd / "vllm-mm.yaml").write_text("")
    done = cli.now("simulate", "zipf6")
    assert (done.exit_code, "--models 6" in done.stderr) == (2, True)


def test_what_a_server_has_learned_counts(cli: Cli) -> None:
    """The median load time of the database, over that of the profile: 44 s, and a second to stop the other for it."""
    import asyncio

    from vllm_mm.clock import RealClock
    from vllm_mm.settings import load
    from vllm_mm.store.database import Database
    from vllm_mm.store.launches import Launches

    data = ("--data-dir", str(cli.cwd / "state"))
    assert cli.now("db", "upgrade", *data).exit_code == 0

    async def learn() -> None:
        database = Database(load(cli.cwd / "vllm-mm.yaml", {"paths.data_dir": str(cli.cwd / "state")}).database_url)
        for number, took in enumerate((40.0, 44.0, 90.0), 1):
            await Launches(database, RealClock()).record_start("small", number, 100.0, 100.0 + took, {}, "ready", "")
        await database.close()

    asyncio.run(learn())
    found = results(cli, "t.csv", "--learned", *data)["policies"][0]["by_model"]["small"]
    assert found["wait"]["max_s"] == pytest.approx(45.0, abs=0.1)


def test_drawing_without_matplotlib_says_how_to_get_it(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is an extra."""
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    done = cli.now("simulate", "t.csv", "--plot", "out.png")
    assert (done.exit_code, "pip install 'vllm-mm[plot]'" in done.stderr) == (1, True)


def test_a_picture_has_an_axis_for_the_waits_and_one_per_policy(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is drawn, on a stand-in for matplotlib: every load of every policy is a bar."""
    bars: list[Any] = []
    saved: list[Path] = []

    class Drawn:
        def __getattr__(self, name: str) -> Any:
            def call(*args: Any, **_: Any) -> Any:
                if name == "broken_barh":
                    bars.append(args[0])
                if name == "savefig":
                    saved.append(args[0])
                return Drawn()

            return call

    def subplots(rows: int, *_: Any, **__: Any) -> Any:
        return Drawn(), [[Drawn()] for _ in range(rows)]

    pyplot = ModuleType("matplotlib.pyplot")
    pyplot.subplots, pyplot.close = subplots, lambda _: None  # type: ignore[attr-defined]  # a stand-in
    mpl = ModuleType("matplotlib")
    mpl.use = lambda _: None  # type: ignore[attr-defined]  # as above
    monkeypatch.setitem(sys.modules, "matplotlib", mpl)
    monkeypatch.setitem(sys.modules, "matplotlib.pyplot", pyplot)
    done = cli.now("simulate", "t.csv", "--plot", "out.png", "--policy", "brain,fifo")
    assert done.exit_code == 0, done.output
    assert saved == [Path("out.png")]
    assert sum(len(b) for b in bars) == 2 * 2 * 3  # stays and loads of two policies, three each


DOCS = Path(__file__).parents[3] / "docs" / "simulate.md"
EXAMPLES = [line[2:] for line in DOCS.read_text().splitlines() if line.startswith("$ vllm-mm simulate")]


@pytest.mark.parametrize("example", EXAMPLES)
def test_every_example_of_the_documentation_works(cli: Cli, example: str) -> None:
    """With a trace and a file of times by the names that the page uses."""
    rows = "".join(f"{i},10,10\n" for i in range(0, 600, 30))
    (cli.cwd / "azure.csv").write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n" + rows)
    (cli.cwd / "trace.csv").write_text(TRACE)
    (cli.cwd / "times.yaml").write_text("default: {load: 47s, wake: 3s}\n")
    done = cli.now(*shlex.split(example)[1:])
    assert done.exit_code == 0, done.output


def test_the_documentation_names_every_policy_and_every_time() -> None:
    """docs/simulate.md and the code are one thing."""
    text = DOCS.read_text()
    assert len(EXAMPLES) >= 8
    assert [p for p in POLICIES if f"| `{p}` |" not in text] == []
    assert [f.name for f in fields(EngineTimes) if f"`{f.name}`" not in text] == []
    assert [name for name in shipped() if f"`{name}`" not in text] == []
