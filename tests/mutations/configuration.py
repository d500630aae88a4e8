"""Changes while the server runs: reloads, declarations, profiles, arguments, weights."""

from mutations.kinds import Mutant

CONFIG = "tests/unit/api/test_config.py"
DECLARED = "tests/unit/api/test_declared_changes.py"
PROFILES = "tests/unit/api/test_profiles.py"
FLAGS = "tests/process/test_flags.py"
PULLS = "tests/integration/test_pulls.py"


def control(name: str, what: str, file: str, old: str, new: str, *tests: str) -> Mutant:
    return Mutant(name, what, f"backend/vllm_mm/{file}", old, new, tests)


MUTANTS: tuple[Mutant, ...] = (
    control(
        "empty-file", "a configuration file that is empty for a moment takes all models away", "control/configuration.py",
        "if now.empty and before.file is not None", "if now.empty and before.file is None",
        f"{CONFIG}::test_a_file_that_is_gone_or_empty_takes_nothing_away",
    ),
    control(
        "reloads-at-once", "two reloads run into one another", "control/configuration.py",
        "        async with self._in_force.changing:\n            try:\n", "        if True:\n            try:\n",
        f"{CONFIG}::test_two_reloads_at_once_come_one_after_the_other",
    ),
    control(
        "dry-reload-applies", "a dry run of a reload is applied", "control/configuration.py",
        "            if dry_run:\n                return Reloaded", "            if dry_run and not changes:\n                return Reloaded",
        f"{CONFIG}::test_a_dry_run_says_it_and_changes_nothing",
    ),
    control(
        "refusal-forgotten", "nothing tells that the last reload was refused", "control/configuration.py",
        "        self._refused = why\n", "", f"{CONFIG}::test_a_wrong_file_changes_nothing_and_says_why",
    ),
    control(
        "arguments-unchecked", "a reload takes arguments that the engine has not", "control/configuration.py",
        "        if checked.wrong:\n", "        if not checked:\n",
        f"{DECLARED}::test_arguments_are_checked_by_the_engine_itself",
    ),
    control(
        "wrong-arguments-load", "a model that its engine would not start is loaded, and others go for it", "engine/swaps.py",
        "        return ConfigError(wrong) if wrong else None\n", "        return None\n",
        "tests/unit/control/test_arguments.py::test_who_would_not_start_is_told_at_once_and_nobody_goes_for_it",
    ),
    control(
        "asked-while-it-loads", "an engine is asked for its arguments while models load", "control/arguments.py",
        "        if self._loading() and ", "        if self._loading() and catalog is None and ",
        "tests/unit/control/test_arguments.py::test_models_that_load_go_first",
    ),
    control(
        "asker-leaves-asked", "who asks an engine leaves it behind when it dies", "engine/flags.py",
        "lambda: (os.read(0, 1), os._exit(1))", "lambda: os.read(0, 1)",
        f"{FLAGS}::test_one_that_is_asked_ends_with_who_asks",
    ),
    control(
        "only-one-that-was-there", "a file that was not there at the start is never seen", "control/configuration.py",
        "        if not self._in_force.settings.config.watch:\n", "        if not self._in_force.settings.config.watch or self._loaded.file is None:\n",
        f"{CONFIG}::test_a_file_that_was_not_there_at_the_start_is_seen",
    ),
    control(
        "gone-is-empty", "a file that is away for a moment takes all models with it", "control/configuration.py",
        "        if stamp is None or stamp == self._seen:\n", "        if stamp == self._seen:\n",
        f"{CONFIG}::test_a_file_that_was_not_there_at_the_start_is_seen",
    ),
    control(
        "dry-run-stores", "a dry run of a declaration is stored", "control/declarations.py",
        "        if not dry_run:\n            await self._store.put(", "        if True:\n            await self._store.put(",
        f"{DECLARED}::test_a_dry_run_shows_difference_effect_and_memory",
    ),
    control(
        "dry-run-removes", "a dry run of a removal removes", "control/declarations.py",
        "            if not dry_run:\n                await self._store.delete(", "            if True:\n                await self._store.delete(",
        f"{DECLARED}::test_a_dry_run_shows_difference_effect_and_memory",
    ),
    control(
        "last-one-wins", "who changes what somebody else has changed is not told", "control/declarations.py",
        "        if match is not None and match != version(spec):\n", "        if match is None and match != version(spec) and not spec:\n",
        f"{DECLARED}::test_a_change_of_what_somebody_else_changed_is_412",
    ),
    control(
        "copy-loads-another", "a copy loads what its new name says", "control/declarations.py",
        '            raw.setdefault("model", None if spec.engine == "sim" else model_id)\n', "",
        f"{DECLARED}::test_a_model_of_the_file_is_copied_to_be_changed",
    ),
    control(
        "nickname-starts-anew", "the alias of a profile is a reason to start an engine anew", "domain/specs.py",
        '        process["aliases"] = sorted(self.aliases)\n', '        process["aliases"] = sorted((*self.aliases, *self.nicknames))\n',
        "tests/unit/domain/test_profiles.py",
    ),
    control(
        "nickname-takes-ids", "the alias of a profile hides a model", "domain/catalog.py",
        "if name in self._specs and name != spec.id:", "if not name:",
        "tests/unit/domain/test_profiles.py::test_an_id_is_taken_from_nobody",
    ),
    control(
        "profile-forgotten", "which profile is active is forgotten by a restart", "control/profiles.py",
        "        await self._store.put(self._now)\n", "", f"{PROFILES}::test_a_profile_outlives_the_controller",
    ),
    control(
        "schedule-insists", "the schedule takes back at once what was chosen by hand", "control/profiles.py",
        "        if due == self._now.scheduled:\n", "        if due == self.active.active:\n",
        f"{PROFILES}::test_the_schedule_switches_when_it_says_something_new",
    ),
    control(
        "profile-becomes-the-declaration", "what a profile says stays when it ends", "control/in_force.py",
        "        self._declared = None if over is None else declared\n", "        self._declared = None\n",
        f"{PROFILES}::test_models_of_the_api_are_declared_without_what_a_profile_says",
        f"{PROFILES}::test_a_switch_is_one_call_and_disturbs_nothing",
    ),
    control(
        "old-flags", "another version of an engine is taken for the one that was asked", "engine/flags.py",
        "{python} {installed(python)} {PROBE}", "{python} {PROBE}", f"{FLAGS}::test_another_version_is_asked_anew",
    ),
    control(
        "anything-is-asked", "a program that is no vLLM is run to see what it says", "engine/flags.py",
        "    if isinstance(python, NotWarm):\n        return NotAsked(python.reason)\n",
        "    if isinstance(python, NotWarm):\n        python = found\n",
        f"{FLAGS}::test_only_vllms_own_script_is_run",
    ),
    control(
        "used-weights-pruned", "weights that a declared model uses are deleted", "control/weights.py",
        "        return not self.used_by and not self.downloading\n", "        return not self.downloading\n",
        f"{PULLS}::test_the_disk_is_shown_and_pruned_of_what_nobody_uses",
    ),
    control(
        "running-download-pruned", "weights are deleted while they come", "control/weights.py",
        "        return not self.used_by and not self.downloading\n", "        return not self.used_by\n",
        f"{PULLS}::test_what_is_downloaded_is_not_pruned",
    ),
    control(
        "begins-anew", "a download that broke off begins anew", "engine/hub/fetch.py",
        'with part.open("ab") as opened:', 'with part.open("wb") as opened:',
        f"{PULLS}::test_a_cancelled_download_is_gone_on_with_by_the_next",
    ),
    control(
        "parts-believed", "a file of parts that do not fit is taken for whole", "engine/hub/fetch.py",
        "_sha256(part) != found.etag:", "not _sha256(part):",
        f"{PULLS}::test_parts_that_do_not_fit_are_not_put_together",
    ),
    control(
        "disk-filled", "a download begins for which the disk has no room", "engine/hub/fetch.py",
        "        if missing + MARGIN > free:\n", "        if missing < 0:\n",
        f"{PULLS}::test_what_cannot_be_had_is_said_before_anything_starts",
    ),
)  # fmt: skip
