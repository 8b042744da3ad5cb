"""Who may still use an object: holders in its own process, in others, and in flight; pure.

A pickle that is on its way keeps what it refers to by a *ticket*. One with a number of uses is used
up by as many holders that attach with it, or let go of before; one without lasts until it is let go
of. A holder may attach before its ticket is heard of, which comes by another connection.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Hashable

#: ticket of a holder that needs none
NO_TICKET = 0
#: uses of a ticket that lasts until it is let go of
ANY = 0
#: uses of a ticket that may be used at any time or never, which nobody waits for
LASTING = 2**32 - 1


class References:
    """Counts by end."""

    def __init__(self, ends: int) -> None:
        self._ends = range(ends)
        self._local = [0] * ends
        self._peers: defaultdict[int, set[Hashable]] = defaultdict(set)
        # end and uses left
        self._tickets: dict[int, tuple[int, int]] = {}
        # tickets used or let go of before they were heard of
        self._early: Counter[int] = Counter()
        self._void: set[int] = set()

    def hold(self, end: int) -> None:
        """A holder in the object's own process."""
        self._local[end] += 1

    def drop(self, end: int) -> None:
        """A holder in the object's own process is gone."""
        self._local[end] -= 1

    def attach(self, peer: Hashable, end: int, ticket: int) -> None:
        """Another process has holders now."""
        if end in self._ends:
            self._peers[end].add(peer)
            self.use(ticket)

    def detach(self, peer: Hashable, end: int) -> None:
        """Another process has no holder any more."""
        if end in self._ends:
            self._peers[end].discard(peer)

    def lose(self, peer: Hashable) -> None:
        """Another process is gone."""
        for peers in self._peers.values():
            peers.discard(peer)

    def issue(self, ticket: int, end: int, uses: int) -> None:
        """A pickle is on its way."""
        if end not in self._ends or ticket in self._void:
            self._void.discard(ticket)
            return
        early = self._early.pop(ticket, 0)
        if uses in (ANY, LASTING):
            self._tickets[ticket] = (end, uses)
        elif early < uses:
            self._tickets[ticket] = (end, uses - early)

    def use(self, ticket: int) -> None:
        """A pickle has arrived."""
        if ticket == NO_TICKET:
            return
        found = self._tickets.get(ticket)
        if found is None:
            self._early[ticket] += 1
        elif found[1] == 1:
            del self._tickets[ticket]
        elif found[1] not in (ANY, LASTING):
            self._tickets[ticket] = (found[0], found[1] - 1)

    def void(self, ticket: int) -> None:
        """A pickle will not be loaded any more."""
        if self._tickets.pop(ticket, None) is None and not self._early.pop(ticket, 0):
            self._void.add(ticket)

    def is_held(self, end: int) -> bool:
        """True while an end has a holder anywhere."""
        return self.is_held_here(end) or self.is_held_remotely(end)

    def is_held_here(self, end: int) -> bool:
        """True while an end has a holder in the object's own process."""
        return self._local[end] > 0

    def is_held_remotely(self, end: int) -> bool:
        """True while an end has a holder elsewhere or in flight."""
        return bool(self._peers.get(end)) or any(e == end for e, _ in self._tickets.values())

    def is_awaited(self, end: int) -> bool:
        """True while an end has a holder elsewhere, or one is about to come."""
        return self.is_coming(end) or bool(self._peers.get(end))

    def is_coming(self, end: int) -> bool:
        """True while an end has a holder in flight who will arrive."""
        return any(e == end and uses != LASTING for e, uses in self._tickets.values())

    def peers(self, end: int) -> set[Hashable]:
        """The other processes that hold an end."""
        return set(self._peers.get(end, ()))
