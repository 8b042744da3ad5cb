"""Items of queues and pipes in messages: pickles that only their reader loads, many in one batch.

Batch, little-endian: ``I`` items, ``I`` items among them that are marked, ``Q`` length of each
item, ``I`` position of each one that is marked, then the items. Marked are those with references, and, by
the highest bit of the position, references to memory: their items' descriptors come another way
(``descriptor_stream``), ``Q`` number of the descriptor, ``Q`` bytes of the item.

An item with references (its pickle contains handles of shared objects) carries the ids of these references
beside the pickle, so that a process which drops it unread can release them: ``I`` length of a JSON list of
``[owner, urls, target, id]``, that list, the pickle.

Apart from the state machine, so that calls of managers carry items without it.
"""

from __future__ import annotations

import itertools
import json
import struct
from collections.abc import Iterable, Sequence
from typing import Any, TypeAlias

from fiber._wire import codec
from fiber._wire.frames import Buffer
from fiber.exceptions import WireError

_HEAD = struct.Struct("<II")
_LENGTH = struct.Struct("<I")
_MEMORY_REFERENCE = struct.Struct("<QQ")
#: head of a batch of one item that is not marked
_ONE = struct.Struct("<IIQ")
#: batches with smaller items on average are copied once and sliced: quicker than views
_SMALL = 4096
#: bytes from which on an item is a segment of its own; smaller ones are joined
_LARGE = 64 * 1024


#: the pickle of None, with which writers by convention tell readers to stop
_NONE = bytes(codec.pickled(None))


#: identity of the owner, its URLs, its target and the id
Reference: TypeAlias = tuple[str, tuple[str, ...], int, int]


class ItemWithReferences:
    """An item whose pickle contains handles of shared objects."""

    __slots__ = ("body",)

    def __init__(self, body: Buffer) -> None:
        self.body = body

    @classmethod
    def of(cls, references: Iterable[Reference], pickled: bytes) -> ItemWithReferences:
        """Make one of a pickle and the references in it."""
        listed = json.dumps(list(references)).encode()
        return cls(b"".join((_LENGTH.pack(len(listed)), listed, pickled)))

    def __len__(self) -> int:
        return len(self.body)

    @property
    def pickled(self) -> memoryview:
        """The pickle."""
        view = memoryview(self.body)
        return view[_LENGTH.size + self._listed(view) :]

    def references(self) -> list[Reference]:
        """The references.

        Raises:
            WireError: the list is malformed.
        """
        view = memoryview(self.body)
        try:
            listed = json.loads(bytes(view[_LENGTH.size : _LENGTH.size + self._listed(view)]))
            return [(str(i), tuple(map(str, u)), int(t), int(n)) for i, u, t, n in listed]
        except (ValueError, TypeError, ArithmeticError, RecursionError) as error:
            msg = "an item's list of references makes no sense"
            raise WireError(msg) from error

    @staticmethod
    def _listed(view: memoryview) -> int:
        try:
            (length,) = _LENGTH.unpack_from(view)
        except struct.error as error:
            msg = f"an item with references has {len(view)} bytes"
            raise WireError(msg) from error
        return int(length)


class MemoryReference(ItemWithReferences):
    """Reference to an item in memory, whose descriptor comes through a descriptor stream."""

    __slots__ = ()

    @classmethod
    def to(cls, number: int, size: int) -> MemoryReference:
        """Make a reference to a descriptor's number and an item of so many bytes."""
        return cls(_MEMORY_REFERENCE.pack(number, size))

    @property
    def pickled(self) -> memoryview:
        """A reference has no pickle.

        Raises:
            WireError: always.
        """
        msg = "an item in memory came to a process that has no stream from its sender"
        raise WireError(msg)

    def fields(self) -> tuple[int, int]:
        """Number and size.

        Raises:
            WireError: it is malformed.
        """
        try:
            number, size = _MEMORY_REFERENCE.unpack(self.body)
        except struct.error as error:
            msg = f"a reference to an item in memory has {len(self.body)} bytes"
            raise WireError(msg) from error
        return number, size


