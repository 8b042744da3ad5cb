"""The arguments of an entry: units that have nothing to do with each other once they are unpickled.

One pickle of many items would make one object of what several of them hold, and a task that
changes it would change it for the next: as ``multiprocessing`` has it within a chunk, and nowhere
else. So each unit has a pickle of its own, unless its items hold nothing that can be changed.

Layout of the body, little-endian: ``I`` count of references to out-of-band buffers, ``I`` each, as
many zeros as bring it to a multiple of 16 bytes, then an object body (:mod:`fiber._wire.frames`)
whose pickle is that of each unit, one behind the other, and whose buffers are there once each. The
references are the buffers in the order in which the pickles want them; one with ``PLACE`` added
is of a buffer that tells where on this host the bytes lie.
"""

from __future__ import annotations

import itertools
import struct
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from fiber._tasks.shared_payload import LARGE
from fiber._wire import codec, frames
from fiber.exceptions import WireError

__all__ = ["PLACE", "are_constant", "encode", "read"]

#: added to the number of a buffer that tells where its bytes lie
PLACE = 2**31
_ALIGNMENT = 16
#: types whose objects nobody can change; those of a class of a user's are not among them
_CONSTANT = frozenset({bool, bytes, complex, float, int, str, type(None)})
_TUPLES = frozenset({tuple})


def are_constant(items: Sequence[Any]) -> bool:
    """True where the items, or what is in their tuples, hold nothing that can be changed."""
    types = set(map(type, items))
    if types <= _CONSTANT:
        return True
    if types != _TUPLES:
        return False
    return set(map(type, itertools.chain.from_iterable(items))) <= _CONSTANT


def encode(
    units: Sequence[Sequence[Any]],
    place: Callable[[memoryview], bytes | None] | None = None,
) -> tuple[bool, list[frames.Buffer]]:
    """The body for units of items, and whether it is one for :func:`read`.

    Args:
        units: items that stay together.
        place: where the bytes of a buffer lie, which is that of a whole object; None for nowhere.

    Raises:
        Exception: whatever pickling an item raised.
    """
    raws: list[memoryview] = []
    if len(units) == 1:
        pickled = codec.split(units[0], raws)
        if place is None or not any(raw.nbytes >= LARGE for raw in raws):
            return False, frames.pack(pickled, raws)
    else:
        pickled = b"".join([codec.split(unit, raws) for unit in units])
    references, buffers = _referring(raws, place)
    told = struct.pack(f"<{1 + len(references)}I", len(references), *references)
    return True, [told + bytes(-len(told) % _ALIGNMENT), *frames.pack(pickled, buffers)]


def _referring(
    raws: Sequence[memoryview], place: Callable[[memoryview], bytes | None] | None
) -> tuple[list[int], list[frames.Buffer]]:
    buffers: list[frames.Buffer] = []
    references: list[int] = []
    known: dict[int, int] = {}
    for raw in raws:
        # one that is of part of an object does not tell which part
        is_whole = memoryview(raw.obj).nbytes == raw.nbytes
        # the views keep their objects alive, so that no other has the number of one
        number = known.get(id(raw.obj)) if is_whole else None
        if number is None:
            where = place(raw) if is_whole and place is not None else None
            number = len(buffers) if where is None else len(buffers) + PLACE
            buffers.append(raw if where is None else where)
            if is_whole:
                known[id(raw.obj)] = number
        references.append(number)
    return references, buffers


def read(body: memoryview, find: Callable[[bytes], memoryview]) -> list[Any]:
    """The items of a body.

    Args:
        body: the body.
        find: bytes that lie somewhere, to be written to by nobody else.

    Raises:
        WireError: it makes no sense.
        Exception: whatever unpickling raised, or ``find``.
    """
    references, rest = _references(body)
    pickled, buffers = frames.unpack(rest)
    units = codec.loads_all(pickled, _opened(references, buffers, find))
    return list(itertools.chain.from_iterable(units))


def _references(body: memoryview) -> tuple[tuple[int, ...], memoryview]:
    try:
        (count,) = struct.unpack_from("<I", body)
        if count > len(body) // 4:
            msg = f"arguments announce {count} buffers in {len(body)} bytes"
            raise WireError(msg)
        references = struct.unpack_from(f"<{count}I", body, 4)
    except struct.error as error:
        msg = "arguments are cut short"
        raise WireError(msg) from error
    size = 4 * (1 + count)
    return references, body[size + -size % _ALIGNMENT :]


def _opened(
    references: Sequence[int],
    buffers: Sequence[memoryview],
    find: Callable[[bytes], memoryview],
) -> Iterator[frames.Buffer]:
    used = set()
    for reference in references:
        number = reference % PLACE
        if number >= len(buffers):
            msg = f"arguments refer to buffer {number} of {len(buffers)}"
            raise WireError(msg)
        if reference >= PLACE:
            yield find(bytes(buffers[number]))
        elif number in used:
            # one each: who has the first may write to it
            yield bytearray(buffers[number])
        else:
            used.add(number)
            yield buffers[number]
