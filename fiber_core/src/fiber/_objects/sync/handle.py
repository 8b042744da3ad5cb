"""What a handle does with something that is waited for, the same at the owner and elsewhere."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from fiber._objects.handle_actions import Holdable
from fiber._objects.sync.holding import Holding
from fiber._objects.sync.wait_queue import Verdict


class Locking(Holdable, Protocol):
    """A lock or semaphore."""

    @property
    def home(self) -> str:
        """Identity of the owner where that is another process."""

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

    def check(self) -> None:
        """Raise what an operation would raise where the owner is gone."""

    def value(self) -> int:
        """How many permits can be taken."""


class Signalling(Holdable, Protocol):
    """An event."""

    def wait(self, timeout: float | None) -> bool:
        """Wait until it is set; False where it was not in time."""

    def set(self) -> None:
        """Set it; whoever waits goes on."""

    def clear(self) -> None:
        """Have others wait from now on."""

    def is_set(self) -> bool:
        """True where it is set."""


class Waking(Holdable, Protocol):
    """Those who wait for a condition."""

    @property
    def home(self) -> str:
        """Identity of the owner where that is another process."""

    def sleep(self, release: Callable[[], object], timeout: float | None, *, certain: bool) -> bool:
        """Wait, call ``release`` once that is known, until notified; False if not in time.

        ``certain`` where the owner must have heard before ``release``; it does not see to that.
        """

    def notify(self, count: int, *, certain: bool) -> None:
        """Wake some; ``certain`` where that must be done on return."""

    def sleepers(self) -> int:
        """How many wait."""


class Gathering(Holdable, Protocol):
    """A barrier."""

    def arrive(self, timeout: float | None, *, acts: bool) -> tuple[Verdict, int]:
        """One more is there; how it ended, and its place or, to run the action, that's number."""

    def ran(self, number: int) -> Verdict:
        """The action went well; how the barrier ended."""

    def failed(self, number: int) -> None:
        """The action did not go well."""

    def reset(self) -> None:
        """Begin anew; those who wait are told that it broke."""

    def abort(self) -> None:
        """Break it."""

    def state(self) -> tuple[bool, int]:
        """True where it is broken; how many wait."""
