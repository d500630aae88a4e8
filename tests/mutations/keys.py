"""Keys, their rights and limits, and signing in."""

from mutations.kinds import Mutant

LIMITS = "tests/unit/domain/test_limits.py"
SESSION = "tests/unit/api/test_session.py"
IDENTITY = "tests/unit/gateway/test_identity.py"

MUTANTS: tuple[Mutant, ...] = (
    Mutant(
        "any-digest-will-do", "what is found is not compared",
        "backend/vllm_mm/gateway/identity.py",
        "known = key is not None and same(hashed, key.digest)", "known = key is not None",
        (f"{IDENTITY}::test_what_is_found_is_compared_in_constant_time",),
    ),
    Mutant(
        "rotated-for-ever", "the secret of before a rotation stays good",
        "backend/vllm_mm/gateway/identity.py",
        "        if self._clock.wall() >= key.old_until:", "        if False:",
        (f"{IDENTITY}::test_a_rotated_key_is_good_with_both_secrets_for_a_while",),
    ),
    Mutant(
        "unpeppered", "keys are hashed without the server's secret",
        "backend/vllm_mm/domain/keys.py",
        "hmac.new(pepper, secret.encode()", 'hmac.new(b"", secret.encode()',
        (f"{IDENTITY}::test_keys_are_hashed_with_the_servers_secret",),
    ),
    Mutant(
        "one-too-many", "one request more than allowed runs at the same time",
        "backend/vllm_mm/domain/limits.py",
        "if most is not None and self.running >= most:", "if most is not None and self.running > most:",
        (f"{LIMITS}::test_so_many_at_the_same_time_and_no_more",),
    ),
    Mutant(
        "nothing-reserved", "tokens of what runs do not count",
        "backend/vllm_mm/domain/limits.py",
        "        return [(most - used - self._reserved, which, most)", "        return [(most - used, which, most)",
        (f"{LIMITS}::test_tokens_are_reserved_before_and_counted_after",),
    ),
    Mutant(
        "left-twice", "a place that was left is given back once more",
        "backend/vllm_mm/domain/limits.py",
        "        had = self._places.pop(place, None)\n", "        had = self._places.get(place)\n",
        (f"{LIMITS}::test_a_place_is_left_once",),
    ),
    Mutant(
        "tokens-for-nothing", "who leaves before its tokens are counted has used none",
        "backend/vllm_mm/domain/limits.py",
        "Spent(had.reserved if tokens is None else tokens, device_seconds)", "Spent(tokens or 0, device_seconds)",
        (f"{LIMITS}::test_where_the_tokens_are_not_known_what_was_expected_counts",),
    ),
    Mutant(
        "runs-uncounted", "what runs when its key gets limits does not count",
        "backend/vllm_mm/gateway/limits.py",
        "            gate.runs(who.own_id, key.id)\n", "            pass\n",
        ("tests/unit/gateway/test_limits.py::test_what_runs_counts_when_its_key_gets_limits",),
    ),
    Mutant(
        "early-and-untold", "who is refused early is not told how its key stands",
        "backend/vllm_mm/gateway/limits.py",
        "        with suppress(Unavailable):\n            who.standing = ", "        with suppress(Unavailable):\n            _ = ",
        ("tests/unit/gateway/test_limits.py::test_one_that_is_refused_early_is_told_how_its_key_stands",),
    ),
    Mutant(
        "worker-keeps-places", "a worker that dies keeps what it let in",
        "backend/vllm_mm/engine/lending/limits.py",
        "                self._book.leave(place, None, 0.0)\n", "                pass\n",
        ("tests/unit/gateway/test_limits.py::test_a_worker_that_is_gone_gives_back_what_it_had",),
    ),
    Mutant(
        "loads-without-right", "a key without `load` has a model started",
        "backend/vllm_mm/engine/manager.py",
        "        if not ticket.loads and i.state not in _THERE", "        if False and i.state not in _THERE",
        ("tests/unit/manager/test_rights.py::test_who_may_not_load_starts_nothing",),
    ),
    Mutant(
        "loads-when-others-left", "a load that is off is begun again for one that may cause none",
        "backend/vllm_mm/engine/queue.py",
        "for w in lane.waiters if not w.ticket.loads]", "for w in lane.waiters if False]",
        ("tests/unit/manager/test_rights.py::test_a_sleeping_or_stopped_model_stays_so_when_others_wait_elsewhere",),
    ),
    Mutant(
        "unsigned-cookies", "a made-up signature is as good as a real one",
        "backend/vllm_mm/api/signing.py",
        "        if not hmac.compare_digest(signature.encode(), self._signed(token).encode()):\n            return None\n", "",
        (f"{SESSION}::test_a_made_up_cookie_is_none",),
    ),
    Mutant(
        "any-page-acts", "the page of somebody else can act with our cookie",
        "backend/vllm_mm/api/signing.py",
        "            check_own_page(request)\n        return key\n", "            pass\n        return key\n",
        (f"{SESSION}::test_what_changes_something_has_to_come_from_our_page",),
    ),
    Mutant(
        "guess-away", "wrong keys at the sign-in cost nothing",
        "backend/vllm_mm/api/signing.py",
        "            self._tries.failed(peer, self._clock.now())\n", "",
        (f"{SESSION}::test_guessing_is_slowed_down",),
    ),
    Mutant(
        "anybody-is-the-proxy", "the header of the proxy counts from everywhere",
        "backend/vllm_mm/api/signing.py",
        "or peer is None or not self._is_proxy(peer[0]):", "or peer is None:",
        (f"{SESSION}::test_a_proxy_names_who_asks",),
    ),
)  # fmt: skip
