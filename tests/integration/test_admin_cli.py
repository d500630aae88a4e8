"""The commands against a live server, and every example of docs/cli.md."""

import asyncio
import json
import re
import shlex
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
from fastapi.responses import PlainTextResponse
from fastapi.routing import APIRoute

from cli_rig import Cli, cli
from fakes_engine import model
from vllm_mm.api import admin
from vllm_mm.cli import watching
from vllm_mm.cli.completion import model_names
from vllm_mm.cli.server import Server
from vllm_mm.cli.top import Refused, Unreachable
from vllm_mm.cli.top_server import ServerSource
from vllm_mm.control.plan import Plan, Stopped
from vllm_mm.domain.keys import Scope
from vllm_mm.domain.lifecycle import OnTimeout
from vllm_mm.domain.running import Listing, Running, Stage
from vllm_mm.domain.specs import GIB, EngineKind, ModelSpec

DOCS = Path(__file__).parents[2] / "docs" / "cli.md"
EXAMPLES = re.findall(
    r"^\$ (?:cat (?P<stdin>\S+) \| )?vllm-mm (?P<args>[^#>\n]*)(?:>[^#\n]*)?(?:# exits (?P<code>\d))?",
    DOCS.read_text(),
    re.MULTILINE,
)


def specs() -> tuple[ModelSpec, ...]:
    sim = ModelSpec("demo", engine=EngineKind.SIM, sim={"weights": "5GiB", "kv_cache": "2GiB"})
    return sim, model("Qwen/Qwen2.5-7B", 20, aliases=("gpt",)), model("broken", 1)


@pytest.fixture
async def run(tmp_path: Path) -> AsyncIterator[Cli]:
    async with cli(tmp_path, *specs()) as made:
        assert made.api is not None
        made.api.world.launch_errors["broken"] = FileNotFoundError(2, "no such program", "vllm")
        yield made


async def test_load_waits_and_shows_what_goes_on(run: Cli) -> None:
    """Plain lines where there is no terminal; afterwards it is ready."""
    result = await run("load", "demo")
    assert result.exit_code == 0, result.output
    assert result.stderr.splitlines()[-1] == "demo: ready"
    (shown,) = json.loads((await run("ps", "--json")).output)
    assert (shown["model"], shown["state"]) == ("demo", "ready")
    table = (await run("ps")).output
    assert "MODEL" in table
    assert "demo" in table


