"""Passes what jobs write to this program's own outputs, by a thread that may be held up there."""

from __future__ import annotations

import contextlib
import os
import queue
import threading
from collections.abc import Callable

from fiber._agent.supervisor.output import LinePrefix
from fiber_ssh.link import HostLink
from fiber_ssh.order import Order

__all__ = ["Terminal", "pass_output"]


class Terminal:
    """Writes to descriptors 1 and 2; thread-safe."""

    def __init__(self) -> None:
        self._pieces: queue.SimpleQueue[tuple[int, bytes, Callable[[], None]] | None] = (
            queue.SimpleQueue()
        )
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()

    def write(self, stream: int, data: bytes, done: Callable[[], None]) -> None:
        """Write to a stream, 0 or 1, some time; ``done`` is called then."""
        with self._lock:
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="fiber-output", daemon=True)
                self._thread.start()
        self._pieces.put((stream + 1, data, done))

    def close(self) -> None:
        """Write what there is, and end. Idempotent."""
        with self._lock:
            thread, self._thread = self._thread, None
        if thread is not None:
            self._pieces.put(None)
            thread.join(5.0)

    def _run(self) -> None:
        while (piece := self._pieces.get()) is not None:
            descriptor, data, done = piece
            view = memoryview(data)
            # a reader that went away is no reason to hold up jobs
            with contextlib.suppress(OSError):
                while view:
                    view = view[os.write(descriptor, view) :]
            done()


def pass_output(terminal: Terminal, link: HostLink, order: Order) -> None:
    """Have what a job writes come to the terminal, from its beginning to its end.

    Args:
        terminal: where it comes.
        link: the job's host, which was told of the job already.
        order: the job.
    """
    prefix = f"[{order.spec.name}] " if order.spec.log_prefix else ""
    marks = [LinePrefix(prefix.encode("utf-8", "replace")) for _ in range(2)]

    def came(stream: int, data: bytes) -> None:
        text = marks[stream].feed(data)
        terminal.write(stream, text, lambda: link.post("took", number=one.number, count=len(data)))

    one = link.follows.add(order.job.id, came, lambda _: None)
    link.follow(one)
