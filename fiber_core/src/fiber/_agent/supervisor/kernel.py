"""System calls that a supervisor uses: prctl, pidfd, memfd, kqueue on macOS, and a group's signals.

Needs the standard library alone, for it runs on hosts without Fiber too.
"""

from __future__ import annotations

import contextlib
import functools
import os
import select
import signal
import sys
from collections.abc import Iterator
from typing import Any

#: signals that a terminal, ``timeout`` and the like send to a process group
GROUP_SIGNALS = (
    signal.SIGHUP,
    signal.SIGINT,
    signal.SIGQUIT,
    signal.SIGTERM,
    signal.SIGTSTP,
)

_PR_SET_PDEATHSIG = 1
_PR_SET_NAME = 15
_PR_SET_CHILD_SUBREAPER = 36


@contextlib.contextmanager
def blocked() -> Iterator[None]:
    """Block the group's signals, also in processes that are started in this context."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, GROUP_SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


if sys.platform == "linux":

    @functools.cache
    def _libc() -> Any:
        # loaded once by a supervisor for all its forks: in each of them that takes a millisecond
        import ctypes

        return ctypes.CDLL(None, use_errno=True)

    def leave_group() -> None:
        """Lead a process group of its own, without a terminal.

        It stays in its session: Linux shares out a busy machine's CPUs by sessions (autogroups), and
        of two processes that talk with each other the second would wait until its session's turn.
        """
        os.setpgid(0, 0)
        try:
            terminal = os.open("/dev/tty", os.O_RDWR | os.O_NONBLOCK)
        except OSError:
            # there is none
            return
        import fcntl
        import termios

        try:
            # of one that leads no session it takes the terminal from that process alone
            fcntl.ioctl(terminal, termios.TIOCNOTTY)
        finally:
            os.close(terminal)

    def _prctl(option: int, argument: int | bytes) -> bool:
        libc = _libc()
        import ctypes

        value = argument if isinstance(argument, bytes) else ctypes.c_ulong(argument)
        zero = ctypes.c_ulong(0)
        return bool(libc.prctl(option, value, zero, zero, zero) == 0)

else:

    def leave_group() -> None:
        """Lead a process group of its own, without a terminal: in a session of its own."""
        os.setsid()

    def _prctl(option: int, argument: int | bytes) -> bool:  # noqa: ARG001 - as above
        return False


def die_with_parent(parent: int) -> bool:
    """Have this process killed when its parent ends, where the system can do so.

    Returns:
        False if the parent has ended already, in which case the caller must end at once.
    """
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    return os.getppid() == parent


def adopt_orphans() -> bool:
    """Become a subreaper, the parent of orphaned descendants; False where that is impossible."""
    return _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def set_title(title: str) -> None:
    """Name this process for ``ps`` and ``top``, where that can be done."""
    _prctl(_PR_SET_NAME, title.encode()[:15] + b"\0")


def private_descriptor(data: bytes, folder: str) -> int:
    """A descriptor from which ``data`` can be read once, named by no path.

    Args:
        data: what it holds.
        folder: where a file may be made and unlinked at once, on systems without memfd.
    """
    if sys.platform == "linux":
        descriptor = os.memfd_create("fiber-private", os.MFD_CLOEXEC)
    else:
        import tempfile

        with tempfile.TemporaryFile(dir=folder, buffering=0) as file:
            descriptor = os.dup(file.fileno())
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]
    os.lseek(descriptor, 0, os.SEEK_SET)
    return descriptor


class ProcessWatch:
    """Becomes readable, for selectors, when a process that need not be a child ends.

    Raises:
        ProcessLookupError: there is no such process.
        OSError: this system cannot do it.
    """

    def __init__(self, pid: int) -> None:
        self._closed = False
        if sys.platform == "linux":
            self._descriptor = os.pidfd_open(pid)
        elif sys.platform == "darwin":
            # the descriptor lives as long as the object does
            self._queue = select.kqueue()
            event = select.kevent(pid, select.KQ_FILTER_PROC, select.KQ_EV_ADD, select.KQ_NOTE_EXIT)
            self._queue.control([event], 0)
            self._descriptor = self._queue.fileno()
        else:
            msg = f"no way to watch a process on {sys.platform}"
            raise OSError(msg)

    def fileno(self) -> int:
        """The descriptor to select on."""
        return self._descriptor

    def close(self) -> None:
        """Release the descriptor. Idempotent."""
        if self._closed:
            return
        self._closed = True
        with contextlib.suppress(OSError):
            if sys.platform == "darwin":
                self._queue.close()
            else:
                os.close(self._descriptor)
