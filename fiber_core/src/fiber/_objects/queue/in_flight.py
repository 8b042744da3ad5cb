"""Deliveries to one reader that are not settled yet; pure (AMQP: unacknowledged)."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TypeAlias

from fiber._objects.queue.messages import Item
from fiber.exceptions import WireError

#: an item and its position in the order of the queue
Positioned: TypeAlias = tuple[int, Item]
#: number of the last item that a reader handed out; numbers (after, up to) that it gave back last
Progress: TypeAlias = tuple[int, int, int]


def _unknown() -> Progress:
    return 0, 0, 0


class InFlight:
    """Items delivered to one reader, numbered from 1 on; they are the queue's until settled.

    Args:
        progress: returns what the reader notes in shared memory (see
            :mod:`fiber._objects.queue.progress`), which may be ahead of its messages; needed when
            it dies suddenly. Without it only messages count.
    """

    __slots__ = ("_progress", "_unsettled", "delivered", "recalled", "settled")

    def __init__(self, progress: Callable[[], Progress] = _unknown) -> None:
        self._progress = progress
        self._unsettled: deque[Positioned] = deque()
        #: number of the last item delivered
        self.delivered = 0
        #: number up to which all is settled
        self.settled = 0
        #: True while the reader owes an answer to a recall
        self.recalled = False

    def deliver(self, placed: list[Positioned]) -> int:
        """Note a delivery and return the number of its first item."""
        first = self.delivered + 1
        self.delivered += len(placed)
        self._unsettled.extend(placed)
        return first

    def settle(self, upto: int) -> None:
        """Settle items up to number ``upto``: the reader has handed them to its user.

        Raises:
            WireError: fewer were delivered.
        """
        if upto > self.delivered:
            msg = f"a reader settles {upto} items of {self.delivered}"
            raise WireError(msg)
        # messages of several threads: an older one may come later
        for _ in range(upto - self.settled):
            self._unsettled.popleft()
        self.settled = max(self.settled, upto)

    def prefetched(self) -> int:
        """Number of items that the reader has and has not handed to its user."""
        if self.delivered == self.settled:
            return 0
        returned, after, upto = self._read()
        again = max(0, min(upto, returned) - max(after, self.settled))
        return self.delivered - max(returned, self.settled) + again

    def give_back(self, after: int, upto: int) -> list[Positioned]:
        """Take back the items behind number ``after`` up to ``upto``; those before are settled.

        Raises:
            WireError: these were not delivered, or are settled.
        """
        if not after <= upto <= self.delivered or upto < self.settled:
            msg = f"a reader gives back {after} to {upto} of {self.settled} to {self.delivered}"
            raise WireError(msg)
        self.recalled = False
        self.settle(after)
        back = [self._unsettled.popleft() for _ in range(upto - self.settled)]
        self.settled = upto
        return back

    def unconsumed(self) -> list[Positioned]:
        """Items that a reader which is gone had not handed to its user."""
        returned, after, upto = self._read()
        return [
            placed
            for number, placed in enumerate(self._unsettled, self.settled + 1)
            if number > returned or after < number <= upto
        ]

    def _read(self) -> Progress:
        returned, after, upto = self._progress()
        return min(returned, self.delivered), after, upto
