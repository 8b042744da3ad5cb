"""A thread that waits for its request or offer to be answered."""

from __future__ import annotations

import threading
import time

from fiber._base import values
from fiber._objects.protocol import Outcome, Word
from fiber._objects.queue.messages import Item
from fiber._objects.queue.requests import Offer, Request


def _shut() -> threading.Lock:
    gate = threading.Lock()
    gate.acquire()
    return gate


def pass_gate(gate: threading.Lock, timeout: float | None) -> bool:
    """Wait until a lock is free; False when ``timeout`` seconds have passed."""
    if timeout is None:
        return gate.acquire()
    return gate.acquire(timeout=min(max(timeout, 0.0), threading.TIMEOUT_MAX))


@values.define(eq=False)
class Waiter(Request):
    """A thread of the owner that wants an item."""

    gate: threading.Lock = values.field(factory=_shut)
    answer: Word | None = None
    item: Item | None = None

    def settle(self, answer: Word, item: Item | None) -> None:
        """Let the thread go on; with the object's lock held."""
        self.answer, self.item = answer, item
        self.gate.release()


@values.define(eq=False)
class Bidder(Offer):
    """A thread of the owner that has an item and waits for room."""

    gate: threading.Lock = values.field(factory=_shut)
    outcome: Outcome | None = None

    def settle(self, outcome: Outcome) -> None:
        """Let the thread go on; with the object's lock held."""
        self.outcome = outcome
        self.gate.release()


class Deadline:
    """How much of a timeout is left."""

    __slots__ = ("_end",)

    def __init__(self, timeout: float | None) -> None:
        self._end = None if timeout is None else time.monotonic() + timeout

    @property
    def left(self) -> float | None:
        """Seconds left, not below 0; None for any number."""
        return None if self._end is None else max(0.0, self._end - time.monotonic())
