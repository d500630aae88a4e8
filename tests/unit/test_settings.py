"""The configuration: where values come from, what is refused, and that every error has its place."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from vllm_mm.settings import (
    Settings,
    SettingsError,
    find_config,
    format_duration,
    format_size,
    is_loopback,
    key_paths,
    load,
    parse_duration,
    parse_model,
    parse_size,
    redacted,
    schema,
)

ROOT = Path(__file__).resolve().parents[2]
CONTRACT = """\
server: {host: 127.0.0.1, port: 8000}
auth: {mode: keys}
database: {url: sqlite+aiosqlite:///state.db}
devices: auto
host_memory: {sleep_budget: 64GiB}
queue: {max_size: 1000, max_wait: 30s, request_timeout: 10m, on_teardown: retry}
swap: {max_wait: 20s, min_dwell: 5s, drain_timeout: 60s, on_drain_timeout: preempt}
engines_outlive_controller: true
defaults: {engine: vllm, idle: {sleep_after: 5m, stop_after: 1h}, start: {stall: 5m, deadline: 30m}, concurrency: 256}
models:
  qwen2.5-7b:
    model: Qwen/Qwen2.5-7B-Instruct
    engine: vllm
    executable: vllm
    args: {max-model-len: 8192, dtype: bfloat16}
    env: {HF_HUB_OFFLINE: "1"}
    aliases: [gpt-4o-mini]
    devices: {count: 1}
    memory: auto
    pinned: false
    preload: false
    priority: 0
    request_defaults: {temperature: 0.7}
    request_overrides: {}
    lora: {}
  anything-openai:
    engine: command
    command: [llama-server, --host, "{host}", --port, "{port}", -m, /models/x.gguf]
  demo:
    engine: sim
    sim: {weights: 5GiB, load_bandwidth: 2GiB/s, startup: 3s, tokens_per_second: 75, kv_cache: 2GiB}
"""


@pytest.fixture
def home(tmp_path: Path) -> Path:
    (tmp_path / "home").mkdir()
    return tmp_path


def read(
    home: Path, text: str = "", *, env: dict[str, str] | None = None, flags: dict[str, Any] | None = None
) -> Settings:
    (home / "vllm-mm.yaml").write_text(text)
    return load(None, flags, {"HOME": str(home / "home"), **(env or {})}, home)


def errors(home: Path, text: str = "", **more: Any) -> list[str]:
    with pytest.raises(SettingsError) as caught:
        read(home, text, **more)
    assert str(caught.value).splitlines() == [str(p) for p in caught.value.problems]
    return str(caught.value).splitlines()


def test_a_protected_field_is_told_with_its_line(home: Path) -> None:
    """In a file, where it stands: also in an alias."""
    found = errors(
        home, "models:\n  a:\n    aliases:\n      - name: x\n        request_overrides:\n          model: b\n"
    )
    where = "vllm-mm.yaml:6: models.a.aliases[0].request_overrides.model"
    assert found == [f"{where}: `model` cannot be set by a rule: it decides where the request goes; remove it"]


def test_the_example_of_the_contract_is_accepted(home: Path) -> None:
    """The published example means what it says."""
    s = read(home, CONTRACT)
    assert s.host_memory.sleep_budget == 64 * 2**30
    assert s.queue.request_timeout == 600.0
    assert s.defaults.idle.stop_after == 3600.0
    assert s.models["qwen2.5-7b"].args == {"max-model-len": 8192, "dtype": "bfloat16"}
    assert s.models["qwen2.5-7b"].memory is None
    assert s.models["demo"].sim["load_bandwidth"] == "2GiB/s"
    assert s.database_url == f"sqlite+aiosqlite:///{home}/home/.local/state/vllm-mm/state.db"


def test_its_values_are_the_defaults(home: Path) -> None:
    """What the contract shows is what one gets without a file (the sleep budget there is an example, and so is `min_dwell`
    since docs/adr/016-scheduling.md)."""
    shown, plain = read(home, CONTRACT), read(home)
    assert (shown.swap.min_dwell, plain.swap.min_dwell) == (5.0, 0.0)
    shown = read(home, CONTRACT.replace("min_dwell: 5s, ", ""))
    for section in ("server", "auth", "database", "devices", "queue", "swap", "engines_outlive_controller", "defaults"):
        assert getattr(shown, section) == getattr(plain, section), section


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("24GiB", 24 * 2**30), ("16 GB", 16 * 10**9), ("1.5GiB", 3 * 2**29), ("512MiB", 2**29), ("7", 7), (7, 7),
        ("10kb", 10_000), ("3 tib", 3 * 2**40), ("0", 0), ("4Gi", 4 * 2**30), ("100B", 100),
    ],
)  # fmt: skip
def test_sizes(text: object, size: int) -> None:
    """Bytes, in units of 1000 and of 1024."""
    assert parse_size(text) == size


@pytest.mark.parametrize(
    "text", ["", "GiB", "-1", -1, True, "4 bananas", float("nan"), float("inf"), None, [], "1GiB/s", "1,5GB"]
)
def test_no_sizes(text: object) -> None:
    """Everything else is refused, with an example of how to write it."""
    with pytest.raises(ValueError, match="size"):
        parse_size(text)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("250ms", 0.25), ("30s", 30), ("5m", 300), ("1h", 3600), ("1h30m", 5400), ("1d", 86400), ("2.5s", 2.5), (3, 3),
     (0.5, 0.5), ("12", 12), ("1 h 30 m", 5400), ("0", 0)],
)  # fmt: skip
def test_durations(text: object, seconds: float) -> None:
    """Seconds; units may be put together."""
    assert parse_duration(text) == pytest.approx(seconds)


@pytest.mark.parametrize("text", ["", "s", "5 minutes", "-1", -1, True, "1h30", float("nan"), float("inf"), None, {}])
def test_no_durations(text: object) -> None:
    """Everything else is refused, with an example of how to write it."""
    with pytest.raises(ValueError, match="duration"):
        parse_duration(text)


@given(st.integers(min_value=0, max_value=10**13))
def test_sizes_survive_being_written(size: int) -> None:
    """`format_size` is exact."""
    assert parse_size(format_size(size)) == size


@given(st.integers(min_value=0, max_value=10**11))
def test_durations_survive_being_written(millis: int) -> None:
    """`format_duration` is exact to the millisecond."""
    assert parse_duration(format_duration(millis / 1000)) == pytest.approx(millis / 1000)


def test_precedence(home: Path) -> None:
    """Flag over environment over file over default, key by key."""
    text = "server: {port: 1}\nqueue: {max_size: 1, workers: 2}\nlog: {level: error}\n"
    env = {"VLLM_MM_SERVER__PORT": "2", "VLLM_MM_QUEUE__MAX_SIZE": "2"}
    s = read(home, text, env=env, flags={"server.port": 3, "server.host": None})
    assert (s.server.port, s.queue.max_size, s.queue.workers, s.log.level) == (3, 2, 2, "error")
    assert s.server.host == "127.0.0.1"


def test_the_constructor_reads_no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only `load` does, and only the environment that it is given: neither the process's own nor a .env file."""
    monkeypatch.setenv("SERVER", '{"port": 1}')
    monkeypatch.setenv("VLLM_MM_SERVER__PORT", "2")
    assert Settings() == Settings.model_validate({}) == Settings.from_layers()
    assert Settings().server.port == 8000
    assert load(None, None, {"HOME": "/h"}, Path("/nonexistent")).server.port == 8000


def test_layers_are_merged_key_by_key_the_strongest_first() -> None:
    """What pydantic-settings does with them, and `load` tells errors by."""
    made = Settings.from_layers(
        {"server": {"port": 1}, "models": {"a": {"args": {"x": 1}}}},
        {"server": {"port": 2, "host": "::1"}, "models": {"a": {"args": {"x": 2, "y": 2}}, "b": None}},
    )
    assert (made.server.port, made.server.host) == (1, "::1")
    assert made.models["a"].args == {"x": 1, "y": 2}
    assert set(made.models) == {"a", "b"}


def test_the_environment_reaches_everything(home: Path) -> None:
    """Whole sections, lists and free-form names, in their own case; the variables of the command line are no settings."""
    s = read(
        home,
        env={
            "VLLM_MM_DEVICES": "[{id: sim0, memory: 24GiB, simulated: true}]",
            "VLLM_MM_DEFAULTS__ENV__HF_HOME": "/x",
            "VLLM_MM_DEFAULTS__IDLE__SLEEP_AFTER": "null",
            "VLLM_MM_MODELS__Qwen/Q2.5__MEMORY": "3GiB",
            "VLLM_MM_MODELS__Qwen/Q2.5__ENGINE": "sim",
            "VLLM_MM_SWAP": "{max_wait: 1s}",
            "VLLM_MM_LOG__LEVEL": "",
            "VLLM_MM_URL": "http://elsewhere",
            "VLLM_MM_TOKEN": "mm-x",
            "PATH": "/bin",
        },
    )
    assert not isinstance(s.devices, str)
    assert s.devices[0].memory == 24 * 2**30
    assert s.defaults.env == {"HF_HOME": "/x"}
    assert s.defaults.idle.sleep_after is None
    assert s.models["Qwen/Q2.5"].memory == 3 * 2**30
    assert s.swap.max_wait == 1.0


def test_errors_in_the_environment_and_in_flags(home: Path) -> None:
    """They name the variable, or the command line, in place of a line."""
    env = {
        "VLLM_MM_QUEUE": "{max_size: 3",
        "VLLM_MM_SERVR__PORT": "1",
        "VLLM_MM_DEFAULTS__ARGS__ROPE__scaling": "2",
        "VLLM_MM_MODELS__a__ENV__X": "true",
    }
    found = errors(home, env=env, flags={"devices": "[", "swap": {"max_wiat": 1}})
    assert len(found) == 5, found
    assert found[0].startswith("environment variable VLLM_MM_QUEUE: this is not YAML")
    assert found[1].startswith("command line: this is not YAML")
    assert "environment variable VLLM_MM_SERVR__PORT: servr: unknown key; did you mean `server`?" in found
    assert (
        "environment variable VLLM_MM_MODELS__a__ENV__X: models.a.env.X: expected text (put it in quotes), not True"
        in found
    )
    assert "command line: swap.max_wiat: unknown key; did you mean `max_wait`?" in found


def test_a_file_that_is_no_text(home: Path) -> None:
    """Told apart from YAML that is wrong."""
    (home / "c.yaml").write_bytes(b"server: \xff")
    with pytest.raises(SettingsError, match=r"c\.yaml: not UTF-8 text \(byte 8\)"):
        load(Path("c.yaml"), {}, {}, home)


def test_the_order_of_files(home: Path) -> None:
    """--config, else ./vllm-mm.yaml, else the XDG folder, else none."""
    env = {"HOME": str(home / "home")}
    assert find_config(None, env, home) is None
    xdg = home / "home/.config/vllm-mm/config.yaml"
    xdg.parent.mkdir(parents=True)
    xdg.write_text("server: {port: 1}")
    assert find_config(None, env, home) == xdg
    assert find_config(None, {**env, "XDG_CONFIG_HOME": str(home / "other")}, home) is None
    (home / "vllm-mm.yaml").write_text("server: {port: 2}")
    assert find_config(None, env, home) == home / "vllm-mm.yaml"
    assert load(None, {}, env, home).server.port == 2
    (home / "c.yaml").write_text("server: {port: 3}")
    assert load(Path("c.yaml"), {}, env, home).server.port == 3


def test_a_file_is_named_from_its_root_by_who_stands_there(home: Path) -> None:
    with pytest.raises(SettingsError, match=f"^{home}/nope.yaml: cannot be read"):
        load(home / "nope.yaml", cwd=Path("/"))


def test_a_file_that_was_asked_for_has_to_exist(home: Path) -> None:
    """--config with a wrong name is an error, never the defaults."""
    with pytest.raises(SettingsError, match=r"nope\.yaml: cannot be read: No such file"):
        load(Path("nope.yaml"), {}, {}, home)


def test_all_errors_at_once_with_their_places(home: Path) -> None:
    """Shape, values, contradictions, environment and flags are reported in one run, each with line and key."""
    text = """\
server: {host: 0.0.0.0, prt: 80}
auth: {mode: none}
port: 3
devices:
  - {id: sim0, memory: 24GiB, simulated: true}
  - {id: sim0, simulatd: true}
queue: {max_wait: 30 sec, on_teardown: retri, max_size: 0}
models:
  Qwen/Q2.5:
    memroy: 4GiB
    memory: lots
    idle: {sleep_after: never}
  /bad: {}
  c: {engine: command, aliases: [Qwen/Q2.5]}
  d: {pinned: perhaps, env: {X: true}, aliases: one}
"""
    found = errors(home, text, env={"VLLM_MM_LOG__LEVEL": "inf"}, flags={"server.port": "abc"})
    expected = [
        r"command line: server\.port: expected a whole number, not 'abc'",
        r"environment variable VLLM_MM_LOG__LEVEL: log\.level: 'inf' is none of .*did you mean `info`\?",
        r"vllm-mm\.yaml:1: server\.prt: unknown key; did you mean `port`\?",
        r"vllm-mm\.yaml:2: auth\.mode: `none` on 0\.0\.0\.0 .*",
        r"vllm-mm\.yaml:3: port: unknown key here; did you mean `server\.port`\?",
        r"vllm-mm\.yaml:6: devices\[1\]\.simulatd: unknown key; did you mean `simulated`\?",
        r"vllm-mm\.yaml:7: queue\.max_wait: '30 sec' is not a duration.*",
        r"vllm-mm\.yaml:7: queue\.on_teardown: 'retri' is none of .*did you mean `retry`\?",
        r"vllm-mm\.yaml:7: queue\.max_size: 0 is too small; at least 1",
        r'vllm-mm\.yaml:10: models\["Qwen/Q2\.5"\]\.memroy: unknown key; did you mean `memory`\?',
        r'vllm-mm\.yaml:11: models\["Qwen/Q2\.5"\]\.memory: \'lots\' is not a size.*',
        r'vllm-mm\.yaml:12: models\["Qwen/Q2\.5"\]\.idle\.sleep_after: \'never\' is not a duration.*',
        r'vllm-mm\.yaml:13: models\["/bad"\]: a model id cannot begin.*',
        r"vllm-mm\.yaml:14: models\.c\.command: a `command` engine needs its argument list",
        r"vllm-mm\.yaml:14: models\.c\.aliases\[0\]: 'Qwen/Q2\.5' is a name of the model.*",
        r"vllm-mm\.yaml:15: models\.d\.pinned: expected true or false, not 'perhaps'",
        r"vllm-mm\.yaml:15: models\.d\.env\.X: expected text \(put it in quotes\), not True",
        r"vllm-mm\.yaml:15: models\.d\.aliases: expected a list, not 'one'",
    ]
    for pattern in expected:
        assert any(re.fullmatch(pattern, line) for line in found), (pattern, found)
    assert len(found) == len(expected), found


def test_how_a_model_sleeps_is_checked(home: Path) -> None:
    """One of the two levels, a known mode, and something has to be given back."""
    text = """\
models:
  a: {sleep: {level: 3}}
  b: {sleep: {mode: allways, level: 0}}
  c: {memory: 2GiB, sleep: {keeps: 2GiB}}
  d: {memory: 2GiB, sleep: {keeps: 1GiB, mode: always, level: 2}}
  e: {sleep: {keeps: auto}}
"""
    assert [line.partition(": models.")[2] for line in errors(home, text)] == [
        "a.sleep.level: 3 is too big; at most 2",
        "b.sleep.mode: 'allways' is none of 'auto', 'always' or 'never'; did you mean `always`?",
        "b.sleep.level: 0 is too small; at least 1",
        "c.sleep.keeps: has to be smaller than `memory`, else sleep gives nothing back; or use `mode: never`",
    ]


def test_times_of_the_week_are_checked(home: Path) -> None:
    """With how they are written, and the time zone with an example."""
    found = errors(home, "timezone: Mars/Olympus\nmodels: {a: {schedule: [mon 9-17, 'mon-fri 09:00-18:00']}}\n")
    assert found == [
        "vllm-mm.yaml:1: timezone: 'Mars/Olympus' is no time zone that is known here; write it like Europe/Berlin",
        (
            "vllm-mm.yaml:2: models.a.schedule[0]: 'mon 9-17' is no time of the week; write it like `mon-fri 09:00-18:00`, "
            "`sat,sun 10:00-14:00` or `22:00-06:00`"
        ),
    ]
    assert read(home, "timezone: Europe/Berlin\nmodels: {a: {schedule: ['22:00-06:00']}}\n").timezone == "Europe/Berlin"


def test_the_profile_of_a_simulated_engine_is_checked(home: Path) -> None:
    """Its keys and values are refused here already, with their lines, and not only by the engine when it starts."""
    text = """\
models:
  a:
    engine: sim
    sim:
      wieghts: 5GiB
      kv-cache: 2GiB
      startup: soon
      load_bandwidth: 2GiB/h
      shards: 1.5
      tokens_per_second: true
      length:
      fault: hang_at:nowhere
      nonsense: 1
  b: {engine: sim, sim: {weights: 1.5GiB, startup: 1m30s, tokens_per_second: 75, device: [x, y], fault: [exit_0], length: 0}}
"""
    expected = [
        r"vllm-mm\.yaml:5: models\.a\.sim\.wieghts: unknown key; did you mean `weights`\?",
        r"vllm-mm\.yaml:6: models\.a\.sim\.kv-cache: unknown key; did you mean `kv_cache`\?",
        r"vllm-mm\.yaml:7: models\.a\.sim\.startup: 'soon' is not a duration; .*",
        r"vllm-mm\.yaml:8: models\.a\.sim\.load_bandwidth: '2GiB/h' is not a bandwidth; .*",
        r"vllm-mm\.yaml:9: models\.a\.sim\.shards: 1\.5 is not a whole number of at least 1",
        r"vllm-mm\.yaml:10: models\.a\.sim\.tokens_per_second: true is no value for it; it is decode speed .*",
        r"vllm-mm\.yaml:11: models\.a\.sim\.length: null is no value for it; it is natural length .*",
        r"vllm-mm\.yaml:12: models\.a\.sim\.fault: no phase is named 'nowhere'; there are .*",
        r"vllm-mm\.yaml:13: models\.a\.sim\.nonsense: unknown key; known are batch_slowdown, .*",
    ]
    found = errors(home, text)
    assert len(found) == len(expected), found
    for pattern, line in zip(expected, found, strict=True):
        assert re.fullmatch(pattern, line), (pattern, line)
    with pytest.raises(SettingsError, match=r"sim\.wieghts: unknown key; did you mean `weights`"):
        parse_model("m", {"engine": "sim", "sim": {"wieghts": "1GiB"}}, Settings())


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("server: {port: 1}\nserver: {port: 2}\n", "vllm-mm.yaml:2:1: server: this key stands here already, on line 1; remove one"),
        ("server: {port: 1\n", "vllm-mm.yaml:2:1: this is not YAML: expected ',' or '}', but got '<stream end>' (while parsing a flow mapping)"),
        ("a: b: c\n", "vllm-mm.yaml:1:5: this is not YAML: mapping values are not allowed here"),
        ("- 1\n", "vllm-mm.yaml:1: expected a mapping such as `server: {port: 8000}`"),
        ("log: {level: ${env.LEVEL}}\n", "vllm-mm.yaml:1:15: this is not YAML: expected ',' or '}', but got '{' (while parsing a flow mapping); put `${env...}` in quotes inside of braces"),
        ("a: &a [*a]\n", "vllm-mm.yaml:1:4: a[0]: this alias contains itself"),
        ("[a]: 1\n", "vllm-mm.yaml:1:1: a key has to be plain text"),
        ("log: {level: !!python/name:os.system x}\n", "vllm-mm.yaml:1:14: log.level: the tag `tag:yaml.org,2002:python/name:os.system` has no meaning here; remove it"),
        ("log: {level: \x00}\n", None),
        ("server:\n  <<: 1\n", "vllm-mm.yaml:2:7: server: `<<` takes a mapping, or a list of mappings"),
    ],
)  # fmt: skip
def test_text_that_is_no_configuration(home: Path, text: str, message: str | None) -> None:
    """Broken YAML names line and column, and nothing of it is executed."""
    found = errors(home, text)
    assert len(found) == 1
    if message is not None:
        assert found == [message]


