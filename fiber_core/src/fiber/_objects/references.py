"""References to an object from its own process, other processes, and pickles in flight; pure.

A pickle in flight refers to the object by a *reference id*. A reference with a number of uses ends
when as many processes have attached with it, or when it is voided; one without lasts until it is
voided. A process may attach before the reference is reported, which comes by another connection.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Hashable

#: reference id of a handle that was not unpickled
NO_REFERENCE = 0
#: uses of a reference that lasts until it is voided
ANY = 0
#: uses of a reference that may be used at any time or never, so that no reader waits for it
LASTING = 2**32 - 1


class References:
    """References to one object, counted for each end."""

    def __init__(self, ends: int) -> None:
        self._ends = range(ends)
        self._local = [0] * ends
        self._peers: defaultdict[int, set[Hashable]] = defaultdict(set)
        # by reference id: end, and uses left
        self._in_flight: dict[int, tuple[int, int]] = {}
        # reference ids that were used or voided before they were reported
        self._early: Counter[int] = Counter()
        self._void: set[int] = set()

    def hold(self, end: int) -> None:
        """Add a handle in the object's own process."""
        self._local[end] += 1

    def drop(self, end: int) -> None:
        """Remove a handle in the object's own process."""
        self._local[end] -= 1

    def attach(self, peer: Hashable, end: int, reference_id: int) -> None:
        """Another process has handles now."""
        if end in self._ends:
            self._peers[end].add(peer)
            self.use(reference_id)

    def detach(self, peer: Hashable, end: int) -> None:
        """Another process has no handles any more."""
        if end in self._ends:
            self._peers[end].discard(peer)

    def lose(self, peer: Hashable) -> None:
        """Another process is lost."""
        for peers in self._peers.values():
            peers.discard(peer)

    def issue(self, reference_id: int, end: int, uses: int) -> None:
        """Add the reference of a pickle in flight."""
        if end not in self._ends or reference_id in self._void:
            self._void.discard(reference_id)
            return
        early = self._early.pop(reference_id, 0)
        if uses in (ANY, LASTING):
            self._in_flight[reference_id] = (end, uses)
        elif early < uses:
            self._in_flight[reference_id] = (end, uses - early)

    def use(self, reference_id: int) -> None:
        """A pickle was loaded: use its reference once."""
        if reference_id == NO_REFERENCE:
            return
        found = self._in_flight.get(reference_id)
        if found is None:
            self._early[reference_id] += 1
        elif found[1] == 1:
            del self._in_flight[reference_id]
        elif found[1] not in (ANY, LASTING):
            self._in_flight[reference_id] = (found[0], found[1] - 1)

    def void(self, reference_id: int) -> None:
        """Remove the reference of a pickle that will not be loaded."""
        if self._in_flight.pop(reference_id, None) is None and not self._early.pop(reference_id, 0):
            self._void.add(reference_id)

    def is_held(self, end: int) -> bool:
        """True while an end has any reference."""
        return self.is_held_locally(end) or self.is_held_remotely(end)

    def is_held_locally(self, end: int) -> bool:
        """True while an end has a handle in the object's own process."""
        return self._local[end] > 0

    def is_held_remotely(self, end: int) -> bool:
        """True while an end has a reference from another process or a pickle in flight."""
        return bool(self._peers.get(end)) or any(e == end for e, _ in self._in_flight.values())

    def is_expected(self, end: int) -> bool:
        """True while another process has handles of an end, or will have."""
        return self.is_arriving(end) or bool(self._peers.get(end))

    def is_arriving(self, end: int) -> bool:
        """True while an end has a pickle in flight that will be loaded."""
        return any(e == end and uses != LASTING for e, uses in self._in_flight.values())

    def peers(self, end: int) -> set[Hashable]:
        """Other processes that have handles of an end."""
        return set(self._peers.get(end, ()))
