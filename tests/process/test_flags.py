"""Asking an engine's own parser: fake installations, whose Python is a script that answers."""

import asyncio
import json
import os
import signal
import stat
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from cli_rig import Cli
from fakes import FakeClock
from rig import alive, until
from serving import Serving
from vllm_mm.domain.flags import Flag, Takes
from vllm_mm.domain.specs import EngineKind, ModelSpec
from vllm_mm.engine import flags
from vllm_mm.engine.flags import AGAIN, FlagBook, NotAsked

ANSWER = {
    "max-model-len": {"takes": "one", "choices": []},
    "dtype": {"takes": "one", "choices": ["auto", "bfloat16"]},
    "headless": {"takes": "none", "choices": []},
}
SAYS = f"echo noise\necho 'vllm-mm-flags:{json.dumps(ANSWER)}'\n"


class Installation:
    """A folder with a `vllm` and the Python that runs it, which counts how often it was asked."""

    def __init__(self, root: Path, script: str = SAYS) -> None:
        self.bin = root / "env" / "bin"
        self.bin.mkdir(parents=True)
        self.count = root / "count"
        self.answers(script)
        self.vllm = self._program("vllm", f"#!{self.bin}/python3\nfrom vllm.entrypoints.cli.main import main\n")
        self.data = root / "data"

    def answers(self, script: str) -> None:
        self._program("python3", f"#!/bin/sh\necho $$ >> {self.count}\n{script}")

    def _program(self, name: str, text: str) -> Path:
        path = self.bin / name
        path.write_text(text)
        path.chmod(path.stat().st_mode | stat.S_IXUSR)
        return path

    def book(self, clock: FakeClock | None = None) -> FlagBook:
        return FlagBook(self.data, {"PATH": f"{self.bin}:{os.environ['PATH']}"}, clock or FakeClock())

    @property
    def asked(self) -> int:
        return len(self.count.read_text().splitlines()) if self.count.exists() else 0

    def spec(self, model: str = "m", executable: str = "vllm", **args: object) -> ModelSpec:
        return ModelSpec(model, executable=executable, args=dict(args))  # type: ignore[arg-type]


@pytest.fixture
def it(tmp_path: Path) -> Installation:
    return Installation(tmp_path)


async def test_an_installation_is_asked_once(it: Installation) -> None:
    """By whoever comes first; later ones, and later controllers, read what it said."""
    book = it.book()
    first, second = await asyncio.gather(book.ask("vllm", {}), book.ask(str(it.vllm), {}))
    assert first == second
    assert first == {
        "max-model-len": Flag(), "dtype": Flag(choices=("auto", "bfloat16")), "headless": Flag(Takes.NONE),
    }  # fmt: skip
    assert await it.book().ask("vllm", {}) == first
    assert it.asked == 1


async def test_another_version_is_asked_anew(it: Installation) -> None:
    """What is installed decides, not the name of the program; a spoilt file is not believed."""
    await it.book().ask("vllm", {})
    packages = it.bin.parent / "lib" / "python3.11" / "site-packages"
    (packages / "vllm-0.33.dist-info").mkdir(parents=True)
    await it.book().ask("vllm", {})
    assert it.asked == 2
    for file in it.data.iterdir():
        file.write_text('{"half')
    assert await it.book().ask("vllm", {})
    assert it.asked == 3


async def test_wrong_arguments_are_named_with_the_nearest(it: Installation) -> None:
    """Of vLLM models that have some; nobody else is asked about."""
    sim = ModelSpec("s", engine=EngineKind.SIM, args={"x": 1})
    found = await it.book().check([sim, ModelSpec("none"), it.spec(**{"max-model-length": 1, "dtype": "auto"})])
    assert found.wrong == (
        ("m", "max-model-length", "unknown argument: this engine has no `--max-model-length`; did you mean `max-model-len`?"),
    )  # fmt: skip
    assert found.notes == ()


