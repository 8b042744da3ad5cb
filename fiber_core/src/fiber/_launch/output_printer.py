"""Writes what jobs elsewhere wrote to this process's own output, on a thread of its own."""

from __future__ import annotations

import os
import select
import threading
from collections import deque

__all__ = ["Shown"]

#: bytes that wait for a terminal that takes none, before the first of them are dropped
_MOST = 1 << 24
_PIECE = 1 << 12


class Shown:
    """Stdout and stderr of this process, for many writers; nobody waits for a terminal."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._pieces: deque[tuple[int, bytes]] = deque()
        self._size = 0
        # pieces that were written, and those of them that are shown or dropped
        self._written = self._done = 0
        self._thread: threading.Thread | None = None
        self._closed = False

    def write(self, stream: int, data: bytes) -> None:
        """Show bytes soon.

        Args:
            stream: 1 or 2.
            data: whole lines, or the beginning of one.
        """
        if stream not in {1, 2} or not data:
            return
        with self._changed:
            self._pieces.append((stream, data))
            self._written += 1
            self._size += len(data)
            while self._size > _MOST and len(self._pieces) > 1:
                self._size -= len(self._pieces.popleft()[1])
                self._done += 1
            if self._thread is None and not self._closed:
                self._thread = threading.Thread(target=self._run, name="fiber-shown", daemon=True)
                self._thread.start()
            self._changed.notify_all()

    def settle(self, timeout: float) -> None:
        """Wait until what was written is shown, at most so many seconds: a terminal may take nothing."""
        with self._changed:
            number = self._written
            self._changed.wait_for(lambda: self._done >= number, timeout)

    def close(self, *, timeout: float = 5.0) -> None:
        """Show what there is, and end the thread; a terminal that takes nothing is left. Idempotent."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
            thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join(timeout)

    def _run(self) -> None:
        while True:
            with self._changed:
                while not self._pieces and not self._closed:
                    self._changed.wait()
                if not self._pieces:
                    return
                stream, data = self._pieces.popleft()
                self._size -= len(data)
            _put(stream, data)
            with self._changed:
                self._done += 1
                self._changed.notify_all()


def _put(stream: int, data: bytes) -> None:
    while data:
        try:
            data = data[os.write(stream, data[:_PIECE]) :]
        except BlockingIOError:
            # somebody made the terminal or pipe non-blocking: it is waited for
            poll = select.poll()
            poll.register(stream, select.POLLOUT)
            poll.poll()
        except OSError:
            # whoever read it has gone; what is written to it goes nowhere
            return
