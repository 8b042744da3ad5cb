"""Items that a writer sends to a reader itself, beside a copy of each to the owner; pure, at the owner.

Two processes of the owner's host that pass small items one by one are given a socket of the kernel between them, a
*bypass*: the writer sends each item through it and then a copy to the owner, both with the item's number in the bypass. So
an item is the queue's as ever, and the owner is no longer in its way:

- The reader notes in its progress page what it has handed out, as for other items. So the owner knows of each copy
  whether it is needed, and has nothing else to do with it.
- Where anybody else asks for items, or puts some, the reader is asked to give back what it has: it closes its
  end of the socket and answers which number it handed out last. Copies with higher numbers then go to the front of the queue, in
  order, those too that arrive later. Of a dead reader, its page tells that number. The writer finds its end broken, and sends to the
  owner alone, as before.
- What was in the socket and is not handed out is dropped with it. So it does no harm if an item is received and then lost by an
  interrupt, or with the process.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable
from typing import TypeAlias

from fiber._objects.queue.messages import Item

Positioned: TypeAlias = tuple[int, Item]
Progress: TypeAlias = tuple[int, int, int]

#: items in a row from one writer to one reader before they are given a bypass, at first and at most
_AFTER, _AFTER_AT_MOST = 32, 8192
#: a bypass that carried fewer items than this many times as many was not worth it
_WORTH = 4


class Bypass:
    """The bypass of one direction; at most one at a time is offered or open."""

    def __init__(self) -> None:
        #: of the one offered or opened last; 0 for none
        self.number = 0
        #: True until the reader has answered that it left it, or is gone
        self.is_open = False
        self.writer: Hashable = None
        self.reader: Hashable = None
        #: ticks of the timer for which others wait for the reader's answer at most
        self.holds = 0
        # the reader's number for an item, less the one in the bypass, and what tells its progress
        self._base = 0
        self._progress: Callable[[], Progress] | None = None
        # number and item of those that the reader may not have handed out, in order
        self._copies: deque[tuple[int, Positioned]] = deque()
        self._carried = 0
        # of each writer: its last bypass that ended, and the number up to which the reader handed out
        self._ended: dict[Hashable, tuple[int, int]] = {}
        # between whom the last items went, and how many in a row
        self._between: tuple[Hashable, Hashable] = (None, None)
        self._in_a_row = 0
        self._after = _AFTER

    def is_due(self, writer: Hashable, reader: Hashable) -> bool:
        """Count an item that went to the only reader that asks; True where the two are to be given a bypass."""
        if self._between != (writer, reader):
            self._between, self._in_a_row = (writer, reader), 0
        self._in_a_row += 1
        if self._in_a_row < self._after or self.is_open:
            return False
        self._in_a_row = 0
        return True

    def offer(self, writer: Hashable, reader: Hashable) -> int:
        """Begin a new one, in place of one that never opened; its number."""
        # until it proves to be worth it
        self._after = min(2 * self._after, _AFTER_AT_MOST)
        self.number += 1
        self.writer, self.reader = writer, reader
        return self.number

    def is_between(self, writer: Hashable, number: int) -> bool:
        """True for the writer of the one that is offered or open."""
        return number == self.number and writer == self.writer

    def open(self, base: int, progress: Callable[[], Progress]) -> None:
        """The reader takes its next item from it; the one with number 1 there would be its item ``base`` + 1."""
        self.is_open = True
        self._base, self._progress, self._carried = base, progress, 0

    def hold(self, number: int, positioned: Positioned) -> None:
        """Keep a copy while the reader may not have handed the item out."""
        self._copies.append((number, positioned))
        self._carried += 1
        self.trim()

    def trim(self) -> int:
        """Forget copies of what was handed out; the number of those left."""
        copies = self._copies
        if copies:
            upto = self._handed_out()
            while copies and copies[0][0] <= upto:
                copies.popleft()
        return len(copies)

    def was_handed_out(self, writer: Hashable, number: int, count: int) -> bool:
        """True where a reader that left a bypass had handed out item ``count`` of it: the copy comes late."""
        ended = self._ended.get(writer)
        return ended is not None and ended[0] == number and count <= ended[1]

    def end(self, upto: int | None = None) -> list[Positioned]:
        """End it: the reader left, after it handed out its item number ``upto``; None where it is gone.

        Returns:
            Items that it has not handed out.
        """
        handed_out = self._handed_out() if upto is None else max(0, upto - self._base)
        back = [positioned for number, positioned in self._copies if number > handed_out]
        if self.writer is not None:
            self._ended[self.writer] = self.number, handed_out
        if self._carried >= _WORTH * self._after:
            self._after = _AFTER
        self._copies.clear()
        self.is_open, self.holds = False, 0
        self.writer = self.reader = self._progress = None
        return back

    def forget(self, writer: Hashable) -> None:
        """A writer is gone; what it sent before has arrived."""
        self._ended.pop(writer, None)
        if writer == self.writer:
            self.writer = None

    def _handed_out(self) -> int:
        """Number in the bypass up to which the reader has handed out."""
        if self._progress is None:
            return 0
        returned, after, upto = self._progress()
        # noted before the answer that tells it
        last = after if returned == upto else returned
        return max(0, last - self._base)
