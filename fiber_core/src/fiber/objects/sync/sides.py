"""What a handle does with something that is waited for, the same at the owner and elsewhere."""

from __future__ import annotations

from typing import Protocol

from fiber.objects.ends import Holdable
from fiber.objects.sync.holding import Holding


class Locking(Holdable, Protocol):
    """A lock or semaphore."""

    @property
    def mine(self) -> Holding:
        """What this process has of it."""

    def acquire(self, block: bool, timeout: float | None) -> bool:
        """Take a permit; False where there is none, or none has come in time.

        Raises:
            HolderDiedError: the process that had it died, and so it was not taken.
            LeaseLostError: this process had it when the connection to the owner was lost.
            PeerLostError: the owner is gone.
        """

    def release(self) -> None:
        """Give a permit back.

        Raises:
            AssertionError: another thread took it, and only that may release it.
            ValueError: there are as many as there may be.
            LeaseLostError: this process had it when the connection to the owner was lost.
            PeerLostError: the owner is gone.
        """

    def release_fully(self) -> int:
        """Give it back however often this thread has taken it; how often that was."""

    def value(self) -> int:
        """How many permits can be taken."""