async def test_ps_can_go_on_and_logs_can_be_searched(run: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    """`-w` until Ctrl-C, with `--json` a list a line; a search, a level."""
    assert run.api is not None
    await run("load", "demo")
    looks = iter((None, KeyboardInterrupt))

    def sleep(_: float) -> None:
        if (end := next(looks)) is not None:
            raise end

    monkeypatch.setattr(watching.time, "sleep", sleep)
    result = await run("ps", "-w", "--json")
    assert result.exit_code == 130
    assert json.loads(result.output.splitlines()[0])[0]["model"] == "demo"
    for line in ("INFO one", "ERROR two"):
        run.api.world.processes["demo"].log(line)
    assert (await run("logs", "demo", "--search", "ONE")).output == "INFO one\n"
    assert (await run("logs", "demo", "--level", "error")).output == "ERROR two\n"
    objects = [json.loads(line) for line in (await run("logs", "demo", "--json", "-n", "2")).output.splitlines()]
    assert [o["line"] for o in objects] == ["INFO one", "ERROR two"]
    assert len({o["id"] for o in objects}) == 2
    wrong = await run("logs", "demo", "--level", "loud")
    assert (wrong.exit_code, "use one of" in wrong.stderr) == (1, True)


async def test_names_of_models_are_offered_to_the_shell(run: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that begin so."""
    assert run.api is not None
    route = APIRoute("/v1/models", lambda: {"data": [{"id": "demo"}, {"id": "gpt"}]}, methods=["GET"])
    run.api.app.router.routes.insert(0, route)
    monkeypatch.setenv("VLLM_MM_URL", run.url)
    assert await asyncio.to_thread(model_names, "de") == ["demo"]
    monkeypatch.setenv("VLLM_MM_URL", "nonsense")
    assert model_names("de") == []


async def test_bench_measures_a_server(run: Cli) -> None:
    """As JSON and for people; what fails is told, and makes the exit code 1."""
    result = await run("bench", "demo", "-n", "5", "-c", "2", "--prompt-words", "3", "--json")
    assert result.exit_code == 0, result.output
    found = json.loads(result.output)
    assert (found["requests"], found["failed"], found["tokens"]) == (5, 0, 15)
    assert set(found["ttft_s"]) == {"mean", "p50", "p90", "p95", "p99", "max"}
    shown = await run("bench", "demo", "-n", "2", "--prompt-words", "3")
    assert "first token" in shown.output
    assert "2 requests in" in shown.output


async def test_top_asks_the_server(run: Cli) -> None:
    """What it shows, what its keys do, and what comes; a refusal in the server's words, and a server that is away."""
    await run("load", "demo")
    source = ServerSource(Server(run.url, run.token))
    assert await source.act("demo", "pin") == "ready, pinned"
    view = await source.look()
    assert [m["id"] for m in view.models] == ["demo", "Qwen/Qwen2.5-7B", "broken"]
    assert view.status["version"] == "1.2.3"
    assert view.devices
    async with asyncio.timeout(30):
        event = await anext(aiter(source.events()))
    assert {"kind", "model", "at", "data"} <= set(event)
    with pytest.raises(Refused, match="does not exist"):
        await source.act("nope", "start")
    await source.close()
    away = ServerSource(Server("http://127.0.0.1:1", None))
    with pytest.raises(Unreachable, match="no server at"):
        await away.look()
    with pytest.raises(Unreachable):
        await anext(aiter(away.events()))
    await away.close()


async def test_top_wants_a_terminal(run: Cli) -> None:
    """And says what does not."""
    result = await run("top")
    assert (result.exit_code, "ps -w" in result.stderr) == (2, True)


async def test_a_failed_load_is_1_with_reason_and_log(run: Cli) -> None:
    """So that nobody has to look for it."""
    result = await run("load", "broken")
    assert result.exit_code == 1
    assert "no such program" in result.stderr


async def test_a_load_that_is_refused_tells_nothing_of_an_earlier_engine(run: Cli) -> None:
    """No log of a launch that was not made for it, and no time until what will not be; the reason is that of the refusal. Once it
    was there and is stopped again, that is what is told of it."""
    assert run.api is not None
    await run("load", "demo")
    run.api.world.processes["demo"].log("a line of an earlier launch")
    await run("unload", "demo")
    await run("load", "gpt")
    await run("pin", "gpt")
    result = await run("load", "demo")
    assert result.exit_code == 1
    assert "pinned Qwen/Qwen2.5-7B holds 20.0 GiB" in result.stderr
    assert "earlier launch" not in result.stderr
    assert "left)" not in result.stderr
    (shown,) = [i for i in json.loads((await run("ps", "--json")).output) if i["model"] == "demo"]
    assert ("pinned" in shown["reason"], shown["progress"]["eta_s"]) == (True, None)
    await run("unpin", "gpt")
    waiting = await run.api.world.queue.admit(run.api.world.ticket("demo"))
    run.api.world.manager.take_back(waiting)
    await run("unload", "demo")
    (shown,) = [i for i in json.loads((await run("ps", "--json")).output) if i["model"] == "demo"]
    assert (shown["state"], "pinned" in shown["reason"]) == ("stopped", False)


async def test_a_load_that_takes_longer_goes_on(run: Cli) -> None:
    """`--timeout` ends the waiting, not the load; `--no-wait` does not wait at all."""
    assert run.api is not None
    run.api.world.healthy_at_once = False
    result = await run("load", "demo", "--timeout", "0.3")
    assert (result.exit_code, "goes on loading" in result.stderr) == (1, True)
    assert "`vllm-mm unload demo` stops it" in result.stderr
    assert ".." not in result.stderr
    assert (await run("load", "demo", "--no-wait")).exit_code == 0
    assert run.api.world.running == {"demo"}


async def test_ctrl_c_says_that_the_load_goes_on(run: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    """And how to stop it; the exit code is the shell's for an interruption."""
    assert run.api is not None
    run.api.world.healthy_at_once = False

    def interrupted(*_args: object, **_more: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("vllm_mm.cli.models.follow_load", interrupted)
    result = await run("load", "demo")
    assert result.exit_code == 130
    assert "demo goes on loading" in result.stderr
    assert "`vllm-mm unload demo` stops it" in result.stderr
    async with asyncio.timeout(30):
        while run.api.world.running != {"demo"}:
            await asyncio.sleep(0.01)


async def test_the_last_lines_of_the_log_are_shown(run: Cli) -> None:
    """Of an engine that died while it loaded."""
    assert run.api is not None
    world = run.api.world
    world.healthy_at_once = False
    loading = asyncio.ensure_future(run("load", "demo"))
    while "demo" not in world.processes:
        await asyncio.sleep(0.01)
    world.processes["demo"].log("ValueError: No available memory for the cache blocks.")
    world.processes["demo"].die(1)
    result = await loading
    assert result.exit_code == 1
    assert "  ValueError: No available memory" in result.stderr


@pytest.mark.parametrize(
    "args", [("show", "nope"), ("load", "nope"), ("logs", "nope"), ("plan", "nope"), ("rm", "nope")]
)
async def test_what_does_not_exist_is_5(run: Cli, args: tuple[str, ...]) -> None:
    result = await run(*args)
    assert result.exit_code == 5
    assert "does not exist" in result.stderr


async def test_no_key_or_the_wrong_one_is_4(run: Cli) -> None:
    """The hint says where a key comes from; a key without the scope is told which one."""
    nobody = await run("ps", env={"VLLM_MM_TOKEN": None})
    assert (nobody.exit_code, "VLLM_MM_TOKEN" in nobody.stderr) == (4, True)
    assert (await run("ps", env={"VLLM_MM_TOKEN": "mm-wrong"})).exit_code == 4
    reader = await run("load", "demo", env={"VLLM_MM_TOKEN": "mm-read"})
    assert (reader.exit_code, "`operate`" in reader.stderr) == (4, True)
    assert (await run("--token", "mm-read", "ps", env={"VLLM_MM_TOKEN": None})).exit_code == 0


async def as_root(run: Cli) -> str:
    """With a key that is in the database; returns its id."""
    assert run.api is not None
    key, run.token = await run.api.services.keys.create("root", [Scope.ADMIN, Scope.INFER])
    run.api.services.keyring.replace(await run.api.services.keys.all())
    return key.id


async def test_a_lease_is_ended_by_the_beginning_of_its_id(run: Cli) -> None:
    """As it is shown in a table; one that several have is told, and so is one that nobody has."""
    made = [json.loads((await run("drain", "--device", "gpu0", "--free", "1GiB", "--json")).output) for _ in range(17)]
    ids = [lease["id"] for lease in made]  # of 17, two begin alike
    first = next(i[0] for i in ids if sum(other[0] == i[0] for other in ids) > 1)
    doubtful = await run("undrain", "--lease", first)
    assert (doubtful.exit_code, "is the beginning of" in doubtful.stderr) == (2, True)
    ended = await run("undrain", "--lease", f"lease:{ids[0][:7]}")
    assert (ended.exit_code, ended.output.partition(":")[0]) == (0, ids[0])
    assert (await run("undrain", "--lease", "nobody")).exit_code == 5


async def test_acts_wait_for_their_end(run: Cli) -> None:
    """And fail when it is another one than was asked for."""
    await run("load", "demo")
    assert (await run("sleep", "demo")).output == "demo: sleeping\n"
    assert (await run("wake", "demo")).output == "demo: ready\n"
    assert (await run("pin", "demo")).output == "demo: ready, pinned\n"
    assert (await run("unpin", "demo")).output == "demo: ready\n"
    assert (await run("unload", "demo")).output == "demo: stopped\n"
    assert (await run("undrain", "demo")).exit_code == 1
    assert (await run("reset", "demo")).output == "demo: stopped\n"
    assert (await run("restart", "demo")).output == "demo: ready\n"
    assert (await run("unload", "demo")).exit_code == 0
    conflict = await run("wake", "demo")
    assert (conflict.exit_code, "not asleep" in conflict.stderr) == (1, True)


async def test_plan_queue_and_status(run: Cli) -> None:
    """What would go, who waits, how things are."""
    assert run.api is not None
    await run("load", "gpt")
    plan = (await run("plan", "demo")).output
    assert "evicts Qwen/Qwen2.5-7B (ready, gives back 20.0 GiB)" in plan
    assert "takes 7.0 GiB on gpu0 (declared)" in plan
    run.api.world.healthy_at_once = False
    waiting = asyncio.ensure_future(run.api.world.queue.admit(run.api.world.ticket("demo", wait=1e6)))
    await asyncio.sleep(0.05)
    assert "t1" in (await run("queue")).output
    status = (await run("status")).output
    assert "0 requests in flight, 1 waiting" in status
    assert "host memory for sleep: 0 B of no bound; " in status
    assert json.loads((await run("queue", "--json")).output)["length"] == 1
    waiting.cancel()


async def test_requests_under_way(run: Cli) -> None:
    """How far each is; that there are more is said; a filter is refused."""
    assert run.api is not None
    row = Running(
        id="req_1", request_id="mine", at=12.0, route="/v1/chat/completions", model="demo", asked="gpt", key="key_1", stream=True,
        stage=Stage.ANSWERS, queued_s=0.5, load_s=0.25, ttft_s=0.75, total_s=2.0, frozen_s=0.0, frozen=False, bytes_in=10,
        bytes_out=20, generation=3, retried=False, ending=False,
    )  # fmt: skip
    still = msgspec.structs.replace(row, id="req_2", frozen=True)
    ending = msgspec.structs.replace(row, id="req_3", ending=True, model=None)

    async def running(most: int) -> Listing:
        return Listing([row, still, ending][:most], 3)

    object.__setattr__(run.api.services, "running", running)
    lines = (await run("requests", "ls", "--running")).output.splitlines()
    assert [line.split("/v1/chat/completions")[1].split()[:2] for line in lines[1:]] == [
        ["demo", "answers"],
        ["demo", "stands"],
        ["gpt", "is"],
    ]
    assert "2 younger ones are not shown" in (await run("requests", "ls", "--running", "--limit", "1")).output
    assert json.loads((await run("requests", "ls", "--running", "--json")).output)[0]["id"] == "req_1"
    wrong = await run("requests", "ls", "--running", "--model", "demo")
    assert (wrong.exit_code, "takes no filter" in wrong.stderr) == (2, True)


async def test_plan_names_sleepers_that_go_for_the_sleep_of_a_victim(run: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    """Beside the victims and why they would sleep or stop."""
    reckoned = admin.plan
    old = Stopped("old", "Qwen/Qwen2.5-7B", host_bytes=3 * GIB, asleep_s=90.0, return_s=30.0)
    monkeypatch.setattr(admin, "plan", lambda *about: replace(reckoned(*about), stopped=(old,)))
    await run("load", "gpt")
    plan = (await run("plan", "demo")).output
    assert "to stop takes" in plan
    assert "is not known to have vLLM's sleep mode" in plan
    assert "stops old (asleep for 1m30s), whose 3.0 GiB of host memory the sleep of Qwen/Qwen2.5-7B needs" in plan


async def test_plan_says_what_becomes_of_requests_that_take_too_long(run: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a busy victim; and who would give up its sleep only then, at last the model itself."""
    reckoned, frozen = admin.plan, "is frozen in the sleeping engine, and goes on later"
    late = Stopped("demo", "Qwen/Qwen2.5-7B", host_bytes=3 * GIB, asleep_s=90.0, return_s=30.0, late=True)
    await run("load", "gpt")
    for then, told in {
        OnTimeout.CUT: "is cut with an error",
        OnTimeout.WAIT: "is let finish, however long it takes",
        OnTimeout.FREEZE: frozen,
        OnTimeout.KEEP: f"{frozen}; if nothing is left, it stops",
    }.items():

        def busy(*about: Any, then: OnTimeout = then) -> Plan:
            found = reckoned(*about)
            return replace(
                found, victims=tuple(replace(v, in_flight=2, then=then) for v in found.victims), stopped=(late,)
            )

        monkeypatch.setattr(admin, "plan", busy)
        plan = (await run("plan", "demo")).output
        assert f"what is left after `swap.drain_timeout` {told}\n" in plan
        assert "needs, if requests of Qwen/Qwen2.5-7B outlast `swap.drain_timeout`; it would be started anew" in plan
    found = json.loads((await run("plan", "demo", "--json")).output)
    assert ([v["on_timeout"] for v in found["victims"]], found["stopped"][0]["late"]) == (["keep"], True)


async def test_events_of_the_past_and_as_they_come(run: Cli) -> None:
    """Without -f it ends; JSON is one object a line."""
    await run("load", "demo")
    lines = [json.loads(line) for line in (await run("events", "--json")).output.splitlines()]
    assert [e["kind"] for e in lines] == ["swap.planned", "instance.starting", "instance.ready", "swap.done"]
    text = (await run("events", "--tail", "2", "--model", "demo")).output
    assert "instance.ready  demo  [probe]" in text
    assert (await run("events", "--after", str(lines[-1]["seq"]))).output == ""
    following = asyncio.ensure_future(run("events", "-f", "--tail", "1"))
    await asyncio.sleep(0.3)
    assert run.api is not None
    run.api.services.journal.emit("test.event", cause="a test")
    await asyncio.sleep(0.1)
    run.api.services.closing.set()
    assert "test.event  [a test]" in (await following).output


async def test_logs(run: Cli) -> None:
    """The tail; with -f what comes."""
    await run("load", "demo")
    assert run.api is not None
    process = run.api.world.processes["demo"]
    for i in range(3):
        process.log(f"line {i}")
    assert (await run("logs", "demo", "-n", "2")).output == "line 1\nline 2\n"
    following = asyncio.ensure_future(run("logs", "demo", "-f", "-n", "0"))
    while len(process._followers) < 2:
        await asyncio.sleep(0.01)
    process.log("line 3")
    await asyncio.sleep(0.1)
    run.api.services.closing.set()
    assert (await following).output == "line 3\n"


async def test_models_are_added_from_flags_or_a_file_and_removed(run: Cli) -> None:
    """`--set` reaches every key; the file is as in the configuration."""
    (run.cwd / "m.yaml").write_text("engine: sim\npriority: 3\nsim: {weights: 1GiB}\n")
    args = ("add", "org/tiny", "--file", "m.yaml", "--set", "sim.kv_cache=2GiB", "--set", "aliases=[t]", "--json")
    made = json.loads((await run(*args)).output)
    assert (made["priority"], made["sim"], made["aliases"]) == (3, {"weights": "1GiB", "kv_cache": "2GiB"}, ["t"])
    assert "org/tiny" in (await run("ls")).output
    assert "priority: 3" in (await run("show", "t")).output
    assert (await run("rm", "org/tiny")).output == "org/tiny: removed\n"
    wrong = await run("add", "x", "--engine", "sim", "--set", "memry=1GiB")
    assert (wrong.exit_code, "`memory`" in wrong.stderr) == (1, True)
    assert (await run("add", "x", "--set", "nonsense")).exit_code == 2
    assert (await run("add", "x", "--file", "missing.yaml")).exit_code == 2
    refused = await run("rm", "demo")
    assert (refused.exit_code, "configuration file" in refused.stderr) == (1, True)


async def test_keys(run: Cli) -> None:
    """The secret alone on stdout, so that it can be put into a variable."""
    assert run.api is not None
    keys, ring = run.api.services.keys, run.api.services.keyring
    _, root = await keys.create("root", [Scope.ADMIN])
    ring.replace(await keys.all())
    run.token = root
    made = await run("keys", "create", "ci", "--scope", "read", "--expires", "30d")
    secret = made.stdout.strip()
    assert secret.startswith("mm-")
    assert (await run("ps", env={"VLLM_MM_TOKEN": secret})).exit_code == 0
    listed = json.loads((await run("keys", "ls", "--json")).output)
    key_id = next(k["id"] for k in listed if k["name"] == "ci")
    assert "active until" in (await run("keys", "ls")).output
    assert "revoked" in (await run("keys", "revoke", key_id)).output
    assert (await run("ps", env={"VLLM_MM_TOKEN": secret})).exit_code == 4
    assert (await run("keys", "revoke", "key_nope")).exit_code == 5


async def test_keys_are_for_models_by_whatever_name(run: Cli) -> None:
    """An alias is resolved; what does not exist is not found."""
    await as_root(run)
    made = json.loads((await run("keys", "create", "a", "--model", "gpt", "--model", "demo", "--json")).output)
    assert made["models"] == ["Qwen/Qwen2.5-7B", "demo"]
    unknown = await run("keys", "create", "a", "--model", "dmeo")
    assert (unknown.exit_code, "`demo`" in unknown.stderr) == (5, True)
    (run.cwd / "vllm-mm.yaml").write_text("models: {m: {aliases: [x]}}\n")
    local = ("keys", "create", "a", "--local", "--data-dir", str(run.cwd / "local"), "--model")
    assert (await run(*local, "x")).exit_code == 0
    assert (await run(*local, "y")).exit_code == 5


async def test_keys_are_revoked_by_id_name_or_beginning(run: Cli) -> None:
    """Only where that means one; a revoked one is not meant any more."""
    assert run.api is not None
    root = await as_root(run)
    keys = run.api.services.keys
    for name in ("phone", "twin", "twin"):
        await keys.create(name, [Scope.INFER])
    made = {k.id: k for k in await keys.all()}
    assert (await run("keys", "revoke", "phone")).output.endswith("(phone): revoked\n")
    assert (await run("keys", "revoke", "phone")).exit_code == 5
    twins = [k for k in made.values() if k.name == "twin"]
    both = await run("keys", "revoke", "twin")
    assert (both.exit_code, all(k.id in both.stderr for k in twins)) == (1, True)
    assert (await run("keys", "revoke", "key_")).exit_code == 1
    assert (
        await run("keys", "revoke", twins[0].id.removeprefix("key_")[:8])
    ).output == f"{twins[0].id} (twin): revoked\n"
    assert (await run("keys", "revoke", twins[1].id[:12])).output == f"{twins[1].id} (twin): revoked\n"
    assert {k.id for k in await keys.all() if k.revoked_at is None} == {root}


async def test_the_last_admin_key_is_not_revoked_in_passing(run: Cli) -> None:
    """It says what that would mean; --force does it. Another one that ended does not count as another one."""
    assert run.api is not None
    keys = run.api.services.keys
    first = await as_root(run)
    await keys.create("second", [Scope.ADMIN])
    await keys.create("reader", [Scope.READ])
    assert (await run("keys", "revoke", "second")).exit_code == 0
    refused = await run("keys", "revoke", first)
    assert refused.exit_code == 1
    assert "the last key that may administer" in refused.stderr
    assert "--force" in refused.stderr
    assert next(k for k in await keys.all() if k.id == first).revoked_at is None
    assert (await run("keys", "revoke", first, "--force")).exit_code == 0


async def test_run_streams_an_answer(run: Cli) -> None:
    """A prompt, standard input, or both; a cut answer is a failure."""
    assert (await run("run", "demo", "hello there")).output == "hello there\n"
    assert (await run("run", "demo", stdin="from stdin")).output == "from stdin\n"
    assert (await run("run", "demo", "read:", stdin="the text")).output == "read: the text\n"
    cut = await run("run", "demo", "now cut here")
    assert (cut.exit_code, cut.stdout, "was cut" in cut.stderr) == (1, "now cut\n", True)
    for task, route in (("embed", "/v1/embeddings"), ("score", "/v1/rerank")):
        made = await run("add", task, "--engine", "sim", "--set", f"task={task}")
        assert made.exit_code == 0
        other = await run("run", task, "hello")
        assert (other.exit_code, other.stdout) == (1, "")
        assert "it cannot chat" in other.stderr
        assert (
            f"curl {run.url}{route} -H 'Content-Type: application/json' -H \"Authorization: Bearer $VLLM_MM_"
            in other.stderr
        )
    wrong = await run("run", "demo", "so wrong")
    assert (wrong.exit_code, "the engine died" in wrong.stderr) == (1, True)


async def test_a_foreign_server_is_recognised(run: Cli) -> None:
    """An answer that is not ours does not end in a traceback."""
    result = await run("ps", env={"VLLM_MM_URL": f"{run.url}/docs"})
    assert (result.exit_code, result.stderr.startswith("vllm-mm: ")) == (5, True)
    assert run.api is not None
    other = APIRoute("/other/api/instances", lambda: PlainTextResponse("hello"), methods=["GET"])
    run.api.app.router.routes.insert(0, other)  # before the dashboard's, which takes whatever is left
    result = await run("ps", env={"VLLM_MM_URL": f"{run.url}/other"})
    assert (result.exit_code, "is that a vllm-mm server?" in result.stderr) == (1, True)


async def test_every_example_of_the_documentation_works(run: Cli) -> None:
    """In their order, in one session: each ends with the exit code that is written beside it (0 if none is)."""
    assert len(EXAMPLES) > 30
    assert run.api is not None
    keys, ring = run.api.services.keys, run.api.services.keyring
    key, run.token = await keys.create("root", [Scope.ADMIN, Scope.INFER])
    ring.replace(await keys.all())
    (run.cwd / "vllm-mm.yaml").write_text(
        "devices: [{id: sim0, memory: 24GiB, simulated: true}]\nmodels: {demo: {engine: sim}}\n"
    )
    (run.cwd / "notes.txt").write_text("some notes")
    (run.cwd / "llama-swap.yaml").write_text("models: {m: {cmd: 'server --port ${PORT}'}}\n")
    for stdin, args, code in EXAMPLES:
        words = [key.id if w == "key_0123456789ab" else w for w in shlex.split(args)]
        if {"-f", "-w"} & {*words} or words[0] in {"sim", "top"}:
            continue  # they do not end; tested above
        if words[:2] == ["keys", "revoke"]:
            key, run.token = await keys.create("next", [Scope.ADMIN, Scope.INFER])
            ring.replace(await keys.all())
        result = await run(*words, stdin=(run.cwd / stdin).read_text() if stdin else None)
        assert result.exit_code == int(code or 0), (args, result.output)


async def test_changes_are_shown_before_they_are_made(run: Cli) -> None:
    """Each key, the effect and the memory; a reload and a profile likewise; settings with where they were said."""
    await run("add", "n", "--engine", "sim", "--set", "sim.weights=1GiB")
    dry = (await run("edit", "n", "--set", "sim.weights=2GiB", "--set", "priority=3", "--dry-run")).output.splitlines()
    assert dry[0] == "n: it does not run: its next start is the new one"
    assert {"  sim.weights: 1GiB -> 2GiB", "  priority: 0 -> 3"} <= set(dry)
    assert any("footprint" in line for line in dry)
    assert dry[-1] == "Nothing was changed: this was a dry run."
    assert (await run("edit", "n", "--set", "priority=3")).output == "n: changed\n"
    assert json.loads((await run("show", "n", "--json")).output)["priority"] == 3
    nothing = await run("edit", "n")
    assert nothing.exit_code == 2
    assert "--set KEY=VALUE" in nothing.stderr
    refused = await run("edit", "demo", "--set", "priority=3")
    assert refused.exit_code == 1
    assert "copy makes one of it" in refused.stderr

    models = "models: {demo: {engine: sim, sim: {weights: 5GiB, kv_cache: 2GiB}, priority: 5}}\n"
    file = run.cwd / "vllm-mm.yaml"
    file.write_text("profiles: {night: {pins: [demo, nobody]}}\nserver: {port: 9}\n" + models)
    diff = (await run("config", "diff")).output
    assert "demo: no restart\n" in diff
    assert "  priority: 0 -> 5" in diff
    assert "when the server is started again: server.port" in diff
    assert json.loads((await run("show", "demo", "--json")).output)["priority"] == 0
    assert (await run("config", "reload")).output == diff
    assert (await run("config", "reload")).output.startswith("no model changed\n")
    file.write_text("models: {demo: {engin: sim}}")
    broken = await run("config", "reload")
    assert broken.exit_code == 1
    assert "did you mean `engine`?" in broken.stderr
    shown = await run("config", "show", "--server")
    assert re.search(r"server.port +9 +vllm-mm.yaml:2 +restart", shown.output)
    assert "the configuration was not reloaded" in shown.stderr

    would = await run("profile", "use", "night", "--dry-run")
    assert "pinned: false -> true" in would.output
    assert would.output.endswith("night would be active\n")
    assert (await run("profile", "use", "night")).output.endswith("night is active\n")
    listed = (await run("profile", "ls")).output
    assert re.search(r"night +active +demo, nobody +as declared", listed)
    assert (await run("profile", "use", "none")).output.endswith("none is active\n")