def test_aliases_cannot_multiply_without_end(home: Path) -> None:
    """A small file that stands for a million values is refused at once."""
    lines = ["a0: &a0 [x,x,x,x,x,x,x,x,x,x]"] + [f"a{i}: &a{i} [{','.join([f'*a{i - 1}'] * 10)}]" for i in range(1, 8)]
    assert "values" in errors(home, "\n".join(lines))[0]


def test_anchors_and_merge_keys(home: Path) -> None:
    """Repeated parts may be written once; a key of one's own wins over a merged one."""
    s = read(home, "models:\n  a: &base {engine: sim, priority: 3}\n  b:\n    <<: *base\n    priority: 4\n")
    assert (s.models["b"].engine, s.models["a"].priority, s.models["b"].priority) == ("sim", 3, 4)


def test_words_are_text(home: Path) -> None:
    """YAML 1.2: `no`, `on`, dates and times are no booleans and numbers by surprise."""
    s = read(
        home,
        "models:\n  no: {model: 2024-01-01, args: {a: on, b: 12:30, c: 1e3, d: 0x10, e: null, f: 'true', g: true}}\n",
    )
    assert s.models["no"].model == "2024-01-01"
    assert s.models["no"].args == {"a": "on", "b": "12:30", "c": 1000.0, "d": 16, "e": None, "f": "true", "g": True}


