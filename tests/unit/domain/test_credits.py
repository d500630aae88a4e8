"""Lent leases: what each end says in the cases that matter."""

import pytest

from vllm_mm.domain.credits import Account, Mistrusted, Purse, portion


def test_a_credit_is_used_without_asking_and_kept_for_the_next() -> None:
    purse = Purse()
    assert purse.lent(0, 2, keep=True)
    assert purse.take()
    assert purse.take()
    assert not purse.take()
    assert purse.give() == 0
    assert purse.take()


def test_without_leave_to_keep_each_goes_back_at_its_end() -> None:
    purse = Purse()
    purse.lent(0, 1, keep=False)
    purse.take()
    assert purse.give() == 1
    assert purse.held == 0


def test_a_recall_takes_what_is_idle_and_what_becomes_idle() -> None:
    purse = Purse()
    purse.lent(0, 3, keep=True)
    purse.take()
    assert purse.recalled() == 2
    assert (purse.held, purse.used) == (1, 1)
    assert purse.give() == 1


def test_a_sweep_takes_what_was_idle_all_the_time() -> None:
    purse = Purse()
    purse.lent(0, 3, keep=True)
    assert purse.sweep() == 0, "it came just now"
    purse.take()
    purse.take()
    purse.give()
    assert purse.sweep() == 1, "two were needed at once"
    assert purse.sweep() == 1, "one is in use, and one was not needed"
    assert (purse.held, purse.used) == (1, 1)


def test_what_comes_of_an_epoch_that_is_over_is_void() -> None:
    purse, account = Purse(), Account()
    assert account.lend(2, keep=True) == 0
    purse.lent(0, 2, keep=True)
    purse.take()
    purse.revoked(account.revoke())
    assert (purse.held, purse.used, account.out) == (0, 0, 0)
    assert account.returned(0, 1) == 0, "it was taken away before"
    assert not purse.lent(0, 1, keep=True)
    assert account.lend(1, keep=False) == 1
    assert account.returned(0, 1) == 0
    assert account.out == 1
    assert account.returned(1, 1) == 1


def test_a_worker_that_says_what_cannot_be_is_not_trusted() -> None:
    account = Account()
    account.lend(1, keep=True)
    with pytest.raises(Mistrusted):
        account.returned(0, 2)
    with pytest.raises(Mistrusted):
        account.returned(1, 1)
    with pytest.raises(Mistrusted):
        account.returned(0, -1)
    assert account.out == 1


def test_a_recall_is_sent_once() -> None:
    account = Account()
    account.lend(1, keep=True)
    assert account.recall()
    assert not account.recall()


def test_a_portion_leaves_as_much_for_the_others() -> None:
    assert portion(256, 2, 8) == 8
    assert portion(12, 2, 8) == 3
    assert portion(3, 2, 8) == 0
    assert portion(0, 2, 8) == 0
