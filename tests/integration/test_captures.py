"""Captures on the product, as docs/captures.md says."""

import json
import os
import stat
import subprocess
import sys
from pathlib import Path

import yaml

from hard_cases import running, sim

DOCS = Path(__file__).parents[2] / "docs" / "captures.md"
CONFIG = yaml.safe_load(DOCS.read_text().split("```yaml\n")[1].split("```")[0])["captures"]
CHAT = "/v1/chat/completions"


def said(events: str) -> str:
    """The text of a stream of chat chunks."""
    chunks = [json.loads(line.removeprefix("data: ")) for line in events.splitlines() if line.startswith("data: {")]
    return "".join(choice["delta"].get("content") or "" for chunk in chunks for choice in chunk["choices"])


async def test_what_was_captured_can_be_read_and_sent_again() -> None:
    """The request and the answer as they passed, without secrets, by either id; as a command that a shell runs. Workers capture too. What was not named is not there."""
    models = {"demo": sim(), "other": sim()}
    async with running(models, own_devices=True, captures=CONFIG, server={"workers": 2}) as case:
        await case.ready("demo", "other")
        body = {"model": "demo", "user": "anna", "max_tokens": 5, "messages": [{"role": "user", "content": "it's é"}]}
        headers = {
            "x-request-id": "mine/1",
            "authorization": "Bearer mm-secret",
            "cookie": "a=secret",
            "x-custom": "kept",
        }
        plain = await case.client.post(case.url + CHAT, json=body, headers=headers)
        stream = await case.client.post(case.url + CHAT, json={**body, "stream": True})
        await case.client.post(case.url + CHAT, json={**body, "model": "other"}, headers={"x-request-id": "others"})
        refused = await case.client.post(
            case.url + CHAT, json={**body, "max_tokens": -1}, headers={"x-request-id": "bad"}
        )
        assert (plain.status_code, stream.status_code, refused.status_code) == (200, 200, 400)

        found = await case.get("/api/requests/mine%2F1/capture")
        assert found["request"]["method"] == "POST"
        assert found["request"]["target"] == CHAT
        sent = json.loads(found["request"]["body"]["text"])
        assert sent == {**body, "user": "***"}
        assert found["request"]["body"]["redacted"] is True
        assert found["answer"]["body"]["text"] == plain.text
        assert found["answer"]["body"]["cut"] is False
        assert (found["row"]["model"], found["row"]["outcome"], found["row"]["completion_tokens"]) == ("demo", "ok", 5)
        assert dict(found["request"]["headers"])["x-custom"] == "kept"
        files = list((case.serving.data / "captures").iterdir())
        assert {stat.S_IMODE(path.stat().st_mode) for path in files} == {0o600}
        assert not any(b"secret" in path.read_bytes() or b"anna" in path.read_bytes() for path in files)
        streamed = await case.get(f"/api/requests/{stream.headers['x-request-id']}/capture")
        assert streamed["answer"]["body"]["text"] == stream.text
        assert (await case.get("/api/requests/bad/capture"))["answer"]["body"]["text"] == refused.text
        missing = await case.client.get(f"{case.url}/api/requests/others/capture")
        assert missing.status_code == 404
        assert "captures.age" in missing.json()["error"]["message"]

        environment = {**os.environ, "VLLM_MM_URL": case.url, "VLLM_MM_TOKEN": "mm-x"}
        command = [sys.executable, "-m", "vllm_mm.main", "requests", "show", "mine/1"]
        shown = text_of([*command, "--curl"], environment)
        assert shown.startswith('# Values were taken out of the body and stand there as "***".\ncurl -sS')
        again = json.loads(text_of(["sh", "-c", shown], environment))
        assert again["choices"] == plain.json()["choices"]
        told = await case.client.post(f"{case.url}/api/requests/mine%2F1/replay")
        assert (told.status_code, told.json()["choices"]) == (200, plain.json()["choices"])
        assert told.headers["x-vllm-mm-replays"] == found["id"]
        events = text_of([*command[:-2], "replay", stream.headers["x-request-id"]], environment)
        assert said(events) == said(stream.text)  # in as many pieces as the engine has time for
        assert "data: [DONE]" in events
        assert await case.outcomes(7) == {"ok": 6, "upstream_error": 1}, (
            "those that were sent again are in the ledger too"
        )
        text = text_of(command, environment)
        assert "x-custom: kept" in text
        assert plain.text in text

        await case.written()
        events = {kind: json.loads(data) for kind, data in case.serving.rows("select kind, data from events")}
        assert events["captures.on"] == {"models": ["demo"], "keys": ["alice"]}
        assert events["capture.read"]["id"].startswith("req_")


def text_of(command: list[str], environment: dict[str, str]) -> str:
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr + done.stdout
    return done.stdout


async def test_captures_are_bounded_and_off_by_default() -> None:
    """Of a body and of an answer only the beginning is kept, which the command says; without names nothing is captured and no folder is filled."""
    async with running({"demo": sim()}, captures={"models": ["*"], "body": "1KiB", "total": "12KiB"}) as case:
        await case.ready("demo")
        long = {"model": "demo", "max_tokens": 900, "messages": [{"role": "user", "content": "x" * 5000}]}
        for number in range(8):
            answer = await case.client.post(case.url + CHAT, json=long, headers={"x-request-id": f"r{number}"})
            assert answer.status_code == 200
        found = await case.get("/api/requests/r7/capture")
        for side in ("request", "answer"):
            assert found[side]["body"]["cut"] is True
            assert len(found[side]["body"]["text"]) <= 1024
        assert found["request"]["body"]["size"] == len(json.dumps(long).replace(": ", ":").replace(", ", ","))
        shown = await case.client.get(f"{case.url}/api/requests/r7/capture", params={"as": "curl"})
        assert "1024 were kept: this does not repeat the request." in shown.text
        assert (await case.client.get(f"{case.url}/api/requests/r0/capture")).status_code == 404, "the oldest went"
        assert sum(p.stat().st_size for p in (case.serving.data / "captures").iterdir()) <= 12 * 1024
        case.rewrite(captures={})
        assert await case.serving.stop() == 0
        await case.serving.start()
        await case.ready("demo")
        await case.client.post(case.url + CHAT, json=long, headers={"x-request-id": "later"})
        answer = await case.client.get(f"{case.url}/api/requests/later/capture")
        assert answer.status_code == 404
        assert "captures.models and captures.keys name none" in answer.json()["error"]["message"]
        assert (await case.get("/api/requests/r7/capture"))["id"] == found["id"]
