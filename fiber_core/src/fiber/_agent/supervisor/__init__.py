"""Supervisor: forks and watches the processes of jobs, and runs no user code but the imports that its children share.

A local supervisor is a single-threaded process without network sockets; while it imports, a second thread ends it
with its master. It speaks frames of
:mod:`~fiber._agent.supervisor.messages` over stream sockets that its peers inherited from it or
from the process that started it. Holding such a descriptor is the proof of belonging, so nothing
listens and nothing is authenticated.

Its peers are *owners*: the master (owner ``None``), and each process that it forked (job id and
index), which may submit jobs on a channel of its own. A channel reaches the jobs submitted on it
and no others; when its process ends, those jobs are killed. The supervisor ends with its master, on
request, or, where it is detached, after its last job.

Inside there is one thread, one event loop (:class:`~fiber._base.threads.Loop`) and no lock. ``server`` holds the loop together:
``messages`` (frames in and out), ``RequestHandler`` (requests), ``jobs`` (the job table, pure) and
``runner`` (processes, pipes, timers), with ``child`` (fork, and what the child does next),
``output``, ``devices``, ``cgroup``, ``journal``, ``interrupts`` (SIGINT to the program's group) and
``orphans`` (descendants that left their group). Nothing in the loop blocks except a flush at the end, which is
bounded, and imports, for each of which the master waits two minutes before it starts another supervisor. Once there are
jobs, the supervisor imports no packages of the program: it retires, that is takes no more jobs of the
master's, and the next one does.

In the process that uses a supervisor are ``start`` (starts its interpreter), ``client`` (requests
from any thread; one reader thread a connection, named by its owner) and ``preload`` (requests of the
program). The channel that a forked process inherits, for jobs of its own, is kept here. The local backend calls these;
:mod:`fiber._agent.job` uses ``runner`` and what is below it.
"""

from __future__ import annotations

import os
import socket
import threading

from fiber._base import values

#: file of a run's folder, to which its supervisor appends the starts and ends of jobs
JOURNAL = "jobs.jsonl"


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
