"""What those who wait for a ring are told."""

from __future__ import annotations

import pickle
import threading
from collections.abc import Callable, Sequence
from typing import Any

from fiber._ring.model import Failure, RingStatus


class Outcome:
    """The last status of a ring, and its end; for any thread.

    Args:
        status: as it is now.
    """

    def __init__(self, status: RingStatus) -> None:
        self._changed = threading.Condition()
        self._status = status
        self._is_over = False
        self._results: tuple[bytes, ...] = ()
        #: why it failed, once it has
        self.failure: Failure | None = None

    # -- for those who wait

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until it is over, or ``timeout`` seconds have passed; whether it is."""
        with self._changed:
            return self._changed.wait_for(lambda: self._is_over, timeout)

    def wait_for(
        self, condition: Callable[[RingStatus], bool], timeout: float | None = None
    ) -> bool:
        """Wait until something is true of the status; False where it is over or time ran out."""
        with self._changed:
            self._changed.wait_for(lambda: condition(self._status) or self._is_over, timeout)
            return condition(self._status)

    def results(self) -> list[Any]:
        """What the ranks returned, by rank."""
        return [pickle.loads(found) for found in self._results]

    # -- for the coordinator

    def told(self, status: RingStatus) -> None:
        """It has another status."""
        with self._changed:
            self._status = status
            self._changed.notify_all()

    def over(self, failure: Failure | None, results: Sequence[bytes] = ()) -> None:
        """It is over; the first word on it counts."""
        with self._changed:
            if not self._is_over:
                self._is_over, self.failure = True, failure
                self._results = tuple(results)
            self._changed.notify_all()
