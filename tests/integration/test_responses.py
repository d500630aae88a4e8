"""Stored responses through the data plane: to the launch that holds them, for the key that made them, and to nobody else."""

import asyncio
import json
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from plane import FORMS, Plane, ask, get, plane, post
from upstreams import Peer, answers, upstream
from vllm_mm.domain.lifecycle import State
from vllm_mm.domain.usage import Outcome
from vllm_mm.engine.endings import Ending
from vllm_mm.gateway import responses
from vllm_mm.gateway.ports import Rules

if TYPE_CHECKING:
    from vllm_mm.store.responses import StoredResponse

PATH = "/v1/responses"
BODY = b'{"model":"org/model-1","input":"hi"}'
ANSWER = b'{"id":"resp_1","created_at":1,"model":"org/model-1","object":"response","status":"completed","output":[]}'
PLAIN = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(ANSWER) + ANSWER
OTHER_KEY = {"authorization": "Bearer mm-second"}


@pytest.fixture(params=FORMS)
def form(request: pytest.FixtureRequest) -> str:
    return request.param


def error(body: bytes) -> tuple[str, str | None, str]:
    found = json.loads(body)["error"]
    return found["code"], found["param"], found["message"]


async def made(server: Plane, body: bytes = BODY) -> None:
    server.leases.launched(1)
    assert (await ask(server, post(PATH, body))).status == 200


async def test_a_response_is_asked_of_its_engine(form: str, tmp_path: Path) -> None:
    """GET and cancel go to the launch that made it, with their query and without the key, and leave rows of their own."""
    async with upstream(answers(PLAIN), tmp_path) as engine, plane(form, engine.address) as server:
        await made(server)
        answer = await ask(server, get(f"{PATH}/resp_1?include=x"))
        assert (answer.status, answer.body) == (200, ANSWER)
        assert answer.header("x-vllm-mm-model") == "org/model-1"
        assert (await ask(server, post(f"{PATH}/resp_1/cancel", b""))).status == 200
        assert [(h.method, h.target) for h in engine.heard] == [
            ("POST", PATH), ("GET", f"{PATH}/resp_1?include=x"), ("POST", f"{PATH}/resp_1/cancel"),
        ]  # fmt: skip
        assert all(b"secret" not in h.raw_head for h in engine.heard)
        assert len(server.leases.tickets) == 1  # only the first could have waited for anything
        await server.settled(3)
        assert [(r.route, r.model, r.outcome, r.generation) for r in server.rows] == [
            (PATH, "org/model-1", Outcome.OK, 1),
            (f"{PATH}/{{id}}", "org/model-1", Outcome.OK, 1),
            (f"{PATH}/{{id}}/cancel", "org/model-1", Outcome.OK, 1),
        ]


async def test_an_alias_shows_in_what_is_read_later(form: str, tmp_path: Path) -> None:
    """`model` is the name that the response was asked for with."""
    async with upstream(answers(PLAIN), tmp_path) as engine, plane(form, engine.address) as server:
        await made(server, BODY.replace(b"org/model-1", b"short"))
        answer = await ask(server, get(f"{PATH}/resp_1"))
        assert json.loads(answer.body)["model"] == "short"


async def test_the_stream_of_a_response_is_relayed(form: str, tmp_path: Path) -> None:
    """The events of `?stream=true&starting_after=N`, as they are."""
    events = b'event: response.completed\ndata: {"type":"response.completed","sequence_number":3}\n\n'
    streamed = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n%x\r\n%b\r\n0\r\n\r\n" % (
        len(events), events,
    )  # fmt: skip

    async def script(peer: Peer) -> None:
        while (heard := await peer.read()) is not None:
            await peer.send(PLAIN if heard.method == "POST" else streamed)

    async with upstream(script, tmp_path) as engine, plane(form, engine.address) as server:
        await made(server)
        answer = await ask(server, get(f"{PATH}/resp_1?stream=true&starting_after=2"))
        assert (answer.status, answer.body, answer.complete) == (200, events, True)
        assert engine.heard[1].target == f"{PATH}/resp_1?stream=true&starting_after=2"
        await server.settled(2)
        assert server.rows[1].stream


