"""Forks the processes of jobs."""

from __future__ import annotations

import os
import signal
import socket
import sys
from collections.abc import Callable

from fiber._agent.supervisor.child import ChildPlan
from fiber._agent.supervisor.descriptors import Descriptors
from fiber._base import values

__all__ = ["InChild", "Spawned", "spawn"]


#: signals that would be swallowed by a child which has not reset the supervisor's handlers yet
_HANDLED = (signal.SIGTERM, signal.SIGINT, signal.SIGCHLD)


class InChild(BaseException):
    """Raised in a forked child, so that nothing of the supervisor is left below its code."""

    def __init__(self, plan: ChildPlan) -> None:
        super().__init__(plan.job_id)
        self.plan = plan


@values.frozen(kw_only=True)
class Spawned:
    """A process as its supervisor sees it; the descriptors are owned and non-blocking."""

    #: process id, also of its session and group
    pid: int
    #: read end of its standard output
    stdout: int
    #: read end of its standard error
    stderr: int
    #: read end: what kept it from running, or the end of file once it runs
    report: int
    #: its channel; None for programs
    channel: int | None


def spawn(
    plan_for: Callable[..., ChildPlan], descriptors: Descriptors, *, channel: bool
) -> Spawned:
    """Fork a process; in the child :class:`InChild` is raised.

    Args:
        plan_for: makes the plan from the descriptors given by keyword.
        descriptors: owner of the supervisor's ends.
        channel: whether the child gets a channel.

    Raises:
        OSError: the system has no room for it; nothing was started.
    """
    ours: list[int] = []
    theirs: list[int] = []
    try:
        for _ in range(3):
            reader, writer = os.pipe()
            ours.append(reader)
            theirs.append(writer)
        if channel:
            mine, its = socket.socketpair()
            mine.setblocking(False)
            its.setblocking(True)
            ours.append(mine.detach())
            theirs.append(its.detach())
        plan = plan_for(
            stdout=theirs[0],
            stderr=theirs[1],
            report=theirs[2],
            channel=theirs[3] if channel else None,
        )
        # the child has the supervisor's handlers until it resets them, and takes these then
        signal.pthread_sigmask(signal.SIG_BLOCK, _HANDLED)
        pid = os.fork()
    except OSError:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _HANDLED)
        for descriptor in ours + theirs:
            os.close(descriptor)
        raise
    if pid == 0:
        for descriptor in ours:
            os.close(descriptor)
        raise InChild(plan)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _HANDLED)
    for descriptor in theirs:
        os.close(descriptor)
    for descriptor in ours:
        descriptors.own(descriptor)
        os.set_blocking(descriptor, False)
    return Spawned(
        pid=pid,
        stdout=ours[0],
        stderr=ours[1],
        report=ours[2],
        channel=ours[3] if channel else None,
    )


def forks_entries() -> bool:
    """True where entry functions are called in forked children; elsewhere argv is used.

    On macOS a forked process may not use the system's frameworks.
    """
    return sys.platform != "darwin"
