"""Addresses of shared objects, and their kinds and shapes; values that are pickled. Numbers of uses of a reference."""

from __future__ import annotations

import enum
import re
from typing import Any

from fiber._base import values

# a URL with the name of the auth domain whose credentials its listener requires
_AUTH_DOMAIN = re.compile(r"([0-9a-f]{16})@")
#: bytes that wait unread in one direction of a pipe before its writers are held back
PIPE_BYTES = 8 * 2**20
#: reference id of a handle that was not unpickled
NO_REFERENCE = 0
#: uses of a reference that lasts until it is voided
ANY = 0
#: uses of a reference that may be used at any time or never, so that no reader waits for it
LASTING = 2**32 - 1


class Kind(enum.IntEnum):
    """Kind of a shared object."""

    #: one direction; every process reads and writes
    QUEUE = 1
    #: two directions between two ends
    PIPE = 2
    #: one direction from end 0 to end 1
    ONE_WAY = 3
    #: a lock that any thread may release
    LOCK = 4
    #: a lock that its thread may acquire again
    RLOCK = 5
    #: permits that are acquired and released
    SEMAPHORE = 6
    #: a condition without its lock
    CONDITION = 7
    EVENT = 8
    BARRIER = 9
    #: bytes that all processes read and write
    MEMORY = 10
    #: a managed object, whose methods are called
    REFERENT = 11
    #: a queue whose items are tasks, counted until they are done
    TASKS = 12
    #: a value that all processes only read
    BLOCK = 13
    #: memory of a tensor, kept open while a pickle of it is on its way
    STORAGE = 14
    #: an end of a pipe between processes of one host, which reads and writes
    SOCKET = 15
    #: one that reads
    READING_SOCKET = 16
    #: one that writes
    WRITING_SOCKET = 17
    #: both ends of a pipe between processes of one host: what all write and all read
    SOCKET_QUEUE = 18
    #: a descriptor of the program, for processes of one host
    DESCRIPTOR = 19


#: kinds that are sockets: ends of pipes, and queues of both ends
SOCKETS = frozenset({Kind.SOCKET, Kind.READING_SOCKET, Kind.WRITING_SOCKET, Kind.SOCKET_QUEUE})

# names in messages to users, where the kind's own is unclear
_USER_NAMES = {
    Kind.REFERENT: "managed object",
    Kind.BLOCK: "shared value",
    Kind.STORAGE: "tensor in shared memory",
    Kind.DESCRIPTOR: "descriptor",
}


@values.frozen(kw_only=True)
class Direction:
    """Direction of a queue or pipe."""

    #: the end that writes it
    writers: int
    #: the end that reads it
    readers: int
    #: most items in it, 0 for any number
    maxsize: int = 0
    #: bytes in it from which on writers wait, 0 for any number
    max_bytes: int = 0


@values.frozen(kw_only=True)
class Shape:
    """Ends and directions of an object."""

    #: name in messages to users
    name: str
    #: ends, each with references of its own
    ends: int
    directions: tuple[Direction, ...]

    def direction_read_by(self, end: int) -> int | None:
        """Index of the direction that an end reads."""
        return next(
            (n for n, direction in enumerate(self.directions) if direction.readers == end), None
        )

    def direction_written_by(self, end: int) -> int | None:
        """Index of the direction that an end writes."""
        return next(
            (n for n, direction in enumerate(self.directions) if direction.writers == end), None
        )


def shape_of(kind: Kind, maxsize: int = 0) -> Shape:
    """Shape of an object of a kind."""
    if kind in (Kind.QUEUE, Kind.TASKS, Kind.SOCKET_QUEUE):
        return Shape(
            name="queue", ends=1, directions=(Direction(writers=0, readers=0, maxsize=maxsize),)
        )
    if kind in SOCKETS:
        # the other end is another object
        reading, writing = Direction(writers=1, readers=0), Direction(writers=0, readers=1)
        only = {Kind.READING_SOCKET: (reading,), Kind.WRITING_SOCKET: (writing,)}
        return Shape(name="pipe", ends=1, directions=only.get(kind, (reading, writing)))
    if kind not in (Kind.PIPE, Kind.ONE_WAY):
        name = _USER_NAMES.get(kind, kind.name.lower())
        return Shape(name=name, ends=1, directions=())
    there = Direction(writers=0, readers=1, max_bytes=PIPE_BYTES)
    back = Direction(writers=1, readers=0, max_bytes=PIPE_BYTES)
    return Shape(name="pipe", ends=2, directions=(there, back) if kind is Kind.PIPE else (there,))


@values.frozen
class Address:
    """Address of an object, which is pickled in its place."""

    #: identity of its owner's process within the run
    ident: str
    #: the owner's URLs, best first
    urls: tuple[str, ...]
    #: the owner's number for the object
    target: int
    kind: Kind
    maxsize: int = 0

    @property
    def shape(self) -> Shape:
        """Shape of the object."""
        return shape_of(self.kind, self.maxsize)

    @property
    def auth_domain(self) -> str | None:
        """Name of the owner's auth domain; None within one run."""
        return auth_domain_of(self.urls[0]) if self.urls else None

    def __reduce__(self) -> Any:
        # short: each pickle of the object contains it
        return address, (self.ident, self.urls, self.target, int(self.kind), self.maxsize)


def auth_domain_of(url: str) -> str | None:
    """Name of the auth domain in a URL; None within one run."""
    match = _AUTH_DOMAIN.match(url)
    return None if match is None else match[1]


def address(ident: str, urls: tuple[str, ...], target: int, kind: int, maxsize: int) -> Address:
    """The address with these parts."""
    return Address(ident, urls, target, Kind(kind), maxsize)