@pytest.mark.parametrize("word", ["yes", "on", "y", "no", "'on'", "1", "0", "null"])
def test_words_are_no_booleans(home: Path, word: str) -> None:
    """What is text is not taken for true because a boolean belongs there."""
    text = f"models:\n  a: {{engine: sim, pinned: {word}}}\n"
    (error,) = errors(home, text)
    assert error.startswith("vllm-mm.yaml:2: models.a.pinned: expected true or false, not ")
    if word != "null":
        text = (
            f"devices: [{{id: x, memory: 1GiB, simulated: {word}}}]\nmodels: {{a: {{engine: sim, progress: {word}}}}}\n"
        )
        assert len(errors(home, text)) == 2


def test_booleans(home: Path) -> None:
    """Quotes stand around a variable that has one; the environment and flags may say it in other words."""
    text = 'models:\n  a: {engine: sim, pinned: "${env.PIN}"}\n  b: {engine: sim, preload: TRUE, progress: null}\n'
    env = {"PIN": "True", "VLLM_MM_METRICS__PUBLIC": "on", "VLLM_MM_MODELS__b__PINNED": "no"}
    s = read(home, text, env=env, flags={"server.timings": "1"})
    assert (s.models["a"].pinned, s.models["b"].preload, s.models["b"].progress) == (True, True, None)
    assert (s.metrics.public, s.server.timings, s.models["b"].pinned) == (True, True, False)


