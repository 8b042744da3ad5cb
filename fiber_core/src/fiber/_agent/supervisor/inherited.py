"""Channel that a forked process inherits from its supervisor, for jobs of its own."""

from __future__ import annotations

import os
import socket
import threading

from fiber._base import values

__all__ = ["Inheritance", "claim_channel", "inherit", "inherited_channel", "release_channel"]


@values.frozen(kw_only=True)
class Inheritance:
    """Channel of a forked process, with its supervisor and its place in the job."""

    #: connected to the supervisor; close-on-exec
    channel: socket.socket
    #: the supervisor's run directory
    run_directory: str
    #: process id of the supervisor
    supervisor: int
    #: id of the job that this process belongs to
    job_id: str
    #: position of this process within that job
    index: int
    #: process id of its owner; a fork of that process may not use it
    pid: int


_inheritance: Inheritance | None = None
_lock = threading.Lock()
_claimed = False


def inherit(inheritance: Inheritance) -> None:
    """Record this process's inheritance; called once in a forked child, before user code."""
    global _inheritance  # noqa: PLW0603 - a process is forked by its supervisor once and for all
    _inheritance = inheritance


def inherited_channel() -> Inheritance | None:
    """The channel on which this process can have its supervisor start jobs.

    Returns:
        None in a process that no supervisor forked: a master, an exec'ed program, or one that the
        user's own fork made.
    """
    if _inheritance is None or _inheritance.pid != os.getpid():
        return None
    return _inheritance


def claim_channel(run_directory: str) -> socket.socket | None:
    """Take the channel for one client; it is given back with :func:`release_channel`.

    Args:
        run_directory: of the run for which jobs are to be started; this supervisor starts jobs of
            its own run alone.

    Returns:
        A socket that the client closes; None where there is no channel or a client has it.
    """
    global _claimed  # noqa: PLW0603 - replies go to the first reader, so there is one client
    inheritance = inherited_channel()
    if inheritance is None or inheritance.run_directory != run_directory:
        return None
    with _lock:
        if _claimed:
            return None
        _claimed = True
    return inheritance.channel.dup()


def release_channel() -> None:
    """Give the channel back, once its client has ended and closed the socket."""
    global _claimed  # noqa: PLW0603 - as above
    with _lock:
        _claimed = False
