"""Memory of large items in pipes and queues: memfds, which are used again, since getting pages costs more than writing.

Layout: a byte that is 1 while an item is in it which its receiver uses, or may; at byte 8 a random tag; at
byte 64 the item, a pickle with all its data. The receiver has no other way to tell that it is done, and needs none
where it dies: then the memory is not used again. Both sides keep it mapped, since to map a megabyte anew costs as
much as to copy it five times.

What the receiver makes of it is in memory of the C library, which gives large memory back to the kernel when it is
free, so that each item would need new pages. A process that receives such items has the C library keep some.

It cannot be made shorter, so that nobody who maps it is killed. Apart from
:mod:`~fiber._objects.pipe.packets`, which is about messages.
"""

from __future__ import annotations

import contextlib
import itertools
import mmap
import operator
import os
import pickle
import secrets
import threading
from collections import OrderedDict
from typing import Any

from fiber._base.interpreter import LEAST_KEPT, keep_free_memory, most_kept
from fiber._base.sockets import NO_ROOM
from fiber._objects.memory import backing
from fiber._objects.queue.messages import ItemWithReferences, Reference
from fiber._wire import descriptors

_HEAD = 64
_FREE, _USED = b"\0", b"\1"
_TAG_AT, _TAG_SIZE = 8, 16
#: the fewest and most memfds that a process keeps for its next items, and how much larger one may be than its item
_FEWEST, _MOST, _MUCH = 2, 256, 4
#: how often memory may be wanted for another item before it is no longer waited for
_MOST_LOOKS = 16
#: bytes of the largest item whose memory is kept
_LARGEST = 64 * 2**20
#: most items in memory that a process has at a time; each is a descriptor
_ITEMS = 256


class Memory:
    """A memfd for one item at a time."""

    def __init__(self) -> None:
        #: its descriptor
        self.fd = backing.create_unnamed("fiber-pipe")
        os.pwrite(self.fd, secrets.token_bytes(_TAG_SIZE), _TAG_AT)
        self._map: mmap.mmap | None = None
        #: bytes of the largest item so far
        self.size = 0
        #: how often it was wanted for another item while this one was used
        self.looks = 0

    @property
    def is_used(self) -> bool:
        """True while a receiver uses its item, or may."""
        # not by a mapping made for it, which would have one more descriptor
        return (os.pread(self.fd, 1, 0) if self._map is None else self._map[:1]) == _USED

    @is_used.setter
    def is_used(self, is_used: bool) -> None:
        if self._map is not None:
            self._map[0] = is_used
        else:
            backing.write(self.fd, _USED if is_used else _FREE, 0)

    def write(self, data: bytes | memoryview, begin: int) -> None:
        """Write bytes of the item, by the mapping where they are in it.

        Raises:
            OSError: there is no memory for them.
        """
        end = begin + len(data)
        if self._map is not None and _HEAD + end <= len(self._map):
            self._map[_HEAD + begin : _HEAD + end] = data
        else:
            try:
                backing.write(self.fd, data, _HEAD + begin)
            except OSError as error:
                raise backing.no_room_error(end, None, error) from error
        self.size = max(self.size, end)

    def prepare(self) -> None:
        """Map it for the next item: its pages are there."""
        self.looks = 0
        if self._map is None or len(self._map) < _HEAD + self.size:
            # more slowly without
            with contextlib.suppress(OSError):
                self._map = _mapped_anew(self.fd)

    def read(self, size: int) -> bytes:
        """The item, of so many bytes."""
        return os.pread(self.fd, size, _HEAD)

    def close(self) -> None:
        """Close it; its receiver goes on."""
        self._map = None
        os.close(self.fd)


# least recently used first; without a lock, which a thread may hold as an item of it is collected
_kept: list[Memory] = []
_size_of = operator.attrgetter("size")
#: bytes of the largest that was kept so far
_largest = 0


def take(size: int) -> Memory:
    """Memory for an item of about so many bytes: one that is kept and that nobody uses, or new."""
    kept, most = list(_kept), _MUCH * size
    # the last one is in the CPU's cache, those that were sent first are read first; there may be hundreds
    last = next((one for one in reversed(kept) if size <= one.size <= most), None)
    first = itertools.islice((one for one in kept if size <= one.size <= most), 3)
    for found in kept[-1:] if last is None else dict.fromkeys((last, *first)):
        try:
            # before it is looked at: another thread may close what is kept
            _kept.remove(found)
        except ValueError:
            continue
        if not found.is_used:
            found.prepare()
            return found
        found.looks += 1
        if found.looks < _MOST_LOOKS:
            _kept.append(found)
        else:
            # its item may stay unread for ever: its receiver has stopped, or is gone
            found.close()
    return Memory()


def give_back(memory: Memory) -> None:
    """Keep memory for other items, once the receiver of its item, if any, is done with it."""
    if memory.size > _LARGEST:
        memory.close()
        return
    global _largest  # noqa: PLW0603 - what is said of all that is kept
    _kept.append(memory)
    _largest = max(_largest, memory.size)
    # two descriptors each, where Python maps by one of its own
    most = descriptors.limited_share(16, _MOST)
    while len(kept := list(_kept)) > _FEWEST and (
        len(kept) > most
        # their sum, where it may be too much
        or (_is_too_much(len(kept) * _largest) and _is_too_much(sum(map(_size_of, kept))))
    ):
        # another thread may do the same
        with contextlib.suppress(ValueError):
            _kept.remove(kept[0])
            kept[0].close()