def test_numbers_are_taken_as_text_where_text_is_meant(home: Path) -> None:
    """`HF_HUB_OFFLINE: 1` and device ids need no quotes."""
    s = read(home, "devices: [0, {id: 1}]\nmodels: {a: {env: {X: 1}, devices: {ids: [0, 1]}}}\n")
    assert not isinstance(s.devices, str)
    assert [d.id for d in s.devices] == ["0", "1"]
    assert s.models["a"].env == {"X": "1"}
    assert s.models["a"].devices.ids == ("0", "1")


def test_variables_are_expanded(home: Path) -> None:
    """In any text of the file; with a default; `$$` keeps the text; keys are left alone."""
    text = (
        "server:\n  port: ${env.PORT}\nqueue: {workers: '${env.PORT:-}'}\nlimits: {connections: \"${env.PORT}\"}\n"
        "models:\n"
        "  a:\n"
        "    env: {A: 'x-${env.NAME}-y', B: '${env.NONE:-fallback}', C: '$${env.NAME}', D: '${other}', E: '${env.EMPTY:-d}'}\n"
    )
    s = read(home, text, env={"PORT": "61", "NAME": "n", "EMPTY": ""})
    assert (s.server.port, s.queue.workers, s.limits.connections) == (61, 61, 61)
    assert s.models["a"].env == {"A": "x-n-y", "B": "fallback", "C": "${env.NAME}", "D": "${other}", "E": "d"}


