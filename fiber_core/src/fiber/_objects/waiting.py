"""Waiting threads: their requests and offers, wakeup locks, and deadlines."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable

from fiber._base import values
from fiber._base.threads import in_turns
from fiber._objects.protocol import Notice, Outcome
from fiber._objects.queue.messages import Item
from fiber._objects.queue.requests import Offer, Request

#: on one CPU there is nobody to look for before a thread sleeps
HAS_TWO_CPUS = len(os.sched_getaffinity(0)) > 1 if hasattr(os, "sched_getaffinity") else True


def _acquired_lock() -> threading.Lock:
    wakeup = threading.Lock()
    wakeup.acquire()
    return wakeup


def wait_for_wakeup(
    wakeup: threading.Lock,
    timeout: float | None,
    read: Callable[[float], bool | None] | None = None,
) -> bool:
    """Wait until a wakeup lock is released; False when ``timeout`` seconds have passed.

    Args:
        wakeup: the lock.
        timeout: seconds; None for any number.
        read: reads messages meanwhile, for some seconds: True once there is what is waited for, None
            where others read them.
    """

    def wait(turn: float) -> bool:
        found = None if read is None else read(turn)
        return wakeup.acquire(timeout=turn) if found is None else found

    return in_turns(wait, None if timeout is None else max(timeout, 0.0))


@values.define(eq=False)
class WaitingReader(Request):
    """Request of a thread of the owner, which waits for an item."""

    wakeup: threading.Lock = values.field(factory=_acquired_lock)
    answer: Notice | None = None
    item: Item | None = None
    #: wakes the thread where it reads messages itself while it waits
    wake: Callable[[], None] | None = None

    def settle(self, answer: Notice, item: Item | None) -> None:
        """Wake the thread; with the object's lock held."""
        self.answer, self.item = answer, item
        self.wakeup.release()
        if self.wake is not None:
            self.wake()


@values.define(eq=False)
class WaitingWriter(Offer):
    """Offer of a thread of the owner, which waits for room for its item."""

    wakeup: threading.Lock = values.field(factory=_acquired_lock)
    outcome: Outcome | None = None

    def settle(self, outcome: Outcome) -> None:
        """Wake the thread; with the object's lock held."""
        self.outcome = outcome
        self.wakeup.release()


class Deadline:
    """End of a timeout on the monotonic clock."""

    __slots__ = ("_end",)

    def __init__(self, timeout: float | None) -> None:
        self._end = None if timeout is None else time.monotonic() + timeout

    @property
    def left(self) -> float | None:
        """Seconds left, not below 0; None for any number."""
        return None if self._end is None else max(0.0, self._end - time.monotonic())
