"""Profiles, faults, and the command line."""

import pytest

from vllm_mm.sim.options import parse_options
from vllm_mm.sim.profile import Profile, argv, parse, parse_pairs
from vllm_mm.vocabulary.faults import NAMES, Faults, parse_faults
from vllm_mm.vocabulary.profile import KEYS


def test_the_contracts_example() -> None:
    """The `sim:` block of the configuration file is read in its own words."""
    profile = parse(
        {"weights": "5GiB", "load_bandwidth": "2GiB/s", "startup": "3s", "tokens_per_second": 75, "kv_cache": "2GiB"}
    )
    assert profile == Profile(
        weights=5 * 2**30, load_bandwidth=2.0 * 2**30, startup=3.0, tokens_per_second=75.0, kv_cache=2 * 2**30
    )


def test_numbers_lists_and_dashes() -> None:
    """YAML gives numbers and lists; keys may be written with dashes."""
    profile = parse({"max-num-seqs": 4, "device": ["a", "b"], "fault": ["exit_0", "slow_health:2s"], "startup": 1.5})
    assert (profile.max_num_seqs, profile.device, profile.startup) == (4, ("a", "b"), 1.5)
    assert profile.fault == Faults(exit_0=True, slow_health=2.0)


def test_every_key_is_a_field_of_the_profile() -> None:
    """What --help lists is what a profile has."""
    assert set(KEYS) == set(Profile.__dataclass_fields__)


@pytest.mark.parametrize(
    ("mapping", "message"),
    [
        ({"wieghts": "1GiB"}, "wieghts: unknown key; did you mean `weights`?"),
        ({"startup": "soon"}, "startup: 'soon' is not a duration"),
        ({"task": "sing"}, "task: 'sing' is not a task"),
        ({"tools": "yes"}, "tools: 'yes' does not say what becomes of tools"),
        ({"tools": []}, "tools: \\[\\] does not say what becomes of tools"),
        ({"startup": True}, "startup: true is no value for it"),
        ({"device": "../x"}, "device: '../x' is not a list of device names"),
        ({"fault": "hang_at:nowhere"}, "fault: no phase is named 'nowhere'"),
        ({"fault": "exit_0:3"}, "fault: fault exit_0 takes no value"),
    ],
)
def test_errors_name_the_key(mapping: dict[str, object], message: str) -> None:
    """And say what would be right."""
    with pytest.raises(ValueError, match="^" + message.replace("?", r"\?").replace(".", r"\.")):
        parse(mapping)


def test_pairs() -> None:
    """`--sim` texts; faults may come several times, or with commas."""
    profile = parse_pairs(["weights=1GiB", "fault=exit_0", "fault=hang_at:weights,refuse_wake"])
    assert profile.fault == Faults(exit_0=True, hang_at="weights", refuse_wake=True)
    with pytest.raises(ValueError, match="'weights' is not KEY=VALUE"):
        parse_pairs(["weights"])


@pytest.mark.parametrize("name", NAMES)
def test_every_fault_can_be_named(name: str) -> None:
    """Each one changes something."""
    value = {"crash_after_tokens": ":3", "hang_at": ":init", "die_at": ":init:4", "slow_health": ":1s"}.get(name, "")
    assert parse_faults([name + value]) != Faults()


def test_the_command_line_is_read_back_as_it_was_built() -> None:
    """`argv` and the parser agree."""
    profile = {"weights": "5GiB", "device": ["sim0", "sim1"], "fault": ["exit_0", "slow_health:1s"]}
    line = argv("a/model", python="python3", served_names=("one", "two"), socket="/run/s", profile=profile)
    assert line[:4] == ("python3", "-m", "vllm_mm.sim", "a/model")
    options = parse_options(line[3:], {"VLLM_SERVER_DEV_MODE": "1", "VLLM_API_KEY": "secret"})
    assert (options.model, options.served_names, options.uds) == ("a/model", ("one", "two"), "/run/s")
    assert options.profile == parse(profile)
    assert (options.dev_mode, options.api_keys, options.keep_alive) == (True, ("secret",), 5.0)


def test_tcp_and_further_arguments() -> None:
    """Without a socket: host and port; the rest is passed on."""
    line = argv(
        "m", python="p", host="::1", port=81, args=["--max-model-len", "99", "--enforce-eager", "--dtype", "auto"]
    )
    options = parse_options(line[3:], {})
    assert (options.uds, options.host, options.port, options.max_model_len) == (None, "::1", 81, 99)
    assert options.served_names == ("m",)


def test_the_context_fits_the_cache_unless_it_is_said() -> None:
    """8192 tokens, or what the cache holds."""
    assert parse_options(["m"], {}).max_model_len == 8192
    assert parse_options(["m", "--sim", "kv_cache=10MiB"], {}).max_model_len == 10 * 2**20 // 23040


@pytest.mark.parametrize(
    "line",
    [["--nope"], ["m", "x"], ["--sim", "weights=x"], ["--max-model-len", "0"], ["-tp", "3", "--sim", "device=a,b"]],
)
def test_a_bad_command_line_is_exit_2(line: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """With argparse's usage and message."""
    with pytest.raises(SystemExit) as stop:
        parse_options(line, {})
    assert stop.value.code == 2
    assert "vllm-mm sim: error:" in capsys.readouterr().err
