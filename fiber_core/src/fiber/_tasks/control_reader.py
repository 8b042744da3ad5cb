"""A thread that looks after a worker's link while a task of the worker takes long.

The main thread reads the link itself, which saves a thread hop for each entry. While it is inside
a long task, somebody must still answer when the pool wants back what has not begun, and hand over
the results of what was done before. The attendant does, and only then: it begins to look after ``PATIENCE`` seconds of the same entry, so that short
entries cost it nothing.
"""

from __future__ import annotations

import select
import threading
from collections.abc import Callable
from typing import Generic, TypeVar

from fiber._wire.descriptors import await_readable

T = TypeVar("T")

#: seconds that an entry runs before the attendant begins to look
PATIENCE = 0.05


class Attendant(Generic[T]):
    """Looks after one subject at a time.

    Args:
        attend: called with the subject whenever the link has something while it runs on.
        linger: called with the subject every now and then while it runs on.
    """

    def __init__(self, attend: Callable[[T], None], linger: Callable[[T], None]) -> None:
        self._attend = attend
        self._linger = linger
        self._changed = threading.Condition()
        self._subject: T | None = None
        self._fds: tuple[int, ...] = ()
        self._idle = True
        self._closed = False
        self._thread: threading.Thread | None = None

    def watch(self, subject: T, fds: tuple[int, ...]) -> None:
        """The main thread begins with ``subject``; the descriptors tell of its link."""
        self._fds = fds
        self._subject = subject
        # a busy attendant sees the new subject at its next look; only an idle one is woken
        if self._idle:
            with self._changed:
                if self._thread is None:
                    self._thread = threading.Thread(
                        target=self._run, name="fiber-attendant", daemon=True
                    )
                    self._thread.start()
                self._changed.notify()

    def rest(self) -> None:
        """The main thread is done with the subject and reads the link itself."""
        self._subject = None

    def close(self) -> None:
        """End the thread."""
        with self._changed:
            self._closed = True
            self._subject = None
            self._changed.notify()
        if self._thread is not None:
            self._thread.join(5)

    def _run(self) -> None:
        while True:
            with self._changed:
                subject = self._subject
                if self._closed:
                    return
                if subject is None:
                    self._idle = True
                    self._changed.wait_for(lambda: self._closed or self._subject is not None)
                    self._idle = False
                    continue
                self._idle = False
                # most entries are done before this
                self._changed.wait(PATIENCE)
            if self._subject is subject and not self._closed:
                self._linger(subject)
                self._look(subject)

    def _look(self, subject: T) -> None:
        poll = select.poll()
        for fd in self._fds:
            poll.register(fd, select.POLLIN)
        # the main thread ends a subject without a word, so that it never pays for one
        is_readable = await_readable(poll, self._fds, PATIENCE)
        if is_readable and self._subject is subject:
            self._attend(subject)
