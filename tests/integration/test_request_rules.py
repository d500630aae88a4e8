"""Rules on requests, from the client's bytes to the engine's: in both forms of the data plane, and in a whole server."""

import asyncio
import json
import re
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from hard_cases import running, sim
from plane import FORMS, Answer, Plane, ask, plane, post
from upstreams import Upstream, answers, upstream
from vllm_mm.domain.errors import BadRequest
from vllm_mm.domain.request_rules import Level, rule_set
from vllm_mm.domain.specs import EngineKind, ModelSpec
from vllm_mm.domain.usage import Outcome
from vllm_mm.gateway import rules
from vllm_mm.gateway.responses import Responses

ANSWER = b'{"id":"c-1","model":"m","choices":[]}'
PLAIN = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(ANSWER) + ANSWER
CHAT = "/v1/chat/completions"

OWN = rule_set(Level.MODEL, {"temperature": 0.5}, {"top_k": None}, {"max_tokens": 50, "max_tokens_if_missing": True})
ALIAS = rule_set(Level.ALIAS, {"temperature": 1.2}, {"chat_template_kwargs": {"enable_thinking": False}}).over(OWN)
RULED = ModelSpec("m", aliases=("creative",), request_rules={"m": OWN, "creative": ALIAS})
FREE = ModelSpec("free")
ONE_NAME = ModelSpec(
    "one", engine=EngineKind.COMMAND, aliases=("creative",), request_rules={"one": OWN, "creative": ALIAS}
)


@pytest.fixture(params=FORMS)
def form(request: pytest.FixtureRequest) -> str:
    return request.param


async def told(
    form: str, where: Path, *requests: tuple[str, bytes], specs: Sequence[ModelSpec] = (RULED, FREE)
) -> tuple[list[Answer], Plane, Upstream]:
    """One request after the other; what the client and the engine have of them."""
    async with upstream(answers(PLAIN), where) as engine, plane(form, engine.address, specs=specs) as server:
        found = [await ask(server, post(path, body)) for path, body in requests]
        await server.settled(len(requests))
        return found, server, engine


async def test_the_engine_gets_the_request_with_the_rules_on_it(form: str, tmp_path: Path) -> None:
    """Defaults, overrides and the limit of the name that was asked for; every other byte is the client's. The answer names
    the rules that took effect."""
    body = b'{"model":"%b", "top_k" : 5, "max_tokens":900,"seed":12345678901234567890.10}'
    (own, alias), _, engine = await told(form, tmp_path, (CHAT, body % b"m"), (CHAT, body % b"creative"))
    assert engine.heard[0].body == b'{"model":"m", "max_tokens":50,"seed":12345678901234567890.10,"temperature":0.5}'
    assert engine.heard[0].header("content-length") == str(len(engine.heard[0].body))
    assert own.header("x-vllm-mm-rules") == "temperature,top_k,max_tokens"
    assert engine.heard[1].body == (
        b'{"model":"creative", "max_tokens":50,"seed":12345678901234567890.10,"temperature":1.2,'
        b'"chat_template_kwargs":{"enable_thinking":false}}'
    )
    assert alias.header("x-vllm-mm-rules") == "temperature,top_k,chat_template_kwargs,max_tokens"


@pytest.mark.parametrize(
    ("path", "added"),
    [
        (CHAT, b',"max_completion_tokens":50'), ("/v1/completions", b',"max_tokens":50'), ("/v1/messages", b',"max_tokens":50'),
        ("/v1/responses", b',"max_output_tokens":50'), ("/tokenize", b""),
    ],
)  # fmt: skip
async def test_the_limit_has_the_name_of_each_api(form: str, path: str, added: bytes, tmp_path: Path) -> None:
    """One limit for all of them; where an API makes no answer of tokens there is nothing to limit."""
    sent = b'{"model":"m","temperature":0%b}'
    (answer,), _, engine = await told(form, tmp_path, (path, sent % b""))
    assert engine.heard[0].body == sent % added
    assert answer.header("x-vllm-mm-rules") == ("max_tokens" if added else None)


