"""A thread that does one thing after another: what must not hold up its caller."""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable
from typing import Any

from fiber.exceptions import PeerLostError

log = logging.getLogger("fiber")


class Courier:
    """Runs actions in order on a thread of its own.

    ``submit`` takes no lock that the caller may hold, so that a finalizer may call it whenever the
    collector runs. The loss of the process that an action talks to ends that action alone.
    """

    def __init__(self, name: str) -> None:
        self._actions: queue.SimpleQueue[Callable[[], Any] | None] = queue.SimpleQueue()
        self._closed = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def submit(self, action: Callable[[], Any]) -> bool:
        """Have ``action`` called; False where it has ended."""
        if self._closed:
            return False
        self._actions.put(action)
        return True

    def drain(self, timeout: float | None = None) -> bool:
        """Wait until all that was submitted is done; False when ``timeout`` seconds have passed."""
        done = threading.Event()
        self.submit(done.set)
        return self._closed or done.wait(timeout)

    def end(self) -> None:
        """Have the thread end once all that was submitted is done; idempotent."""
        if not self._closed:
            self._closed = True
            self._actions.put(None)

    def close(self) -> None:
        """End the thread once all that was submitted is done, and wait for it; idempotent."""
        self.end()
        if threading.current_thread() is not self._thread:
            self._thread.join(10)

    def _run(self) -> None:
        while True:
            action = self._actions.get()
            if action is None:
                return
            try:
                action()
            except PeerLostError as error:
                log.debug("fiber: %s", error)
            except Exception:
                log.exception("fiber: something done on behalf of a shared object failed")
            # what it refers to is not to live until the next one comes
            del action
