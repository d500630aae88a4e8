"""What looks at the server from outside: tools of other servers, logs, metrics, traces, webhooks, the command line."""

from mutations.kinds import Mutant

MUTANTS: tuple[Mutant, ...] = (
    Mutant(
        "upstream-anything", "paths that nobody listed are passed on to an engine",
        "backend/vllm_mm/api/compat/upstream.py",
        'if method == "GET" and (route := GETS.get(rest)) is not None:',
        'if method == "GET" and (route := GETS.get(rest, GETS[b"/health"])) is not None:',
        ("tests/compat/test_upstream.py::test_unknown_paths_are_never_passed_on",),
    ),
    Mutant(
        "upstream-any-model", "a key reaches a model that it may not use by its path",
        "backend/vllm_mm/api/compat/upstream.py",
        "if name is None or not key.may_use(spec.id):", "if name is None:",
        ("tests/compat/test_upstream.py::test_a_key_sees_only_its_models",),
    ),
    Mutant(
        "unload-from-anywhere", "a page of another site has a browser unload all models",
        "backend/vllm_mm/api/compat/access.py",
        'if request.headers.get("sec-fetch-site", "none") not in {"none", "same-origin"}:', "if False:",
        ("tests/compat/test_llama_swap.py::test_a_page_of_another_site_cannot_unload",),
    ),
    Mutant(
        "logs-without-bound", "a slow reader of logs has all lines kept for it",
        "backend/vllm_mm/api/log_reader.py",
        "if len(self._lines) > self._behind:", "if False:",
        ("tests/integration/test_admin_live.py::test_a_slow_reader_of_log_events_is_told_by_an_event",),
    ),
    Mutant(
        "labels-without-bound", "each key that is ever made has a label of its own",
        "backend/vllm_mm/api/tally.py",
        "if len(self._keys) >= KEYS:", "if False:",
        ("tests/unit/api/test_metrics.py::test_keys_and_models_beyond_a_bound_are_one_label",),
    ),
    Mutant(
        "webhook-replayed", "a webhook's signature says nothing of when it was made",
        "backend/vllm_mm/domain/webhooks.py",
        'b"%d.%b" % (timestamp, text)', "text",
        ("tests/unit/domain/test_webhooks.py::test_the_signature_is_that_of_the_page",),
    ),
    Mutant(
        "webhook-queue-grows", "what waits for a receiver that hangs grows without end",
        "backend/vllm_mm/control/webhooks.py",
        "gone = self.waiting.popleft() if len(self.waiting) >= QUEUE else None", "gone = None",
        ("tests/unit/control/test_webhooks.py::test_a_receiver_that_hangs_holds_up_nobody",),
    ),
    Mutant(
        "webhook-lost-at-end", "what waits for a receiver when the server ends is lost",
        "backend/vllm_mm/control/webhooks.py",
        "                self._bury(line, delivery, ENDED, 0)\n", "                pass\n",
        ("tests/unit/control/test_webhooks.py::test_what_had_no_time_at_the_end_is_sent_by_the_next_server",),
    ),
    Mutant(
        "two-contexts", "an engine gets the client's trace context beside its own",
        "backend/vllm_mm/main/traces.py",
        "kept = [field for field in headers if field[0] not in _CONTEXT]", "kept = list(headers)",
        ("tests/integration/test_traces.py::test_one_tree_from_the_client_to_the_engine",),
    ),
    Mutant(
        "broken-json-log", "a quote in a message breaks the line of the log",
        "backend/vllm_mm/main/logs.py",
        'json = form == "json"', 'json = form == "jsonl"',
        ("tests/unit/main/test_logs.py::test_a_line_of_json_is_json_whatever_is_in_it",),
    ),
)  # fmt: skip
