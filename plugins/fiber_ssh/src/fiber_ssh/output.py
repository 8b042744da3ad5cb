"""Output of jobs on this program's stdout and stderr, written by a thread that may block.

Apart from the scheduler, so that a terminal that blocks holds up that thread alone.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable

from fiber._agent.supervisor.output import LinePrefix
from fiber._base.threads import CallbackThread
from fiber_ssh.agent_link import AgentLink
from fiber_ssh.submission import Submission

__all__ = ["OutputWriter", "forward_output"]


class OutputWriter:
    """Writer to descriptors 1 and 2 with a queue and the thread ``fiber-output``; thread-safe."""

    def __init__(self) -> None:
        self._thread = CallbackThread("fiber-output")

    def write(self, stream: int, data: bytes, done: Callable[[], None]) -> None:
        """Queue data for a stream, 0 or 1; ``done`` is called once it is written."""
        self._thread.put(self._write, stream + 1, data, done)

    def close(self) -> None:
        """Write what is queued and end the thread. Idempotent."""
        self._thread.close(5.0)

    def _write(self, descriptor: int, data: bytes, done: Callable[[], None]) -> None:
        view = memoryview(data)
        # without a reader, output is dropped: jobs must not wait for it
        with contextlib.suppress(OSError):
            while view:
                view = view[os.write(descriptor, view) :]
        done()


def forward_output(writer: OutputWriter, link: AgentLink, submission: Submission) -> None:
    """Follow a job's output from its beginning to its end, and write it with the job's prefix.

    Args:
        writer: the destination.
        link: the connection to the job's host, to which the job was submitted before.
        submission: the job.
    """
    prefix = f"[{submission.spec.name}] " if submission.spec.log_prefix else ""
    marks = [LinePrefix(prefix.encode("utf-8", "replace")) for _ in range(2)]

    def write(stream: int, data: bytes) -> None:
        text = marks[stream].feed(data)
        writer.write(stream, text, lambda: link.notify("took", number=one.number, count=len(data)))

    one = link.followers.add(submission.job.id, write, lambda _: None)
    link.follow(one)
