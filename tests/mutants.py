"""Mutants: each takes one protection out of the product, and the named tests have to notice.

    python tests/mutants.py            all of them
    python tests/mutants.py NAME ...   some

Works on a copy; the checkout is not touched. Exits 1 when a mutant survives, or no longer applies.
"""

import shutil
import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
MANAGER = "tests/unit/manager/test_manager.py"
STRANGERS = "tests/unit/manager/test_strangers.py"
WORKERS = 2
"""At once: each waits more than it works."""


@dataclass(frozen=True)
class Mutant:
    """`old` must occur exactly once in `file`."""

    name: str
    what: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]
    more: tuple[tuple[str, str], ...] = ()
    """Further (old, new) in the same file, where two protections cover one another."""


def manager(name: str, what: str, file: str, old: str, new: str, *tests: str) -> Mutant:
    return Mutant(name, what, f"backend/vllm_mm/{file}", old, new, tuple(f"{MANAGER}::{t}" for t in tests))


MUTANTS: tuple[Mutant, ...] = (
    Mutant(
        "bomb", "what a compressed body becomes has no bound",
        "backend/vllm_mm/gateway/compressed.py",
        "if len(self.made) > self._limit:", "if len(self.made) > 1 << 40:",
        ("tests/integration/test_clients.py::test_compressed_bodies_that_are_refused",),
    ),
    Mutant(
        "trailers-are-headers", "what comes behind a body counts as its head",
        "backend/vllm_mm/api/protocol.py",
        "        if self._in_head:  # what comes behind", "        if True:  # what comes behind",
        ("tests/integration/test_clients.py::test_what_comes_behind_a_body_is_not_of_the_head",),
    ),
    Mutant(
        "endless-trailers", "what comes behind a body has no bound",
        "backend/vllm_mm/api/protocol.py",
        "        if self._overhead > self._rules.header and not self._in_head:", "        if False:",
        ("tests/integration/test_clients.py::test_heads_that_others_may_read_differently",),
    ),
    Mutant(
        "two-hosts", "a head that others may read differently is acted upon",
        "backend/vllm_mm/api/protocol.py",
        "        check_head(self.parser.get_http_version(), self.headers)\n", "",
        ("tests/integration/test_clients.py::test_heads_that_others_may_read_differently",),
    ),
    Mutant(
        "dripping-bodies", "a body may come by single bytes for ever",
        "backend/vllm_mm/api/pace.py",
        "min(self._touched + self._timeout, self._since + self._timeout + size / self._rate)", "(self._touched + self._timeout)",
        ("tests/integration/test_clients.py::test_slow_bodies_end_with_408",),
    ),
    Mutant(
        "nobody-reads", "a client that takes nothing of its answer keeps its engine",
        "backend/vllm_mm/api/timed.py",
        ">= rules.send_timeout:", ">= 1e9:",
        ("tests/integration/test_clients.py::test_a_client_that_takes_nothing_is_cut",),
    ),
    Mutant(
        "cut-looks-whole", "a cut answer to a client of HTTP/1.0 ends like a whole one",
        "backend/vllm_mm/api/framing.py",
        "            if without_length and not cycle.response_complete", "            if False and not cycle.response_complete",
        ("tests/integration/test_clients.py::test_the_applications_answers_for_http10",),
    ),
    Mutant(
        "secrets-are-kept", "a capture has the client's key in it",
        "backend/vllm_mm/gateway/capture_text.py",
        "HIDDEN if name.lower() in _SECRET else value", "value",
        ("tests/unit/gateway/test_capture_text.py::test_secrets_are_not_in_it",),
    ),
    Mutant(
        "captures-pile-up", "captures have no bound together",
        "backend/vllm_mm/store/captures.py",
        "if room < 0 or int(", "if int(",
        ("tests/unit/store/test_captures.py",),
    ),
    Mutant(
        "another-launch-of-that-number", "a response of an engine that is gone is asked of another engine",
        "backend/vllm_mm/gateway/responses.py",
        "held if self._is_there(held) else replace(held, generation=GONE)", "held",
        ("tests/integration/test_responses.py::test_what_an_earlier_controller_knew",),
    ),
    Mutant(
        "brackets-without-end", "what rules do on a body has no bound",
        "backend/vllm_mm/domain/body_edits.py",
        "        if steps < 0:\n", "        if steps < -(1 << 40):\n",
        ("tests/unit/domain/test_request_rules.py::test_too_many_brackets_are_too_much",),
        more=(("    while steps >= 0:\n", "    while True:\n"),),
    ),
    Mutant(
        "credits-not-recalled", "a gate that closes does not ask workers for what they do not use",
        "backend/vllm_mm/engine/lease.py",
        "            self.borrowers.closed()\n", "            pass\n",
        ("tests/unit/manager/test_lending.py::test_a_drain_has_back_what_is_idle_and_waits_for_what_is_used",),
    ),
    Mutant(
        "sleep-before-workers-let-go", "an engine is put to sleep while a worker may still send to it",
        "backend/vllm_mm/engine/run.py",
        "        await self._actor.gate.settled()\n", "",
        ("tests/unit/manager/test_lending.py::test_an_engine_is_not_put_to_sleep_before_every_worker_has_let_go",),
    ),
    Mutant(
        "lent-counted-late", "what a worker was lent is not counted before it gave it back",
        "backend/vllm_mm/domain/credits.py",
        "        self.out += count\n", "        self.out = count\n",
        ("tests/stateful/test_credits_machine.py", "tests/unit/domain/test_credits.py"),
    ),
    Mutant(
        "old-epoch-counts", "leases that were taken away are given back once more",
        "backend/vllm_mm/domain/credits.py",
        "        if epoch < self.epoch:\n            return 0\n", "",
        ("tests/unit/domain/test_credits.py", "tests/unit/manager/test_lending.py"),
    ),
    Mutant(
        "dead-worker-keeps-leases", "the leases of a worker that died stay out",
        "backend/vllm_mm/engine/lending/office.py",
        "            for lease in leases:\n                self._manager.look_back(lease)\n", "            del leases\n",
        ("tests/unit/manager/test_lending.py::test_a_worker_that_is_gone_gives_everything_back",),
    ),
    Mutant(
        "dead-worker-keeps-tickets", "the tickets of a worker that died stay in the queue",
        "backend/vllm_mm/engine/lending/office.py",
        "        for task in tuple(self._waiting.values()):\n            task.cancel()\n", "",
        ("tests/unit/manager/test_lending.py::test_a_worker_that_is_gone_gives_everything_back",),
    ),
    Mutant(
        "silent-worker-lives", "a worker that does not answer is waited for without end",
        "backend/vllm_mm/engine/lending/office.py",
        "        if deadline <= self._clock.now():\n", "        if not deadline:\n",
        ("tests/unit/manager/test_lending.py::test_a_worker_that_does_not_answer_is_ended",),
    ),
    Mutant(
        "revoked-in-the-controller-only", "a worker goes on with requests whose leases were taken away",
        "backend/vllm_mm/engine/lending/borrower.py",
        "            model.gate.revoke(died=message.died, reason=message.reason)\n", "",
        ("tests/unit/manager/test_lending.py::test_what_is_taken_away_is_taken_away_in_the_worker_too",),
    ),
    Mutant(
        "late-lease-lost", "a lease that comes for a request that has left is kept for ever",
        "backend/vllm_mm/engine/lending/borrower.py",
        "            self._give_back(name, model, model.purse.sweep())\n", "            model.purse.sweep()\n",
        ("tests/unit/manager/test_lending.py::test_who_leaves_while_it_waits_leaves_nothing",),
    ),
    Mutant(
        "revoked-keys-live-on", "workers do not hear of new and revoked keys",
        "backend/vllm_mm/gateway/identity.py",
        "        if self.on_replace is not None:\n            self.on_replace(tuple(self._by_digest.values()))\n", "",
        ("tests/unit/gateway/test_identity.py::test_a_new_set_is_told",),
    ),
    Mutant(
        "hanging-worker-waited-for", "a connection waits for a worker that has fewer and does not come",
        "backend/vllm_mm/main/accepting.py",
        "        self._loop.add_reader(self._listener.fileno(), self._ready)\n        self._accept()\n",
        "        self._loop.add_reader(self._listener.fileno(), self._ready)\n",
        ("tests/unit/main/test_accepting.py::test_a_process_that_hangs_keeps_no_connection_from_the_others",),
    ),
    Mutant(
        "victims-reckoned-alone", "each victim of a load is reckoned as if the others took none of the host's memory",
        "backend/vllm_mm/domain/partings.py", "        memory = _after(memory, goer, parting)\n", "",
        ("tests/unit/domain/test_partings.py",),
    ),
    Mutant(
        "refusal-outlives-its-state", "why a load was refused is told as the reason of a later stop",
        "backend/vllm_mm/engine/manager.py", "        self._wishes.moved(model)\n", "",
        ("tests/unit/manager/test_manager.py::test_a_refusal_is_no_reason_of_a_later_state",),
    ),
    Mutant(
        "wish-outlives-its-pin", "what was only wanted for a pin is loaded after that was taken off",
        "backend/vllm_mm/engine/acts.py",
        "        if not pinned:\n            self.withdraw(", "        if not model:\n            self.withdraw(",
        ("tests/unit/control/test_wishes.py::test_who_wants_a_load_no_more_takes_only_that_back",),
    ),
    Mutant(
        "wish-outlives-its-time", "what was only wanted for a time of the week is loaded when that is over",
        "backend/vllm_mm/control/schedules.py", "        for model in before - self._open:\n", "        for model in ():\n",
        ("tests/unit/control/test_wishes.py::test_who_wants_a_load_no_more_takes_only_that_back",),
    ),
    Mutant(
        "load-that-cannot-be-launched", "a load that no launch can be made for is decided at each look",
        "backend/vllm_mm/engine/swaps.py",
        "            launching.check(spec, self._places)\n", "            pass\n",
        ("tests/unit/control/test_wishes.py::test_a_pinned_model_that_no_launch_can_be_made_of_is_refused_once",),
    ),
    Mutant(
        "retries-never-age", "who is told to come again, and does, has waited for nothing",
        "backend/vllm_mm/domain/scheduling/words.py",
        "            times.append(self.returning_since + max_wait)\n", "            pass\n",
        ("tests/unit/domain/scheduling/test_returning.py",),
    ),
    Mutant(
        "loaded-in-vain", "what was loaded for clients that are about to come again goes at once, because it is idle",
        "backend/vllm_mm/domain/scheduling/worth.py", "return stayed if resident.expected else dwelt", "return dwelt",
        ("tests/unit/domain/scheduling/test_returning.py",),
    ),
    Mutant(
        "who-left-is-forgotten", "who left unserved is not remembered",
        "backend/vllm_mm/engine/queue.py", "            self._returning[ticket.model] = known\n", "",
        ("tests/unit/manager/test_queue.py::test_who_has_little_patience_and_comes_again_is_served_in_the_end",),
    ),
    Mutant(
        "one-key-fills-the-queue", "a key has all places although others ask",
        "backend/vllm_mm/domain/scheduling/shares.py", "places.other_keys and places.by_key >= free", "False",
        ("tests/unit/manager/test_queue.py::test_one_key_or_one_model_leaves_places_for_the_others",),
    ),
    Mutant(
        "lease-on-a-device-freezes", "room that is lent freezes what runs there, for the lease's whole time",
        "backend/vllm_mm/engine/lets.py", "            self._evict(load, OnTimeout.WAIT)\n", "            self._evict(load)\n",
        ("tests/unit/manager/test_device_leases.py::test_busy_models_finish_what_runs",),
    ),
    Mutant(
        "priority-of-requests-ignored", "X-VLLM-MM-Priority says nothing about whose turn it is between models",
        "backend/vllm_mm/engine/survey.py",
        "priority=max((instance.spec.priority, *(t.priority for t in waiting.tickets)))", "priority=instance.spec.priority",
        ("tests/unit/manager/test_promises.py::test_the_highest_priority_among_those_who_wait_is_their_models",),
    ),
    Mutant(
        "kept-counts-as-waiting", "what is only kept ready counts as somebody who waits, for whom others have to go",
        "backend/vllm_mm/domain/scheduling/board.py",
        "rivals = [lane for lane in within if not lane.kept]", "rivals = within",
        ("tests/unit/domain/scheduling/test_brain.py",),
    ),
    Mutant(
        "kept-takes-whom-is-missed", "what is only kept ready has the room of one that is asked for, before it is overdue",
        "backend/vllm_mm/domain/scheduling/board.py",
        "if lane.kept and not overdue and resident.missed:", "if not lane.model:",
        ("tests/unit/domain/scheduling/test_brain.py",),
    ),
    Mutant(
        "never-waits-its-turn", "who can never be there is told that others go first",
        "backend/vllm_mm/domain/scheduling/board.py",
        "return self._never(lane) or self._behind(lane, claims)", "return self._behind(lane, claims)",
        ("tests/unit/domain/scheduling/test_brain.py",),
    ),
    Mutant(
        "overdue-loads-are-stale", "a load for somebody overdue gives way to each new request of its victim",
        "backend/vllm_mm/engine/swaps.py",
        "            if victim.gate.count and not load.overdue:\n", "            if victim.gate.count:\n",
        ("tests/unit/manager/test_races.py::test_the_overdue_take_the_room_of_who_is_used_again_meanwhile",),
    ),
    Mutant(
        "last-word-forgotten", "what an operator stops comes back because it is pinned or scheduled",
        "backend/vllm_mm/engine/wishes.py", "        self._dismissed.add(model)\n", "",
        ("tests/unit/control/test_wishes.py",),
    ),
    Mutant(
        "old-pin-outlives-a-declaration", "a pin over the API is stronger than what is declared after it",
        "backend/vllm_mm/engine/wishes.py",
        "            if new is None or new.pinned != old.pinned:\n", "            if new is None:\n",
        ("tests/unit/control/test_wishes.py",),
    ),
    Mutant(
        "slots-have-no-eta", "who waits for a slot is told the time of a load",
        "backend/vllm_mm/engine/manager.py",
        "instance.state is not State.READY or instance.gate.free or position < 1:", "instance is not None:",
        ("tests/unit/manager/test_expectations.py",),
    ),
    Mutant(
        "plan-without-its-load", "a plan says who sleeps as if the load itself took no room",
        "backend/vllm_mm/engine/swaps.py",
        "            ledger = memory.ledger.promise(load.model, load.device_bytes, load.victims)\n",
        "            ledger = memory.ledger\n",
        ("tests/unit/control/test_plan.py",),
    ),
    Mutant(
        "usage-asked-against-the-clients-wish", "who asked for usage in every event is asked for it once more, differently",
        "backend/vllm_mm/gateway/asked_usage.py",
        "    if any(bytes(body[member.value : member.end]) not in _NO for member in last.values()):\n        return None\n", "",
        ("tests/unit/gateway/test_asked_usage.py::test_what_stays",),
    ),
    Mutant(
        "usage-of-others-taken", "an event with usage that was not asked for is taken out, although it has text",
        "backend/vllm_mm/gateway/asked_usage.py",
        'if found.choices == [] and usage.startswith(b"{")', 'if usage.startswith(b"{")',
        ("tests/unit/gateway/test_asked_usage.py::test_what_is_not_asked_for_stays",),
    ),
    Mutant(
        "half-an-event-passes", "a piece that ends within an event passes, and the rest of that event is looked at alone",
        "backend/vllm_mm/gateway/asked_usage.py",
        "if not self._slow and piece.endswith(self._end) and", "if not self._slow and",
        ("tests/unit/gateway/test_asked_usage.py::test_only_that_event_goes",),
    ),
    Mutant(
        "sent-again-to-the-living", "a request is sent again although the engine that has it lives",
        "backend/vllm_mm/gateway/again.py",
        "return now.generation != generation or now.state is State.STOPPED", "return True",
        ("tests/integration/test_sent_again.py::test_a_launch_that_lives_is_asked_once",),
    ),
    Mutant(
        "sent-again-and-again", "a request is sent a third time",
        "backend/vllm_mm/gateway/forward.py",
        "            for last in (False, True):\n", "            for last in (False, False, True):\n",
        ("tests/integration/test_sent_again.py::test_a_second_death_is_told",),
    ),
    Mutant(
        "half-sent-is-lost", "a request that was not sent whole is not sent again",
        "backend/vllm_mm/engine/http1.py",
        "self.unsent = self._unblocked is not None", "self.unsent = False",
        ("tests/integration/test_sent_again.py::test_a_body_that_was_not_sent_whole_is_sent_again",),
    ),
    Mutant(
        "stall-while-frozen", "a stream is ended for standing still with its engine asleep",
        "backend/vllm_mm/gateway/stall.py",
        "meter.size != relay.seen_size or frozen != relay.seen_frozen or exchange.paused", "meter.size != relay.seen_size",
        ("tests/integration/test_told.py::test_time_in_a_sleeping_engine_does_not_count",),
    ),
    Mutant(
        "suspects-go-free", "an engine that is suspected does not have to prove itself",
        "backend/vllm_mm/engine/watch.py",
        "            if now - quiet_since < stuck and not suspect:\n", "            if now - quiet_since < stuck:\n",
        ("tests/unit/engine/test_watch.py::test_a_suspected_engine_is_probed",),
    ),
    Mutant(
        "fingerprint-lost", "the fingerprint goes with the event that was taken out",
        "backend/vllm_mm/gateway/asked_usage.py",
        "                return self._named(before) if before else b\"\"\n", "                return before\n",
        ("tests/unit/gateway/test_asked_usage.py::test_only_that_event_goes",),
    ),
    Mutant(
        "host-memory-taken-before-it-is-free", "a sleep begins while the sleeper that is stopped for it still holds its weights",
        "backend/vllm_mm/engine/manager.py",
        "            self._tiers.leave(model)  # it holds it until it is gone\n", "            self._tiers.release(model)\n",
        ("tests/unit/manager/test_promises.py::test_a_sleep_waits_for_the_host_memory_of_the_one_that_is_stopped_for_it",),
    ),
    Mutant(
        "frozen-weights-uncounted", "what a model with level 2 keeps in host memory for frozen requests is not counted",
        "backend/vllm_mm/engine/manager.py",
        "self._tiers.take(instance, self.ledger, frozen=after.frozen)", "self._tiers.take(instance, self.ledger)",
        ("tests/unit/manager/test_promises.py::test_what_is_frozen_takes_host_memory_also_where_sleep_takes_none",),
    ),
    Mutant(
        "sleep-goes-on-after-a-kill", "a sleep that was called off is gone on with",
        "backend/vllm_mm/engine/instance.py",
        "before.state in {State.READY, State.SUSPENDING}:", "before.state is State.READY:",
        ("tests/unit/manager/test_promises.py::test_a_sleep_that_is_called_off_is_not_gone_on_with",),
    ),
    Mutant(
        "failures-of-another-launch", "what is left of an earlier launch fails, and ends the present one",
        "backend/vllm_mm/engine/instance.py",
        "self.tell(lc.Unhealthy(generation, f", "self.tell(lc.Unhealthy(self._state.generation, f",
        ("tests/unit/manager/test_promises.py::test_a_failing_task_of_an_earlier_launch_does_not_end_the_present_one",),
    ),
    Mutant(
        "frozen-cut-for-a-hiccup", "a device that is out of use for a moment costs the requests that are frozen there",
        "backend/vllm_mm/engine/manager.py",
        "            and not (sleeper.gate.frozen and now < since + DEVICE_PATIENCE)\n", "",
        ("tests/unit/manager/test_promises.py::test_frozen_requests_outlive_a_device_that_is_out_of_use_for_a_while",),
    ),
    Mutant(
        "declaration-of-a-living-engine-replaced", "a frozen engine is woken with the size that was declared since",
        "backend/vllm_mm/engine/instance.py",
        "        if self.state in lc.LIVE and spec.fingerprint != self.spec.fingerprint:\n            return\n", "",
        ("tests/unit/manager/test_promises.py::test_a_cold_start_after_a_failed_wake_has_the_new_declaration_and_its_size",),
    ),
    Mutant(
        "size-of-a-sleeper-reckoned-anew", "a wake is reckoned with what would be reserved for a new launch",
        "backend/vllm_mm/engine/registry.py",
        "instance.size if instance.state is State.SLEEPING else None", "None",
        ("tests/unit/manager/test_promises.py::test_what_an_engine_was_seen_to_use_counts_for_its_wake",),
    ),
    Mutant(
        "old-room-for-a-new-declaration", "a start after a failed wake takes the room of the declaration before",
        "backend/vllm_mm/engine/swaps.py",
        "        elif instance.outdated:\n            self._decide_again(loading, \"its declaration has changed since\", {})\n", "",
        ("tests/unit/manager/test_promises.py::test_a_cold_start_after_a_failed_wake_has_the_new_declaration_and_its_size",),
    ),
    Mutant(
        "frozen-that-never-wakes", "frozen requests whose engine can never wake hang",
        "backend/vllm_mm/engine/manager.py",
        "        if sleeper is not None and sleeper.gate.frozen and sleeper.state is State.SLEEPING:\n            sleeper.tell(Kill",
        "        if sleeper is None:\n            sleeper.tell(Kill",
        ("tests/unit/manager/test_promises.py::test_frozen_requests_that_can_never_go_on_are_told_why",),
    ),
    Mutant(
        "promise-to-finish-forgotten", "a drain that cuts goes on cutting when it is joined by one that promised not to",
        "backend/vllm_mm/domain/lifecycle.py",
        "    if event.on_timeout is OnTimeout.WAIT:\n        on_timeout = OnTimeout.FREEZE if on_timeout is OnTimeout.FREEZE else OnTimeout.WAIT\n    elif",
        "    if",
        ("tests/unit/domain/test_lifecycle.py::test_a_promise_to_let_them_finish_outlives_every_other_drain",),
    ),
    Mutant(
        "log-of-a-quick-start-unread", "an engine that is ready before its log was looked at has told nothing",
        "backend/vllm_mm/engine/run.py",
        "        process.read_log()  # a start may be over sooner than its log is looked at\n", "",
        ("tests/unit/manager/test_races.py::test_what_an_engine_wrote_just_before_it_was_ready_is_read",),
    ),
    Mutant(
        "loads-hold-a-worker", "who decides waits until what was decided is written down",
        "backend/vllm_mm/engine/queue.py",
        "            task.add_done_callback(self._carrying.discard)\n",
        "            task.add_done_callback(self._carrying.discard)\n            await task\n",
        ("tests/unit/manager/test_races.py::test_a_database_that_is_locked_keeps_no_slot_from_those_who_wait_for_it",),
        more=(("    def _round(self) -> None:", "    async def _round(self) -> None:"), ("                self._round()\n", "                await self._round()\n")),
    ),
    Mutant(
        "comments-after-the-end", "a comment about a freeze may be written behind a complete answer",
        "backend/vllm_mm/gateway/relay.py", "        self.over = True\n        self.client.finish()\n", "        self.client.finish()\n",
        ("tests/unit/gateway/test_progress.py::test_nothing_follows_the_end_of_an_answer",),
    ),
    Mutant(
        "wish-made-young", "a wish that is said again begins to wait anew",
        "backend/vllm_mm/engine/wishes.py",
        "        if before is None:\n            self._wanted[model] = wish\n", "        if before is None or not before.urgent:\n            self._wanted[model] = wish\n",
        ("tests/unit/control/test_wishes.py::test_a_pinned_or_scheduled_model_gets_the_room_of_a_busy_one_after_max_wait",),
    ),
    Mutant(
        "idle-unasked-at-the-act", "who came since an idle model was looked at has it taken away",
        "backend/vllm_mm/engine/acts.py",
        "        if instance.gate.count or self.awaited(model):\n            return\n", "",
        ("tests/unit/control/test_wishes.py::test_somebody_who_comes_between_the_look_and_the_act_keeps_an_idle_model",),
    ),
    Mutant(
        "idle-before-waiters", "a sleeper that is waited for is stopped for being idle",
        "backend/vllm_mm/engine/swaps.py",
        "        return loads or self._waiting.waits(model) or", "        return (loads and not model) or",
        ("tests/unit/control/test_wishes.py::test_what_is_waited_for_is_not_stopped_for_being_idle",),
    ),
    Mutant(
        "stale-before-the-promise", "what came between the decision and the flip is not looked at",
        "backend/vllm_mm/engine/swaps.py",
        "        if self._stale(victims, load):\n", "        if not load.model:\n",
        ("tests/unit/manager/test_races.py::test_who_is_pinned_or_used_while_a_load_waits_for_its_turn_stays",),
    ),
    Mutant(
        "stale-while-written", "what came while the row of a load was written is not looked at",
        "backend/vllm_mm/engine/swaps.py",
        "        if why := self._stale(victims, load):", "        if why := \"\":",
        ("tests/unit/manager/test_races.py::test_who_is_pinned_or_used_while_the_row_of_a_load_is_written_stays",),
    ),
    Mutant(
        "orphans-unreaped-in-life", "who forked away from an engine and died stays a zombie while it runs",
        "backend/vllm_mm/engine/process.py",
        "            await self._parts.look(lambda known=known: known)\n            children.reap_orphans(rest=_WALK_SECONDS)\n",
        "            await self._parts.look(lambda known=known: known)\n",
        ("tests/process/test_local_launcher.py::test_who_forked_away_and_died_unseen_is_reaped_while_the_engine_runs",),
    ),
    Mutant(
        "leaders-reaped-as-orphans", "the exit of an engine is collected by whoever looks for orphans",
        "backend/vllm_mm/engine/children.py",
        "stat.sid == own or pid in _awaited", "stat.sid == own",
        ("tests/process/test_local_launcher.py::test_the_exit_of_a_leader_is_left_to_its_launch",),
    ),
    manager(
        "lock-over-the-swap", "`_swap_inflight` is held until the engine is ready (the first story)",
        "engine/swaps.py",
        "            loading = await self._flip(load)\n",
        "            loading = await self._flip(load)\n            if loading is not None:\n"
        "                await self._swap_in(loading)\n                await loading.done.wait()\n                return\n",
        "test_lock_is_not_held_while_an_engine_stops", "test_lock_is_not_held_while_an_engine_starts",
    ),
    manager(
        "slot-kept-after-success", "the loading slot is not cleared when the load succeeded",
        "engine/swaps.py",
        "        loading = self._loading_events.pop(model, None)\n",
        "        loading = self._loading_events.get(model) if ok else self._loading_events.pop(model, None)\n",
        "test_loading_slot_is_cleared_after_success",
    ),
    manager(
        "slot-kept-after-failure", "the loading slot is not cleared when the start failed",
        "engine/swaps.py",
        "        loading = self._loading_events.pop(model, None)\n",
        "        loading = self._loading_events.pop(model, None) if ok else self._loading_events.get(model)\n",
        "test_failed_start_clears_the_slot_and_answers_every_waiter",
    ),
    manager(
        "waiters-not-told", "a failed start does not answer those who wait",
        "engine/swaps.py",
        "            self._waiting.fail(model, self._start_failed(instance, reason))\n",
        "            pass\n",
        "test_failed_start_clears_the_slot_and_answers_every_waiter",
    ),
    Mutant(
        "start-not-shared", "a starting instance starts again when told to (the last of four guards of the one start)",
        "backend/vllm_mm/domain/lifecycle.py",
        "    match i.state:\n        case State.STOPPED:\n            after = _goto(\n",
        "    match i.state:\n        case State.STOPPED | State.STARTING:\n            after = _goto(\n",
        ("tests/unit/domain",),
    ),
    manager(
        "fast-path-locks", "the fast path takes `_swap_inflight`",
        "engine/leasing.py",
        "        lease = self._manager.fast_lease(self._ticket)\n",
        "        async with self._manager._swap_inflight:\n            lease = self._manager.fast_lease(self._ticket)\n",
        "test_fast_path_takes_no_lock_and_no_queue",
    ),
    manager(
        "fast-path-gone", "every request goes through the queue",
        "engine/manager.py",
        "        if self._waiting.waits(ticket.model):\n            return None\n",
        "        if ticket.model:\n            return None\n",
        "test_fast_path_takes_no_lock_and_no_queue",
    ),
    manager(
        "newcomers-pass", "a newcomer takes the slot that others wait for",
        "engine/manager.py",
        "        if self._waiting.waits(ticket.model):\n            return None\n",
        "",
        "test_fast_path_does_not_pass_those_who_wait",
    ),
    manager(
        "loads-one-by-one", "loads of different models wait for each other on any device",
        "domain/ledger.py",
        'PROFILES_MEMORY = frozenset({"gpu", "sim"})',
        'PROFILES_MEMORY = frozenset({"gpu", "sim", "test"})',
        "test_different_targets_load_concurrently",
    ),
    manager(
        "profiles-together", "two engines size their memory on one GPU at once",
        "domain/ledger.py",
        'PROFILES_MEMORY = frozenset({"gpu", "sim"})',
        "PROFILES_MEMORY = frozenset[str]()",
        "test_one_memory_profile_at_a_time_on_a_device",
    ),
    manager(
        "lease-for-anybody", "a Lease can be made without the gate",
        "engine/lease.py",
        "        if key is not _ONLY_THE_GATE:\n",
        "        if key is None:\n",
        "test_a_lease_cannot_be_made",
    ),
    manager(
        "lease-for-ever", "a lease that is over still sends",
        "engine/lease.py",
        "        if not self._gate.holds(self):\n",
        "        if self._gate is None:\n",
        "test_a_lease_that_is_over_sends_nothing",
    ),
    manager(
        "stop-during-a-lease", "the exclusive side does not wait for leases",
        "engine/lease.py",
        "        if not self._leases and self._on_gone is not None:\n",
        "        if self._on_gone is not None:\n",
        "test_exclusive_side_waits_for_the_lease_and_comes_at_once_after_it",
    ),
    manager(
        "exclusive-side-forgotten", "the end of the last lease is not reported",
        "engine/lease.py",
        "        if self._on_gone is not None:\n            self._report_if_gone()\n        elif self._open:\n",
        "        if self._open:\n",
        "test_exclusive_side_waits_for_the_lease_and_comes_at_once_after_it",
    ),
    manager(
        "leases-while-draining", "a closed gate still gives leases",
        "engine/lease.py",
        "        self._open = False\n        self._on_gone = on_gone\n",
        "        self._on_gone = on_gone\n",
        "test_no_lease_while_draining",
    ),
    manager(
        "lease-leaks-on-error", "a lease is given back only when the work went well",
        "engine/leasing.py",
        "        if self._lease is not None:\n            self._manager.take_back(",
        "        if self._lease is not None and _[0] is None:\n            self._manager.take_back(",
        "test_lease_is_released_when_the_work_throws",
    ),
    manager(
        "granted-to-nobody", "a lease granted to a request that was cancelled meanwhile is not taken back",
        "engine/queue.py",
        "                self._manager.take_back(waiter.lease.result())\n",
        "                pass\n",
        "test_a_lease_given_to_a_request_that_was_cancelled_meanwhile_is_taken_back",
    ),
    manager(
        "memory-given-too-early", "a dead leader's memory is given away before its tree is reaped",
        "engine/manager.py",
        "        if before.state in lc.LIVE and after.state not in lc.LIVE:\n",
        "        if before.state in lc.LIVE and (after.state not in lc.LIVE or after.state is State.STOPPING):\n",
        "test_memory_is_held_until_the_tree_is_reaped",
    ),
    manager(
        "exit-0-is-fine", "an engine that exits unasked is not noticed",
        "engine/run.py",
        "        self._actor.tasks.run(self._watch_life(process))\n",
        "",
        "test_death_of_an_engine_ends_its_exchanges_at_once",
    ),
    Mutant(
        "parts-not-watched", "the death of an engine core or a worker is left to the API server to notice",
        "backend/vllm_mm/engine/parts.py",
        "        self._loop.add_reader(fd, self._ended, identity, title)\n",
        "",
        ("tests/process/test_parts.py",),
    ),
    Mutant(
        "any-child-is-a-part", "a fork that a worker makes for an errand counts as a worker",
        "backend/vllm_mm/engine/parts.py",
        "        if not forked and after",
        "        if after",
        ("tests/process/test_parts.py::test_helpers_come_and_go",),
    ),
    Mutant(
        "a-stop-is-a-loss", "what ends in a stop counts as a crash",
        "backend/vllm_mm/engine/process.py",
        "        self._parts.close()\n        if self._gone:\n",
        "        if self._gone:\n",
        ("tests/process/test_parts.py::test_the_end_of_a_part_in_a_stop_is_no_loss",),
    ),
    Mutant(
        "loss-without-consequence", "a lost core is seen, and nothing follows",
        "backend/vllm_mm/engine/watch.py",
        "        await asyncio.wait({exited, lost}, return_when=asyncio.FIRST_COMPLETED)\n",
        "        await exited\n",
        ("tests/unit/manager/test_deaths.py::test_loss_of_a_core_is_a_crash_although_the_leader_lives",),
    ),
    Mutant(
        "abort-forgets", "an exchange whose task was cancelled while it awaited the answer keeps its connection",
        "backend/vllm_mm/engine/wire/inference.py",
        "        connection, self._connection = self._connection, None\n        if connection is not None:\n            self._boundary",
        "        if self.done.done():\n            return\n"
        "        connection, self._connection = self._connection, None\n        if connection is not None:\n            self._boundary",
        ("tests/integration/test_wire.py::test_abort_closes_although_the_waiter_was_cancelled",),
    ),
    manager(
        "drain-without-end", "a drain has no deadline",
        "domain/lifecycle.py",
        "goal=event.goal, deadline=now + event.timeout,",
        "goal=event.goal, deadline=now + 1e9,",
        "test_a_drain_that_takes_too_long_is_cut_and_told",
    ),
    Mutant(
        "forks-with-threads", "a process with several threads is forked",
        "backend/vllm_mm/engine/launchers/zygote.py", "    if threads != 1:\n", "    if threads < 0:\n",
        ("tests/unit/engine/test_zygote.py",),
    ),
    Mutant(
        "unknown-engine-lives", "an engine goes on without its owner's word",
        "backend/vllm_mm/engine/launchers/zygote.py", "            if out.recv(1) != GO:\n", "            if out.recv(1) is None:\n",
        ("tests/process/test_warm_kills.py::test_an_engine_that_nobody_knows_ends_itself",),
    ),
    Mutant(
        "engine-inherits", "an engine keeps what its zygote has open",
        "backend/vllm_mm/engine/launchers/zygote.py",
        "    os.closerange(3, answer)\n    os.closerange(answer + 1, 65536)\n", "",
        ("tests/process/test_warm_launcher.py::test_nothing_is_inherited_but_the_log",),
    ),
    Mutant(
        "zygotes-tmpdir", "Python's copy of TMPDIR is the zygote's", "backend/vllm_mm/engine/launchers/zygote.py",
        '        setattr(temporary, "tempdir", None)', "        pass",
        ("tests/process/test_warm_launcher.py::test_nothing_is_inherited_but_the_log",),
        more=(("    _keep_titles_short()\n    start", "    importlib.import_module('tempfile').gettempdir()\n    _keep_titles_short()\n    start"),),
    ),
    Mutant(
        "zygotes-constants", "a constant that an import made of the zygote's TMPDIR stays", "backend/vllm_mm/engine/launchers/zygote.py",
        "        setattr(sys.modules[module], name, folder + rest)", "        pass",
        ("tests/process/test_warm_launcher.py::test_nothing_is_inherited_but_the_log",),
    ),
    Mutant(
        "zygote-outlives-owner", "a zygote in an import does not see that its owner is gone",
        "backend/vllm_mm/engine/launchers/zygote.py", "    _die_with_owner(channel)\n", "",
        ("tests/process/test_warm_launcher.py::test_a_zygote_ends_with_its_owner",),
    ),
    Mutant(
        "abandoned-engine", "the engine of a start that was cancelled lives on",
        "backend/vllm_mm/engine/launchers/forker.py",
        "            work.add_done_callback(self._discard)\n            raise\n", "            raise\n",
        ("tests/process/test_warm_launcher.py::test_an_engine_that_nobody_waits_for_is_ended",),
    ),
    Mutant(
        "still-zygote", "a zygote that does nothing is waited for", "backend/vllm_mm/engine/launchers/stillness.py",
        "        still = still + 1 if now == seen else 0\n", "        still = 0\n",
        ("tests/unit/engine/test_stillness.py",),
    ),
    Mutant(
        "secrets-in-zygotes", "a zygote holds secrets", "backend/vllm_mm/engine/launchers/recipe.py",
        "if k not in LATE and not SECRET.search(k)", "if k not in LATE",
        ("tests/unit/engine/test_recipe.py",),
    ),
    Mutant(
        "old-zygote-stays", "a change of what is installed does not make a new zygote",
        "backend/vllm_mm/engine/launchers/recipe.py", "kept, installed(python, packages))", 'kept, "")',
        ("tests/unit/engine/test_recipe.py",),
    ),
    Mutant(
        "zygotes-without-end", "a zygote that never forks is made again and again",
        "backend/vllm_mm/engine/launchers/pool.py",
        "        count = 0 if zygote.forks else self._failures.get(recipe, (0, \"\"))[0]\n", "        count = 0\n",
        ("tests/unit/engine/test_pool.py",),
    ),
    Mutant(
        "busy-zygote-goes", "a zygote that is in the middle of something counts as idle",
        "backend/vllm_mm/engine/launchers/pool.py", "            if zygote.busy:\n                continue\n", "",
        ("tests/unit/engine/test_pool.py",),
    ),
    Mutant(
        "blamed-for-ever", "a launcher is not vindicated", "backend/vllm_mm/engine/launchers/warm.py",
        "            self._distrusted.pop((plan.fingerprint, key), None)\n", "            pass\n",
        ("tests/process/test_warm_launcher.py::test_a_plan_is_vindicated",),
    ),
    Mutant(
        "frozen-for-ever", "a wake does not thaw", "backend/vllm_mm/engine/lease.py",
        "        since, self.frozen_since = self.frozen_since, None\n", "        since = self.frozen_since\n",
        ("tests/unit/manager/test_freeze.py",),
    ),
    Mutant(
        "cut-instead-of-frozen", "a drain that may freeze revokes", "backend/vllm_mm/domain/lifecycle.py",
        "    return after, (FreezeLeases(i.reason), Suspend(keep=True),", "    return after, (RevokeLeases(False, i.reason), Suspend(),",
        ("tests/unit/manager/test_freeze.py",),
    ),
    Mutant(
        "kept-by-nobody", "the engine is not told to keep its requests", "backend/vllm_mm/engine/wire/control.py",
        '        params = {"level": str(level), "mode": "keep"} if keep else', '        params = {"level": str(level)} if keep else',
        ("tests/integration/test_wire_control.py::test_sleep_and_wake",),
    ),
    Mutant(
        "ready-before-thaw", "a model is READY again while its leases are marked as frozen", "backend/vllm_mm/domain/lifecycle.py",
        "        case BecameReady(), State.WAKING if i.frozen:\n            return _thawed(i, now)\n", "",
        ("tests/stateful/test_lifecycle_machine.py",),
    ),
    Mutant(
        "dead-and-frozen", "an engine that dies asleep leaves its frozen leases", "backend/vllm_mm/domain/lifecycle.py",
        "    elif i.frozen:\n        effects.append(RevokeLeases(died=died, reason=reason))\n", "",
        ("tests/unit/manager/test_freeze.py::test_the_death_of_a_frozen_engine_is_told",),
    ),
    Mutant(
        "sessions-frozen", "a realtime session stands still in a sleeping engine", "backend/vllm_mm/engine/lease.py",
        "live = [lease for lease in self._leases if lease.ticket.live]", "live: list[Lease] = []",
        ("tests/unit/manager/test_freeze.py::test_a_live_session_is_cut_where_others_are_frozen",),
    ),
    Mutant(
        "session-outlives-drain", "a session holds up a drain until it ends by itself", "backend/vllm_mm/gateway/realtime_session.py",
        "        if drains:\n", "        if drains and False:\n",
        ("tests/integration/test_realtime_frames.py::test_what_drains_waits_for_a_session_as_long_as_the_setting_says",),
    ),
    Mutant(
        "session-of-who-left", "an engine goes on with a session whose client is gone", "backend/vllm_mm/gateway/realtime_session.py",
        "            self._upstream.abort(RequestCut(\"the client closed its connection\"))\n        if self.task is not None:\n            self.task.cancel()",
        "            pass",
        ("tests/integration/test_realtime_frames.py::test_a_client_that_leaves_without_a_goodbye",),
    ),
    Mutant(
        "session-without-end", "a silent session holds its slot for ever", "backend/vllm_mm/gateway/realtime_session.py",
        "        if left > 0:\n", "        if left > -1e9:\n",
        ("tests/integration/test_realtime_frames.py::test_a_silent_session_ends",),
    ),
    Mutant(
        "session-from-any-page", "a page of any origin opens sessions with the key of its visitor", "backend/vllm_mm/gateway/realtime.py",
        "        if origin is not None and origin.partition", "        if False and origin is not None and origin.partition",
        ("tests/integration/test_realtime_frames.py::test_a_handshake_is_refused_as_any_request",),
    ),
    Mutant(
        "session-held-without-bound", "a client that never names its model is held without a bound", "backend/vllm_mm/gateway/realtime_session.py",
        "        if len(self._held) > UNNAMED or self._held_size > UNNAMED_SIZE:\n", "        if False:\n",
        ("tests/integration/test_realtime_frames.py::test_too_many_events_before_the_model", "tests/integration/test_realtime_frames.py::test_too_many_bytes_before_the_model"),
    ),
    Mutant(
        "frozen-load-called-off", "the wake of frozen requests ends with the last ticket", "backend/vllm_mm/engine/manager.py",
        " or self._instances[model].gate.frozen\n", "\n",
        ("tests/unit/manager/test_freeze.py::test_a_wake_for_frozen_requests_is_not_called_off",),
    ),
    Mutant(
        "eta-without-room", "an ETA forgets the drain and stop of those who make room", "backend/vllm_mm/engine/forecast.py",
        "                span = span.with_at_least(self._estimator.going(instance, self._goal(instance)))", "                pass",
        ("tests/unit/manager/test_forecasts.py::test_the_room_counts",),
    ),
    Mutant(
        "forecast-of-who-left", "a forecast made for somebody who left is compared with a later load",
        "backend/vllm_mm/engine/manager.py",
        "        if model not in self._loading_events:\n            self.forecast.forget(model)\n", "",
        ("tests/unit/manager/test_forecasts.py::test_who_leaves_takes_its_prediction_along",),
    ),
    Mutant(
        "ending-is-a-stranger", "an engine that is ending counts as a stranger on its device",
        "backend/vllm_mm/engine/devices/polled.py",
        "            return known.get(pid) == stat.id\n", "            return False\n",
        ("tests/unit/engine/test_devices.py::test_an_engine_that_is_ending_is_still_ours",),
    ),
    Mutant(
        "comment-in-an-event", "a comment is written into the middle of an event", "backend/vllm_mm/gateway/relay.py",
        "        return self.meter.ends_event() and", "        return",
        ("tests/integration/test_frozen_streams.py::test_no_comment_stands_inside_an_event",),
    ),
    Mutant(
        "stranger-not-seen", "no fresh reading before a start", "backend/vllm_mm/engine/swaps.py",
        "        if self._tools.inventory.age() <= FRESH:\n            return\n", "        return\n",
        (f"{STRANGERS}::test_a_stranger_that_came_after_the_last_reading_is_seen_before_a_start",),
    ),
    Mutant(
        "promise-outlives-its-room", "a load waits on for room that a stranger took", "backend/vllm_mm/engine/room.py",
        "        if reason := self.ledger.broken(model):\n            raise ValueError(reason)\n", "",
        (f"{STRANGERS}::test_a_stranger_that_takes_the_room_while_a_victim_leaves_is_planned_around",),
    ),
    Mutant(
        "start-without-a-last-look", "a start does not look whether the room is still there",
        "backend/vllm_mm/engine/swaps.py", "            self._room.confirm(model)\n", "",
        (f"{STRANGERS}::test_a_stranger_that_comes_with_the_last_of_the_room_is_seen_before_the_process_is_started",),
    ),
    Mutant(
        "sick-devices-are-used", "placement takes a device that is out of use", "backend/vllm_mm/domain/residency.py",
        "    sound = [[d for d in p if not ledger.devices[d].problem] for p in pools]\n", "    sound = pools\n",
        ("tests/unit/domain/test_placement.py", "tests/unit/domain/test_residency.py"),
    ),
    Mutant(
        "spread-is-pack", "placement packs whatever is set", "backend/vllm_mm/domain/residency.py",
        "        sign = -1 if self.spread else 1\n", "        sign = 1\n", ("tests/unit/domain/test_placement.py",),
    ),
    Mutant(
        "lent-room-counted-twice", "what a borrower uses is taken from the models a second time",
        "backend/vllm_mm/domain/ledger.py",
        "        return seen - min(sum(r.device_bytes[device] for r in lets), seen - before)\n", "        return seen\n",
        ("tests/unit/domain/test_residency.py::test_memory_that_was_let_is_not_taken_away_twice",),
    ),
    Mutant(
        "comeback-for-ever", "a model that comes back after a lease waits for its room for ever",
        "backend/vllm_mm/control/device_leases.py",
        '            return True, "there is no room for it"\n', '            return False, ""\n',
        ("tests/unit/manager/test_device_leases.py::test_what_cannot_come_back_is_told_with_the_reason",),
    ),
    Mutant(
        "reservation-stays", "an engine that uses more than was reserved keeps its reservation",
        "backend/vllm_mm/control/readings.py",
        "            self._manager.exceeded(record.model, over)\n", "            pass\n",
        ("tests/unit/control/test_readings.py::test_an_engine_that_uses_more_than_was_reserved_has_more_reserved",),
    ),
    Mutant(
        "share-of-the-capacity", "the fraction is reckoned of what was configured, though vLLM takes it of all there is",
        "backend/vllm_mm/engine/command.py",
        "max(d.capacity, d.total)", "d.capacity",
        ("tests/unit/engine/test_command.py::test_what_is_reserved_becomes_the_fraction_when_nothing_is_declared",),
    ),
    Mutant(
        "too-little-for-ever", "a start that had too little memory is given up, though its log told how much it needs",
        "backend/vllm_mm/engine/run.py",
        " and not (more and known.kind in _TOO_LITTLE)", "",
        ("tests/unit/control/test_readings.py::test_a_start_that_had_too_little_memory_is_given_more_at_the_next",),
    ),
    Mutant(
        "newcomers-before-the-overdue", "whoever has more waiting goes before an overdue model, whenever it came",
        "backend/vllm_mm/domain/scheduling/order.py",
        "        behind = first <= min(now, since)\n", "        behind = first <= min(now, since - 1e9)\n",
        ("tests/unit/domain/scheduling/test_brain.py",),
    ),
    Mutant(
        "busy-never-go", "nobody overdue takes room from a busy model",
        "backend/vllm_mm/domain/scheduling/worth.py",
        "    return max(dwelt, resident.ready_since + rules.stay) if overdue else inf\n", "    return inf\n",
        ("tests/stateful/test_scheduling_adversary.py",),
    ),
    Mutant(
        "overdue-keeps-no-room", "others take the room that an overdue model is about to have",
        "backend/vllm_mm/domain/scheduling/board.py",
        "            self._closed |= dict.fromkeys(there.device_bytes, (lane.model, at))\n", "            pass\n",
        ("tests/unit/domain/scheduling/test_brain.py",),
    ),
    Mutant(
        "keys-without-turns", "the slots of a model go by arrival, whosever requests they are",
        "backend/vllm_mm/domain/scheduling/fairness.py",
        "            ahead[key] = clock + 1 / max(ticket.weight, LIGHTEST)\n", "            ahead[key] = clock\n",
        ("tests/unit/domain/scheduling/test_fairness.py",),
    ),
    Mutant(
        "turns-forgotten", "the queue forgets whose turn it is between two grants",
        "backend/vllm_mm/engine/queue.py",
        "        lane.turns = decision.turns\n", "        pass\n",
        ("tests/unit/manager/test_expectations.py",),
    ),
    Mutant(
        "nothing-learned", "requests that come teach nothing",
        "backend/vllm_mm/engine/manager.py",
        "        self._expectations.arrived(ticket.model, ticket.arrived)\n", "",
        ("tests/unit/manager/test_expectations.py",),
    ),
    Mutant(
        "lying-sleep-believed", "an engine that says that it sleeps is believed without a look at its memory",
        "backend/vllm_mm/engine/sleeping.py",
        "        if gave_back(before, kept):\n",
        "        if gave_back(before, {}):\n",
        ("tests/unit/manager/test_tiers.py::test_a_sleep_that_gives_nothing_back_is_a_stop",),
    ),
    Mutant(
        "stays-given-away", "what stays of one that is told to sleep is promised to others",
        "backend/vllm_mm/domain/ledger.py",
        "        return (self.stays if self.leaving else self.device_bytes).get(device, 0)\n",
        "        return (0 if self.leaving else self.device_bytes.get(device, 0))\n",
        ("tests/unit/domain/test_residency.py::test_who_leaves_for_a_sleep_keeps_what_stays",),
    ),
    Mutant(
        "stays-unwritten", "one that is told to sleep counts as gone with all that it has",
        "backend/vllm_mm/engine/room.py",
        "        self._set(self.ledger.leave(model, stays))\n",
        "        self._set(self.ledger.leave(model))\n",
        ("tests/unit/manager/test_tiers.py::test_an_undrained_victim_keeps_all_of_its_memory",),
    ),
    Mutant(
        "stays-doubted", "a leaver may keep what was promised to somebody else meanwhile",
        "backend/vllm_mm/domain/ledger.py",
        "            if own.leaving and size > max(left.free_after_leaving(device), own.lasting(device)):\n",
        "            if own.leaving and size > own.device_bytes.get(device, 0):\n",
        ("tests/unit/manager/test_tiers.py::test_what_would_stay_has_to_fit_beside_the_load",),
    ),
    Mutant(
        "refused-at-each-look", "a pinned model that can never fit is refused, with an event, every two seconds",
        "backend/vllm_mm/engine/manager.py",
        "        if self._wishes.drop(model) and self._wishes.refuse(model, error.message):\n",
        "        if self._wishes.drop(model):\n            self._wishes.refuse(model, error.message)\n",
        ("tests/unit/control/test_background.py::test_a_pinned_model_that_can_never_fit_is_refused_once_and_to_everybody_who_asks",),
    ),
    Mutant(
        "lying-wake-believed", "what an engine answers after its wake is not compared with what it answered before",
        "backend/vllm_mm/engine/watch.py",
        "        if before is not None and answer != before:\n            raise Untrue(",
        "        if not self.control:\n            raise Untrue(",
        ("tests/unit/manager/test_tiers.py::test_a_wake_that_fails_becomes_a_start_in_the_same_load",),
    ),
    Mutant(
        "failed-wake-answered", "a wake that fails answers those who wait instead of becoming a start",
        "backend/vllm_mm/domain/lifecycle.py",
        "    if i.state in LOADING and then is not Then.COLD:\n",
        "    if i.state in LOADING:\n",
        ("tests/unit/manager/test_tiers.py::test_a_wake_that_fails_becomes_a_start_in_the_same_load",),
    ),
)  # fmt: skip