@pytest.mark.parametrize("status", ["completed", "in_progress"])
async def test_a_stream_beyond_the_last_event_ends(
    form: str, tmp_path: Path, status: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An engine that is done with a response and sends no more events leaves nobody waiting: an error event, and a cut. One that still works
    on it is waited for."""
    monkeypatch.setattr(responses, "SILENCE", 0.05)
    streamed = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
    said = b'{"id":"resp_1","status":"%b"}' % status.encode()
    plain = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(said) + said
    asked = asyncio.Event()
    event = b'event: response.completed\ndata: {"sequence_number":3}\n\n'

    async def script(peer: Peer) -> None:
        while (heard := await peer.read()) is not None:
            if heard.method == "POST":
                await peer.send(PLAIN)
            elif "stream" in heard.target:
                await peer.send(streamed)
                await asked.wait()
                if status == "in_progress":
                    await peer.send(b"%x\r\n%b\r\n0\r\n\r\n" % (len(event), event))
                else:
                    await peer.until_gone()
            else:
                await peer.send(plain)
                if sum("stream" not in h.target for h in engine.heard) > 4:
                    asked.set()

    async with upstream(script, tmp_path) as engine, plane(form, engine.address) as server:
        await made(server)
        if status == "completed":
            asked.set()
        answer = await ask(server, get(f"{PATH}/resp_1?stream=true&starting_after=99"))
        assert answer.status == 200
        if status == "in_progress":
            assert (answer.body, answer.complete) == (event, True)
        else:
            assert answer.body.startswith(b"event: error\n")
            assert b"No more events of `resp_1` will come: it is completed." in answer.body
            assert b'"sequence_number":100}' in answer.body, "the one behind those that were asked for"
            assert not answer.complete
        await server.settled(2)


@pytest.mark.parametrize("path", [f"{PATH}/resp_1", f"{PATH}/resp_2"])
async def test_only_the_key_that_made_it_sees_a_response(form: str, tmp_path: Path, path: str) -> None:
    """For another key it is as unknown as one that never was, on each route and in `previous_response_id`."""
    async with upstream(answers(PLAIN), tmp_path) as engine, plane(form, engine.address) as server:
        await made(server)
        previous = json.dumps({"model": "org/model-1", "input": "x", "previous_response_id": path[len(PATH) + 1 :]})
        said = set()
        for request in (
            get(path, OTHER_KEY),
            post(f"{path}/cancel", b"", OTHER_KEY),
            post(PATH, previous.encode(), OTHER_KEY),
        ):
            answer = await ask(server, request)
            code, param, message = error(answer.body)
            assert (answer.status, code) == (404, "response_not_found")
            said.add(message)
            assert param in {"response_id", "previous_response_id"}
        (message,) = said
        assert message.startswith(f"No response `{path[len(PATH) + 1 :]}` of this key is known here.")
        assert len(engine.heard) == 1
        await server.settled(4)
        assert {r.outcome for r in server.rows[1:]} == {Outcome.REFUSED}


async def test_another_key_cannot_take_an_id(form: str, tmp_path: Path) -> None:
    """`request_id` names the response in vLLM: with somebody else's it is refused, before it overwrites theirs; one's own is free."""
    body = BODY[:-1] + b',"request_id":"resp_1"}'
    async with upstream(answers(PLAIN), tmp_path) as engine, plane(form, engine.address) as server:
        await made(server)
        answer = await ask(server, post(PATH, body, OTHER_KEY))
        assert (answer.status, error(answer.body)[1]) == (400, "request_id")
        assert (await ask(server, post(PATH, body))).status == 200
        assert len(engine.heard) == 2


async def test_what_is_not_stored_is_not_known(form: str, tmp_path: Path) -> None:
    """An answer to `store: false` whose id is that of a stored one gives no access to it."""
    async with upstream(answers(PLAIN), tmp_path) as engine, plane(form, engine.address) as server:
        await made(server, BODY[:-1] + b',"store":false}')
        assert (await ask(server, get(f"{PATH}/resp_1"))).status == 404


async def test_the_reason_is_told_when_its_engine_is_gone(form: str, tmp_path: Path) -> None:
    """404 with when and why, for a look and for what would go on from it; nothing is asked and nothing waits for a lease."""
    async with upstream(answers(PLAIN), tmp_path) as engine, plane(form, engine.address) as server:
        await made(server)
        ended = time.mktime((2026, 3, 4, 14, 2, 0, 0, 0, -1))
        server.leases.endings.note("org/model-1", Ending(1, ended, "evicted: room for b"))
        for state, generation in ((State.STOPPED, 1), (State.READY, 2)):
            server.leases.now.state = state
            server.leases.launched(generation)
            wanted = "The engine that held `resp_1` was stopped at 14:02 (evicted: room for b); responses live only as long as their engine."
            for request in (get(f"{PATH}/resp_1"), post(PATH, BODY[:-1] + b',"previous_response_id":"resp_1"}')):
                answer = await ask(server, request)
                code, _, message = error(answer.body)
                assert (answer.status, code) == (404, "response_not_found")
                assert message.startswith(wanted)
        assert len(engine.heard) == 1
        assert len(server.leases.tickets) == 1


async def test_an_engine_that_came_meanwhile_is_not_asked(form: str, tmp_path: Path) -> None:
    """It waited for a lease on the engine of its previous response, and got one on the next launch."""
    async with upstream(answers(PLAIN), tmp_path) as engine, plane(form, engine.address) as server:
        await made(server)
        server.leases.hold = asyncio.Event()
        asking = asyncio.create_task(ask(server, post(PATH, BODY[:-1] + b',"previous_response_id":"resp_1"}')))
        while not server.leases.waiting:
            await asyncio.sleep(0.005)
        server.leases.launched(2)
        server.leases.hold.set()
        answer = await asking
        assert (answer.status, error(answer.body)[:2]) == (404, ("response_not_found", "previous_response_id"))
        assert len(engine.heard) == 1
        await server.settled(2)


async def test_another_model_cannot_go_on_from_it(form: str, tmp_path: Path) -> None:
    """404 that names the model which can."""
    async with upstream(answers(PLAIN), tmp_path) as engine, plane(form, engine.address) as server:
        await made(server)
        answer = await ask(server, post(PATH, b'{"model":"other","input":"x","previous_response_id":"resp_1"}'))
        assert (answer.status, error(answer.body)[0]) == (404, "response_not_found")
        assert "Ask `org/model-1`" in error(answer.body)[2]


async def test_an_engine_that_sleeps_is_not_woken(form: str, tmp_path: Path) -> None:
    """503 that says so, with Retry-After."""
    async with upstream(answers(PLAIN), tmp_path) as engine, plane(form, engine.address) as server:
        await made(server)
        server.leases.now.state = State.SLEEPING
        answer = await ask(server, get(f"{PATH}/resp_1"))
        assert (answer.status, answer.header("retry-after")) == (503, "5")
        code, _, message = error(answer.body)
        assert code == "response_out_of_reach"
        assert "is sleeping, and to look at a response wakes nothing" in message
        assert len(engine.heard) == len(server.leases.tickets) == 1


async def test_an_engine_without_the_routes(form: str, tmp_path: Path) -> None:
    """Its plain 404 becomes one in OpenAI's shape, and says nothing about the model's other routes."""

    async def script(peer: Peer) -> None:
        while (heard := await peer.read()) is not None:
            missing = b'HTTP/1.1 404 Not Found\r\ncontent-length: 22\r\n\r\n{"detail":"Not Found"}'
            await peer.send(PLAIN if heard.method == "POST" else missing)

    async with upstream(script, tmp_path) as engine, plane(form, engine.address) as server:
        await made(server)
        answer = await ask(server, get(f"{PATH}/resp_1"))
        assert (answer.status, error(answer.body)[0]) == (404, "response_not_found")
        assert (await ask(server, post(PATH, BODY))).status == 200


async def test_other_methods_and_paths(form: str, tmp_path: Path) -> None:
    """405 with what is allowed; an unknown path below is 404; a preflight names the method."""
    async with (
        upstream(answers(PLAIN), tmp_path) as engine,
        plane(form, engine.address, rules=Rules(origins=frozenset({b"*"}))) as server,
    ):
        deleted = await ask(server, get(f"{PATH}/resp_1", method="DELETE"))
        assert (deleted.status, deleted.header("allow")) == (405, "GET")
        wrong = await ask(server, get(f"{PATH}/resp_1/cancel"))
        assert (wrong.status, wrong.header("allow")) == (405, "POST")
        assert error((await ask(server, get(f"{PATH}/resp_1/input_items"))).body)[0] == "unknown_route"
        asks = {"origin": "http://page", "access-control-request-method": "GET"}
        allowed = await ask(server, get(f"{PATH}/resp_1", asks, method="OPTIONS"))
        assert (allowed.status, allowed.header("access-control-allow-methods")) == (204, "GET")
        assert (await ask(server, get(f"{PATH}/resp_1", {"authorization": "Bearer no"}))).status == 401
        assert engine.heard == []


QUEUED = ANSWER.replace(b'"completed"', b'"queued"   ')


class Worker:
    """An engine that works in the background until `done`."""

    def __init__(self) -> None:
        self.done = False
        self.cancelled = False

    async def __call__(self, peer: Peer) -> None:
        while (heard := await peer.read()) is not None:
            if heard.target.endswith("/cancel"):
                self.cancelled = self.done = True
            await peer.send(PLAIN if self.done else PLAIN.replace(ANSWER, QUEUED))


async def until_over(server: Plane) -> None:
    async with asyncio.timeout(30):
        while server.gateway.responses.background.running:
            await asyncio.sleep(0.01)
    await asyncio.sleep(0)
    assert not server.leases.out


async def test_work_in_the_background_keeps_its_lease(form: str, tmp_path: Path) -> None:
    """The answer is there at once, and the connection is free; the lease is back when the engine is done."""
    worker = Worker()
    async with upstream(worker, tmp_path) as engine, plane(form, engine.address) as server:
        await made(server, BODY[:-1] + b',"background":true}')
        await asyncio.sleep(0.3)
        assert len(server.leases.out) == 1
        assert len(server.rows) == 1
        assert (await ask(server, get(f"{PATH}/resp_1"))).body == QUEUED
        worker.done = True
        await until_over(server)


async def test_work_in_the_background_is_cancelled_at_its_deadline(form: str, tmp_path: Path) -> None:
    """`queue.request_timeout` after it was asked for."""
    worker = Worker()
    async with (
        upstream(worker, tmp_path) as engine,
        plane(form, engine.address, rules=Rules(request_timeout=1.0)) as server,
    ):
        await made(server, BODY[:-1] + b',"background":true}')
        await until_over(server)
        assert worker.cancelled


@pytest.mark.parametrize("running", [True, False])
async def test_work_in_the_background_ends_with_its_key(form: str, tmp_path: Path, running: bool) -> None:
    """It is cancelled at its engine when its key is revoked, unless what runs may finish (`auth.revoke_running: false`)."""
    worker = Worker()
    async with (
        upstream(worker, tmp_path) as engine,
        plane(form, engine.address, rules=Rules(revoke_running=running)) as server,
    ):
        await made(server, BODY[:-1] + b',"background":true}')
        server.gateway.keys.replace([])
        if not running:
            heard = len(engine.heard)
            async with asyncio.timeout(30):
                while len(engine.heard) < heard + 2:  # it is asked how far it is, as before
                    await asyncio.sleep(0.01)
            assert not worker.cancelled
            worker.done = True
        await until_over(server)
        assert worker.cancelled is running


def stream_of(worker: Worker) -> object:
    created = b'event: response.created\ndata: {"response":{"id":"resp_1"},"sequence_number":0}\n\n'
    head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"

    async def script(peer: Peer) -> None:
        if len(peer.server.peers) > 1:
            await worker(peer)
        elif await peer.read() is not None:
            await peer.send(head + b"%x\r\n%b\r\n" % (len(created), created))
            await peer.until_gone()

    return script


async def begin_stream(server: Plane) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    server.leases.launched(1)
    reader, writer = await server.open()
    writer.write(post(PATH, BODY[:-1] + b',"background":true,"stream":true}'))
    head = await reader.readuntil(b"sequence_number")
    assert b"200 OK" in head
    return reader, writer


async def test_a_stream_in_the_background_is_followed_when_its_client_leaves(form: str, tmp_path: Path) -> None:
    """The engine goes on with it, so its lease is kept."""
    worker = Worker()
    async with upstream(stream_of(worker), tmp_path) as engine, plane(form, engine.address) as server:  # type: ignore[arg-type]
        _, writer = await begin_stream(server)
        writer.close()
        async with asyncio.timeout(30):
            while not server.rows:
                await asyncio.sleep(0.01)
        assert server.rows[0].outcome is Outcome.CLIENT_GONE
        assert len(server.leases.out) == 1
        worker.done = True
        await until_over(server)
        assert engine.heard[-1].target == f"{PATH}/resp_1"


@pytest.mark.parametrize("by", ["key", "operator"])
async def test_a_stream_in_the_background_that_we_end_is_cancelled(form: str, tmp_path: Path, by: str) -> None:
    """Whether its key was revoked or an operator ended it: the engine, which would go on without its client, is told to stop."""
    worker = Worker()
    async with upstream(stream_of(worker), tmp_path) as engine, plane(form, engine.address) as server:  # type: ignore[arg-type]
        reader, writer = await begin_stream(server)
        if by == "key":
            server.gateway.keys.replace([])
        else:
            assert server.gateway.cancel(server.gateway.running[0].own_id, "ada")
        assert b"event: error" in await reader.read()
        writer.close()
        await until_over(server)
        assert worker.cancelled
        assert engine.heard[-1].target == f"{PATH}/resp_1/cancel"


async def test_a_cancelled_stream_is_ended(form: str, tmp_path: Path) -> None:
    """vLLM leaves it open and silent: its client is told, and the answer is cut."""
    worker = Worker()
    async with upstream(stream_of(worker), tmp_path) as engine, plane(form, engine.address) as server:  # type: ignore[arg-type]
        reader, writer = await begin_stream(server)
        assert (await ask(server, post(f"{PATH}/resp_1/cancel", b""))).status == 200
        async with asyncio.timeout(30):
            rest = await reader.read()
        assert b"event: error" in rest
        assert b"The response `resp_1` was cancelled." in rest
        assert not rest.endswith(b"0\r\n\r\n")
        writer.close()
        await until_over(server)


async def test_what_an_earlier_controller_knew(form: str, tmp_path: Path) -> None:
    """Responses of launches that were adopted are read as before; those of others are gone, also when a new launch has their number."""
    async with upstream(answers(PLAIN), tmp_path) as engine, plane(form, engine.address) as server:
        told: list[StoredResponse] = []
        server.gateway.responses.remember = told.append
        await made(server)
        assert [(r.id, r.model, r.generation, r.key, r.asked) for r in told] == [
            ("resp_1", "org/model-1", 1, "k1", "org/model-1")
        ]
    async with upstream(answers(PLAIN), tmp_path) as engine, plane(form, engine.address) as server:
        server.leases.launched(1)
        over = replace(told[0], id="resp_3", until=time.time() - 1)
        server.gateway.responses.restore([over, replace(told[0], id="resp_2", generation=2), *told])
        assert (await ask(server, get(f"{PATH}/resp_1"))).status == 200
        assert (await ask(server, get(f"{PATH}/resp_1", OTHER_KEY))).status == 404
        server.leases.launched(2)
        answer = await ask(server, get(f"{PATH}/resp_2"))
        assert (answer.status, error(answer.body)[0]) == (404, "response_not_found")
        assert "responses live only as long as their engine" in error(answer.body)[2]
        assert "is known here" in error((await ask(server, get(f"{PATH}/resp_3"))).body)[2]
