"""A call of a managed object that is made from its own process, on another thread."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import Any

from fiber._objects.managed import calls
from fiber._objects.managed.calls import Outcome


class LocalCall:
    """The same to its caller as :class:`~fiber._objects.managed.remote_referent.Call`."""

    def __init__(self) -> None:
        self._done = threading.Event()
        self._lock = threading.Lock()
        self._outcome: Outcome | None = None
        self._then: Callable[[], Any] | None = None

    @property
    def done(self) -> bool:
        """True once its outcome is here."""
        return self._done.is_set()

    def wait(self, timeout: float | None = None) -> bool:
        """Wait for its outcome; False when ``timeout`` seconds have passed without."""
        return self._done.wait(timeout)

    def then(self, action: Callable[[], Any]) -> None:
        """Have ``action`` called once it is done, on the thread that made it or at once."""
        with self._lock:
            if not self._done.is_set():
                self._then = action
                return
        action()

    def settle(self, outcome: Outcome) -> None:
        """Note what became of it."""
        with self._lock:
            self._outcome = outcome
            self._done.set()
            then = self._then
        if then is not None:
            then()

    def value(self) -> Any:
        """What it returned, once it is :attr:`done`; to be asked once.

        Raises:
            Exception: what the method raised.
        """
        assert self._outcome is not None
        return calls.value(self._outcome)

    def discard(self, unread: str = "") -> None:
        """Nobody will ask for its value: what it holds goes with it.

        Args:
            unread: the method's name, where it is to be told if it failed.
        """
        self.then(functools.partial(self._tell, unread))

    def _tell(self, unread: str) -> None:
        assert self._outcome is not None
        calls.tell_failure(self._outcome[0], unread)
