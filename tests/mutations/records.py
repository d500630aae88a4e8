"""What is written down: the audit, usage, rows for a database that is away, copies; and requests that an operator cancels."""

from mutations.kinds import Mutant

AUDIT = "tests/unit/api/test_audit.py"
HOURS = "tests/unit/store/test_usage_hours.py"
SPOOL = "tests/unit/store/test_spool.py"
COPIES = "tests/unit/store/test_maintenance.py"
SOLE = "tests/unit/store/test_sole.py"

MUTANTS: tuple[Mutant, ...] = (
    Mutant(
        "behind-the-audits-back", "a route that changes something need not be audited",
        "backend/vllm_mm/api/auditing.py",
        "        if unsafe and not isinstance(route, AuditedRoute) and path not in NO_ACTS:", "        if False:",
        (f"{AUDIT}::test_a_route_behind_the_audits_back_is_refused",),
    ),
    Mutant(
        "refusals-are-no-acts", "what was refused is not in the audit",
        "backend/vllm_mm/api/auditing.py",
        "        if status < 400 or _refusal(the):", "        if status < 400:",
        (f"{AUDIT}::test_what_was_refused_is_there_too",),
    ),
    Mutant(
        "audit-is-filled", "a key that may do nothing fills the audit",
        "backend/vllm_mm/api/auditing.py",
        "    if len(recent) >= REFUSALS_A_MINUTE:", "    if False:",
        (f"{AUDIT}::test_refusals_cannot_fill_it",),
    ),
    Mutant(
        "told-secrets", "the audit tells secrets",
        "backend/vllm_mm/domain/audit.py",
        "    return _bounded(without_secrets(before)), _bounded(without_secrets(after))", "    return _bounded(before), _bounded(after)",
        (f"{AUDIT}::test_a_models_life",),
    ),
    Mutant(
        "open-door", "retention leaves the audit's door open behind it",
        "backend/vllm_mm/store/audit.py",
        '                await write_meta(self._database, connection, UNTIL, "0")\n', "",
        ("tests/unit/store/test_audit.py::test_nobody_changes_or_deletes",),
    ),
    Mutant(
        "replaced-evidence", "SQLite's REPLACE changes an entry of the audit",
        "migrations/versions/0001_initial.py",
        "SELECT RAISE(IGNORE)", "SELECT 1",
        ("tests/unit/store/test_audit.py::test_a_row_cannot_be_replaced",),
    ),
    Mutant(
        "counted-twice", "sums and mark are not one transaction",
        "backend/vllm_mm/store/usage_hours.py",
        "            await write_meta(self._database, connection, MARK, str(last))\n        return count",
        "        async with self._database.write() as connection:\n            await write_meta(self._database, connection, MARK, str(last))\n        return count",
        (f"{HOURS}::test_sums_outlive_their_rows",),
    ),
    Mutant(
        "counted-never", "rows are deleted before they were added up",
        "backend/vllm_mm/store/retention.py",
        "        free = Request.row <= min(mark, newest - 1)\n", "        free = Request.row <= newest - 1\n",
        (f"{HOURS}::test_rows_that_come_meanwhile_are_not_deleted",),
    ),
    Mutant(
        "numbers-begin-again", "the newest row may be deleted, and numbers begin again below the mark",
        "backend/vllm_mm/store/retention.py",
        "min(mark, newest - 1)", "min(mark, newest)",
        (f"{HOURS}::test_sums_outlive_their_rows",),
    ),
    Mutant(
        "tail-forgotten", "what is not added up yet is in no report",
        "backend/vllm_mm/store/usage_hours.py",
        "Request.row > func.coalesce(mark, 0), ", "Request.row < 0, ",
        (f"{HOURS}::test_a_report_is_restricted",),
    ),
    Mutant(
        "formulas", "what a spreadsheet would run runs",
        "backend/vllm_mm/api/tables.py",
        """    return f"'{value}" if isinstance""", "    return value if isinstance",
        ("tests/unit/api/test_usage.py::test_as_a_table",),
    ),
    Mutant(
        "memory-alone", "rows that wait are in memory alone",
        "backend/vllm_mm/store/behind.py",
        "                        await self._keep()\n                        await self._clock.sleep(backoff)\n",
        "                        await self._clock.sleep(backoff)\n",
        (f"{SPOOL}::test_what_waits_is_in_the_file_and_the_file_goes_with_it",),
    ),
    Mutant(
        "logged-at-every-try", "a database that stays away fills the log",
        "backend/vllm_mm/store/behind.py",
        "        if self._told_at is None or now - self._told_at >= _TOLD_AGAIN:\n", "        if True:\n",
        ("tests/unit/store/test_behind.py::test_a_database_that_stays_away_is_logged_once_a_minute",),
    ),
    Mutant(
        "left-in-the-file", "the next controller does not go on with what the last one kept",
        "backend/vllm_mm/store/behind.py",
        "            self._take_up()\n", "",
        (f"{SPOOL}::test_the_next_controller_goes_on",),
    ),
    Mutant(
        "torn-rows", "a row that was half written stays in the file",
        "backend/vllm_mm/store/spool.py",
        "                    os.ftruncate(file, size)\n", "                    pass\n",
        (f"{SPOOL}::test_a_file_is_whole_or_as_it_was",),
    ),
    Mutant(
        "endless-file", "the file of rows that wait has no bound",
        "backend/vllm_mm/store/behind.py",
        "if self._spool.lines + len(rows) > 2 * self._limit:", "if False:",
        (f"{SPOOL}::test_the_file_is_bounded_like_the_memory",),
    ),
    Mutant(
        "lost-connection-is-a-row", "a lost connection is taken for the fault of a row",
        "backend/vllm_mm/store/failures.py",
        "    if _state(error):\n        return _state_advice(error) is not None\n", "    if _state(error):\n        return False\n",
        ("tests/unit/store/test_away.py::test_a_server_that_stops_is_told_and_costs_no_row",),
    ),
    Mutant(
        "act-answered-unwritten", "an act is answered before its entry of the audit is written",
        "backend/vllm_mm/api/auditing.py",
        "                await the.audit.secure()\n", "                pass\n",
        ("tests/unit/api/test_audit.py::test_an_act_is_answered_when_its_entry_is_written",),
    ),
    Mutant(
        "act-answered-unkept", "an act is answered while its entry of the audit is in memory alone",
        "backend/vllm_mm/store/behind.py",
        "        wanted = self._added\n        await self._keep()\n", "        wanted = self._added\n",
        (f"{SPOOL}::test_what_has_to_be_safe_is_in_the_file_when_a_busy_database_takes_too_long",),
    ),
    Mutant(
        "two-on-one-database", "two servers serve from one PostgreSQL database",
        "backend/vllm_mm/store/sole.py",
        '"SELECT pg_try_advisory_lock(:lock)"', '"SELECT pg_try_advisory_lock_shared(:lock)"',
        (f"{SOLE}::test_a_second_one_on_postgresql_refuses_to_start",),
    ),
    Mutant(
        "lost-lock-untold", "nothing tells that the lock on the database was lost",
        "backend/vllm_mm/store/sole.py",
        "            who = await self._try()\n        except DatabaseUnavailable as error:\n            self._problem = ", "            who = await self._try()\n        except DatabaseUnavailable as error:\n            _ = ",
        (f"{SOLE}::test_a_lock_that_is_lost_is_taken_again",),
    ),
    Mutant(
        "two-on-one-file", "two servers with their own directories serve from one file",
        "backend/vllm_mm/store/sole.py",
        "fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)", "fcntl.flock(lock, fcntl.LOCK_UN)",
        (f"{SOLE}::test_a_file_outside_of_the_data_directory_is_locked",),
    ),
    Mutant(
        "changed-without-a-copy", "the schema of PostgreSQL changes although it could not be copied",
        "backend/vllm_mm/store/migrate.py",
        "        if backup_dir is not None and before is not None:\n", "        if backup_dir is not None and before is not None and sqlite_path(url) is not None:\n",
        ("tests/migrations/test_migrations.py::test_postgresql_is_copied_before_a_change_too",),
    ),
    Mutant(
        "restored-under-a-server", "a copy is put in the place of a database that a server uses",
        "backend/vllm_mm/store/maintenance.py",
        "fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)", "fcntl.flock(lock, fcntl.LOCK_UN)",
        (f"{COPIES}::test_not_while_a_server_runs",),
    ),
    Mutant(
        "restored-from-rubble", "a damaged copy is put in the place of a good database",
        "backend/vllm_mm/store/maintenance.py",
        "    if damage := _damage(source):", "    if False and (damage := _damage(source)):",
        (f"{COPIES}::test_a_damaged_copy_is_refused_and_a_damaged_database_replaced",),
    ),
    Mutant(
        "cancelled-and-sent-again", "a client sends again what an operator cancelled",
        "backend/vllm_mm/api/problems.py",
        "    Row(RequestCancelled, 410),\n", "",
        ("tests/unit/gateway/test_bodies.py::test_every_error_has_its_status",),
    ),
    Mutant(
        "cancelled-here-alone", "a request of a worker cannot be cancelled",
        "backend/vllm_mm/engine/lending/borrower.py",
        "                found = self._heard.cancel(message.request, message.cause)\n", "                found = False\n",
        ("tests/unit/manager/test_lending.py::test_a_request_is_cancelled_in_whichever_worker_has_it",),
    ),
)  # fmt: skip
