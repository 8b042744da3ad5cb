"""Collects what the kernel has to say about children: stopped, continued, ended."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator

from fiber._base import values

__all__ = ["Change", "Ended", "kill_group", "reap", "signal_process"]


@values.frozen
class Change:
    """A child was stopped by a signal, or runs again."""

    #: the child
    pid: int
    #: the signal that stopped it; None where it runs again
    stopped_by: int | None


@values.frozen
class Ended:
    """A child ended and is no more."""

    #: the child
    pid: int
    #: as ``os.wait4`` gives it
    wait_status: int
    #: most resident memory it had, in bytes
    peak_memory: int


if sys.platform == "linux":

    def reap(before: Callable[[int], None]) -> Iterator[Change | Ended]:
        """Yield what has happened since the last call; never waits.

        Args:
            before: called with the id of a child that has ended, while that id can belong to
                nobody else yet: the time to signal its group.
        """
        everything = os.WEXITED | os.WSTOPPED | os.WCONTINUED
        while True:
            try:
                seen = os.waitid(os.P_ALL, 0, everything | os.WNOHANG | os.WNOWAIT)
            except ChildProcessError:
                return
            if seen is None:
                return
            pid = seen.si_pid
            if seen.si_code in (os.CLD_STOPPED, os.CLD_TRAPPED):
                os.waitid(os.P_PID, pid, os.WSTOPPED | os.WNOHANG)
                yield Change(pid, seen.si_status)
            elif seen.si_code == os.CLD_CONTINUED:
                os.waitid(os.P_PID, pid, os.WCONTINUED | os.WNOHANG)
                yield Change(pid, None)
            else:
                before(pid)
                _, status, usage = os.wait4(pid, 0)
                # Linux counts in kilobytes
                yield Ended(pid, status, usage.ru_maxrss * 1024)

else:

    def reap(before: Callable[[int], None]) -> Iterator[Change | Ended]:
        """Yield what has happened since the last call; never waits.

        Args:
            before: called with the id of a child that has just been reaped: where the system
                cannot tell of it earlier, this is the time to signal its group.
        """
        while True:
            try:
                pid, status, usage = os.wait4(-1, os.WNOHANG | os.WUNTRACED | os.WCONTINUED)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if os.WIFSTOPPED(status):
                yield Change(pid, os.WSTOPSIG(status))
            elif os.WIFCONTINUED(status):
                yield Change(pid, None)
            else:
                before(pid)
                yield Ended(pid, status, usage.ru_maxrss)


def kill_group(pid: int, signum: int = signal.SIGKILL) -> None:
    """Signal the group that a child leads, and the child itself should it not lead it yet."""
    try:
        os.killpg(pid, signum)
    except (ProcessLookupError, PermissionError):
        # between the fork and its setsid; or nothing but zombies, which macOS forbids to signal
        signal_process(pid, signum)


def signal_process(pid: int, signum: int) -> None:
    """Signal a child that has not been reaped; one that has just ended is no error."""
    try:
        os.kill(pid, signum)
    except (ProcessLookupError, PermissionError):
        return