@pytest.mark.parametrize(
    ("script", "told"),
    [
        (
            "echo 'ModuleNotFoundError: no vllm' >&2; exit 1\n",
            "did not tell its arguments: ModuleNotFoundError: no vllm",
        ),
        ("exit 3\n", "did not tell its arguments: exit code 3"),
        ("echo 'vllm-mm-flags:{}'\n", "did not tell its arguments: no arguments at all"),
        ("echo 'vllm-mm-flags:{\"a\": 1}'\n", "did not tell its arguments: not in the form that was asked for"),
    ],
)
async def test_one_that_cannot_be_asked_is_said_and_its_arguments_are_taken(
    tmp_path: Path, script: str, told: str
) -> None:
    """It is not asked again for a while, and then it is."""
    it, clock = Installation(tmp_path, script), FakeClock()
    book = it.book(clock)
    for _ in range(2):
        found = await book.check([it.spec(a=1), it.spec("n", b=1)])
        assert found.wrong == ()
        assert f"the arguments of m, n were not checked: {it.bin}/python3 {told}" in found.notes[0]
    assert it.asked == 1
    it.answers(SAYS)
    os.utime(it.bin / "python3", ns=(1, 1))  # another Python is asked at once, the same one later
    assert not isinstance(await book.ask("vllm", {}), NotAsked)


async def test_the_same_one_is_asked_again_later(it: Installation) -> None:
    """What was in its way may be gone."""
    flag = it.count.with_name("works")
    it.answers(f"test -e {flag} || exit 1\n{SAYS}")
    clock = FakeClock()
    book = it.book(clock)
    assert isinstance(await book.ask("vllm", {}), NotAsked)
    flag.touch()
    assert isinstance(await book.ask("vllm", {}), NotAsked)
    await clock.advance(AGAIN)
    assert not isinstance(await book.ask("vllm", {}), NotAsked)


async def test_only_vllms_own_script_is_run(it: Installation) -> None:
    """Nothing else is started to see what it says."""
    other = it._program("other", "#!/bin/sh\nexit 0\n")
    for executable, told in (("nowhere", "there is no program nowhere"), (str(other), "is not the script that")):
        found = await it.book().ask(executable, {})
        assert isinstance(found, NotAsked)
        assert told in found.reason
    assert it.asked == 0


async def test_one_that_hangs_is_ended(it: Installation, monkeypatch: pytest.MonkeyPatch) -> None:
    """With all that it started, at the deadline or when the server ends."""
    child = it.count.with_name("child")
    it.answers(f"sleep 600 & echo $! > {child}.new; mv {child}.new {child}; wait\n")
    monkeypatch.setattr(flags, "DEADLINE", 0.5)
    found = await it.book().ask("vllm", {})
    assert isinstance(found, NotAsked)
    assert "did not answer in" in found.reason
    if child.exists():  # else it was ended before it could start one
        await until(lambda: not alive(int(child.read_text())), "the end of what it started")
        child.unlink()
    monkeypatch.setattr(flags, "DEADLINE", 600.0)
    book = it.book()
    asking = asyncio.ensure_future(book.ask("vllm", {}))
    await until(child.exists, "the engine is asked")
    book.close()
    assert isinstance(await asking, NotAsked)
    await until(lambda: not alive(int(child.read_text())), "the end of what it started")


def test_validate_names_the_line(it: Installation, tmp_path: Path) -> None:
    """In the model or in the defaults; what could not be checked is a warning."""
    cli = Cli(tmp_path)
    (tmp_path / "a.yaml").write_text(
        f"paths: {{cache_dir: {it.data}}}\ndefaults:\n  executable: {it.vllm}\n  args: {{dtpe: auto}}\nmodels:\n  m:\n"
        "    args: {max-model-length: 8192}\n  o: {}\n  n: {executable: nowhere, args: {anything: 1}}\n"
    )
    result = cli.now("validate", "a.yaml")
    assert result.exit_code == 1
    assert result.stderr.splitlines() == [
        "a.yaml:4: defaults.args.dtpe: unknown argument: this engine has no `--dtpe`; did you mean `dtype`?",
        "a.yaml:7: models.m.args.max-model-length: unknown argument: this engine has no `--max-model-length`; did you mean `max-model-len`?",
    ]
    warnings = json.loads(cli.now("validate", "a.yaml", "--json").output)["warnings"]
    assert "the arguments of n were not checked: there is no program nowhere" in warnings


ASKS = """
import asyncio, sys
from pathlib import Path
from vllm_mm.clock import RealClock
from vllm_mm.engine.flags import FlagBook
asyncio.run(FlagBook(Path(sys.argv[1]), {"PATH": sys.argv[2]}, RealClock()).ask("vllm", {}))
"""