Item: TypeAlias = Buffer | ItemWithReferences


_MARKED = frozenset({ItemWithReferences, MemoryReference})
#: bit in the position of a reference
_IS_MEMORY_REFERENCE = 2**31


def count_to_none(returned: Iterable[tuple[int, Item]], fresh: Iterable[Item], count: int) -> int:
    """Number of items up to the first None and with it, at most ``count``.

    A reader that stops at a None must not have prefetched items behind it: they would come back
    when the other readers have stopped, too.

    Args:
        returned: items that readers gave back, with their positions; they come first.
        fresh: items that were never delivered.
        count: the most.
    """
    items = itertools.chain((item for _, item in returned), fresh)
    for number, item in enumerate(itertools.islice(items, count), 1):
        if len(item) == len(_NONE) and item == _NONE:
            return number
    return count


def pack(items: Sequence[Item]) -> list[Buffer]:
    """Make the segments of a batch."""
    first = items[0] if len(items) == 1 else None
    if first is not None and not isinstance(first, ItemWithReferences):
        return [_ONE.pack(1, 0, len(first)), first]
    lengths = list(map(len, items))
    marked = [n for n, item in enumerate(items) if type(item) in _MARKED]
    count = len(lengths)
    bodies: Sequence[Any] = items
    if marked:
        bodies = [item.body if isinstance(item, ItemWithReferences) else item for item in items]
        marked = [
            n | _IS_MEMORY_REFERENCE if type(items[n]) is MemoryReference else n for n in marked
        ]
    head = struct.pack(f"<II{count}Q{len(marked)}I", count, len(marked), *lengths, *marked)
    if not lengths or max(lengths) < _LARGE:
        return [b"".join((head, *bodies))]
    segments: list[Buffer] = [head]
    for large, group in itertools.groupby(bodies, lambda body: len(body) >= _LARGE):
        if large:
            segments.extend(group)
        else:
            segments.append(b"".join(group))
    return segments


def sole(body: memoryview, start: int = 0) -> Buffer | None:
    """The item of a batch of one, which begins at ``start``; None for any other batch, also if malformed."""
    size = len(body) - start - _ONE.size
    if size < 0 or _ONE.unpack_from(body, start) != (1, 0, size):
        return None
    item = body[start + _ONE.size :]
    return bytes(item) if size < _SMALL else item


def unpack(body: memoryview) -> list[Item]:
    """Split a batch into its items.

    Raises:
        WireError: it is malformed.
    """
    one = sole(body)
    if one is not None:
        return [one]
    try:
        count, marked = _HEAD.unpack_from(body)
        start = _HEAD.size + 8 * count + 4 * marked
        if start > len(body):
            msg = f"a batch announces {count} items in {len(body)} bytes"
            raise WireError(msg)
        lengths = struct.unpack_from(f"<{count}Q", body, _HEAD.size)
        positions = struct.unpack_from(f"<{marked}I", body, _HEAD.size + 8 * count)
    except struct.error as error:
        msg = f"a batch of {len(body)} bytes is cut short"
        raise WireError(msg) from error
    if start + sum(lengths) != len(body):
        msg = f"a batch of {len(body)} bytes, its items need {start + sum(lengths)}"
        raise WireError(msg)
    data: Buffer = body[start:]
    if len(data) < _SMALL * count:
        data = bytes(data)
    items: list[Item] = []
    start = 0
    for length in lengths:
        end = start + length
        items.append(data[start:end])
        start = end
    for position in positions:
        is_memory_reference, at = position & _IS_MEMORY_REFERENCE, position & ~_IS_MEMORY_REFERENCE
        item = items[at] if at < count else None
        if item is None or isinstance(item, ItemWithReferences):
            msg = f"a batch of {count} items lists item {at} with references twice or falsely"
            raise WireError(msg)
        items[at] = MemoryReference(item) if is_memory_reference else ItemWithReferences(item)
    return items