def test_a_missing_variable_names_its_line(home: Path) -> None:
    """Each of them, and how to give a default."""
    found = errors(home, "server:\n  host: ${env.A}\nlog:\n  level: ${env.B}\n")
    assert [line.split(": the ")[0] for line in found] == [
        "vllm-mm.yaml:2:9: server.host",
        "vllm-mm.yaml:4:10: log.level",
    ]
    assert "`${env.A:-default}`" in found[0]


def test_empty_sections_are_defaults(home: Path) -> None:
    """A section whose lines are all commented out is no error."""
    s = read(home, "server:\nswap:\nmodels:\n  a:\n  b:\n    idle:\n")
    assert s.server == Settings().server
    assert set(s.models) == {"a", "b"}
    assert read(home, "models:\n").models == {}
    assert read(home, "# nothing\n").models == {}


@pytest.mark.parametrize("good", ["Qwen/Qwen2.5-7B", "a", "a.b:c", "org/name/start-1", "ü", "x" * 200, "start"])
def test_model_ids(home: Path, good: str) -> None:
    """Slashes and dots are part of ids."""
    assert good in read(home, yaml.safe_dump({"models": {good: {}}})).models


@pytest.mark.parametrize(
    "bad", ["/a", "a/", "a//b", "a/../b", "", " a", "a\nb", "a\x7f", "x" * 201, "a/start", "a/logs"]
)
def test_no_model_ids(home: Path, bad: str) -> None:
    """What no route could reach, or what a route already means."""
    assert "a model id" in errors(home, yaml.safe_dump({"models": {bad: {}}}))[0]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("devices: []", "devices: an empty list"),
        ("devices: [{id: s, simulated: true}]", "devices[0]: a simulated device needs its `memory`"),
        ("devices: [0, 0]", "devices[1].id: '0' is listed already; remove one"),
        ("models: {a: {model: '${env.1X}'}}", "models.a.model: `${env.1X}` names no environment variable"),
        ("devices: gpu", "devices: 'gpu' is none of 'auto' or 'cpu'"),
        ("devices: [{memory: 1GiB}]", "devices[0].id: is missing"),
        ("devices: [{id: a, memory: 1GiB, headroom: 1GiB}]", "devices[0].headroom: has to be smaller"),
        ("devices: [0]\nmodels: {a: {devices: {ids: [1]}}}", "models.a.devices.ids[0]: there is no device '1'; `devices` has 0"),
        ("devices: [0]\nmodels: {a: {devices: {count: 2}}}", "models.a.devices.count: asks for 2 devices, but `devices` has 1"),
        ("models: {a: {devices: {count: 1, ids: [0, 1]}}}", "models.a.devices.count: is 1, but `ids` names 2"),
        ("models: {a: {devices: {ids: [0, 0]}}}", "models.a.devices.ids: names a device twice"),
        ("models: {a: {engine: command, command: [x, --serve]}}", "models.a.command: has to contain `{port}`"),
        ("models: {a: {command: [x]}}", "models.a.command: is for `engine: command`, but this is a `vllm` engine"),
        ("models: {a: {sim: {weights: 1}}}", "models.a.sim: is for `engine: sim`"),
        ("models: {a: {engine: sim, args: {x: 1}}}", "models.a.args: is for `engine: vllm`"),
        ("models: {a: {engine: sim, executable: x}}", "models.a.executable: is for `engine: vllm`"),
        ("models: {a: {args: {--dtype: x}}}", "models.a.args.--dtype: write it without the dashes: `dtype`"),
        ("models: {a: {args: {served_model_name: x}}}", "models.a.args.served_model_name: vllm-mm sets `--served-model-name` itself"),
        ("defaults: {args: {port: 1}}", "defaults.args.port: vllm-mm sets `--port` itself"),
        ("models: {a: {aliases: [x]}, b: {lora: {x: /l}}}", "models.b.lora.x: 'x' is a name of the model 'a' already"),
        ("models: {a: {aliases: [{name: x}, x]}}", "models.a.aliases[1]: 'x' is a name of the model 'a' already"),
        ("models: {a: {aliases: [5]}}", "models.a.aliases[0]: expected text (put it in quotes), not 5"),
        ("models: {a: {aliases: [{request_defaults: {}}]}}", "models.a.aliases[0].name: is missing"),
        ("models: {a: {aliases: [{name: x, request_default: {}}]}}", "models.a.aliases[0].request_default: unknown key; did you mean `request_defaults`?"),
        ("models: {a: {lora: {l: {request_defaults: {}}}}}", "models.a.lora.l.path: is missing"),
        ("models: {a: {request_limits: {max_token: 1}}}", "models.a.request_limits.max_token: unknown key; did you mean `max_tokens`?"),
        ("models: {a: {request_limits: {max_tokens: 0}}}", "models.a.request_limits.max_tokens: 0 is too small; at least 1"),
        ("models: {a: {request_defaults: {model: x}}}", "models.a.request_defaults.model: `model` cannot be set by a rule: it decides"),
        ("defaults: {request_overrides: {stream: null}}", "defaults.request_overrides.stream: `stream` cannot be set by a rule: the client"),
        ("models: {a: {lora: {l: {path: p, request_defaults: {model: x}}}}}", "models.a.lora.l.request_defaults.model: `model` cannot"),
        ("models: {a: {request_defaults: {x: [{y: .inf}]}}}", "models.a.request_defaults.x[0].y: inf is no number that JSON has"),
        ("models: {a: {request_defaults: {'': 1}}}", 'models.a.request_defaults[""]: a request field needs a name'),
        ('models: {a: {request_overrides: {x: {"\\ud800": 1}}}}', "models.a.request_overrides.x: '\\ud800' has half of a surrogate pair"),
        ("models: {a: {args: {gpu-memory-utilization: lots}}}", "models.a.args.gpu-memory-utilization: 'lots' is no fraction"),
        ("defaults: {args: {gpu_memory_utilization: 90}}", "defaults.args.gpu_memory_utilization: 90 is no fraction"),
        ("models: {a: {env: {VLLM_CPU_KVCACHE_SPACE: 4GiB}}}", "models.a.env.VLLM_CPU_KVCACHE_SPACE: '4GiB' is not a number of GiB"),
        ("server: {port: 70000}", "server.port: 70000 is too big; at most 65535"),
        ("server: 8000", "server: expected a mapping, not 8000"),
        ("models: [a]", "models: expected a mapping"),
        ("totally_other: 1", "totally_other: unknown key; known are auth, captures, config, cors,"),
        ("models: {a: {env: {'': x}}}", 'models.a.env[""]: a variable needs a name'),
        ("models: {a: {env: {'A=B': x}}}", 'models.a.env["A=B"]: the name of a variable cannot contain `=`'),
        ('models: {a: {env: {"A\\0": x}}}', 'models.a.env["A\\u0000"]: the name of a variable cannot contain a NUL'),
        ('defaults: {env: {A: "x\\0y"}}', "defaults.env.A: the value of a variable cannot contain a NUL"),
        ("database: {url: ''}", "database.url: is no SQLAlchemy URL; write it like sqlite+aiosqlite:///"),
        ("database: {url: foo}", "database.url: is no SQLAlchemy URL; write it like sqlite+aiosqlite:///"),
        ("database: {url: 'sqlite:///x.db'}", "database.url: has no async driver; it has to begin with sqlite+aiosqlite"),
        ("database: {url: 'sqlite+aiosqlite://'}", "database.url: names no file"),
        ("database: {url: 'sqlite+aiosqlite:///:memory:'}", "database.url: names no file"),
        ("database: {url: 'mysql+foo://x'}", "database.url: `mysql` is no database that is supported; write it like sqlite"),
        ("database: {url: 'postgresql+asyncpg://h:x/d'}", "database.url: is no SQLAlchemy URL; write it like postgresql"),
        ("database: {url: 'postgresql+psycopg2://h/d'}", "database.url: `psycopg2` is no async driver"),
        *((f"{section}: {{{key}: 0}}", f"{section}.{key}: has to be greater than zero") for section, key in (
            ("limits", "body"), ("limits", "header"), ("limits", "header_timeout"), ("queue", "request_timeout"), ("limits", "upload"),
            ("limits", "body_timeout"), ("limits", "body_rate"), ("limits", "send_timeout"), ("captures", "total"), ("captures", "age"),
            ("timeouts", "suspend"), ("timeouts", "wake"), ("timeouts", "stop"), ("timeouts", "stop_grace"),
            ("timeouts", "health"), ("timeouts", "stuck"),
        )),
        *((f"defaults: {{start: {{{k}: 0}}}}", f"defaults.start.{k}: has to be greater") for k in ("probe", "stall", "deadline")),
        ("models: {a: {start: {probe: 0s}}}", "models.a.start.probe: has to be greater than zero, else every start fails"),
        ("models: {a: {memory: 0}}", "models.a.memory: has to be greater than zero"),
        ("devices: [{id: a, memory: 0}]", "devices[0].memory: has to be greater than zero"),
        ("timeouts: {stop: 5s, stop_grace: 10s}", "timeouts.stop: `timeouts.stop` (5s) is shorter than `timeouts.stop_grace` (10s)"),
        ("profiles: {none: {}}", "profiles.none: `none` stands for no profile"),
        ("profiles: {'a b': {}}", 'profiles["a b"]: \'a b\' is no name for a profile'),
        ("profiles: {day: {pin: [a]}}", "profiles.day.pin: unknown key; did you mean `pins`?"),
        ("profiles: {day: {schedule: [sometimes]}}", "profiles.day.schedule[0]: 'sometimes' is no time of the week"),
        ("profiles: {day: {aliases: {a: b}}}\nmodels: {a: {}, b: {}}", "profiles.day.aliases.a: 'a' is the id of a model, which keeps it"),
        ("profiles: {day: {aliases: {l: b}}}\nmodels: {a: {lora: {l: /l}}, b: {}}", "profiles.day.aliases.l: 'l' is the name of a LoRA adapter"),
        ("timeouts: {stop_grace: 1m}", "timeouts.stop_grace: `timeouts.stop` (30s) is shorter"),
        ("server: {host: ''}", "server.host: is empty; write 127.0.0.1"),
        ("server: {host: '[::1]'}", "server.host: '[::1]': write an IPv6 address without brackets, like `::1`"),
        ("server: {host: 'localhost:80'}", "server.host: 'localhost:80' has a port in it"),
        ("cors: {origins: ['https://a.b/']}", "cors.origins[0]: 'https://a.b/' is no origin; write `*`, or scheme://"),
        ("cors: {origins: ['*', a.b]}", "cors.origins[1]: 'a.b' is no origin"),
        ("models: {a: {executable: ''}}", "models.a.executable: is empty"),
        ("defaults: {executable: ''}", "defaults.executable: is empty"),
        ("models: {a: {model: ''}}", "models.a.model: is empty"),
        ("models: {a: {model: --help}}", "models.a.model: '--help' would be taken for an option"),
        ("models: {a: {args: {'': 1}}}", 'models.a.args[""]: an argument\'s name cannot be empty'),
        ("defaults: {args: {max model len: 1}}", 'defaults.args["max model len"]: an argument\'s name cannot be empty or contain'),
        ("paths: {data_dir: ''}", "paths.data_dir: is empty"),
        ("models: {a: {engine: command, command: [x, '{port}', '{prot}']}}", "models.a.command[2]: the command has an unknown placeholder {prot}; known are {host}, {port}"),
        ("models: {a: {engine: command, command: [x, '{{port}}']}}", "models.a.command: has to contain `{port}`"),
        ("models: {a: {engine: command, command: [x, '{port}{socket}']}}", "models.a.command: the command mixes {socket}"),
    ],
)  # fmt: skip
def test_contradictions(home: Path, text: str, message: str) -> None:
    """Each names the key and what to do."""
    found = errors(home, text)
    assert len(found) == 1, found
    assert re.sub(r"^vllm-mm\.yaml:[\d:]+ ", "", found[0]).startswith(message), found


