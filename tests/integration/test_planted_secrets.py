"""Secrets are planted wherever they can come in, and looked for wherever something is told or kept."""

import os
import re
from pathlib import Path

import httpx

from cli_rig import Cli
from hard_cases import Case, running, sim, until
from vllm_mm.engine import procfs

HF, CLOUD, SECRET = "hf_plantedPLANTEDplanted0001", "cloudPLANTEDplanted0002", "serverPLANTEDplanted0003" * 2
GUESS = "mm-guessedGUESSEDguessed0004"


def arguments(pids: set[int]) -> bytes:
    """What `ps` shows of them."""
    found = b""
    for pid in pids:
        try:
            found += Path(f"/proc/{pid}/cmdline").read_bytes()
        except OSError:
            continue
    return found


def files(case: Case) -> dict[str, bytes]:
    """All that the server has written, but what holds the server's own secret and is for its owner only."""
    found: dict[str, bytes] = {}
    for path in sorted(case.serving.folder.rglob("*")):
        if path.is_file() and path != case.serving.config:
            found[str(path.relative_to(case.serving.folder))] = path.read_bytes()
    return found


async def test_no_secret_is_told_or_kept(tmp_path: Path) -> None:
    """Keys, a rotated one and a guessed one, a token of Hugging Face and one of a cloud in the environment of engines, the server's own secret: in
    no file (logs, database, dumps), no event, no audit entry, no error, no metric, and no process argument. The administrator's token is
    printed once, where it is meant to be."""
    env = {"HF_TOKEN": HF, "CLOUD_API_KEY": CLOUD}
    models = {
        "m": sim(model={"env": env}),
        "broken": {"engine": "command", "command": ["/nonexistent", "{port}"], "env": env},
    }
    async with running(models, auth={"mode": "keys", "secret": SECRET}, captures={"models": ["*"]}) as case:
        token = re.search(r"shown this once: (mm-\S+)", case.serving.log)
        assert token is not None
        case.client.headers["authorization"] = f"Bearer {token[1]}"
        url = case.url
        made = (await case.client.post(f"{url}/api/keys", json={"name": "ada", "scopes": ["read", "infer"]})).json()
        path = f"{url}/api/keys/{made['id']}"
        rotated = (await case.client.post(f"{path}/rotate", json={"overlap": "1h"})).json()
        exported = (await case.client.get(f"{url}/api/keys/export")).text
        session = await case.client.post(f"{url}/api/session", json={"key": rotated["secret"]})
        cookie = session.cookies["vllm_mm_session"].split(".")[0]
        case.client.cookies.clear()
        secrets = {made["secret"], rotated["secret"], HF, CLOUD, SECRET, GUESS, cookie}

        await case.ready("m")
        told = [exported]
        body = {"model": "m", "prompt": "hi", "max_tokens": 2}
        async with httpx.AsyncClient(base_url=url, timeout=60) as other:
            for secret in (made["secret"], rotated["secret"], GUESS):
                for headers in ({"authorization": f"Bearer {secret}"}, {"x-api-key": secret}):
                    told.append((await other.post("/v1/completions", json=body, headers=headers)).text)
                    told.append((await other.get("/api/models", headers=headers)).text)
                    told.append((await other.post("/api/session", json={"key": f"{secret}x"}, headers=headers)).text)
        told.append(
            (
                await case.client.post(
                    f"{url}/v1/completions", json={"model": "broken", "prompt": "hi"}, headers={"x-vllm-mm-wait": "5"}
                )
            ).text
        )
        cli = Cli(tmp_path, url, token=rotated["secret"])
        for command in (("keys", "ls"), ("show", "m"), ("--token", GUESS, "ls"), ("requests", "ls")):
            result = await cli(*command)
            told.append(result.output)
        await case.client.delete(path)
        for place in (
            "/api/events?tail=1000&follow=false",
            "/api/audit?format=jsonl",
            "/api/keys",
            "/metrics",
            "/api/status",
            "/api/requests",
            "/api/usage",
            "/openapi.json",
        ):
            answer = await case.client.get(f"{url}{place}")
            assert answer.status_code == 200, (place, answer.text)
            told.append(answer.text)
        assert "key.rotated" in "".join(told)

        async def written() -> bool:
            return bool(case.serving.rows("select 1 from requests where key is not null limit 1"))

        await until(written, "the ledger to be written")
        pids = set(case.serving.left()) | {os.getpid()}
        assert any(stat.ppid == case.serving.pid for stat in procfs.table().values())
        shown = arguments(pids)
        kept = files(case)
        assert "d/state.db" in kept
        assert any(name.endswith(".log") for name in kept)
        for secret in secrets:
            assert not [text[:200] for text in told if secret in text], "told"
            assert secret.encode() not in shown, "process arguments"
            found = [name for name, content in kept.items() if secret.encode() in content]
            assert not found, (secret[:8], found)
        assert case.serving.log.count(token[1]) == 1
        assert not [name for name, content in kept.items() if token[1].encode() in content and name != "server.log"]
