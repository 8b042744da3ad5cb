"""Passes what jobs write to this program's own outputs, by a thread that may be held up there."""

from __future__ import annotations

import contextlib
import os
import queue
import threading
from collections.abc import Callable

from fiber.launch.supervisor.output import LinePrefix

__all__ = ["Terminal"]


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


def prefixes(name: str) -> tuple[LinePrefix, LinePrefix]:
    """What goes before each line of a job, for both of its outputs."""
    text = f"[{name}] ".encode("utf-8", "replace")
    return LinePrefix(text), LinePrefix(text)
