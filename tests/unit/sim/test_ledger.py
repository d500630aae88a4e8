"""Claims on the memory of simulated devices."""

import os
from pathlib import Path

import pytest

from vllm_mm.sim.ledger import Claim, DoesNotFitError, claim, claims, free, start_ticks, usage

ME = os.getpid()


def ticks() -> int:
    found = start_ticks(ME)
    assert found is not None
    return found


def test_a_claim_is_a_file(tmp_path: Path) -> None:
    """LEDGER/DEVICE/PID-STARTTICKS, the bytes as decimal digits: others read it with their own code."""
    claim(tmp_path, "sim0", ME, 123, capacity=1000)
    assert (tmp_path / "sim0" / f"{ME}-{ticks()}").read_text() == "123"
    assert usage(tmp_path) == {"sim0": (Claim("sim0", ME, ticks(), 123),)}
    assert free(tmp_path, "sim0", 1000) == 877


def test_a_claim_replaces_the_one_before(tmp_path: Path) -> None:
    """Growing counts only the difference; 0 withdraws it."""
    claim(tmp_path, "sim0", ME, 600, capacity=1000)
    claim(tmp_path, "sim0", ME, 1000, capacity=1000)
    assert free(tmp_path, "sim0", 1000) == 0
    claim(tmp_path, "sim0", ME, 0, capacity=1000)
    assert claims(tmp_path, "sim0") == ()


def test_what_does_not_fit_changes_nothing(tmp_path: Path) -> None:
    """The error says how much is missing; shrinking is always allowed."""
    claim(tmp_path, "sim0", os.getppid(), 700, capacity=None)
    claim(tmp_path, "sim0", ME, 200, capacity=1000)
    with pytest.raises(DoesNotFitError) as error:
        claim(tmp_path, "sim0", ME, 400, capacity=1000)
    assert (error.value.wanted, error.value.free) == (200, 100)
    assert free(tmp_path, "sim0", 1000) == 100
    claim(tmp_path, "sim0", os.getppid(), 5000, capacity=None)
    claim(tmp_path, "sim0", ME, 100, capacity=1000)


def test_a_dead_or_reused_pid_holds_nothing(tmp_path: Path) -> None:
    """A file of another start time counts as nothing, and the next claim removes it."""
    claim(tmp_path, "sim0", ME, 1, capacity=10)
    stale = [tmp_path / "sim0" / f"{ME}-{ticks() - 1}", tmp_path / "sim0" / "4194305-77"]
    for path in stale:
        path.write_text("9")
    assert sum(one.size for one in claims(tmp_path, "sim0")) == 1
    claim(tmp_path, "sim0", ME, 10, capacity=10)
    assert not any(path.exists() for path in stale)


def test_other_files_are_no_claims(tmp_path: Path) -> None:
    """Locks, drafts and strangers are passed over; a ledger that does not exist is empty."""
    claim(tmp_path, "sim0", ME, 1, capacity=10)
    (tmp_path / "sim0" / "README").write_text("99")
    (tmp_path / "sim0" / f".{ME}-{ticks()}").write_text("99")
    assert sum(one.size for one in claims(tmp_path, "sim0")) == 1
    assert usage(tmp_path / "nowhere") == {}
    assert claims(tmp_path, "sim9") == ()


def test_a_process_that_is_gone_cannot_claim(tmp_path: Path) -> None:
    """Nothing is written for it."""
    with pytest.raises(ProcessLookupError):
        claim(tmp_path, "sim0", 4194305, 1, capacity=10)
    assert start_ticks(4194305) is None
