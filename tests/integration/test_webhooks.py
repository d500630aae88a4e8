"""Webhooks from a whole server to a receiver that fails first."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from hard_cases import running, sim
from vllm_mm.domain.webhooks import signature

SECRET = "a-secret-of-the-hook"


class Receiver:
    """A web server that answers with the next of `statuses`, then with 204."""

    def __init__(self, *statuses: int) -> None:
        self.statuses = list(statuses)
        self.came: list[tuple[dict[str, str], bytes]] = []
        self.port = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while line := await reader.readline():
                assert line.startswith(b"POST /hook?token=hidden ")
                headers: dict[str, str] = {}
                while (line := (await reader.readline()).decode().strip()) != "":
                    name, _, value = line.partition(": ")
                    headers[name.lower()] = value
                self.came.append((headers, await reader.readexactly(int(headers["content-length"]))))
                status = self.statuses.pop(0) if self.statuses else 204
                writer.write(b"HTTP/1.1 %d X\r\ncontent-length: 0\r\n\r\n" % status)
                await writer.drain()
        finally:
            writer.close()


@asynccontextmanager
async def receiver(*statuses: int) -> AsyncIterator[Receiver]:
    made = Receiver(*statuses)
    server = await asyncio.start_server(made.serve, "127.0.0.1", 0)
    made.port = server.sockets[0].getsockname()[1]
    try:
        yield made
    finally:
        server.close()


async def test_a_failed_model_is_told_though_the_receiver_fails_first() -> None:
    """Signed; the same delivery until it is taken. What is refused for good is in the list, and can be sent again. No secret is
    shown anywhere."""
    async with receiver(500, 503, 204, 410) as there:
        hook = {
            "url": f"http://127.0.0.1:{there.port}/hook?token=hidden",
            "secret": SECRET,
            "events": ["failed", "instance.stopped"],
        }
        there_too = {"url": f"http://127.0.0.1:{there.port}/hook?token=hidden", "name": "x", "events": ["back"]}
        models = {"broken": sim("die_at:weights", model={"retry": {"max_failures": 1}}), "good": sim()}
        async with running(models, own_devices=True, webhooks=[hook, there_too]) as case:

            async def hooks() -> dict[str, Any]:
                answer = await case.client.get(f"{case.url}/api/webhooks")
                return {h["name"]: h for h in answer.json()}

            async def until(condition: Any) -> None:
                async with asyncio.timeout(60):
                    while not condition(await hooks()):
                        await asyncio.sleep(0.02)

            assert (await case.complete("broken", wait=30)).status_code == 503
            await until(lambda found: found["127.0.0.1"]["delivered"] == 1)
            assert len(there.came) == 3
            for headers, body in there.came:
                stamp = int(headers["x-vllm-mm-timestamp"])
                assert headers["x-vllm-mm-signature"] == signature(SECRET, stamp, body)
                told = json.loads(body)
                assert (told["event"], told["model"], told["id"]) == ("failed", "broken", headers["x-vllm-mm-delivery"])
            assert len({headers["x-vllm-mm-delivery"] for headers, _ in there.came}) == 1
            assert (await hooks())["127.0.0.1"]["failed_tries"] == 2

            await case.ready("good")
            await case.client.post(f"{case.url}/api/models/good/stop?wait=60")
            await until(lambda found: found["127.0.0.1"]["dead"] == 1)
            (letter,) = (await case.client.get(f"{case.url}/api/webhooks/dead")).json()
            assert (letter["event"], letter["reason"], letter["attempts"]) == ("instance.stopped", "it answered 410", 1)
            assert (await case.client.post(f"{case.url}/api/webhooks/dead/{letter['id']}/retry")).json() == {
                "retried": 1
            }
            await until(lambda found: found["127.0.0.1"]["delivered"] == 2)
            assert (await case.client.get(f"{case.url}/api/webhooks/dead")).json() == []
            metrics = (await case.client.get(f"{case.url}/metrics")).text
            assert 'vllm_mm_webhook_deliveries_total{hook="127.0.0.1",outcome="delivered"} 2.0' in metrics
            shown = (await case.client.get(f"{case.url}/api/webhooks")).text + metrics + case.serving.log
            assert SECRET not in shown
            assert "hidden" not in shown