class Workshop:
    """A copy of the product in which one mutant after the other is tried. What Python compiled in it stays for the next."""

    def __init__(self, folder: Path) -> None:
        self._root = folder
        for part in ("backend", "tests", "migrations"):
            shutil.copytree(ROOT / part, folder / part, ignore=shutil.ignore_patterns("static", "node_modules"))
        for part in ("pyproject.toml", "README.md"):
            shutil.copy(ROOT / part, folder / part)

    def survives(self, mutant: Mutant) -> str | None:
        """Why the mutant is a problem, or None when the tests noticed it."""
        file = self._root / mutant.file
        source = changed = file.read_text()
        for old, new in ((mutant.old, mutant.new), *mutant.more):
            if changed.count(old) != 1:
                return f"its text occurs {changed.count(old)} times in {mutant.file}: rewrite the mutant\n{old}"
            changed = changed.replace(old, new)
        try:
            self._write(file, changed)
            run = subprocess.run(
                [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "--timeout=60", *mutant.tests],
                cwd=self._root, capture_output=True, text=True, check=False,
            )  # fmt: skip
        finally:
            self._write(file, source)
        if run.returncode == 1:
            return None
        if run.returncode == 0:
            return f"SURVIVED: {mutant.what}, and {', '.join(mutant.tests)} did not notice"
        return f"pytest could not run (exit {run.returncode}):\n{run.stdout[-2000:]}{run.stderr[-2000:]}"

    def _write(self, file: Path, text: str) -> None:
        """Also out of Python's cache, which goes by times in whole seconds."""
        file.write_text(text)
        for compiled in (file.parent / "__pycache__").glob(f"{file.stem}.*"):
            compiled.unlink()


def main(names: list[str]) -> int:
    unknown = set(names) - {m.name for m in MUTANTS}
    if unknown:
        print(f"no such mutant: {', '.join(sorted(unknown))}")
        return 2
    chosen = [m for m in MUTANTS if not names or m.name in names]
    began, problems = time.monotonic(), 0
    local = threading.local()
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder, ThreadPoolExecutor(WORKERS) as pool:

        def survives(mutant: Mutant) -> str | None:
            if not hasattr(local, "workshop"):
                local.workshop = Workshop(Path(tempfile.mkdtemp(dir=folder)))
            return local.workshop.survives(mutant)

        for mutant, problem in zip(chosen, pool.map(survives, chosen), strict=True):
            problems += problem is not None
            print(
                f"{'killed ' if problem is None else 'PROBLEM'} {mutant.name}{'' if problem is None else ': ' + problem}",
                flush=True,
            )
    print(f"{len(chosen) - problems} of {len(chosen)} mutants killed in {time.monotonic() - began:.0f} s")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
