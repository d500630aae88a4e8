"""A reload under load: who did not change does not notice, whatever comes of the file."""

import asyncio
import json
import signal
import time
from dataclasses import dataclass, field
from typing import Any

from hard_cases import Case, running, sim
from rig import until

OTHERS = ("b", "c", "d", "e")
GAP = 10.0
"""Seconds between two chunks that no loaded machine makes of the 10 ms that they are apart; a restart of an engine, or a stream
that waits for a reload's lock, would never come to an end here."""


@dataclass
class Load:
    """Streams on one model, one after the other, until told to stop."""

    it: Case
    model: str
    whole: int = 0
    gaps: list[float] = field(default_factory=list[float])
    faults: list[str] = field(default_factory=list[str])
    stop: bool = False

    async def run(self) -> None:
        while not self.stop:
            before, text = time.monotonic(), b""
            async with self.it.stream(self.model, tokens=40) as answer:
                async for chunk in answer.aiter_bytes():
                    now = time.monotonic()
                    self.gaps.append(now - before)
                    before, text = now, text + chunk
            tokens = sum(len(json.loads(e[6:])["choices"]) for e in text.split(b"\n\n") if e.startswith(b"data: {"))
            if answer.status_code != 200 or not text.endswith(b"data: [DONE]\n\n") or tokens < 2:
                self.faults.append(f"{answer.status_code}: {text[-200:]!r}")
            self.whole += 1

    async def more(self) -> None:
        """Streams that began from now on are over: they ran through whatever was done meanwhile."""
        seen = self.whole
        async with asyncio.timeout(60):
            while self.whole < seen + 2:
                await asyncio.sleep(0.01)


async def test_a_reload_of_one_of_five_models_is_noticed_by_no_other() -> None:
    """A good file, a broken one, and three reloads at once: the four others stream without a gap on the engines that they had, and the
    changed one finishes what it does and is new afterwards."""
    names = ("a", *OTHERS)
    models = {name: sim(tokens_per_second=100) for name in names}
    async with running(models, own_devices=True) as it:
        pids = dict(zip(names, await it.ready(*names), strict=True))
        loads = [Load(it, name) for name in OTHERS]
        running_loads = [asyncio.create_task(load.run()) for load in loads]
        last = asyncio.create_task(it.streamed("a", tokens=100))
        await it.in_flight("a", 1)

        def changed(**more: Any) -> None:
            new = {name: {**spec, "devices": {"ids": [f"dev-{name}"]}} for name, spec in models.items()}
            new["a"] = {**sim(tokens_per_second=120), "devices": {"ids": ["dev-a"]}, **more}
            it.rewrite(models=new)

        async def reload() -> Any:
            return await it.client.post(f"{it.url}/api/config/reload")

        changed()
        answer = await reload()
        assert answer.status_code == 200, answer.text
        assert {c["model"]: c["effect"] for c in answer.json()["changes"]} == {"a": "restarted"}
        await asyncio.gather(*(load.more() for load in loads))

        it.serving.config.write_text("models:\n  a:\n    engin: sim\n")
        refused = await reload()
        assert refused.status_code == 422
        assert ":3: models.a.engin: unknown key; did you mean `engine`?" in refused.json()["error"]["message"]
        assert (await it.get("/api/status"))["alerts"]
        await asyncio.gather(*(load.more() for load in loads))

        changed(priority=5)
        done = it.serving.log.count("reloaded: ")
        it.serving.signal(signal.SIGHUP)
        several = await asyncio.gather(*(reload() for _ in range(2)))
        await until(lambda: it.serving.log.count("reloaded: ") >= done + 3, "three reloads")
        found = [c["model"] for answer in several for c in answer.json()["changes"]]
        assert found in ([], ["a"])  # the signal's was the first, or one of theirs
        assert (await it.get("/api/models/a"))["priority"] == 5
        assert (await it.get("/api/status"))["alerts"] == []
        await asyncio.gather(*(load.more() for load in loads))

        for load in loads:
            load.stop = True
        await asyncio.gather(*running_loads)
        assert {load.model: load.faults for load in loads} == {name: [] for name in OTHERS}
        assert max(gap for load in loads for gap in load.gaps) < GAP
        assert {name: (await it.instance(name))["pid"] for name in OTHERS} == {name: pids[name] for name in OTHERS}
        status, body = await last
        assert status == 200
        assert body.endswith(b"data: [DONE]\n\n")
        assert (await it.complete("a", wait=30)).status_code == 200
        assert (await it.instance("a"))["pid"] != pids["a"]

        # And a profile, whose aliases no engine was started with.
        it.rewrite(profiles={"night": {"aliases": {"fast": "b"}, "pins": ["c"]}})
        assert (await reload()).json()["changes"] == []
        assert (await it.complete("fast")).status_code == 404
        switched = await it.client.post(f"{it.url}/api/profiles/night/activate")
        assert {c["model"]: c["text"] for c in switched.json()["changes"]} == {"b": "no restart", "c": "no restart"}
        answer = await it.complete("fast")
        assert answer.status_code == 200, answer.text
        assert answer.json()["model"] == "fast"
        assert "fast" in [m["id"] for m in (await it.get("/v1/models"))["data"]]
        assert {name: (await it.instance(name))["pid"] for name in OTHERS} == {name: pids[name] for name in OTHERS}
