"""Writers that wait for room in a lane, and room that is set aside for some of them; pure.

A writer elsewhere that had to ask for room is told how many more items it may send without asking,
so that it does not wait for an answer to each. That room is its own until it gives it up, which it
is asked to do when another writer finds none.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable

from fiber._objects.queue.messages import Item
from fiber._objects.queue.requests import Accepted, Instructions, Offer, Refused, Revoke
from fiber.exceptions import WireError

#: most items that one writer may send without asking
_MOST = 256


class Gate:
    """Lets items into a lane.

    Args:
        maxsize: most items in the lane, 0 for any number.
        max_bytes: bytes in the lane from which on writers wait, 0 for any number.
    """

    def __init__(self, *, maxsize: int, max_bytes: int) -> None:
        self.maxsize = maxsize
        self.max_bytes = max_bytes
        #: offers that wait for room, in order
        self.held: deque[Offer] = deque()
        # items that writers may send without asking, and those asked to give that up
        self._aside: dict[Hashable, int] = {}
        self._asked: set[Hashable] = set()

    def room(self, size: int, in_bytes: int) -> int | None:
        """How many items may come in; None for as many as there are."""
        if self.maxsize:
            return self.maxsize - size - sum(self._aside.values())
        return 0 if self.max_bytes and in_bytes >= self.max_bytes else None

    def admit(self, size: int, in_bytes: int) -> tuple[list[Item], Instructions]:
        """What comes in now, of those that wait."""
        came: list[Item] = []
        out: Instructions = []
        while self.held:
            room = self.room(size + len(came), in_bytes)
            offer = self.held[0]
            if room is None or room >= len(offer.items):
                came.extend(offer.items)
                in_bytes += sum(map(len, offer.items))
                self.held.popleft()
                out.append(Accepted(offer))
            elif not offer.wait and not self._aside:
                self.held.popleft()
                out.append(Refused(offer))
            elif offer.wait and room > 0:
                came.extend(offer.items.popleft() for _ in range(room))
            else:
                break
        return came, out

    def find(self, writer: Hashable, number: int) -> Offer | None:
        """A writer's waiting offer by its number."""
        for offer in self.held:
            if offer.number == number and offer.writer == writer:
                return offer
        return None

    def withdraw(self, offer: Offer) -> bool:
        """Forget a waiting offer; False where it is in already."""
        if offer not in self.held:
            return False
        self.held.remove(offer)
        return True

    # -- room set aside

    def grant(self, writer: Hashable, size: int) -> int:
        """Set room aside for a writer; how much."""
        if not self.maxsize or self.held:
            return 0
        free = self.maxsize - size - sum(self._aside.values())
        count = min(_MOST, max(0, free) // (2 + len(self._aside)))
        if count:
            self._aside[writer] = self._aside.get(writer, 0) + count
        return count

    def spend(self, writer: Hashable, count: int) -> None:
        """A writer sends items without having asked.

        Raises:
            WireError: more than were set aside for it.
        """
        left = self._aside.get(writer, 0) - count
        if left < 0:
            msg = f"a writer sends {count} items, {left + count} were set aside for it"
            raise WireError(msg)
        self._keep(writer, left)

    def give_up(self, writer: Hashable, count: int) -> None:
        """A writer will not send so many of them."""
        self._asked.discard(writer)
        self._keep(writer, max(0, self._aside.get(writer, 0) - count))

    def lose(self, writer: Hashable) -> None:
        """A writer is gone."""
        self._asked.discard(writer)
        self._keep(writer, 0)

    def claim(self) -> Instructions:
        """Where offers wait: have room given up that is set aside."""
        idle = [writer for writer in self._aside if writer not in self._asked]
        self._asked.update(idle)
        return [Revoke(writer) for writer in idle]

    @property
    def is_urgent(self) -> bool:
        """True while an offer that does not wait depends on room that is set aside."""
        return any(not offer.wait for offer in self.held)

    def tire(self) -> Instructions:
        """A moment has passed: refuse offers whose patience is at its end."""
        tired = []
        for offer in self.held:
            if not offer.wait:
                offer.patience -= 1
                if offer.patience <= 0:
                    tired.append(offer)
        for offer in tired:
            self.held.remove(offer)
        return [Refused(offer) for offer in tired]

    def _keep(self, writer: Hashable, count: int) -> None:
        if count:
            self._aside[writer] = count
        else:
            self._aside.pop(writer, None)
