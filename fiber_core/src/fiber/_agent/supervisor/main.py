"""Main function of a local supervisor: reads its options from the channel it is given, and serves.

Apart from ``server``, so that a forked child unwinds to it.
"""

from __future__ import annotations

import os
import resource
import select
import sys
from pathlib import Path
from typing import NoReturn

from fiber._agent.supervisor import kernel
from fiber._agent.supervisor.child import InChild, become
from fiber._agent.supervisor.messages import HEADER, Decoder, SupervisorOptions
from fiber._agent.supervisor.orphans import DETACHED_TITLE, SUPERVISOR_TITLE
from fiber._agent.supervisor.preload import preload
from fiber._agent.supervisor.server import Server

__all__ = ["main", "raise_descriptor_limit"]


def main(descriptor: int, interrupts: tuple[int, int, int], *, early: bool = False) -> NoReturn:
    """Run a supervisor on a channel, then end the process.

    Args:
        descriptor: the channel.
        interrupts: from :func:`~fiber._agent.supervisor.interrupts.leave_group`.
        early: True where the options may take a while to come.
    """
    os.set_inheritable(descriptor, False)
    if early:
        from fiber._agent.instructions import PRELOAD

        preload(PRELOAD)
    options = _read_options(descriptor)
    if options.detached:
        # no terminal interrupts what outlives the program
        for end in interrupts[:2]:
            os.close(end)
        if os.fork():
            # the starter waits for the first of the two only
            os._exit(0)
        os.setsid()
        _leave_terminal(options.run_directory)
    kernel.set_title(DETACHED_TITLE if options.detached else SUPERVISOR_TITLE)
    limit = raise_descriptor_limit()
    failures = preload(options.preload)
    try:
        os.set_blocking(descriptor, False)
        server = Server(options, descriptor, interrupts=interrupts, descriptor_limit=limit)
        try:
            server.serve(failures)
        except InChild as child:
            plan = child.plan
            server.leave_child()
        else:
            os._exit(0)
    except BaseException:
        sys.excepthook(*sys.exc_info())
        os._exit(1)
    become(plan)


def _read_options(descriptor: int) -> SupervisorOptions:
    # exactly one frame: what follows are requests, which the server reads
    header = _exactly(descriptor, HEADER.size)
    decoder = Decoder()
    decoder.feed(header + _exactly(descriptor, HEADER.unpack(header)[0]))
    options = next(decoder.messages())
    assert isinstance(options, SupervisorOptions)
    return options


def _exactly(descriptor: int, size: int) -> bytes:
    data = b""
    starter = os.getppid()
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    while len(data) < size:
        # a fork of the starter's may hold the other end: then its death brings no end of file
        while not poll.poll(1000):
            if os.getppid() != starter:
                os._exit(0)
        more = os.read(descriptor, size - len(data))
        if not more:
            # the process that started this one has ended meanwhile
            os._exit(0)
        data += more
    return data


def _leave_terminal(run_directory: str) -> None:
    # a reader of the starter's output must not wait for the end of this process
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
    log = os.open(Path(run_directory, "supervisor.log"), flags, 0o600)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.close(log)


def raise_descriptor_limit() -> int:
    """Raise the soft limit of open files to the hard one; returns the soft limit before."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        # macOS has a hard limit of "infinity" and accepts no more than OPEN_MAX
        for limit in (hard, 10240):
            try:
                resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
            except (OSError, ValueError):
                continue
            break
    return soft
