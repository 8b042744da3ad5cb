"""Output of jobs on this program's stdout and stderr, written by a thread that may block.

Apart from the scheduler, so that a terminal that blocks holds up that thread alone.
"""

from __future__ import annotations

import contextlib
import os
import queue
import threading
from collections.abc import Callable

from fiber._agent.supervisor.output import LinePrefix
from fiber_ssh.agent_link import AgentLink
from fiber_ssh.submission import Submission

__all__ = ["OutputWriter", "forward_output"]


class OutputWriter:
    """Writer to descriptors 1 and 2 with a queue and the thread ``fiber-output``; thread-safe."""

    def __init__(self) -> None:
        self._pieces: queue.SimpleQueue[tuple[int, bytes, Callable[[], None]] | None] = (
            queue.SimpleQueue()
        )
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()

    def write(self, stream: int, data: bytes, done: Callable[[], None]) -> None:
        """Queue data for a stream, 0 or 1; ``done`` is called once it is written."""
        with self._lock:
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="fiber-output", daemon=True)
                self._thread.start()
        self._pieces.put((stream + 1, data, done))

    def close(self) -> None:
        """Write what is queued and end the thread. Idempotent."""
        with self._lock:
            thread, self._thread = self._thread, None
        if thread is not None:
            self._pieces.put(None)
            thread.join(5.0)

    def _run(self) -> None:
        while (piece := self._pieces.get()) is not None:
            descriptor, data, done = piece
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
