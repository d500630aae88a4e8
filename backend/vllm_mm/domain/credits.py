"""Leases that are lent to another process: both ends of the protocol, without I/O.

The controller has one `Account`, the worker one `Purse`, for each model of each worker. Between them messages travel in order, in both
directions. What holds at every moment: `account.out >= purse.used`, so that a drain that sees nothing out may act.
"""

from dataclasses import dataclass


class Mistrusted(Exception):
    """The worker said something that cannot be: its process is not to be trusted any more."""


@dataclass(slots=True)
class Account:
    """The controller's end. `epoch` counts how often everything was taken away: what was said of an earlier one is void."""

    epoch: int = 0
    out: int = 0
    """Leases that the worker has, or that are on their way to it or from it."""
    keeps: bool = False
    """The worker was told that it may keep what it does not use."""

    def lend(self, count: int, *, keep: bool) -> int:
        """So many leases go out. Returns the epoch that the message has to carry."""
        self.out += count
        self.keeps = keep
        return self.epoch

    def returned(self, epoch: int, count: int) -> int:
        """So many came back. Returns how many leases that frees; none where they had been taken away before. Raises Mistrusted."""
        if epoch > self.epoch or count < 0:
            raise Mistrusted(f"{count} leases of epoch {epoch} came back in epoch {self.epoch}")
        if epoch < self.epoch:
            return 0
        if count > self.out:
            raise Mistrusted(f"{count} leases came back and {self.out} were out")
        self.out -= count
        return count

    def recall(self) -> bool:
        """Ask for what is not used, and that nothing be kept from now on. False where the worker needs no telling."""
        told = self.keeps
        self.keeps = False
        return told

    def revoke(self) -> int:
        """All of them are taken away. Returns the epoch that begins; the message carries it."""
        self.out = 0
        self.keeps = False
        self.epoch += 1
        return self.epoch


@dataclass(slots=True)
class Purse:
    """The worker's end."""

    epoch: int = 0
    held: int = 0
    used: int = 0
    """Leases in use: requests under way."""
    keeps: bool = False
    spare: int = 0
    """The fewest that were not in use since the last `sweep`."""

    @property
    def idle(self) -> int:
        return self.held - self.used

    def lent(self, epoch: int, count: int, *, keep: bool) -> bool:
        """So many came. False when they are of an epoch that is over, and of no use."""
        if epoch != self.epoch:
            return False
        self.held += count
        self.keeps = keep
        return True

    def take(self) -> bool:
        """One is used now, if there is one."""
        if self.used >= self.held:
            return False
        self.used += 1
        self.spare = min(self.spare, self.idle)
        return True

    def give(self) -> int:
        """One is used no longer. Returns how many to give back to the controller for it."""
        self.used -= 1
        return 0 if self.keeps else self._drop(self.idle)

    def recalled(self) -> int:
        """The controller wants what is not used. Returns how many that is."""
        self.keeps = False
        return self._drop(self.idle)

    def sweep(self) -> int:
        """Called now and then. Returns how many were not needed since the last time, to be given back."""
        dropped = self._drop(self.spare)
        self.spare = self.idle
        return dropped

    def revoked(self, epoch: int) -> None:
        """All were taken away; nothing of them is given back."""
        self.epoch = epoch
        self.held = self.used = self.spare = 0
        self.keeps = False

    def _drop(self, count: int) -> int:
        self.held -= count
        self.spare = min(self.spare, self.idle)
        return count


def portion(free: int, workers: int, most: int) -> int:
    """How many leases more than it asked for a worker is lent: so few that every other worker finds as many, twice over."""
    return max(0, min(most, free // (2 * workers)))
