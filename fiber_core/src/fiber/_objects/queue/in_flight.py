"""What one reader of a lane was given and has not settled yet; pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TypeAlias

from fiber._objects.queue.messages import Item
from fiber.exceptions import WireError

#: an item with its position in the lane's order
Placed: TypeAlias = tuple[int, Item]
#: last number that a reader has handed out, and the numbers (after, up to) that it gave back last
Progress: TypeAlias = tuple[int, int, int]


def _unknown() -> Progress:
    return 0, 0, 0


class Book:
    """Items delivered to one reader, numbered from 1 on; the lane's until they are settled.

    Args:
        progress: reads what the reader itself notes where both are on one host, so that a reader's
            sudden death leaves no doubt; it may run ahead of what the reader has told.
    """

    __slots__ = ("_progress", "_unsettled", "delivered", "recalled", "settled")

    def __init__(self, progress: Callable[[], Progress] = _unknown) -> None:
        self._progress = progress
        self._unsettled: deque[Placed] = deque()
        #: number of the last item delivered
        self.delivered = 0
        #: number up to which all is settled
        self.settled = 0
        #: True while the reader owes an answer to a recall
        self.recalled = False

    def deliver(self, placed: list[Placed]) -> int:
        """Note a delivery; the number of its first item."""
        first = self.delivered + 1
        self.delivered += len(placed)
        self._unsettled.extend(placed)
        return first

    def settle(self, upto: int) -> None:
        """The reader has handed out all up to a number.

        Raises:
            WireError: more than it was given.
        """
        if upto > self.delivered:
            msg = f"a reader settles {upto} items of {self.delivered}"
            raise WireError(msg)
        # what it told before may come late
        for _ in range(upto - self.settled):
            self._unsettled.popleft()
        self.settled = max(self.settled, upto)

    def parked(self) -> int:
        """Items that the reader has and its user has not."""
        if self.delivered == self.settled:
            return 0
        returned, after, upto = self._read()
        again = max(0, min(upto, returned) - max(after, self.settled))
        return self.delivered - max(returned, self.settled) + again

    def give_back(self, after: int, upto: int) -> list[Placed]:
        """The reader has handed out all up to ``after`` and gives back the rest up to ``upto``.

        Raises:
            WireError: it was not given so many.
        """
        if not after <= upto <= self.delivered or upto < self.settled:
            msg = f"a reader gives back {after} to {upto} of {self.settled} to {self.delivered}"
            raise WireError(msg)
        self.recalled = False
        self.settle(after)
        back = [self._unsettled.popleft() for _ in range(upto - self.settled)]
        self.settled = upto
        return back

    def remains(self) -> list[Placed]:
        """What a reader that is gone had not handed out."""
        returned, after, upto = self._read()
        return [
            placed
            for number, placed in enumerate(self._unsettled, self.settled + 1)
            if number > returned or after < number <= upto
        ]

    def _read(self) -> Progress:
        returned, after, upto = self._progress()
        return min(returned, self.delivered), after, upto