@pytest.mark.parametrize(
    "text",
    [
        "server: {host: '::1'}",
        "cors: {origins: ['*', 'https://a.b', 'http://localhost:3000', 'http://[::1]:80', 'chrome-extension://abc']}",
        "timeouts: {stop: 5s, stop_grace: 5s}",
        "models: {a: {engine: command, command: [x, '{host}:{port}', '{model}', '{{a}}', '{api_key}']}}",
        "database: {url: 'sqlite+aiosqlite:////a/b.db?timeout=3'}",
    ],
)
def test_what_is_close_to_wrong_and_right(home: Path, text: str) -> None:
    """The checks refuse no more than what is of no use."""
    read(home, text)


def test_no_auth_beyond_loopback_unless_forced(home: Path) -> None:
    """`auth.mode: none` stays on this machine, whichever source says otherwise."""
    assert "auth.mode" in errors(home, "auth: {mode: none}", flags={"server.host": "0.0.0.0"})[0]
    assert read(home, "auth: {mode: none, force: true}", flags={"server.host": "0.0.0.0"}).auth.force
    assert read(home, "auth: {mode: none}").auth.mode == "none"


def test_a_trusted_proxy_needs_scopes(home: Path) -> None:
    """Nobody is given rights by what was left out; an address that is none is told."""
    assert "auth.proxy.scopes" in errors(home, "auth: {proxy: {addresses: [10.0.0.0/8]}}")[0]
    assert read(home, "auth: {proxy: {addresses: [10.0.0.0/8], scopes: [read]}}").auth.proxy.scopes == ("read",)
    assert "auth.proxy.addresses" in errors(home, "auth: {proxy: {addresses: [10.0.0], scopes: [read]}}")[0]
    assert [is_loopback(h) for h in ("localhost", "127.3.2.1", "::1", "[::1]")] == [True] * 4
    assert not any(is_loopback(h) for h in ("0.0.0.0", "::", "example.org", "", "10.0.0.1"))


