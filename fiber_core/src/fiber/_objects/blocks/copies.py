"""Copies of blocks: where those of one block are, and which ones a process keeps; no I/O.

One process of a host fetches a block, and the others wait for that and map what it has. When it is
gone before, or gives up, the next one that waits is to fetch it. A process keeps its copy when its
last handle of the block is gone, for the next task that has one: until the owner says that the
block is freed, the owner is gone, or the process needs the room for others.
"""

from __future__ import annotations

import threading
from collections import OrderedDict, deque
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

from fiber._base import values
from fiber._objects.memory.backing import Place

P = TypeVar("P", bound=Hashable)

# bytes that the unused copies of a process may have, whatever memory is free
_SMALL = 64 * 2**20
# the part of the free memory that they may have
_PART = 8
# copies, each of which has descriptors
_MANY = 256


@values.frozen
class Answer(Generic[P]):
    """To a process that asked where the block is."""

    who: P
    #: number of its question
    number: int
    #: where it is; None where it is to be fetched
    place: Place | None


@values.define
class _Host(Generic[P]):
    fetching: P | None = None
    waiting: deque[tuple[P, int]] = values.field(factory=deque)
    #: in the order in which they came
    copies: dict[P, Place] = values.field(factory=dict)


class Copies(Generic[P]):
    """What the owner knows."""

    def __init__(self) -> None:
        self._hosts: dict[str, _Host[P]] = {}

    def has(self, who: P) -> bool:
        """True where a process has the block."""
        return any(who in host.copies for host in self._hosts.values())

    def ask(self, host: str, who: P, number: int, *, alone: bool) -> list[Answer[P]]:
        """A process wants to know where the block is.

        Args:
            host: its host.
            who: the process.
            number: of its question.
            alone: True where it cannot map what others on its host have.
        """
        here = self._hosts.setdefault(host, _Host())
        if alone:
            return [Answer(who, number, None)]
        for other, place in here.copies.items():
            if other != who:
                return [Answer(who, number, place)]
        if here.fetching is None or here.fetching == who:
            here.fetching = who
            return [Answer(who, number, None)]
        here.waiting.append((who, number))
        return []

    def came(self, host: str, who: P, place: Place) -> list[Answer[P]]:
        """A process has the block."""
        here = self._hosts.setdefault(host, _Host())
        here.copies[who] = place
        if here.fetching == who:
            here.fetching = None
        # whoever else fetches it fetches it for itself now
        waiting, here.waiting = here.waiting, deque()
        return [Answer(other, number, place) for other, number in waiting]

    def holders(self) -> set[P]:
        """All processes that have the block."""
        return {who for host in self._hosts.values() for who in host.copies}

    def gone(self, who: P) -> list[Answer[P]]:
        """A process has it no more, and does not fetch it."""
        for host in self._hosts.values():
            host.copies.pop(who, None)
        return self.unused(who)

    def unused(self, who: P) -> list[Answer[P]]:
        """A process does not wait for it nor fetch it; what it has it keeps, for others too."""
        answers: list[Answer[P]] = []
        for name in list(self._hosts):
            here = self._hosts[name]
            here.waiting = deque(one for one in here.waiting if one[0] != who)
            if here.fetching == who:
                here.fetching = None
                if here.waiting:
                    here.fetching, number = here.waiting.popleft()
                    answers.append(Answer(here.fetching, number, None))
            if here == _Host():
                del self._hosts[name]
        return answers


class Unused(Generic[P]):
    """The copies that no handle in this process uses, least recently used first.

    Together they have at most ``_SMALL`` bytes, or one part in ``_PART`` of the free memory where
    that is more; the one that was used last is kept whatever its size.

    Args:
        free: says how many bytes of memory are free.
    """

    def __init__(self, free: Callable[[], int]) -> None:
        self._free = free
        self._lock = threading.Lock()
        self._sizes: OrderedDict[P, int] = OrderedDict()
        self._total = 0

    def add(self, copy: P, size: int) -> list[P]:
        """A copy is used no more; those that are to go for it."""
        with self._lock:
            self._remove(copy)
            self._sizes[copy] = size
            self._total += size
            return self._shrunk(0, 1)

    def remove(self, copy: P) -> None:
        """A copy is used, or gone."""
        with self._lock:
            self._remove(copy)

    def make_room(self, size: int) -> list[P]:
        """A copy of some size is about to come; those that are to go for it."""
        with self._lock:
            return self._shrunk(size, 0)

    def clear(self) -> list[P]:
        """The process ends: all of them."""
        with self._lock:
            going = list(self._sizes)
            self._sizes.clear()
            self._total = 0
            return going

    def _remove(self, copy: P) -> None:
        self._total -= self._sizes.pop(copy, 0)

    def _shrunk(self, more: int, least: int) -> list[P]:
        going: list[P] = []
        limit = _SMALL
        if self._total + more > limit and len(self._sizes) > least:
            limit = max(limit, self._free() // _PART)
        while len(self._sizes) > least and (self._total + more > limit or len(self._sizes) > _MANY):
            copy, size = self._sizes.popitem(last=False)
            self._total -= size
            going.append(copy)
        return going
