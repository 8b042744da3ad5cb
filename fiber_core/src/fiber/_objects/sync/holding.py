"""What the threads of one process have of a lock or semaphore."""

from __future__ import annotations

import sys
import threading
import warnings
from types import FrameType

from fiber._objects.sync.wait_queue import Verdict
from fiber.exceptions import HolderDiedError, HolderDiedWarning


class Holding:
    """Not thread-safe, except for what a thread asks about itself.

    Args:
        what: word for it in messages to people.
        recursive: the thread that has it may take it again.
    """

    def __init__(self, what: str, *, recursive: bool) -> None:
        self._what = what
        self._recursive = recursive
        #: permits that this process has
        self.held = 0
        #: the thread that took one last
        self.thread = 0
        # how often it did, where it may do so again
        self._depth = 0

    @property
    def is_mine(self) -> bool:
        """True where this thread took it last, and it was not given back."""
        return self.held > 0 and self.thread == threading.get_ident()

    @property
    def count(self) -> int:
        """How often it must be released."""
        return self._depth if self._recursive else self.held

    def enter_again(self) -> bool:
        """True where this thread has it and may take it again, which it does."""
        if self._recursive and self.is_mine:
            self._depth += 1
            return True
        return False

    def mark(self) -> None:
        """This thread took it, which is counted already."""
        self.thread = threading.get_ident()
        self._depth = 1

    def leave_once(self) -> bool:
        """This thread releases it; False where it keeps it, having taken it more often.

        Raises:
            AssertionError: it may be released by the thread that took it alone.
        """
        if self._recursive:
            if not self.is_mine:
                msg = "attempt to release recursive lock not owned by thread"
                raise AssertionError(msg)
            self._depth -= 1
            if self._depth:
                return False
        if self.held <= 1 and self.thread == threading.get_ident():
            # another thread may be given it before that says so itself
            self.thread = 0
        return True

    def leave_fully(self) -> int:
        """This thread is about to release it altogether; what :meth:`entered_fully` gets."""
        depth, self._depth = self._depth, 1
        return depth

    def entered_fully(self, depth: int) -> None:
        """This thread took it again, as often as before."""
        self._depth = depth

    def warn(self, verdict: Verdict, who: str) -> None:
        """Tell the user of a death.

        Raises:
            HolderDiedError: nothing was taken.
            HolderDiedWarning: it was, and warnings are errors.
        """
        text = f"{who} died while it held this {self._what}; what that guards may be half changed"
        if verdict is Verdict.DIED:
            raise HolderDiedError(text)
        if verdict is Verdict.INHERITED:
            warnings.warn(text, HolderDiedWarning, stacklevel=_frames_of_ours() + 1)


class Held:
    """What both sides of a lock or semaphore do with what this process has of it."""

    #: what this process has
    mine: Holding

    def release(self) -> None:
        """Give a permit back."""
        raise NotImplementedError

    def release_fully(self) -> int:
        """Give it back, however often this thread has taken it."""
        depth = self.mine.leave_fully()
        self.release()
        return depth

    def warn(self, verdict: Verdict, who: str) -> None:
        """Tell the user of a death; where that is an error, nothing stays taken.

        Raises:
            HolderDiedError: nothing was taken.
            HolderDiedWarning: it was and is given back, and warnings are errors.
        """
        try:
            self.mine.warn(verdict, who)
        except HolderDiedWarning:
            self.release()
            raise


def _frames_of_ours() -> int:
    """How many calls of Fiber's own the user's call has led to."""
    count = 0
    frame: FrameType | None = sys._getframe(1)  # noqa: SLF001 - there is no other way to see callers
    while frame is not None and frame.f_globals.get("__name__", "").startswith("fiber."):
        count += 1
        frame = frame.f_back
    return count
