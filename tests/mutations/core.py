"""The functional core: lifecycle, ledger, scheduling, estimates."""

from mutations.kinds import Mutant, manager

MUTANTS: tuple[Mutant, ...] = (
    Mutant(
        "brackets-without-end", "what rules do on a body has no bound",
        "backend/vllm_mm/domain/body_edits.py",
        "        if steps < 0:\n", "        if steps < -(1 << 40):\n",
        ("tests/unit/domain/test_request_rules.py::test_too_many_brackets_are_too_much",),
        more=(("    while steps >= 0:\n", "    while True:\n"),),
    ),
    Mutant(
        "victims-reckoned-alone", "each victim of a load is reckoned as if the others took none of the host's memory",
        "backend/vllm_mm/domain/partings.py", "        memory = _after(memory, goer, parting, own)\n", "",
        ("tests/unit/domain/test_partings.py",),
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
        "one-key-fills-the-queue", "a key has all places although others ask",
        "backend/vllm_mm/domain/scheduling/shares.py", "places.other_keys and places.by_key >= free", "False",
        ("tests/unit/manager/test_queue.py::test_one_key_or_one_model_leaves_places_for_the_others",),
    ),
    Mutant(
        "kept-counts-as-waiting", "what is only kept ready counts as somebody who waits, for whom others have to go",
        "backend/vllm_mm/domain/scheduling/board.py",
        "rivals = [lane for lane in within if not lane.kept and lane.may_evict]",
        "rivals = [lane for lane in within if lane.may_evict]",
        ("tests/unit/domain/scheduling/test_brain.py",),
    ),
    Mutant(
        "rights-ignored", "others go for those whose keys may not have that", "backend/vllm_mm/domain/scheduling/board.py",
        "        if not lane.may_evict:\n            return inf\n", "",
        ("tests/unit/domain/scheduling/test_rights.py",),
    ),
    Mutant(
        "rights-claimed", "who waits without the right to have others go is overdue all the same",
        "backend/vllm_mm/domain/scheduling/words.py",
        "for t in self.tickets if t.evicts]\n        if times and", "for t in self.tickets]\n        if times and",
        ("tests/unit/domain/scheduling/test_rights.py",),
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
        "promise-to-finish-forgotten", "a drain that cuts goes on cutting when it is joined by one that promised not to",
        "backend/vllm_mm/domain/lifecycle.py",
        "    if event.on_timeout is OnTimeout.WAIT:\n        on_timeout = OnTimeout.FREEZE if freezes else OnTimeout.WAIT\n    elif",
        "    if",
        ("tests/unit/domain/test_lifecycle.py::test_a_promise_to_let_them_finish_outlives_every_other_drain",),
    ),
    Mutant(
        "start-not-shared", "a starting instance starts again when told to (the last of four guards of the one start)",
        "backend/vllm_mm/domain/lifecycle.py",
        "    match i.state:\n        case State.STOPPED:\n            after = _goto(\n",
        "    match i.state:\n        case State.STOPPED | State.STARTING:\n            after = _goto(\n",
        ("tests/unit/domain",),
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
        "drain-without-end", "a drain has no deadline",
        "domain/lifecycle.py",
        "goal=event.goal, deadline=now + event.timeout,",
        "goal=event.goal, deadline=now + 1e9,",
        "test_a_drain_that_takes_too_long_is_cut_and_told",
    ),
    Mutant(
        "cut-instead-of-frozen", "a drain that may freeze revokes", "backend/vllm_mm/domain/lifecycle.py",
        "    return after, (FreezeLeases(i.reason), Suspend(keep=True),", "    return after, (RevokeLeases(False, i.reason), Suspend(),",
        ("tests/unit/manager/test_freeze.py",),
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
        "newcomers-before-the-overdue", "whoever has more waiting goes before an overdue model, whenever it came",
        "backend/vllm_mm/domain/scheduling/order.py",
        "        behind = first <= min(now, since)\n", "        behind = first <= min(now, since - 1e9)\n",
        ("tests/unit/domain/scheduling/test_brain.py",),
    ),
    Mutant(
        "busy-never-go", "nobody overdue takes room from a busy model",
        "backend/vllm_mm/domain/scheduling/worth.py",
        "    return stayed if overdue else inf\n", "    return inf\n",
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
        "stays-given-away", "what stays of one that is told to sleep is promised to others",
        "backend/vllm_mm/domain/ledger.py",
        "        return (self.stays if self.leaving else self.device_bytes).get(device, 0)\n",
        "        return (0 if self.leaving else self.device_bytes.get(device, 0))\n",
        ("tests/unit/domain/test_residency.py::test_who_leaves_for_a_sleep_keeps_what_stays",),
    ),
    Mutant(
        "stays-doubted", "a leaver may keep what was promised to somebody else meanwhile",
        "backend/vllm_mm/domain/ledger.py",
        "            if own.leaving and size > max(left.free_after_leaving(device), own.lasting(device)):\n",
        "            if own.leaving and size > own.device_bytes.get(device, 0):\n",
        ("tests/unit/manager/test_tiers.py::test_what_would_stay_has_to_fit_beside_the_load",),
    ),
    Mutant(
        "failed-wake-answered", "a wake that fails answers those who wait instead of becoming a start",
        "backend/vllm_mm/domain/lifecycle.py",
        "    if i.state in LOADING and then is not Then.COLD:\n",
        "    if i.state in LOADING:\n",
        ("tests/unit/manager/test_tiers.py::test_a_wake_that_fails_becomes_a_start_in_the_same_load",),
    ),
)  # fmt: skip
