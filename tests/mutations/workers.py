"""Several data-plane processes and the leases that they are lent."""

from mutations.kinds import Mutant

MUTANTS: tuple[Mutant, ...] = (
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
        'self.wire.fail(f"it did not answer', 'str(f"it did not answer',
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
        "hanging-worker-waited-for", "a connection waits for a worker that has fewer and does not come",
        "backend/vllm_mm/main/accepting.py",
        "        self._loop.add_reader(self._listener.fileno(), self._ready)\n        self._accept()\n",
        "        self._loop.add_reader(self._listener.fileno(), self._ready)\n",
        ("tests/unit/main/test_accepting.py::test_a_process_that_hangs_keeps_no_connection_from_the_others",),
    ),
    Mutant(
        "worker-suspects-in-vain", "an engine of which a worker gets nothing is never looked at",
        "backend/vllm_mm/engine/lending/borrower.py",
        "                self._wire.send(say.Suspect(name, model.gate.generation, more))\n", "",
        ("tests/unit/manager/test_lending.py::test_a_stream_that_a_worker_gives_up_makes_its_engine_prove_itself",),
    ),
    Mutant(
        "dead-worker-asked-for-ever", "who asks what a worker has under way waits for one that is gone",
        "backend/vllm_mm/engine/lending/answers.py",
        "        for number, (_, otherwise) in tuple(self._asked.items()):\n            self.heard(number, otherwise)\n", "",
        ("tests/unit/manager/test_lending.py::test_what_is_under_way_is_known_of_all_workers",),
    ),
    Mutant(
        "lists-what-is-over", "a request whose answer is complete is listed as one under way",
        "backend/vllm_mm/gateway/underway.py",
        "[r for r in relays if not r.over]", "list(relays)",
        ("tests/unit/gateway/test_underway.py::test_each_stage_of_a_request_is_told_with_its_times",),
    ),
    Mutant(
        "list-without-bound", "all requests under way are listed, however many there are",
        "backend/vllm_mm/gateway/underway.py",
        "nsmallest(most, everything", "nsmallest(1 << 30, everything",
        ("tests/unit/gateway/test_underway.py::test_no_more_than_asked_for_and_the_oldest_first",),
    ),
)  # fmt: skip