def _is_too_much(size: int) -> bool:
    """True for more bytes of free memory than a process keeps."""
    return size > LEAST_KEPT and size > most_kept()


class ItemInMemory(ItemWithReferences):
    """An item in memory, which is passed on by its descriptor; it has no references so far.

    Args:
        size: its bytes.
        memory: that it was written to by this process.
        descriptor: of memory of another process; closed with this object.
    """

    __slots__ = ("_descriptor", "_memory", "size")

    def __init__(self, size: int, memory: Memory | None = None, descriptor: int = -1) -> None:
        #: its bytes
        self.size = size
        self._memory = memory
        self._descriptor = descriptor if memory is None else memory.fd
        if memory is not None:
            memory.is_used = True
        _items.add(id(self))

    def __len__(self) -> int:
        """What it counts for in a message, which has its descriptor only."""
        return _WEIGHT

    def fileno(self) -> int:
        """Descriptor of its memory."""
        return self._descriptor

    def load(self) -> Any:
        """The value of the item; its memory is used for another one from then on."""
        keep_free_memory()
        try:
            memory = _mapped(self._descriptor, self.size)
        except OSError as error:
            if error.errno not in NO_ROOM:
                raise
            # Python may map by one more descriptor
            return pickle.loads(self.read())
        try:
            # nothing of the value is in the memory
            return pickle.loads(memoryview(memory)[_HEAD : _HEAD + self.size])
        finally:
            memory[0] = 0

    @property
    def pickled(self) -> memoryview:
        """The item, copied by :meth:`read`."""
        return memoryview(self.read())

    def references(self) -> list[Reference]:
        """None."""
        return []

    def copy(self) -> bytes:
        """The item, for a process that cannot have the descriptor."""
        return os.pread(self._descriptor, self.size, _HEAD)

    def read(self) -> bytes:
        """The item; its memory is used for another one. Needs no further descriptor."""
        item = self.copy()
        os.pwrite(self._descriptor, _FREE, 0)
        return item

    def holds(self, size: int) -> bool:
        """True where an item of so many bytes is in it."""
        return self.size == size and os.fstat(self._descriptor).st_size >= _HEAD + size

    def __del__(self) -> None:
        _items.discard(id(self))
        if self._memory is not None:
            give_back(self._memory)
        elif self._descriptor >= 0:
            os.close(self._descriptor)


#: bytes from which on an item of a queue is in memory: below, the descriptor costs more than the copies
LARGE = 512 * 1024
#: bytes that an item in memory counts for, so that a few travel at a time
_WEIGHT = 64 * 2**10
# identities of those that there are: a set of weak references costs three calls of Python for each
_items: set[int] = set()


def are_few() -> bool:
    """True while this process may have another item in memory, with its descriptor."""
    return len(_items) < descriptors.limited_share(8, _ITEMS)


# by tag, least recently used first
_maps: OrderedDict[bytes, mmap.mmap] = OrderedDict()
_mapping = threading.Lock()


def _mapped(descriptor: int, size: int) -> mmap.mmap:
    """Memory of another process, as it was mapped before or anew."""
    tag = os.pread(descriptor, _TAG_SIZE, _TAG_AT)
    with _mapping:
        found = _maps.get(tag)
        if found is not None and len(found) >= _HEAD + size:
            _maps.move_to_end(tag)
            return found
        found = _maps[tag] = _mapped_anew(descriptor)
        _maps.move_to_end(tag)
        most = descriptors.limited_share(16, _MOST)
        while len(_maps) > most or _is_too_much(sum(map(len, _maps.values()))):
            _maps.popitem(last=False)
        return found


def _mapped_anew(descriptor: int) -> mmap.mmap:
    size = os.fstat(descriptor).st_size
    return mmap.mmap(descriptor, size, flags=mmap.MAP_SHARED | _POPULATE, **backing.UNTRACKED)


# all pages at once
_POPULATE = int(getattr(mmap, "MAP_POPULATE", 0))


_BYTES = frozenset({bytes, bytearray})
_PLAIN = frozenset({int, float, bool, str, type(None)})
_CONTAINERS = frozenset({tuple, list, dict})
#: most parts of a container that are looked at
_FEW = 16


def is_larger(value: Any, size: int) -> bool:
    """True for bytes and arrays, or a container with one, that have more than so many bytes."""
    if type(value) in _CONTAINERS:
        if len(value) > _FEW:
            return False
        # a plain loop, and numbers and text apart: this runs for each item
        for one in value.values() if type(value) is dict else value:
            if type(one) not in _PLAIN and _is_larger(one, size):
                return True
        return False
    return type(value) not in _PLAIN and _is_larger(value, size)


def _is_larger(value: Any, size: int) -> bool:
    if type(value) in _BYTES:
        return len(value) > size
    found = getattr(value, "nbytes", 0)
    return type(found) is int and found > size
