"""Layout of the arguments of an entry: units that share no object once they are unpickled.

One pickle of many items would unpickle an object that several of them hold as one, and a task that
changes it would change it for the next: ``multiprocessing`` does so within a chunk, and nowhere
else. So each unit has a pickle of its own, unless its items hold nothing mutable.

Layout of the body, little-endian: ``I`` count of references to out-of-band buffers, ``I`` each, as
many zeros as bring it to a multiple of 16 bytes, then an object body (:mod:`fiber._wire.frames`)
whose pickle is that of each unit, one behind the other, and whose buffers are there once each. The
references are the buffers in the order in which the pickles need them; one with ``LOCATOR`` added
refers to a buffer that has a locator in place of the bytes (:mod:`fiber._tasks.shared_payload`).
"""

from __future__ import annotations

import itertools
import struct
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from fiber._tasks.shared_payload import SHARE_THRESHOLD
from fiber._wire import codec, frames
from fiber.exceptions import WireError

__all__ = ["LOCATOR", "are_constant", "encode", "read"]

#: added to the number of a buffer that is a locator
LOCATOR = 2**31
_ALIGNMENT = 16
#: types whose objects cannot be changed; exact types only, no subclasses
_CONSTANT = frozenset({bool, bytes, complex, float, int, str, type(None)})
_TUPLES = frozenset({tuple})


def are_constant(items: Sequence[Any]) -> bool:
    """True where all items are of immutable types, or all are tuples of such."""
    types = set(map(type, items))
    if types <= _CONSTANT:
        return True
    if types != _TUPLES:
        return False
    return set(map(type, itertools.chain.from_iterable(items))) <= _CONSTANT


def encode(
    units: Sequence[Sequence[Any]],
    locate: Callable[[memoryview], bytes | None] | None = None,
) -> tuple[bool, list[frames.Buffer]]:
    """Pickle units of items; returns whether the body is one for :func:`read`, and its segments.

    Args:
        units: items that stay together.
        locate: returns the locator of a buffer of a whole object, or None; None to send all bytes.

    Raises:
        Exception: whatever pickling an item raised.
    """
    raws: list[memoryview] = []
    if len(units) == 1:
        pickled = codec.split(units[0], raws)
        if not raws or locate is None or not any(raw.nbytes >= SHARE_THRESHOLD for raw in raws):
            return False, frames.pack(pickled, raws)
    else:
        pickled = b"".join([codec.split(unit, raws) for unit in units])
    references, buffers = _referring(raws, locate)
    header = struct.pack(f"<{1 + len(references)}I", len(references), *references)
    return True, [header + bytes(-len(header) % _ALIGNMENT), *frames.pack(pickled, buffers)]


def _referring(
    raws: Sequence[memoryview], locate: Callable[[memoryview], bytes | None] | None
) -> tuple[list[int], list[frames.Buffer]]:
    buffers: list[frames.Buffer] = []
    references: list[int] = []
    known: dict[int, int] = {}
    for raw in raws:
        # a buffer of part of an object does not tell which part
        is_whole = memoryview(raw.obj).nbytes == raw.nbytes
        # the views keep their objects alive, so ids are not reused
        number = known.get(id(raw.obj)) if is_whole else None
        if number is None:
            locator = locate(raw) if is_whole and locate is not None else None
            number = len(buffers) if locator is None else len(buffers) + LOCATOR
            buffers.append(raw if locator is None else locator)
            if is_whole:
                known[id(raw.obj)] = number
        references.append(number)
    return references, buffers


def read(body: memoryview, find: Callable[[bytes], memoryview]) -> list[Any]:
    """The items of a body.

    Args:
        body: the body.
        find: returns a private view of the bytes of a locator.

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
        number = reference % LOCATOR
        if number >= len(buffers):
            msg = f"arguments refer to buffer {number} of {len(buffers)}"
            raise WireError(msg)
        if reference >= LOCATOR:
            yield find(bytes(buffers[number]))
        elif number in used:
            # a copy: the task that has the first may write to it
            yield bytearray(buffers[number])
        else:
            used.add(number)
            yield buffers[number]
