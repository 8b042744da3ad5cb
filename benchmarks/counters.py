"""What work costs beside time: frames, bytes, system calls and hand-overs between threads.

The counts of this process are taken by wrappers around the functions that every frame passes, so
that nothing is counted, and nothing is paid, unless somebody asks. Hand-overs are the voluntary
context switches that the kernel counts: a thread that waits is one, wherever it waits.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import socket
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import attrs

from fiber._wire import frames

#: methods of a socket that are one system call each
_SOCKET = ("send", "sendmsg", "recv", "recv_into")


@attrs.define
class Counts:
    """Of this process, save the hand-overs, which are of the workers too."""

    #: frames sent and received; a message of up to 4 MiB is one
    frames: int = 0
    #: bytes that sockets took and gave
    bytes: int = 0
    #: looks at sockets and pipes, reads and writes of them; waiting for a thread is none
    calls: int = 0
    #: times that a thread waited, here and in the workers
    waits: int = 0

    def each(self, tasks: int) -> Costs:
        """For one of so many tasks."""
        return Costs(*(value / tasks for value in attrs.astuple(self)))


class Costs(NamedTuple):
    """The same for one task."""

    frames: float
    bytes: float
    calls: float
    waits: float


@contextlib.contextmanager
def counting(workers: Iterable[int] = ()) -> Iterator[Counts]:
    """Count what happens meanwhile.

    Args:
        workers: pids of processes whose hand-overs count too; they must live until the end.
    """
    counts, pids = Counts(), [os.getpid(), *workers]
    counts.waits = -sum(map(_waits, pids))
    with contextlib.ExitStack() as stack:

        def wrap(owner: Any, name: str, note: Callable[[Any], None]) -> None:
            stack.enter_context(mock.patch.object(owner, name, _noting(getattr(owner, name), note)))

        def frame(_: Any) -> None:
            counts.frames += 1

        def call(_: Any) -> None:
            counts.calls += 1

        def transfer(result: Any) -> None:
            counts.calls += 1
            counts.bytes += result if isinstance(result, int) else len(result)

        wrap(frames, "header", frame)
        wrap(frames, "parse", frame)
        wrap(selectors.DefaultSelector, "select", call)
        wrap(os, "read", call)
        wrap(os, "write", call)
        for name in _SOCKET:
            wrap(socket.socket, name, transfer)
        yield counts
    counts.waits += sum(map(_waits, pids))


def _noting(function: Callable[..., Any], note: Callable[[Any], None]) -> Callable[..., Any]:
    def noting(*arguments: Any, **named: Any) -> Any:
        result = function(*arguments, **named)
        note(result)
        return result

    return noting


def _waits(pid: int) -> int:
    """How often the threads of a process have waited; what ended ones did is forgotten."""
    found = 0
    for status in Path(f"/proc/{pid}/task").glob("*/status"):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            for line in status.read_text().splitlines():
                if line.startswith("voluntary_ctxt_switches:"):
                    found += int(line.split()[1])
    return found
