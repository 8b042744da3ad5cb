"""How an object is found from another process, and what it is made of."""

from __future__ import annotations

import enum
import re
from typing import Any

from fiber._base import values

# a URL with the name of the realm whose credentials its listener asks for
_REALM = re.compile(r"([0-9a-f]{16})@")
#: bytes that wait unread in one direction of a pipe before its writers are held back
PIPE_BYTES = 8 * 2**20


class Kind(enum.IntEnum):
    """What an object is."""

    #: one lane, every holder reads and writes
    QUEUE = 1
    #: two lanes between two ends
    PIPE = 2
    #: one lane from end 0 to end 1
    ONE_WAY = 3
    #: a lock that whoever holds it or another may release
    LOCK = 4
    #: a lock of a thread, that it may take again
    RLOCK = 5
    #: permits
    SEMAPHORE = 6
    #: who waits to be notified, of a condition
    CONDITION = 7
    EVENT = 8
    BARRIER = 9
    #: bytes that all holders read and write
    MEMORY = 10
    #: an object of a manager, whose methods are called
    REFERENT = 11
    #: a queue whose items are tasks, counted until they are done
    TASKS = 12
    #: a value that its maker and all others only read
    BLOCK = 13
    #: memory of a tensor, kept open while a pickle of it is on its way
    STORAGE = 14


# for people, where the kind's own name is not
_WORDS = {
    Kind.REFERENT: "managed object",
    Kind.BLOCK: "shared value",
    Kind.STORAGE: "tensor in shared memory",
}


@values.frozen(kw_only=True)
class LaneShape:
    """One lane of an object."""

    #: the end whose holders write it
    writers: int
    #: the end whose holders read it
    readers: int
    #: most items in it, 0 for any number
    maxsize: int = 0
    #: bytes in it from which on writers wait, 0 for any number
    max_bytes: int = 0


@values.frozen(kw_only=True)
class Shape:
    """What an object is made of."""

    #: word for it in messages to people
    name: str
    #: ends, each with references of its own
    ends: int
    lanes: tuple[LaneShape, ...]

    def lane_read_by(self, end: int) -> int | None:
        """Number of the lane that an end reads."""
        return next((n for n, lane in enumerate(self.lanes) if lane.readers == end), None)

    def lane_written_by(self, end: int) -> int | None:
        """Number of the lane that an end writes."""
        return next((n for n, lane in enumerate(self.lanes) if lane.writers == end), None)


def shape_of(kind: Kind, maxsize: int = 0) -> Shape:
    """What an object of a kind is made of."""
    if kind in (Kind.QUEUE, Kind.TASKS):
        return Shape(
            name="queue", ends=1, lanes=(LaneShape(writers=0, readers=0, maxsize=maxsize),)
        )
    if kind not in (Kind.PIPE, Kind.ONE_WAY):
        name = _WORDS.get(kind, kind.name.lower())
        return Shape(name=name, ends=1, lanes=())
    there = LaneShape(writers=0, readers=1, max_bytes=PIPE_BYTES)
    back = LaneShape(writers=1, readers=0, max_bytes=PIPE_BYTES)
    return Shape(name="pipe", ends=2, lanes=(there, back) if kind is Kind.PIPE else (there,))


@values.frozen
class Address:
    """What is pickled in place of an object."""

    #: identity of its owner's process within the run
    ident: str
    #: where the owner listens, best first
    urls: tuple[str, ...]
    #: the owner's number for it
    target: int
    kind: Kind
    maxsize: int = 0

    @property
    def shape(self) -> Shape:
        """What the object is made of."""
        return shape_of(self.kind, self.maxsize)

    @property
    def realm(self) -> str | None:
        """The realm of a program that the owner is of; None within one run."""
        return realm_of(self.urls[0]) if self.urls else None

    def __reduce__(self) -> Any:
        # short: it is in every pickle that an object is in
        return address, (self.ident, self.urls, self.target, int(self.kind), self.maxsize)


def realm_of(url: str) -> str | None:
    """The realm that a URL names; None within one run."""
    match = _REALM.match(url)
    return None if match is None else match[1]


def address(ident: str, urls: tuple[str, ...], target: int, kind: int, maxsize: int) -> Address:
    """The address with these parts."""
    return Address(ident, urls, target, Kind(kind), maxsize)
