"""WS /v1/realtime of the simulated engine: the events of vLLM 0.32, in its order and its words
(entrypoints/speech_to_text/realtime). tests/real/test_speech.py holds real vLLM to the same; what it says where a model has no such route is
in test_engine_surface.py."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from websockets.exceptions import ConnectionClosed, ConnectionClosedError, InvalidStatus
from websockets.sync.client import ClientConnection, unix_connect

from contract.engines import Sim
from speech import COMMIT, FINAL, WRONG, append, audio


class Talk:
    """A connection, and what one does with it."""

    def __init__(self, engine: Sim, path: str = "/v1/realtime") -> None:
        self._connect = unix_connect(engine.socket, uri=f"ws://engine{path}", compression=None, open_timeout=20)

    def __enter__(self) -> "Talk":
        self.ws: ClientConnection = self._connect.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self._connect.__exit__(*error)

    def say(self, *events: Any) -> None:
        for event in events:
            self.ws.send(json.dumps(event))

    def hear(self) -> dict[str, Any]:
        return json.loads(self.ws.recv(timeout=20))

    def until_done(self) -> list[dict[str, Any]]:
        heard = [self.hear()]
        while heard[-1]["type"] not in {"transcription.done", "error"}:
            heard.append(self.hear())
        return heard


@pytest.fixture(scope="module")
def engine() -> Iterator[Sim]:
    profile = ("task=realtime", "tokens_per_second=2000", "watchdog=100ms")
    with Sim(args=("--served-model-name", "ears", "alias", *(a for p in profile for a in ("--sim", p)))) as made:
        yield made


@pytest.fixture
def talk(engine: Sim) -> Iterator[Talk]:
    with Talk(engine) as made:
        created = made.hear()
        assert list(created) == ["type", "id", "created"]
        assert created["type"] == "session.created"
        assert created["id"].startswith("sess-")
        yield made


def transcribe(talk: Talk, pieces: list[bytes]) -> list[dict[str, Any]]:
    talk.say({"type": "session.update", "model": "alias"}, COMMIT, *(append(p) for p in pieces), FINAL)
    return talk.until_done()


def test_a_word_for_each_80_ms_then_the_whole_text_with_usage(talk: Talk) -> None:
    """Deltas add up to the text; the usage counts them."""
    *deltas, done = transcribe(talk, [audio(5)])
    assert [list(d) for d in deltas] == [["type", "delta"]] * 5
    assert {d["type"] for d in deltas} == {"transcription.delta"}
    assert list(done) == ["type", "text", "usage"]
    assert done["text"] == "".join(d["delta"] for d in deltas)
    assert done["usage"]["completion_tokens"] == 5
    assert done["usage"]["total_tokens"] == done["usage"]["prompt_tokens"] + 5


def test_the_text_depends_on_the_samples_and_not_on_how_they_were_cut(talk: Talk) -> None:
    """Also a second utterance on the same connection begins anew."""
    whole = audio(4)
    first = transcribe(talk, [whole])[-1]["text"]
    again = transcribe(talk, [whole[:2], whole[2:3000], whole[3000:]])[-1]["text"]
    other = transcribe(talk, [audio(4, seed=2)])[-1]["text"]
    assert first == again != other


@pytest.mark.parametrize(("said", "error", "code"), WRONG)
def test_what_is_wrong_is_told_and_the_session_goes_on(talk: Talk, said: str, error: str, code: str) -> None:
    talk.ws.send(said)
    assert talk.hear() == {"type": "error", "error": error, "code": code}
    assert transcribe(talk, [audio(1)])[-1]["type"] == "transcription.done"


def test_a_field_that_is_missing_is_told_as_pydantic_does(talk: Talk) -> None:
    talk.say({"type": "input_audio_buffer.append"})
    told = talk.hear()
    assert told["code"] == "processing_error"
    assert told["error"].startswith("1 validation error for InputAudioBufferAppend\naudio\n  Field required")


def test_binary_messages_end_the_connection_without_a_word(talk: Talk) -> None:
    """vLLM reads text only, and closes nothing properly then."""
    talk.ws.send(b"\0\0")
    with pytest.raises(ConnectionClosedError) as ended:
        talk.ws.recv(timeout=20)
    assert ended.value.rcvd is None


@pytest.mark.parametrize("path", ["/v1/realtime/", "/v1/chat/completions", "/nothing"])
def test_other_paths_are_403_to_a_handshake(engine: Sim, path: str) -> None:
    with pytest.raises(InvalidStatus) as refused, Talk(engine, path):
        pass
    assert refused.value.response.status_code == 403
    assert refused.value.response.body == b""


def test_the_key_guards_it() -> None:
    with Sim(args=("--sim", "task=realtime", "--api-key", "secret")) as engine:
        with pytest.raises(InvalidStatus) as refused, Talk(engine):
            pass
        assert refused.value.response.status_code == 401
        assert json.loads(refused.value.response.body) == {"error": "Unauthorized"}


def test_a_core_that_dies_in_a_session_is_told_and_a_server_that_ends_says_restart() -> None:
    """vLLM's words, and uvicorn's close code."""
    with Sim(args=("--sim", "task=realtime", "--sim", "fault=crash_after_tokens:3", "--sim", "watchdog=1h")) as engine:
        with Talk(engine) as talk:
            talk.hear()
            talk.say({"type": "session.update", "model": engine.model}, COMMIT, append(audio(6)))
            heard = talk.until_done()
            assert heard[-1]["code"] == "processing_error"
            assert "EngineCore encountered an issue" in heard[-1]["error"]
            engine.process.terminate()
            with pytest.raises(ConnectionClosed) as ended:
                talk.ws.recv(timeout=20)
        assert ended.value.rcvd is not None
        assert ended.value.rcvd.code == 1012
