"""Pool of at most so many threads, which are started as actions come and end when there is none."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable

from fiber._base.log import lazy_logger

log = lazy_logger()


class ThreadPool:
    """Threads for calls that may wait for long, of a platform say; they need not be ended.

    Args:
        name: name of the threads.
        limit: most of them at once; more actions wait.
    """

    def __init__(self, name: str, limit: int) -> None:
        self._name = name
        self._limit = limit
        self._lock = threading.Lock()
        self._actions: deque[Callable[[], None]] = deque()
        self._threads = 0

    def submit(self, action: Callable[[], None]) -> None:
        """Run ``action`` on one of the threads; its exception is logged.

        Raises:
            RuntimeError: there is no thread, and none can be started.
        """
        with self._lock:
            self._actions.append(action)
            if self._threads >= self._limit:
                return
            self._threads += 1
        try:
            threading.Thread(target=self._run, name=self._name, daemon=True).start()
        except RuntimeError:
            with self._lock:
                self._threads -= 1
                if self._threads or action not in self._actions:
                    # another one does it
                    return
                self._actions.remove(action)
            raise

    def clear(self) -> None:
        """Drop the actions that have not begun."""
        with self._lock:
            self._actions.clear()

    def _run(self) -> None:
        while True:
            with self._lock:
                if not self._actions:
                    self._threads -= 1
                    return
                action = self._actions.popleft()
            try:
                action()
            except BaseException:  # SystemExit of a user's pickle ends no thread of ours
                log.exception("fiber: an action on a thread of %s failed", self._name)
