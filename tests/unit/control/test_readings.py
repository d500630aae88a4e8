"""What is learned from running engines, and reservations that follow what they really use."""

from fakes_engine import World, model, world
from vllm_mm.control.readings import SETTLED_AFTER, Readings
from vllm_mm.domain.lifecycle import State
from vllm_mm.domain.residency import Device
from vllm_mm.domain.specs import GIB, EngineKind, ModelSpec

LOG = (
    "Model loading took 4.00 GiB memory and 1.5 seconds",
    "Available KV cache memory: 2.00 GiB",
    "GPU KV cache size: 1,000 tokens, Maximum concurrency for 100 tokens per request: 10.00x",
)


def readings(w: World) -> Readings:
    return Readings(w.manager, w.manager._tools.inventory, w.store, w.clock)


async def started(w: World, name: str, use: dict[str, int], log: tuple[str, ...] = LOG) -> None:
    """READY, after it said that; its processes hold that."""
    w.healthy_at_once = False
    await w.manager.start(name, "test")
    await w.clock.advance(0.1)
    process = w.processes[name]
    for line in log:
        process.log(line)
    process.memory = 1
    w.manager._tools.inventory.used = use  # type: ignore[attr-defined] - the fake's
    process.healthy = True
    await w.clock.advance(1.0)
    assert w.manager.require(name).state is State.READY


async def test_a_launch_teaches_what_it_takes_beside_its_kv_cache() -> None:
    """Once, when it has settled; written down; with the next launch the mean and the spread."""
    async with world(model("a", 8)) as w:
        it = readings(w)
        await started(w, "a", {"gpu0": 7 * GIB})
        await it.look()
        assert w.store.learned == {}
        await w.clock.advance(SETTLED_AFTER)
        await it.look()
        ((fingerprint, devices), known) = next(iter(w.store.learned.items()))
        spec = w.manager.require("a").spec
        assert (fingerprint, devices) == (spec.fingerprint, "gpu0")
        assert (known.count, known.largest, known.weights, known.kv_cache) == (1, 5 * GIB, 4 * GIB, 2 * GIB)
        assert w.manager.footprint(spec).parts.fixed == 5 * GIB
        w.manager._tools.inventory.used = {"gpu0": 7 * GIB + 1}  # type: ignore[attr-defined]
        await it.look()
        await it.look()
        assert w.store.learned[fingerprint, devices].count == 1
        await w.manager.stop("a", "test")
        await w.clock.advance(1.0)
        await started(w, "a", {"gpu0": 9 * GIB})
        await w.clock.advance(SETTLED_AFTER)
        await it.look()
        known = w.store.learned[fingerprint, devices]
        assert (known.count, known.mean, known.largest) == (2, 6 * GIB, 7 * GIB)


async def test_an_engine_that_uses_more_than_was_reserved_has_more_reserved() -> None:
    """With an event, once for each growth, and the next start is given that; less is no news, and neither is a breath."""
    async with world(model("a", 8), model("b", 10), devices=[Device("gpu0", 24 * GIB, kind="test")]) as w:
        it = readings(w)
        await started(w, "a", {"gpu0": 8 * GIB})
        await w.clock.advance(SETTLED_AFTER)
        await it.look()
        assert w.manager.ledger.reservations["a"].device_bytes == {"gpu0": 8 * GIB}
        w.manager._tools.inventory.used = {"gpu0": 15 * GIB}  # type: ignore[attr-defined]
        await it.look()
        await it.look()
        assert w.manager.ledger.reservations["a"].device_bytes == {"gpu0": 15 * GIB}
        assert w.manager.ledger.free("gpu0") == 9 * GIB
        told = [e for e in w.journal.events if e.kind == "footprint.exceeded"]
        assert [e.data for e in told] == [{"reserved": {"gpu0": 8 * GIB}, "used": {"gpu0": 15 * GIB}}]
        found = w.manager.footprint(w.manager.require("a").spec)
        assert (found.source, found.per_device) == ("learned", 13 * GIB)
        assert "`memory` says 8.0 GiB" in found.notes[0]
        w.manager._tools.inventory.used = {"gpu0": 4 * GIB}  # type: ignore[attr-defined]
        await it.look()
        await it.look()
        assert w.manager.ledger.reservations["a"].device_bytes == {"gpu0": 15 * GIB}


async def test_an_engine_whose_log_is_an_earlier_controllers_teaches_nothing() -> None:
    """How much of its memory is KV cache is not known any more. A command says nothing anyway, and teaches the whole."""
    async with world(ModelSpec("a", engine=EngineKind.SIM, memory=8 * GIB)) as w:
        it = readings(w)
        await started(w, "a", {"gpu0": 7 * GIB}, log=())
        await w.clock.advance(SETTLED_AFTER)
        await it.look()
        assert w.store.learned == {}
    command = ModelSpec("c", engine=EngineKind.COMMAND, command=("x", "{socket}"), memory=8 * GIB)
    async with world(command) as w:
        it = readings(w)
        await started(w, "c", {"gpu0": 7 * GIB}, log=())
        await w.clock.advance(SETTLED_AFTER)
        await it.look()
        assert [known.largest for known in w.store.learned.values()] == [7 * GIB]


async def test_on_the_hosts_memory_the_tree_is_what_counts() -> None:
    async with world(model("a", 8), devices=[Device("cpu", 24 * GIB, kind="cpu")]) as w:
        it = readings(w)
        await started(w, "a", {})
        w.processes["a"].memory = 6 * GIB
        await w.clock.advance(SETTLED_AFTER)
        await it.look()
        assert [known.largest for known in w.store.learned.values()] == [4 * GIB]


async def test_a_start_that_had_too_little_memory_is_given_more_at_the_next() -> None:
    """Its log told what it needs: a failure for good is none then, and the next start reserves that. Once more memory is no help
    (the device has no more), it is one."""
    devices = [Device("gpu0", 24 * GIB, kind="sim")]
    async with world(ModelSpec("a", engine=EngineKind.SIM, memory=4 * GIB), devices=devices) as w:
        w.healthy_at_once = False
        await w.manager.start("a", "test")
        await w.clock.advance(0.1)
        for line in ("Available KV cache memory: -1.00 GiB", "ValueError: No available memory for the cache blocks."):
            w.processes["a"].log(line)
        w.processes["a"].die(1)
        await w.clock.advance(0.5)
        assert w.manager.require("a").state is State.BACKOFF
        w.healthy_at_once = True
        await w.manager.start("a", "test")
        await w.clock.advance(1.0)
        assert w.manager.require("a").state is State.READY
        (reserved,) = w.manager.ledger.reservations["a"].device_bytes.values()
        assert 5 * GIB < reserved < 6 * GIB
    async with world(ModelSpec("a", engine=EngineKind.SIM, memory=24 * GIB), devices=devices) as w:
        w.healthy_at_once = False
        await w.manager.start("a", "test")
        await w.clock.advance(0.1)
        for line in ("Available KV cache memory: -1.00 GiB", "ValueError: No available memory for the cache blocks."):
            w.processes["a"].log(line)
        w.processes["a"].die(1)
        await w.clock.advance(0.5)
        assert w.manager.require("a").state is State.FAILED