def test_paths(home: Path) -> None:
    """Relative ones count from the file that has them; flags from the working directory; `~` is the home."""
    (home / "etc").mkdir()
    (home / "etc/c.yaml").write_text("paths: {data_dir: state, cache_dir: ~/cache}")
    env = {"HOME": str(home / "home")}
    s = load(home / "etc/c.yaml", {}, env, home)
    assert s.paths.data_dir == home / "etc/state"
    assert s.paths.cache_dir == home / "home/cache"
    assert load(home / "etc/c.yaml", {"paths.data_dir": "here"}, env, home).paths.data_dir == home / "here"
    s = load(None, {}, {**env, "XDG_STATE_HOME": "/var/x"}, home)
    assert s.paths.data_dir == Path("/var/x/vllm-mm")
    assert (
        load(None, {"database.url": "postgresql+asyncpg://h/d"}, env, home).database_url == "postgresql+asyncpg://h/d"
    )
    assert load(None, {"database.url": "sqlite+aiosqlite:////a/b.db"}, env, home).database_url.endswith(":////a/b.db")


def test_frozen(home: Path) -> None:
    """Nobody changes the settings in place."""
    with pytest.raises(ValueError, match="frozen"):
        read(home).server.port = 1  # type: ignore[misc]  # the point of the test


