"""Items on their way: pickles that nobody but their getter opens, many in one message.

Batch, little-endian: ``I`` items, ``I`` laden ones among them, ``Q`` length of each item, ``I``
position of each laden one, then the items.

A *laden* item holds references to shared objects. It carries their tickets beside its pickle, so
that whoever drops it unread can let go of them: ``I`` length of a JSON list of
``[owner, urls, target, ticket]``, that list, the pickle.
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
#: items that are smaller on average are cut out of one copy, which is quicker than views of it
_SMALL = 4096
#: an item from here on is handed to the transport as it is, smaller ones are joined
_LARGE = 64 * 1024


#: by which writers tell readers to stop
_NONE = bytes(codec.pickled(None))


class Laden:
    """An item that holds references to shared objects."""

    __slots__ = ("body",)

    def __init__(self, body: Buffer) -> None:
        self.body = body

    @classmethod
    def of(cls, tickets: Iterable[tuple[str, Sequence[str], int, int]], pickled: bytes) -> Laden:
        """The item of a pickle and the tickets of the references in it."""
        listed = json.dumps(list(tickets)).encode()
        return cls(b"".join((_LENGTH.pack(len(listed)), listed, pickled)))

    def __len__(self) -> int:
        return len(self.body)

    @property
    def pickled(self) -> memoryview:
        """The pickle."""
        view = memoryview(self.body)
        return view[_LENGTH.size + self._listed(view) :]

    def tickets(self) -> list[tuple[str, tuple[str, ...], int, int]]:
        """Owner, its addresses, its number for the object, and the ticket, of each reference.

        Raises:
            WireError: a peer made it up.
        """
        view = memoryview(self.body)
        try:
            listed = json.loads(bytes(view[_LENGTH.size : _LENGTH.size + self._listed(view)]))
            return [(str(i), tuple(map(str, u)), int(t), int(n)) for i, u, t, n in listed]
        except (ValueError, TypeError, RecursionError) as error:
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


Item: TypeAlias = Buffer | Laden


def until_none(back: Iterable[tuple[int, Item]], fresh: Iterable[Item], count: int) -> int:
    """How many of the first ``count`` items there are up to the first None, with it.

    A reader that stops there must not hold items that were put before the None at which another
    one stops: they would come back when nobody reads any more.

    Args:
        back: what came back, with its position; it is before the others.
        fresh: what nobody had yet.
        count: what the answer is where there is no None.
    """
    items = itertools.chain((item for _, item in back), fresh)
    for number, item in enumerate(itertools.islice(items, count), 1):
        if len(item) == len(_NONE) and item == _NONE:
            return number
    return count


def pack(items: Sequence[Item]) -> list[Buffer]:
    """Segments of a batch."""
    lengths = list(map(len, items))
    laden = [n for n, item in enumerate(items) if type(item) is Laden]
    count = len(lengths)
    head = struct.pack(f"<II{count}Q{len(laden)}I", count, len(laden), *lengths, *laden)
    bodies: Sequence[Any] = items
    if laden:
        bodies = [item.body if isinstance(item, Laden) else item for item in items]
    if not lengths or max(lengths) < _LARGE:
        return [b"".join((head, *bodies))]
    segments: list[Buffer] = [head]
    for large, group in itertools.groupby(bodies, lambda body: len(body) >= _LARGE):
        if large:
            segments.extend(group)
        else:
            segments.append(b"".join(group))
    return segments


def unpack(body: memoryview) -> list[Item]:
    """The items of a batch.

    Raises:
        WireError: its lengths do not add up.
    """
    try:
        count, laden = _HEAD.unpack_from(body)
        start = _HEAD.size + 8 * count + 4 * laden
        if start > len(body):
            msg = f"a batch announces {count} items in {len(body)} bytes"
            raise WireError(msg)
        lengths = struct.unpack_from(f"<{count}Q", body, _HEAD.size)
        positions = struct.unpack_from(f"<{laden}I", body, _HEAD.size + 8 * count)
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
        item = items[position] if position < count else None
        if item is None or isinstance(item, Laden):
            msg = f"a batch of {count} items says twice or falsely that item {position} is laden"
            raise WireError(msg)
        items[position] = Laden(item)
    return items
