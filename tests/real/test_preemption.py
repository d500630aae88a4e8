"""Two real models that both have endless work, and memory for one: they are frozen in the middle of their answers again and
again, and no answer shows it. One runs in float32, whose answers have to be those of an undisturbed run; the other in bfloat16,
where rounding may decide differently after a freeze, but not before it.

`MM_FREEZE_ROUNDS` says how often each of the two has to be frozen mid-stream. By default 4 times, with a model of random
weights; with --real-full 100 times, with two real ones.
"""

import asyncio
import json
import os
import random
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest

from real_vllm import START, TINY, A, B, Installation
from serving import Serving

PROMPTS = (
    "Once upon a time", "The capital of France is", "A good cook knows that", "My neighbour has a dog that",
)  # fmt: skip
EXACT, ROUNDED = "exact", "rounded"
DTYPE = {EXACT: "float32", ROUNDED: "bfloat16"}


@dataclass
class Answer:
    """What a client got of one stream."""

    model: str
    prompt: str
    tokens: int
    text: str = ""
    ids: list[int] = field(default_factory=list[int])
    usage: int = 0
    done: bool = False
    error: str = ""
    frozen_at: list[int] = field(default_factory=list[int])
    """Characters that had come before each freeze."""
    resumed: int = 0

    @property
    def before(self) -> str:
        """The text before the first freeze."""
        return self.text[: self.frozen_at[0]] if self.frozen_at else self.text


async def ask(client: httpx.AsyncClient, url: str, model: str, prompt: str, tokens: int) -> Answer:
    body = {
        "model": model, "prompt": prompt, "max_tokens": tokens, "temperature": 0, "ignore_eos": True, "stream": True,
        "return_token_ids": True, "skip_special_tokens": False, "stream_options": {"include_usage": True},
    }  # fmt: skip
    answer, still = Answer(model, prompt, tokens), False
    headers = {"X-VLLM-MM-Progress": "1", "X-VLLM-MM-Wait": "300"}
    async with client.stream("POST", f"{url}/v1/completions", json=body, headers=headers) as response:
        assert response.status_code == 200, await response.aread()
        async for line in response.aiter_lines():
            if line.startswith(": frozen") and not still:
                still = True
                answer.frozen_at.append(len(answer.text))
            elif line == ": resumed":
                still = False
                answer.resumed += 1
            elif line == "data: [DONE]":
                answer.done = True
            elif line.startswith("data: "):
                event = json.loads(line.removeprefix("data: "))
                answer.error = answer.error or str(event.get("error", ""))
                for choice in event.get("choices", ()):
                    answer.text += choice["text"]
                    answer.ids += choice.get("token_ids") or ()
                answer.usage = (event.get("usage") or {}).get("completion_tokens", answer.usage)
    return answer


@pytest.fixture
def server(vllm: Installation, tmp_path: Path, full: bool) -> Iterator[Serving]:
    folders = {EXACT: A, ROUNDED: B} if full else {EXACT: TINY, ROUNDED: TINY}

    def declare(model: str) -> dict[str, Any]:
        args = {"enforce-eager": True, "dtype": DTYPE[model], "max-model-len": 2048}
        return vllm.declare(folders[model], args=args, launcher="warm", sleep={"mode": "always", "keeps": 0})

    serving = Serving(
        tmp_path,
        {
            "devices": [{"id": "cpu", "memory": "4GiB", "headroom": 0}],
            "host_memory": {"sleep_budget": "100GiB"},
            "queue": {"max_wait": "5m", "on_teardown": "wait"},
            "swap": {
                "max_wait": "1s", "min_dwell": "500ms", "quantum": "1s", "drain_timeout": "200ms", "on_drain_timeout": "preempt",
            },
            "models": {EXACT: declare(EXACT), ROUNDED: declare(ROUNDED)},
        },
    )  # fmt: skip
    yield serving
    serving.end()