async def test_one_that_is_asked_ends_with_who_asks(it: Installation) -> None:
    """However that ends: nothing of a server that was killed is left behind."""
    package = it.bin.parent / "fake" / "vllm"
    package.mkdir(parents=True)
    asked = it.count.with_name("pid")
    (package / "__init__.py").write_text(
        f"import os, time\nopen({str(asked)!r} + '.new', 'w').write(str(os.getpid()))\n"
        f"os.rename({str(asked)!r} + '.new', {str(asked)!r})\ntime.sleep(600)\n"
    )
    it.answers(f'PYTHONPATH={package.parent} exec {sys.executable} "$@"\n')
    path = f"{it.bin}:{os.environ['PATH']}"
    with subprocess.Popen([sys.executable, "-c", ASKS, str(it.data), path]) as asker:
        try:
            await until(asked.exists, "the engine is asked")
        finally:
            asker.send_signal(signal.SIGKILL)
    pid = int(asked.read_text())
    try:
        await until(lambda: not alive(pid), "the end of who was asked")
    finally:
        if alive(pid):
            os.kill(pid, signal.SIGKILL)


def test_doctor_names_the_model(it: Installation, tmp_path: Path) -> None:
    """Each wrong argument is a failure; engines that take all of theirs are one line."""
    cli = Cli(tmp_path)
    for args, told in (
        ("max-model-length: 1", ("FAIL", "arguments of m", "did you mean `max-model-len`?")),
        ("max-model-len: 1", ("ok", "arguments: taken by the engines of m")),
    ):
        (tmp_path / "a.yaml").write_text(
            f"paths: {{data_dir: {tmp_path}/d, cache_dir: {it.data}}}\nmodels:\n  m: {{executable: {it.vllm}, args: {{{args}}}}}\n"
            "  s: {engine: sim}\n"
        )
        lines = [ln for ln in cli.now("doctor", "--config", "a.yaml").output.splitlines() if "arguments" in ln]
        assert len(lines) == 1
        assert all(part in lines[0] for part in told), lines


async def test_a_server_says_before_anybody_asks_what_an_engine_would_not_take(
    it: Installation, tmp_path: Path
) -> None:
    """A model of the file: the server is ready meanwhile, tells it among its alerts and where the model's state is, and a request is
    told at once, without a process. Another declaration mends it."""
    gate = it.count.with_name("gate")
    it.answers(f"while ! test -e {gate}; do sleep 0.05; done\n{SAYS}")

    def config(args: dict[str, object]) -> dict[str, object]:
        model = {"executable": str(it.vllm), "model": "/nowhere", "args": args, "memory": "1GiB"}
        return {
            "paths": {"data_dir": str(tmp_path / "d"), "cache_dir": str(it.data)}, "models": {"m": model},
            "devices": [{"id": "cpu", "memory": "8GiB"}],
        }  # fmt: skip

    serving = Serving(tmp_path, config({"max-model-length": 1}), forked=True)
    async with httpx.AsyncClient(timeout=60) as client:
        try:
            await serving.start()  # although nobody has said anything yet
            gate.touch()

            async def alerts() -> list[str]:
                return (await client.get(f"{serving.url}/api/status")).json()["alerts"]

            hint = "this engine has no `--max-model-length`; did you mean `max-model-len`?"
            async with asyncio.timeout(60):
                while not (told := await alerts()):
                    await asyncio.sleep(0.05)
            assert told == [f"m cannot be started: args.max-model-length: unknown argument: {hint}"]
            shown = (await client.get(f"{serving.url}/api/models/m")).json()
            assert hint in shown["instance"]["reason"]
            answer = await client.post(f"{serving.url}/v1/completions", json={"model": "m", "prompt": "x"})
            assert answer.status_code == 503
            assert hint in answer.json()["error"]["message"]
            assert "cannot be started until its declaration is another" in answer.json()["error"]["message"]
            assert await serving.stop() == 0
            kinds = [kind for (kind,) in serving.rows("select kind from events where model = 'm'")]
            assert kinds == ["alert.arguments"]
        finally:
            assert serving.end() == {}