def test_a_model_from_elsewhere() -> None:
    """The same rules and the same hints for a model that comes over the API, without a file to name."""
    settings = Settings()
    assert parse_model("a/b", {"memory": "1GiB", "idle": {"stop_after": None}}, settings).memory == 2**30
    with pytest.raises(SettingsError) as caught:
        parse_model("/a", {"memroy": 1, "priority": "x", "engine": "command"}, settings)
    assert [str(p) for p in caught.value.problems] == [
        "id: a model id cannot begin or end with `/`, nor have an empty, `.` or `..` part",
        "priority: expected a whole number, not 'x'",
        "memroy: unknown key; did you mean `memory`?",
    ]
    with pytest.raises(SettingsError, match=r'^env\["A=B"\]: the name of a variable cannot contain `=`'):
        parse_model("a", {"engine": "sim", "env": {"A=B": "x"}}, settings)
    with pytest.raises(SettingsError, match=r"^command: a `command` engine needs"):
        parse_model("a", {"engine": "command"}, settings)


def test_the_schema(home: Path) -> None:
    """The published schema is closed, describes every key, and is what the contract calls it."""
    document = schema()
    assert document["additionalProperties"] is False
    assert "$schema" in document
    for name, definition in document["$defs"].items():
        assert definition["additionalProperties"] is False, name
        for key, value in definition["properties"].items():
            assert "description" in value or "$ref" in value, (name, key)


def test_secrets_are_not_shown(home: Path) -> None:
    """`config show` and the API mask what looks like a secret."""
    s = read(
        home,
        "database: {url: 'postgresql+asyncpg://me:hunter2@h/d'}\n"
        "models: {a: {env: {HF_TOKEN: hf_x, PLAIN: y}, args: {api-key: sk-1, dtype: auto, max-model-len: 8}}}\n",
    )
    shown = redacted(s)
    assert shown["database"]["url"] == "postgresql+asyncpg://me:***@h/d"
    assert shown["models"]["a"]["env"] == {"HF_TOKEN": "***", "PLAIN": "y"}
    assert shown["models"]["a"]["args"] == {"api-key": "***", "dtype": "auto", "max-model-len": 8}


class TestDocumentation:
    """docs/configuration.md and the settings are one thing."""

    text = (ROOT / "docs/configuration.md").read_text()

    def test_every_setting_is_documented(self) -> None:
        """A row with the full key for each setting, and none for a setting that is gone."""
        documented = set(re.findall(r"^\| `([a-z_.*]+)` \|", self.text, re.MULTILINE))
        assert documented == {".".join(path) for path in key_paths()}

    def test_defaults_are_right(self) -> None:
        """The default in each row is the default."""
        plain = Settings()
        for key, shown in re.findall(r"^\| `([a-z_.*]+)` \| ([^|]*) \|", self.text, re.MULTILINE):
            value: Any = plain
            if "*" in key or key.startswith("paths."):
                continue
            for part in key.split("."):
                value = getattr(value, part)
            assert self.means(shown.strip().strip("`"), value), (key, shown, value)

    @staticmethod
    def means(shown: str, value: Any) -> bool:
        if isinstance(value, bool) or value is None:
            return shown in ({True: ("true",), False: ("false",), None: ("null", "auto")}[value])
        if isinstance(value, str):
            return shown == value
        if isinstance(value, tuple | dict):
            return yaml.safe_load(shown) in ([], {})
        if isinstance(value, float):
            return parse_duration(shown) == value
        return parse_size(shown) == value

    def test_its_examples_are_valid(self, home: Path) -> None:
        """Each YAML block can be used as it stands."""
        blocks = re.findall(r"```yaml\n(.*?)```", self.text, re.DOTALL)
        assert len(blocks) >= 3
        for block in blocks:
            read(home, block, env={"HF_TOKEN": "x"})