async def test_without_rules_nothing_is_looked_at(form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither for a model without rules, nor for an API in which those there are say nothing."""

    def never(*_: object) -> Any:
        raise AssertionError("the body was looked at")

    monkeypatch.setattr(rules, "edits", never)
    limited = ModelSpec("l", request_rules={"l": rule_set(Level.MODEL, limits={"max_tokens": 5})})
    requests = ((CHAT, b'{"model":"free" ,"max_tokens":9}'), ("/tokenize", b'{"model":"l" ,"max_tokens":9}'))
    found, _, engine = await told(form, tmp_path, *requests, specs=(limited, FREE))
    assert [heard.body for heard in engine.heard] == [body for _, body in requests]
    assert [answer.header("x-vllm-mm-rules") for answer in found] == [None, None]


async def test_rules_that_change_nothing_are_not_named(form: str, tmp_path: Path) -> None:
    """The client said all of it itself: its bytes pass."""
    body = b'{"model":"m","temperature":2,"max_tokens":7}'
    (answer,), _, engine = await told(form, tmp_path, (CHAT, body))
    assert engine.heard[0].body == body
    assert answer.header("x-vllm-mm-rules") is None


async def test_an_engine_of_one_name_gets_it_with_the_rules(form: str, tmp_path: Path) -> None:
    """The name that it knows, and the rules of the alias, in one body; also where `model` is spelled oddly."""
    bodies = [
        b'{"model":"creative","top_k":1}',
        b'{"top_k":1,"mod\\u0065l":"creative"}',
        b'{"model":"creative","temperature":null}',
    ]
    _, _, engine = await told(form, tmp_path, *((CHAT, body) for body in bodies), specs=(ONE_NAME,))
    for heard in engine.heard:
        assert json.loads(heard.body) == {
            "model": "one", "temperature": 1.2, "max_completion_tokens": 50, "chat_template_kwargs": {"enable_thinking": False},
        }  # fmt: skip


async def test_what_a_response_says_about_the_store_is_read_after_the_rules(
    form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever remembers where stored responses are sees the body that the engine gets."""
    seen: list[bytes] = []
    real = Responses.begin

    def begin(self: Responses, relay: Any, spec: Any, key: Any) -> None:
        seen.append(bytes(relay.call.body))
        real(self, relay, spec, key)

    monkeypatch.setattr(Responses, "begin", begin)
    spec = ModelSpec("m", request_rules={"m": rule_set(Level.MODEL, None, {"store": False})})
    (answer,), _, engine = await told(form, tmp_path, ("/v1/responses", b'{"model":"m","store":true}'), specs=(spec,))
    assert seen == [b'{"model":"m","store":false}']
    assert engine.heard[0].body.startswith(b'{"model":"m","store":false')
    assert answer.header("x-vllm-mm-rules") == "store"


async def test_a_large_body_is_looked_at_in_a_thread(
    form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So that no other request waits for it; small ones are quicker without."""
    seen: list[tuple[int, bool]] = []
    real = rules.edits

    def watched(plan: Any, body: Any) -> Any:
        seen.append((len(body), threading.current_thread() is threading.main_thread()))
        return real(plan, body)

    monkeypatch.setattr(rules, "edits", watched)
    large = b'{"model":"m","messages":["%b"],"top_k":1}' % (b"x" * 5_000_000)
    small = b'{"model":"m","top_k":1}'
    (first, _), _, engine = await told(form, tmp_path, (CHAT, large), (CHAT, small))
    assert seen == [(len(large), False), (len(small), True)]
    assert engine.heard[0].body == large.replace(b',"top_k":1', b',"temperature":0.5,"max_completion_tokens":50')
    assert first.header("x-vllm-mm-rules") == "temperature,top_k,max_tokens"


async def test_other_requests_go_on_while_a_huge_body_is_looked_at() -> None:
    """50 MB full of brackets and quotes: the loop turns again and again meanwhile. Of brackets within brackets no more are looked at than take
    a second or two."""
    loop = asyncio.get_running_loop()
    for unit, fine in ((b'[1,"a"],{"b":2},', True), (b'[[1,"a"],{"b":[[2]]}],', False)):
        body = b'{"model":"m","input":[%b0],"top_k":1}' % (unit * (50_000_000 // len(unit)))
        looking = loop.create_task(rules.apply_rules(OWN, CHAT.encode(), body))
        turns = 0
        while not looking.done():
            turns += 1
            await asyncio.sleep(0.001)
        if fine:
            changes, names = await looking
            assert (len(changes), names) == (1, b"temperature,top_k,max_tokens")
        else:
            with pytest.raises(BadRequest, match="too many brackets within brackets"):
                await looking
        assert turns > 50


async def test_names_of_rules_cannot_break_the_head(form: str, tmp_path: Path) -> None:
    """A field may have any name; in the header what is special is written as in a URL."""
    odd = ModelSpec("m", request_rules={"m": rule_set(Level.MODEL, {"a,b\r\nx: é": 1})})
    (answer,), _, engine = await told(form, tmp_path, (CHAT, b'{"model":"m"}'), specs=(odd,))
    assert answer.header("x-vllm-mm-rules") == "a%2Cb%0D%0Ax%3A%20%C3%A9"
    assert json.loads(engine.heard[0].body) == {"model": "m", "a,b\r\nx: é": 1}


async def test_a_body_that_rules_cannot_be_applied_to_is_refused(form: str, tmp_path: Path) -> None:
    """400 with the reason; no engine is asked."""
    (answer,), server, engine = await told(form, tmp_path, (CHAT, b'{"model":"m"' + b',"top_k":1' * 101 + b"}"))
    assert answer.status == 400
    assert "more than 100 times" in json.loads(answer.body)["error"]["message"]
    assert (engine.heard, server.rows[0].outcome) == ([], Outcome.BAD_REQUEST)


# A whole server with a simulated engine


async def test_rules_and_adapters_in_a_whole_server() -> None:
    """From the file to the engine: `defaults`, the model, an alias and an adapter; the admin API tells which rule comes from
    where; adapters are listed with their parent and served under their own name; an unknown one is a 404."""
    models = {
        "base": sim(model={
            "request_limits": {"max_tokens": 6},
            "request_defaults": {"max_tokens": 3},
            "aliases": ["plain", {"name": "brief", "request_overrides": {"max_tokens": 1}}],
            "lora": {"sql": "/adapters/sql", "long": {"path": "/adapters/long", "request_limits": {"max_tokens": None}}},
        }),
    }  # fmt: skip
    body = {"prompt": "hi", "ignore_eos": True}
    async with running(models, defaults={"request_defaults": {"max_tokens": 2, "temperature": 0}}) as case:

        async def asked(name: str, **more: Any) -> tuple[str, int, str | None]:
            answer = await case.client.post(f"{case.url}/v1/completions", json={"model": name, **body, **more})
            assert answer.status_code == 200, answer.text
            said = answer.json()
            return said["model"], said["usage"]["completion_tokens"], answer.headers.get("x-vllm-mm-rules")

        assert await asked("base") == ("base", 3, "max_tokens,temperature")
        assert await asked("base", max_tokens=4, temperature=0) == ("base", 4, None)
        assert await asked("plain", max_tokens=40) == ("plain", 6, "max_tokens,temperature")
        assert await asked("brief", max_tokens=4) == ("brief", 1, "max_tokens,temperature")
        assert await asked("sql", max_tokens=40) == ("sql", 6, "max_tokens,temperature")
        assert await asked("long", max_tokens=40) == ("long", 40, "temperature")
        async with case.stream("sql", tokens=2) as answer:
            assert b'"model":"sql"' in await answer.aread()

        listed = {m["id"]: (m["root"], m["parent"]) for m in (await case.get("/v1/models"))["data"]}
        assert listed == {
            "base": ("base", None), "plain": ("base", None), "brief": ("base", None),
            "sql": ("/adapters/sql", "base"), "long": ("/adapters/long", "base"),
        }  # fmt: skip
        unknown = await case.client.post(f"{case.url}/v1/completions", json={"model": "sqll", **body})
        assert unknown.status_code == 404
        assert unknown.json()["error"]["message"] == "The model `sqll` does not exist. Did you mean `sql`?"

        shown = await case.get("/api/models/base")
        assert shown["aliases"] == ["plain", "brief"]
        assert (shown["request_limits"], shown["lora"]["long"]) == ({"max_tokens": 6}, "/adapters/long")
        rule = {"kind": "default", "path": ["max_tokens"], "value": 3, "source": "model"}
        assert rule in shown["request_rules"]["base"]
        assert {"kind": "default", "path": ["temperature"], "value": 0, "source": "system"} in shown["request_rules"][
            "sql"
        ]
        assert {"kind": "override", "path": ["max_tokens"], "value": 1, "source": "alias"} in shown["request_rules"][
            "brief"
        ]
        assert {"kind": "limit", "path": ["max_tokens"], "value": None, "source": "alias"} in shown["request_rules"][
            "long"
        ]


async def test_the_example_for_people_from_llama_swap_runs(tmp_path: Path) -> None:
    """docs/from-llama-swap.md: the configuration is valid without a warning, and does to a request what the page says."""
    text = (Path(__file__).parents[2] / "docs/from-llama-swap.md").read_text()
    (example,) = re.findall(r"```yaml\n(.*?)```", text, re.DOTALL)
    (body,) = re.findall(r"-d '(.*?)'", text)
    (named,) = re.findall(r"X-VLLM-MM-Rules: (\S+)\n", text)
    (tmp_path / "example.yaml").write_text(example)
    program = Path(sys.executable).parent / "vllm-mm"
    checked = subprocess.run(
        [program, "validate", tmp_path / "example.yaml"], capture_output=True, text=True, check=True
    )
    assert "warning" not in checked.stdout + checked.stderr
    said = yaml.safe_load(example.replace("[vllm-mm, sim", f"[{program}, sim"))
    models = said.pop("models")
    async with running(models, **said) as case:
        answer = await case.client.post(f"{case.url}/v1/completions", json=json.loads(body), timeout=60)
        assert answer.status_code == 200, answer.text
        assert set(answer.headers["x-vllm-mm-rules"].split(",")) == set(named.split(","))
        assert answer.json()["usage"]["completion_tokens"] == 3
        assert answer.json()["model"] == "coder:brief"
        plain = await case.client.post(f"{case.url}/v1/embeddings", json={"model": "embedder", "input": "hi"})
        assert (plain.status_code, plain.headers.get("x-vllm-mm-rules")) == (200, None)
