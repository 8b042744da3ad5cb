"""Copies of blocks: the owner's table of them, and a process's cache of unused ones; pure.

One process of a host fetches a block, and the others wait for it and map its copy. When it is gone
before, or gives up, the next one that waits is to fetch it. A process keeps its copy when its last
handle of the block is gone, for the next task that has one: until the owner says that the block is
freed, the owner is gone, or the process needs the room for other copies.
"""

from __future__ import annotations

import threading
from collections import OrderedDict, deque
from collections.abc import Callable, Hashable
from typing import Generic, Protocol, TypeVar

from fiber._base import values
from fiber._objects.memory.backing import Location

P = TypeVar("P", bound=Hashable)

# bytes that the unused copies of a process may have, whatever memory is free
_SMALL = 64 * 2**20
# the part of the free memory that they may have
_PART = 8
# copies, each of which has descriptors
_MANY = 256


@values.frozen
class Answer(Generic[P]):
    """The answer to a process that asked where the block is."""

    process: P
    #: number of its call
    number: int
    #: where it is; None where it is to be fetched
    location: Location | None


@values.define
class _Host(Generic[P]):
    fetching: P | None = None
    waiting: deque[tuple[P, int]] = values.field(factory=deque)
    #: in the order in which they came
    copies: dict[P, Location] = values.field(factory=dict)


class Copies(Generic[P]):
    """The owner's table of processes that have a copy, fetch one, or wait for one."""

    def __init__(self) -> None:
        self._hosts: dict[str, _Host[P]] = {}

    def has(self, process: P) -> bool:
        """True where a process has the block."""
        return any(process in host.copies for host in self._hosts.values())

    def locate(self, hostname: str, process: P, number: int, *, alone: bool) -> list[Answer[P]]:
        """Answer a process that asks for a copy to map: a location, or None to fetch the block.

        Empty where it has to wait for another process of its host that fetches it.

        Args:
            hostname: name of its host.
            process: the process.
            number: of its call.
            alone: True where it cannot map copies of other processes.
        """
        host = self._hosts.setdefault(hostname, _Host())
        if alone:
            return [Answer(process, number, None)]
        for other, location in host.copies.items():
            if other != process:
                return [Answer(process, number, location)]
        if host.fetching is None or host.fetching == process:
            host.fetching = process
            return [Answer(process, number, None)]
        host.waiting.append((process, number))
        return []

    def add(self, hostname: str, process: P, location: Location) -> list[Answer[P]]:
        """Note that a process has a copy; answers to those of its host that wait."""
        host = self._hosts.setdefault(hostname, _Host())
        host.copies[process] = location
        if host.fetching == process:
            host.fetching = None
        # a process that fetches it as well has it for itself alone
        waiting, host.waiting = host.waiting, deque()
        return [Answer(other, number, location) for other, number in waiting]

    def holders(self) -> set[P]:
        """All processes that have the block."""
        return {process for host in self._hosts.values() for process in host.copies}

    def remove(self, process: P) -> list[Answer[P]]:
        """Note that a process has no copy and fetches none; answers to others of its host."""
        for host in self._hosts.values():
            host.copies.pop(process, None)
        return self.stop_waiting(process)

    def stop_waiting(self, process: P) -> list[Answer[P]]:
        """Note that a process neither waits nor fetches; a copy that it has stays for others."""
        answers: list[Answer[P]] = []
        for name in list(self._hosts):
            host = self._hosts[name]
            host.waiting = deque(one for one in host.waiting if one[0] != process)
            if host.fetching == process:
                host.fetching = None
                if host.waiting:
                    host.fetching, number = host.waiting.popleft()
                    answers.append(Answer(host.fetching, number, None))
            if host == _Host():
                del self._hosts[name]
        return answers


class UnusedCopy(Hashable, Protocol):
    """A copy that no handle in this process uses."""

    def discard(self) -> None:
        """Release it as the process ends."""

    def evict(self) -> None:
        """Release it, and tell its owner, unless it is used again."""

    def submit(self, action: Callable[[], object]) -> object:
        """Run an action in order with others of the same owner."""


class UnusedCopies:
    """LRU cache of the copies that no handle in this process uses.

    Together they have at most ``_SMALL`` bytes, or one part in ``_PART`` of the free memory where
    that is more; the most recent one is kept whatever its size.

    Args:
        free: returns the bytes of memory that are free.
    """

    def __init__(self, free: Callable[[], int]) -> None:
        self._free = free
        self._lock = threading.Lock()
        self._sizes: OrderedDict[UnusedCopy, int] = OrderedDict()
        self._total = 0

    def add(self, copy: UnusedCopy, size: int) -> list[UnusedCopy]:
        """Add a copy that is not used any more; the copies to evict for it."""
        with self._lock:
            self._remove(copy)
            self._sizes[copy] = size
            self._total += size
            return self._shrunk(0, 1)

    def remove(self, copy: UnusedCopy) -> None:
        """Remove a copy that is used again, or gone."""
        with self._lock:
            self._remove(copy)

    def make_room(self, size: int) -> list[UnusedCopy]:
        """Make room for a copy of some bytes that is used; the copies to evict for it."""
        with self._lock:
            return self._shrunk(size, 0)

    def clear(self) -> list[UnusedCopy]:
        """Remove all copies, as the process ends."""
        with self._lock:
            going = list(self._sizes)
            self._sizes.clear()
            self._total = 0
            return going

    def _remove(self, copy: UnusedCopy) -> None:
        self._total -= self._sizes.pop(copy, 0)

    def _shrunk(self, more: int, least: int) -> list[UnusedCopy]:
        going: list[UnusedCopy] = []
        limit = _SMALL
        if self._total + more > limit and len(self._sizes) > least:
            limit = max(limit, self._free() // _PART)
        while len(self._sizes) > least and (self._total + more > limit or len(self._sizes) > _MANY):
            copy, size = self._sizes.popitem(last=False)
            self._total -= size
            going.append(copy)
        return going
