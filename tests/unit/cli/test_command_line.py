"""The command line without a server: help, usage, exit codes, configuration, doctor, database."""

import contextlib
import fcntl
import json
import os
import re
import shlex
import socket
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typer.main

from cli_rig import Cli
from vllm_mm import __version__
from vllm_mm.cli import checks, output
from vllm_mm.control import files

CONFIG = """\
devices: [{id: sim0, memory: 24GiB, simulated: true}]
models:
  demo: {engine: sim, sim: {weights: 5GiB}}
"""


@pytest.fixture
def cli(tmp_path: Path) -> Cli:
    return Cli(tmp_path)


def commands(group: object, path: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    found: list[tuple[str, ...]] = []
    for name, command in group.commands.items():  # type: ignore[attr-defined]
        found += commands(command, (*path, name)) if hasattr(command, "commands") else [(*path, name)]
    return found


def all_commands() -> list[tuple[str, ...]]:
    return commands(typer.main.get_command(Cli(Path()).app()))


def test_the_contract_names_these_commands() -> None:
    """Scripts rely on them."""
    assert {" ".join(path) for path in all_commands()} >= {
        "serve", "run", "ps", "ls", "show", "load", "unload", "restart", "sleep", "wake", "pin", "unpin", "drain", "undrain", "reset", "logs", "queue",
        "plan", "events", "keys create", "keys ls", "keys revoke", "add", "rm", "validate", "config show",
        "config schema", "doctor", "sim", "db upgrade", "db backup", "version", "bench", "top", "import llama-swap",
    }  # fmt: skip


@pytest.mark.parametrize("path", [p for p in all_commands() if p != ("sim",)], ids=" ".join)
def test_every_command_has_help_with_an_example(cli: Cli, path: tuple[str, ...]) -> None:
    """The example begins as the command does."""
    result = cli.now(*path, "--help")
    assert result.exit_code == 0
    assert f"Example: vllm-mm {' '.join(path)}" in result.output


def parse(command: Any, words: list[str], parent: Any = None, name: str = "vllm-mm") -> None:
    """As a run of it would, down to the command itself, which does not run. Raises click's errors."""
    context = command.make_context(name, words, parent=parent)
    if hasattr(command, "commands"):
        rest = [*context._protected_args, *context.args]
        found, inner, rest = command.resolve_command(context, rest)
        parse(inner, rest, context, found)


@pytest.mark.parametrize("path", [p for p in all_commands() if p != ("sim",)], ids=" ".join)
def test_every_example_is_a_command_that_there_is(cli: Cli, path: tuple[str, ...]) -> None:
    """With options that it has. What follows a `>` or a comma is the shell's, or another example."""
    command = typer.main.get_command(cli.app())
    shown = command
    for name in path:
        shown = shown.commands[name]  # type: ignore[attr-defined]
    examples = [e.partition(" > ")[0] for e in re.findall(r"vllm-mm ((?:[^,]|,(?! or ))+)", shown.epilog or "")]
    assert examples
    for example in examples:
        parse(command, shlex.split(example))


def test_a_shell_completes_commands_options_and_models(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    """The names of models come from the server; without one nothing is offered, and nothing is printed in the way."""
    script = Path(sys.executable).with_name("vllm-mm")

    def offered(words: str) -> list[str]:
        count = len(words.split(" ")) - 1
        env = {**os.environ, "_VLLM_MM_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": str(count)}
        env |= {"VLLM_MM_URL": "http://127.0.0.1:1"}
        done = subprocess.run([str(script)], env=env, capture_output=True, text=True, timeout=60, check=False)
        assert done.stderr == ""
        return done.stdout.split()

    assert offered("vllm-mm ev") == ["events"]
    assert "--follow" in offered("vllm-mm events --fo")
    assert offered("vllm-mm load de") == []


def test_the_simulator_answers_its_own_help() -> None:
    """`sim` passes its arguments on, --help too."""
    code = "from vllm_mm.cli.app import build; build(lambda _: 0)()"
    done = subprocess.run(
        [sys.executable, "-c", code, "sim", "--help"], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "--uds" in done.stdout


def test_help_is_quick() -> None:
    """Nothing heavy is imported for it: no HTTP client, no framework, no database, no settings."""
    code = (
        "import sys; from vllm_mm.cli.app import build; build(lambda _: 0)\n"
        "heavy = {'httpx', 'fastapi', 'sqlalchemy', 'pydantic', 'rich', 'uvicorn', 'yaml', 'psutil'} & set(sys.modules)\n"
        "print(*sorted(heavy))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout.strip()) == (0, ""), done.stderr


@pytest.mark.parametrize("args", [("nonsense",), ("load",), ("serve", "--port", "70000"), ("ps", "--nope")])
def test_wrong_usage_is_2(cli: Cli, args: tuple[str, ...]) -> None:
    assert cli.now(*args).exit_code == 2


@pytest.mark.parametrize(
    ("args", "told"),
    [
        (("drain", "demo", "--free", "1GiB", "--for", "1h"), "--free, --for only together with --device"),
        (("drain", "demo", "--note", "a game"), "--note only together with --device"),
        (("drain", "--device", "0", "--for", "1h"), "say how much of the device: --free 10GiB"),
        (("drain", "--device", "0", "--free", "potato"), "--free: 'potato' is not a size"),
        (("drain", "--device", "0", "--free", "1GiB", "--for", "-1h"), "--for: '-1h' is not a duration"),
        (("drain", "--device", "0", "--free", "0"), "--free: ask for more than nothing"),
        (
            ("drain", "--device", "0", "--free", "1GiB", "--for", "8d"),
            "--for: ask for more than nothing and for at most 7d",
        ),
        (("undrain", "--lease", ""), "--lease: give the id"),
        (("keys", "create", "ci", "--expires", "soon"), "--expires: 'soon' is not a duration"),
        (("simulate", "zipf6", "--models", "2", "--max-wait", "-1s"), "--max-wait: '-1s' is not a duration"),
        (("simulate", "zipf6", "--models", "2", "--patience", "much"), "--patience: 'much' is not a duration"),
        (("simulate", "zipf6", "--models", "2", "--memory", "much"), "--memory: 'much' is not a size"),
        (("simulate", "zipf6", "--models", "2", "--load", "-3s"), "--load: '-3s' is not a duration"),
        (("simulate", "zipf6", "--models", "2", "--on-drain-timeout", "x"), "--on-drain-timeout: "),
    ],
)
def test_an_argument_that_is_wrong_by_itself_is_2(cli: Cli, args: tuple[str, ...], told: str) -> None:
    """No server is asked, and the option is named."""
    result = cli.now(*args)
    assert (result.exit_code, told in result.stderr, "Value error" in result.stderr) == (2, True, False), result.stderr


@pytest.mark.parametrize("args", [("ps",), ("load", "demo"), ("logs", "demo"), ("events",), ("run", "demo", "hi")])
def test_no_server_is_3_and_says_what_to_do(cli: Cli, args: tuple[str, ...]) -> None:
    result = cli.now(*args)
    assert result.exit_code == 3
    assert "vllm-mm serve" in result.stderr


def test_a_wrong_url_is_3(cli: Cli) -> None:
    assert cli.now("ps", env={"VLLM_MM_URL": "nonsense"}).exit_code == 3


def test_serve_passes_on_what_it_was_told(cli: Cli) -> None:
    """Flags become settings by dotted key; those that were not given do not."""
    args = ("--host", "::1", "--port", "0", "--data-dir", "/d", "--set", "queue.max_wait=60s", "--set", "devices=cpu")
    assert cli.now("serve", *args).exit_code == 0
    assert cli.now("serve").exit_code == 0
    assert cli.served[0].overrides() == {
        "queue.max_wait": "60s", "devices": "cpu", "paths.data_dir": "/d", "server.host": "::1", "server.port": 0,
    }  # fmt: skip
    assert cli.served[1].overrides() == {}


def test_serve_takes_the_configuration_from_the_environment(cli: Cli) -> None:
    cli.now("serve", env={"VLLM_MM_CONFIG": "x.yaml"})
    assert cli.served[0].config == Path("x.yaml")


def test_version(cli: Cli) -> None:
    assert cli.now("version").output == f"vllm-mm {__version__}\n"
    assert json.loads(cli.now("version", "--json").output) == {"version": __version__}


def test_validate_a_good_file(cli: Cli) -> None:
    """What the shell sets for its own server is no part of the file."""
    (cli.cwd / "good.yaml").write_text(CONFIG)
    result = cli.now("validate", "good.yaml", env={"VLLM_MM_SERVER__PORT": "wrong"})
    assert (result.exit_code, result.output) == (0, "good.yaml: valid, 1 model: demo\n")
    assert json.loads(cli.now("validate", "good.yaml", "--json").output) == {
        "valid": True, "problems": [], "warnings": [], "models": ["demo"],
    }  # fmt: skip


TWO = """\
devices: [{id: a, memory: 9GiB, simulated: true}]
defaults: {engine: sim, concurrency: 4}
"""


def test_schedules_that_take_turns_are_no_doubt(cli: Cli) -> None:
    """One ends when the other begins, also over midnight."""
    big = "memory: 6GiB"
    (cli.cwd / "turns.yaml").write_text(
        TWO + f"models: {{m: {{{big}, schedule: ['22:00-06:00']}}, n: {{{big}, schedule: ['06:00-22:00']}}}}\n"
    )
    assert cli.now("validate", "turns.yaml").stderr == ""


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("models: {m: {engine: vllm, devices: {ids: [a]}}}\n", "bad.yaml:3: models.m.devices.ids[0]: vLLM cannot run on a simulated device, which a is; use `engine: sim`"),
        ("models: {m: {engine: vllm}}\n", "bad.yaml:3: models.m.engine: vLLM cannot run on a simulated device"),
        ("models: {m: {schedule: ['mon 09:00-09:00']}}\n", "'mon 09:00-09:00' ends when it begins; for the whole day write `00:00-24:00`"),
    ],
)  # fmt: skip
def test_validate_refuses_what_cannot_be_meant(cli: Cli, text: str, problem: str) -> None:
    """An error, with what to do."""
    (cli.cwd / "bad.yaml").write_text(TWO + text)
    result = cli.now("validate", "bad.yaml")
    assert (result.exit_code, problem in result.stderr) == (1, True), result.stderr


def test_a_device_without_memory_is_told_as_that(cli: Cli) -> None:
    """It is not the headroom, and no model that should be smaller."""
    (cli.cwd / "bad.yaml").write_text("devices: [{id: a, memory: 0, simulated: true}]\nmodels: {m: {engine: sim}}\n")
    result = cli.now("validate", "bad.yaml")
    assert "devices[0].memory: has to be greater than zero; write what it is to have, such as 24GiB" in result.stderr
    assert result.stderr.count("\n") == 1


@pytest.mark.parametrize("url", ["", "foo", "sqlite:///x.db", "mysql+foo://x", "postgresql+asyncpg://h:x/d"])
@pytest.mark.parametrize("command", [("doctor",), ("db", "upgrade"), ("db", "backup", "copy.db")])
def test_a_database_url_of_no_use_is_told(cli: Cli, command: tuple[str, ...], url: str) -> None:
    """Its key and its line, and no traceback."""
    (cli.cwd / "bad.yaml").write_text(f"database:\n  url: '{url}'\n")
    result = cli.now(*command, "--config", "bad.yaml")
    assert (result.exit_code, "bad.yaml:2: database.url: " in result.output) == (1, True)
    assert "Traceback" not in result.output


@pytest.mark.parametrize(
    ("text", "warning"),
    [
        ("", "empty.yaml: warning: it declares no models; see `models`"),
        ("# nothing yet\nmodels:\n", "empty.yaml: warning: it declares no models"),
        (CONFIG + "  big: {engine: sim, sim: {weights: 30GiB}}\n", "empty.yaml: warning: model big: "),
        ("devices: [{id: a, memory: 9GiB, simulated: true}]\ndefaults: {engine: sim}\nmodels: {m: {memory: 10GiB}}\n",
         "empty.yaml: warning: model m: "),
        (CONFIG + "  b: {engine: sim}\ncors: {max_age: 5m}\n", "empty.yaml: warning: cors.max_age has no effect yet"),
        ("devices: [{id: a, memory: 9GiB, simulated: true}]\ndefaults: {engine: sim}\nmodels: {m: {memory: 5GiB, preload: true}, n: {memory: 5GiB, pinned: true, preload: true}}\n",
         "empty.yaml: warning: model m: preloaded, and there is no room for it beside n, pinned or preloaded"),
        (CONFIG + "  c: {engine: command, command: [x, '{port}'], launcher: warm, memory: 1GiB}\n",
         "empty.yaml: warning: models.c.launcher `warm` has no effect on a `command` engine"),
        (TWO + "models: {m: {memory: 6GiB, schedule: ['mon-fri 09:00-18:00']}, n: {memory: 6GiB, schedule: ['fri 17:00-20:00']}}\n",
         "empty.yaml: warning: model n: scheduled, and there is no room for it beside m, scheduled at the same time"),
        (TWO + "models: {m: {memory: 6GiB, schedule: ['sat 09:00-18:00']}, n: {memory: 6GiB, pinned: true}}\n",
         "empty.yaml: warning: model m: scheduled, and there is no room for it beside n, pinned at the same time; take `pinned`, `preload` or `schedule` off"),
        (CONFIG + "  c: {engine: sim, idle: {sleep_after: 2h, stop_after: 1h}}\n",
         "empty.yaml: warning: models.c.idle.sleep_after is later than `stop_after`: it is stopped before it could sleep"),
        (CONFIG + "  c: {engine: sim, idle: {sleep_after: 2h}}\n", "empty.yaml: warning: models.c.idle.sleep_after is later than"),
        (CONFIG + "queue: {max_wait: 20m}\n", "empty.yaml: warning: queue.max_wait is longer than `queue.request_timeout`"),
        (CONFIG + "  c: {engine: sim, memory: 1GiB, sim: {weights: 2GiB}}\n",
         "empty.yaml: warning: models.c.memory is less than its weights alone (`sim.weights` is 2GiB); give it more"),
        (CONFIG + "cors: {max_age: 1m}\n", "empty.yaml: warning: cors.max_age has no effect yet"),
    ],
)  # fmt: skip
def test_validate_doubts_what_is_hardly_meant(cli: Cli, text: str, warning: str) -> None:
    """No models, one that is bigger than any device of the file, a key that is not in force: valid, and said. Nobody's machine
    is looked at."""
    (cli.cwd / "empty.yaml").write_text(text)
    result = cli.now("validate", "empty.yaml")
    assert (result.exit_code, result.stderr.count("warning:")) == (0, 1)
    assert result.stderr.startswith(warning)
    assert len(json.loads(cli.now("validate", "empty.yaml", "--json").output)["warnings"]) == 1


def test_validate_names_every_problem_with_its_line(cli: Cli) -> None:
    (cli.cwd / "bad.yaml").write_text("sevrer: {}\nqueue: {max_size: none}\n")
    result = cli.now("validate", "bad.yaml")
    assert result.exit_code == 1
    assert "bad.yaml:1" in result.stderr
    assert "`server`" in result.stderr
    assert "bad.yaml:2" in result.stderr
    assert len(json.loads(cli.now("validate", "bad.yaml", "--json").output)["problems"]) == 2
    assert cli.now("validate", "missing.yaml").exit_code == 1


def test_config_show_has_no_secrets(cli: Cli) -> None:
    """File, environment and defaults together."""
    (cli.cwd / "vllm-mm.yaml").write_text(CONFIG + "defaults: {env: {HF_TOKEN: hf_secret}}\n")
    env = {"VLLM_MM_SERVER__PORT": "9001"}
    shown = json.loads(cli.now("config", "show", "--json", env=env).output)
    assert (shown["server"]["port"], shown["queue"]["max_size"]) == (9001, 1000)
    text = cli.now("config", "show", env=env).output
    assert "port: 9001" in text
    assert "hf_secret" not in text


def test_config_schema_is_the_published_one(cli: Cli) -> None:
    assert "models" in json.loads(cli.now("config", "schema").output)["properties"]


def test_a_wrong_configuration_is_told_by_every_command_that_reads_it(cli: Cli) -> None:
    (cli.cwd / "vllm-mm.yaml").write_text("nope: 1\n")
    for args in (("config", "show"), ("db", "upgrade")):
        result = cli.now(*args)
        assert result.exit_code == 1
        assert "vllm-mm.yaml:1" in result.stderr


def test_the_database_is_made_backed_up_and_has_local_keys(cli: Cli) -> None:
    """`db upgrade` twice, `db backup`, and a key for when none is left."""
    data = ("--data-dir", str(cli.cwd / "state"))
    first = json.loads(cli.now("db", "upgrade", *data, "--json").output)
    assert (first["before"], first["changed"]) == (None, True)
    assert "up to date" in cli.now("db", "upgrade", *data).output
    assert cli.now("db", "backup", "copy.db", *data).exit_code == 0
    assert (cli.cwd / "copy.db").stat().st_size > 0
    again = cli.now("db", "backup", "copy.db", *data)
    assert (again.exit_code, "exists already" in again.stderr) == (1, True)
    key = json.loads(cli.now("keys", "create", "rescue", "--local", "--scope", "admin", *data, "--json").output)
    assert key["secret"].startswith("mm-")
    with contextlib.closing(sqlite3.connect(cli.cwd / "state" / "state.db")) as connection:
        (entry,) = connection.execute("SELECT actor, act, object, after FROM audit").fetchall()
    assert entry[:3] == ("local", "create_key", key["id"])
    assert key["secret"] not in entry[3]
    local = ("keys", "create", "x", "--local", *data)
    rights = (
        "--limit",
        "concurrency=2",
        "--limit",
        "seconds-day=1.5",
        "--deny",
        "evict",
        "--weight",
        "2",
        "--progress",
    )
    made = json.loads(cli.now(*local, *rights, "--json").output)
    with contextlib.closing(sqlite3.connect(cli.cwd / "state" / "state.db")) as connection:
        row = connection.execute(
            "SELECT limits, acts, weight, progress FROM keys WHERE id = ?", (made["id"],)
        ).fetchone()
    limits = {name: value for name, value in json.loads(row[0]).items() if value is not None}
    assert limits == {"concurrency": 2, "device_seconds_per_day": 1.5}
    assert (sorted(json.loads(row[1])), row[2], row[3]) == (["capture", "load", "logs"], 2.0, 1)
    for wrong in (("--limit", "concurrency=1.5"), ("--limit", "requests=0"), ("--weight", "0"), ("--deny", "fun")):
        assert cli.now(*local, *wrong).exit_code == 2
    assert cli.now("keys", "create", "x", "--local", "--scope", "root", *data).exit_code == 2
    assert cli.now("keys", "create", "x", "--local", "--expires", "soon", *data).exit_code == 2


def test_a_key_made_beside_a_running_server_is_told_to_be_no_good_yet(cli: Cli) -> None:
    """The server does not know it: only its next start does. Where none runs there is nothing to say."""
    local = ("keys", "create", "x", "--local", "--data-dir", "state", "--json")
    alone = cli.now(*local)
    assert (alone.exit_code, "a server runs" in alone.stderr) == (0, False)
    with (cli.cwd / "state" / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        beside = cli.now(*local)
    assert (beside.exit_code, "once it is started again" in beside.stderr) == (0, True)
    assert json.loads(beside.stdout)["secret"].startswith("mm-")


def findings(cli: Cli, *args: str, **env: str) -> tuple[int, dict[str, tuple[str, str, str]]]:
    result = cli.now("doctor", "--json", *args, env=env)
    report = json.loads(result.output)
    assert report["ok"] == (result.exit_code == 0)
    return result.exit_code, {c["name"]: (c["status"], c["detail"], c["advice"]) for c in report["checks"]}


def test_doctor_finds_nothing_wrong_with_simulated_models(cli: Cli) -> None:
    """Every part is looked at; nothing is made on disk."""
    (cli.cwd / "vllm-mm.yaml").write_text(CONFIG + "server: {port: 0}\n")
    code, found = findings(cli)
    assert code == 0, found
    assert set(found) == {
        "configuration", "engines", "device sim0", "sockets", "memory", "disk data", "disk cache", "open files", "kernel",
        "port", "access", "database", "orphans",
    }  # fmt: skip
    assert sorted(p.name for p in cli.cwd.iterdir()) == ["vllm-mm.yaml"]
    text = cli.now("doctor").output
    assert "13 checks, 0 failed" in text


def test_doctor_says_what_to_do(cli: Cli) -> None:
    """A missing program, a model too big, a taken port, a broken database: each fails with its advice; exit code 1."""
    data = cli.cwd / "data"
    data.mkdir()
    (data / "state.db").write_text("this is not a database, and long enough not to be taken for an empty one")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        (cli.cwd / "vllm-mm.yaml").write_text(
            CONFIG
            + "  big: {engine: sim, memory: 30GiB}\n  other: {engine: command, command: [no-such-program, '{port}'], memory: 1GiB}\n"
            + f"server: {{port: {taken.getsockname()[1]}}}\n"
        )
        code, found = findings(cli, "--data-dir", str(data))
    assert code == 1
    failed = {name: advice for name, (status, _, advice) in found.items() if status == "fail"}
    assert set(failed) == {"engine no-such-program", "model big", "port", "database"}
    assert all(failed.values())
    assert "server.port" in failed["port"]
    assert "backup" in failed["database"]


def test_doctor_stops_at_a_wrong_configuration(cli: Cli) -> None:
    """Its error is told; what does not depend on it is looked at; what does is named, and not judged by the defaults."""
    (cli.cwd / "vllm-mm.yaml").write_text("nope: 1\n")
    code, found = findings(cli)
    assert code == 1
    assert set(found) == {"configuration", "memory", "kernel", "the rest"}
    assert found["configuration"][:2] == (
        "fail",
        "vllm-mm.yaml:1: nope: unknown key; known are " + found["configuration"][1].split("known are ")[1],
    )
    assert "not looked at: engines, devices" in found["the rest"][1]


def test_doctor_names_the_demo_in_a_checkout(cli: Cli) -> None:
    """Where the server that runs is likely that of scripts/run, whose configuration is not found by itself."""
    assert "scripts/run" not in findings(cli)[1]["configuration"][1]
    (cli.cwd / "packaging/demo").mkdir(parents=True)
    (cli.cwd / "packaging/demo/sim.yaml").touch()
    assert (
        findings(cli)[1]["configuration"][1]
        == "no file, only defaults (`scripts/run --doctor` looks at the demo's), 0 models"
    )


def test_doctor_sees_the_version_of_vllm(cli: Cli) -> None:
    """From the metadata of the environment that its script belongs to, without importing it."""
    site = cli.cwd / "site"
    (site / "vllm-9.9.9.dist-info").mkdir(parents=True)
    (site / "vllm-9.9.9.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: vllm\nVersion: 9.9.9\n")
    program = cli.cwd / "vllm"
    program.write_text(f"#!{sys.executable}\n")
    program.chmod(0o755)
    (cli.cwd / "vllm-mm.yaml").write_text(f"devices: cpu\nmodels: {{m: {{executable: {program}, memory: 1MiB}}}}\n")
    _, found = findings(cli, PYTHONPATH=str(site))
    assert found[f"engine {program}"][1] == f"vLLM 9.9.9 at {program}, for m"


def test_doctor_wants_sockets_in_a_place_of_our_own(tmp_path: Path) -> None:
    """Not where others may enter, and not below a path that is too long for a socket."""
    open_to_all = tmp_path / "d"
    (open_to_all / "run").mkdir(parents=True)
    (open_to_all / "run").chmod(0o755)
    assert checks.sockets_in(open_to_all / "run").status is checks.Status.FAIL
    (open_to_all / "run").chmod(0o700)
    deep = tmp_path / ("x" * 100)
    deep.mkdir()
    found = checks.sockets_in(deep / "run")
    assert found.status is checks.Status.FAIL
    assert "shorter path" in found.advice
    assert checks.sockets_in(Path("/tmp/vllm-mm-nothing-here")).status is checks.Status.OK


def test_doctor_knows_the_limit_of_open_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the server can raise by itself is no trouble; a hard limit that is too low is, and the advice can be followed."""

    def limits(soft: int, hard: int) -> checks.Finding:
        monkeypatch.setattr(checks.resource, "getrlimit", lambda _: (soft, hard))
        return checks.files(1000, 5000)

    assert limits(4096, 4096).status is checks.Status.OK
    assert (limits(1024, 9999).status, limits(1024, 9999).detail) == (
        checks.Status.OK,
        "limit 1024, which the server raises to 2512 for itself",
    )
    assert limits(1024, -1).status is checks.Status.OK
    low = limits(1024, 1536)
    assert (low.status, "`limits.connections` to 512" in low.advice) == (checks.Status.WARN, True)
    assert limits(512, 1000).status is checks.Status.FAIL
    # Engines work on fewer requests than there may be clients: those that wait take one descriptor each.
    monkeypatch.setattr(checks.resource, "getrlimit", lambda _: (1024, 1536))
    assert checks.files(1000, 24).status is checks.Status.OK
    monkeypatch.setattr(checks.resource, "getrlimit", lambda _: (1024, 1535))
    close = checks.files(1000, 24)
    assert (close.status, "`limits.connections` to 999," in close.advice) == (checks.Status.WARN, True)


@pytest.mark.parametrize(
    ("soft", "hard", "expected"),
    [(1024, 9999, 2512), (1024, 2000, 2000), (1024, -1, 2512), (4096, 9999, 4096), (-1, -1, -1)],
)
def test_the_server_raises_its_limit_of_open_files(
    monkeypatch: pytest.MonkeyPatch, soft: int, hard: int, expected: int
) -> None:
    """As far as `limits.connections` needs and the hard limit allows; it never lowers it."""
    set_: list[tuple[int, int]] = []
    monkeypatch.setattr(files.resource, "getrlimit", lambda _: (soft, hard))
    monkeypatch.setattr(files.resource, "setrlimit", lambda _, limits: set_.append(limits))
    assert files.raise_limit(1000) == (soft, expected)
    assert set_ == ([] if expected == soft else [(expected, hard)])

    def forbidden(_kind: int, _limits: tuple[int, int]) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(files.resource, "setrlimit", forbidden)
    assert files.raise_limit(1000) == (soft, soft)


@pytest.mark.parametrize(
    ("size", "told"),
    [
        (0, "0 B"),
        (512, "512 B"),
        (2048, "2.0 KiB"),
        (2**20 - 2**10, "1023.0 KiB"),
        (2**20, "1.0 MiB"),
        (2**30, "1.0 GiB"),
    ],
)
def test_small_sizes_are_no_nought(size: int, told: str) -> None:
    """Bytes and KiB are shown as such, not as 0.0 MiB."""
    assert output.size(size) == told


def test_long_ids_keep_both_ends() -> None:
    """What tells models apart is often at the end; short ones are as they are."""
    assert output.shortened("Qwen/Qwen2.5-7B") == "Qwen/Qwen2.5-7B"
    long = output.shortened("organisation/" + "x" * 200 + "-awq-int4")
    assert (len(long), long[:13], long[-9:]) == (output.ID_WIDTH, "organisation/", "-awq-int4")
    assert "…" in long


def test_a_key_with_a_chat_programs_quotes_is_no_key(cli: Cli) -> None:
    """It cannot stand in a header at all; nothing is asked."""
    result = cli.now("--token", "‘mm-abc’", "ps")
    assert result.exit_code == 4
    assert "copy it once more" in result.output
