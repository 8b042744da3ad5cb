"""Permits that this process holds, counted beside a lock or semaphore wherever that lives."""

from __future__ import annotations

import sys
import threading
import warnings
from types import FrameType

from fiber._objects.sync.protocol import Status
from fiber.exceptions import HolderDiedError, HolderDiedWarning


class LocalHold:
    """The permits of a lock or semaphore that this process holds.

    Not thread-safe, except where a thread asks about itself.

    Args:
        kind_name: "lock" or the like, in messages to users.
        recursive: True where the thread that holds it may acquire it again.
    """

    #: permits that this process holds
    held: int = 0
    #: number of the request that got one last
    last_grant: int = 0

    def __init__(self, kind_name: str, *, recursive: bool) -> None:
        self._kind_name = kind_name
        self._recursive = recursive
        #: identity of the thread that acquired one last; 0 for none
        self.thread = 0
        #: how often it did, of a recursive lock
        self.depth = 0

    def count_grant(self, number: int) -> None:
        """Count the permit that a request got, which has a number of its own; twice is as once."""
        if number != self.last_grant:
            # by one instruction, since an interrupt may come between any two
            vars(self).update(held=self.held + 1, last_grant=number)

    @property
    def is_held_by_thread(self) -> bool:
        """True where this thread acquired it last and it was not released."""
        return self.held > 0 and self.thread == threading.get_ident()

    @property
    def count(self) -> int:
        """Number of releases until it is free."""
        return self.depth if self._recursive else self.held

    def try_reenter(self) -> bool:
        """Acquire a recursive lock once more if this thread holds it; False otherwise."""
        if self._recursive and self.is_held_by_thread:
            self.depth += 1
            return True
        return False

    def set_thread(self) -> None:
        """Note this thread as the last acquirer; :attr:`held` was counted before."""
        self.thread = threading.get_ident()
        self.depth = 1

    def count_release(self) -> bool:
        """Count a release by this thread; False where it still holds a recursive lock.

        Raises:
            AssertionError: another thread holds the recursive lock.
        """
        if self._recursive:
            if not self.is_held_by_thread:
                msg = "attempt to release recursive lock not owned by thread"
                raise AssertionError(msg)
            self.depth -= 1
            if self.depth:
                return False
        if self.held <= 1 and self.thread == threading.get_ident():
            # a grant to another thread may be counted before that thread notes itself
            self.thread = 0
        return True

    def save_depth(self) -> int:
        """Prepare to release it altogether; the depth for :meth:`restore_depth`."""
        depth, self.depth = self.depth, 1
        return depth

    def restore_depth(self, depth: int) -> None:
        """Set how often this thread, which acquired it again, must release it."""
        self.depth = depth

    def warn(self, status: Status, holder: str) -> None:
        """Warn the user of a holder's death, or raise it.

        Raises:
            HolderDiedError: it was not acquired.
            HolderDiedWarning: it was, and warnings are errors.
        """
        text = f"{holder} died while it held this {self._kind_name}; what that guards may be half changed"
        if status is Status.REFUSED_HOLDER_DIED:
            raise HolderDiedError(text)
        if status is Status.OK_HOLDER_DIED:
            warnings.warn(text, HolderDiedWarning, stacklevel=_own_frames() + 1)


class Permits:
    """What users call of a lock or semaphore, at its owner, in another process, or in memory that both share."""

    #: permits that this process holds
    local_hold: LocalHold

    def acquire(self, block: bool, timeout: float | None) -> bool:
        """Acquire a permit; False if none is free, or became free in time.

        Raises:
            HolderDiedError: its holder died, so it was not acquired.
            LeaseLostError: this process held it when the connection to the owner was lost.
            PeerLostError: the owner is gone.
        """
        raise NotImplementedError

    def release(self) -> None:
        """Release a permit.

        Raises:
            AssertionError: another thread holds the recursive lock.
            ValueError: it was released too many times.
            LeaseLostError: this process held it when the connection to the owner was lost.
            PeerLostError: the owner is gone.
        """
        raise NotImplementedError

    def value(self) -> int:
        """Number of free permits."""
        raise NotImplementedError

    def check(self) -> None:
        """Raise the error of an operation if the owner is lost; nothing at the owner itself."""

    def release_save(self) -> int:
        """Release it altogether; how often this thread had acquired it."""
        depth = self.local_hold.save_depth()
        self.release()
        return depth

    def warn(self, status: Status, holder: str) -> None:
        """Warn the user of a holder's death; nothing stays acquired where that raises.

        Raises:
            HolderDiedError: it was not acquired.
            HolderDiedWarning: it was and is released, and warnings are errors.
        """
        try:
            self.local_hold.warn(status, holder)
        except HolderDiedWarning:
            self.release()
            raise


def _own_frames() -> int:
    """Number of Fiber's own frames on top of the user's."""
    count = 0
    frame: FrameType | None = sys._getframe(1)  # noqa: SLF001 - there is no other way to see callers
    while frame is not None and frame.f_globals.get("__name__", "").startswith("fiber."):
        count += 1
        frame = frame.f_back
    return count
