"""Processes and devices: starting, forking, watching, ending and measuring engines."""

from mutations.kinds import Mutant, manager

MUTANTS: tuple[Mutant, ...] = (
    Mutant(
        "everybodys-zygotes", "a sweep of one's own left-over zygotes kills those of other installations",
        "backend/vllm_mm/engine/procfs.py",
        "marks.launch == self.token and self.owner in (None, marks.owner)", "marks.launch == self.token",
        ("tests/process/test_local_launcher.py::test_a_sweep_leaves_what_carries_the_same_token_for_another_installation",),
    ),
    Mutant(
        "sleep-before-workers-let-go", "an engine is put to sleep while a worker may still send to it",
        "backend/vllm_mm/engine/run.py",
        "        await self._actor.gate.settled()\n", "",
        ("tests/unit/manager/test_lending.py::test_an_engine_is_not_put_to_sleep_before_every_worker_has_let_go",),
    ),
    Mutant(
        "log-of-a-quick-start-unread", "an engine that is ready before its log was looked at has told nothing",
        "backend/vllm_mm/engine/run.py",
        "        process.read_log()  # a start may be over sooner than its log is looked at\n", "",
        ("tests/unit/manager/test_races.py::test_what_an_engine_wrote_just_before_it_was_ready_is_read",),
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
        more=(("    _keep_titles_short()\n    start", "    importlib.import_module('tempfile').gettempdir()\n    _keep_titles_short()\n    start"), ("        setattr(sys.modules[module], name, folder + rest)", "        pass")),
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
        "ending-is-a-stranger", "an engine that is ending counts as a stranger on its device",
        "backend/vllm_mm/engine/devices/polled.py",
        "            return known.get(pid) == stat.id\n", "            return False\n",
        ("tests/unit/engine/test_devices.py::test_an_engine_that_is_ending_is_still_ours",),
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
)  # fmt: skip