@dataclass
class Work:
    """One client of one model, who asks again as soon as he was answered."""

    model: str
    expected: dict[str, str]
    most: int
    """Tokens of an answer."""
    rng: random.Random
    answers: list[Answer] = field(default_factory=list[Answer])

    @property
    def freezes(self) -> int:
        """Of streams that had begun and went on."""
        return sum(at > 0 for a in self.answers for at in a.frozen_at[: a.resumed])

    async def run(self, client: httpx.AsyncClient, url: str, until: asyncio.Event) -> None:
        while not until.is_set():
            tokens = self.rng.randint(self.most // 2, self.most)
            self.answers.append(await ask(client, url, self.model, self.rng.choice(PROMPTS), tokens))

    def wrong(self) -> list[str]:
        """Whatever is not as in an undisturbed run."""
        found: list[str] = []
        for a in self.answers:
            same = self.expected[a.prompt]
            if not a.done or a.error or a.usage != a.tokens or len(a.ids) != a.tokens:
                found.append(f"not whole: {a}")
            elif not same.startswith(a.before):  # nothing that was computed again is in it
                found.append(f"different before its first freeze: {a}, undisturbed {same!r}")
            elif DTYPE[self.model] == "float32" and not same.startswith(a.text):
                found.append(f"different: {a}, undisturbed {same!r}")
        return found


async def test_streams_that_are_frozen_again_and_again(server: Serving, full: bool, preemption_transcript: Any) -> None:
    """Every stream is complete and has exactly its tokens; in float32 it is the undisturbed one, in bfloat16 up to its first
    freeze; nothing is cut, nothing is started again."""
    rounds = int(os.environ.get("MM_FREEZE_ROUNDS", "100" if full else "4"))
    seed = int(os.environ.get("MM_FREEZE_SEED", str(random.SystemRandom().randrange(2**31))))
    print(f"preemption: {rounds} rounds, MM_FREEZE_SEED={seed}")
    say, most = preemption_transcript, 48 if full else 400
    await server.start(120)
    async with httpx.AsyncClient(timeout=START) as client:
        say.heading("Undisturbed")
        works: list[Work] = []
        for number, model in enumerate((EXACT, ROUNDED)):
            alone = [await ask(client, server.url, model, prompt, most) for prompt in PROMPTS]
            assert all(a.done and len(a.ids) == most and not a.frozen_at for a in alone), alone
            works.append(Work(model, {a.prompt: a.text for a in alone}, most, random.Random(seed + number)))
            say.note(f"{model} in {DTYPE[model]}: {len(alone)} answers of {most} tokens")

        say.heading(f"Both at once, memory for one, until each was frozen {rounds} times in the middle of an answer")
        enough, limit = asyncio.Event(), time.monotonic() + 120 + 12 * rounds
        tasks = [asyncio.create_task(work.run(client, server.url, enough)) for work in works]
        while any(work.freezes < rounds for work in works) and time.monotonic() < limit:
            if any(t.done() for t in tasks):
                break
            await asyncio.sleep(0.2)
        enough.set()
        async with asyncio.timeout(120):
            await asyncio.gather(*tasks)

        for work in works:
            many = [len(a.frozen_at) for a in work.answers]
            same = sum(work.expected[a.prompt].startswith(a.text) for a in work.answers)
            say.note(
                f"{work.model} in {DTYPE[work.model]}: {len(work.answers)} streams, {sum(a.tokens for a in work.answers)} tokens, "
                f"{work.freezes} freezes mid-stream (at most {max(many)} in one); {same} streams equal the undisturbed run"
            )
        problems = [p for work in works for p in work.wrong()]
        for problem in problems[:10]:
            say.note(problem)
        assert not problems, problems[:3]
        assert [w.freezes >= rounds for w in works] == [True, True], [w.freezes for w in works]
        # What was streamed is what the tokens say: nothing was lost or came twice on the way to the text.
        for work in works:
            for a in most_frozen(work.answers):
                told = await client.post(f"{server.url}/detokenize", json={"model": a.model, "tokens": a.ids})
                assert told.json()["prompt"] == a.text, a
        await server.written(client)

    say.heading("The server's own account")
    kinds = Counter(kind for (kind,) in server.rows("select kind from events"))
    frozen = server.rows("select data from events where kind = 'lease.frozen'")
    thawed = [
        json.loads(data)["frozen_s"] for (data,) in server.rows("select data from events where kind = 'lease.thawed'")
    ]
    say.note(f"{len(frozen)} freezes, {len(thawed)} thaws; a freeze lasted {min(thawed):.1f} to {max(thawed):.1f} s")
    sleeps = [
        json.loads(d)["took_s"] for (d,) in server.rows("select data from events where kind = 'instance.sleeping'")
    ]
    say.note(f"falling asleep took {sorted(sleeps)[len(sleeps) // 2]:.3f} s in the median, {max(sleeps):.3f} s at most")
    assert kinds["instance.starting"] == 2, "an engine was started again"
    assert kinds["lease.revoked"] == 0
    assert 0 < len(thawed) <= len(frozen)  # streams that end before their wake is known to be good have no thaw
    asked = sum(len(w.answers) + len(PROMPTS) for w in works)
    rows = await server.rows_when(
        "select outcome, count(*), max(frozen_s) from requests where route = '/v1/completions' group by outcome",
        lambda found: sum(row[1] for row in found) >= asked,
    )
    assert [(row[0], row[1]) for row in rows] == [("ok", asked)]
    say.note(f"the ledger: {asked} requests, all ok; the longest stood still for {rows[0][2]:.1f} s in all")
    assert await server.stop() == 0
    assert not server.left()


def most_frozen(answers: list[Answer]) -> list[Answer]:
    """Some of the streams that were frozen most often."""
    return sorted(answers, key=lambda a: -len(a.frozen_at))[:5]
