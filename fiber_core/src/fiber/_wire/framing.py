"""Frames on a stream, each behind its length; no sockets here."""

from __future__ import annotations

import struct
from collections.abc import Sequence

from fiber._wire.frames import Buffer
from fiber.exceptions import WireError

#: bytes of the frame that follows
LENGTH = struct.Struct("<I")
# up to here one copy costs less than to have the kernel gather the parts
_SMALL = 16 * 2**10
# most parts that a kernel gathers
_PARTS = 512


class Deframer:
    """Cuts the frames out of what a stream brings.

    Args:
        limit: bytes of the largest frame that is accepted; may be changed between frames.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._length = b""
        self._frame: bytearray | None = None
        self._filled = 0

    @property
    def gap(self) -> memoryview | None:
        """Where the rest of a frame that has begun belongs, if one has."""
        return None if self._frame is None else memoryview(self._frame)[self._filled :]

    def fill(self, count: int) -> bytearray | None:
        """So many bytes were written to :attr:`gap`; the frame, if it is whole now."""
        frame = self._frame
        assert frame is not None
        self._filled += count
        if self._filled < len(frame):
            return None
        self._frame = None
        return frame

    def feed(self, data: memoryview) -> list[bytearray]:
        """Take bytes in while there is no :attr:`gap`; the frames that are whole now.

        Raises:
            WireError: a frame is announced that is larger than the limit.
        """
        frames: list[bytearray] = []
        at, end = 0, len(data)
        while at < end:
            start = at + LENGTH.size - len(self._length)
            if start > end:
                self._length += bytes(data[at:end])
                break
            if self._length:
                (size,) = LENGTH.unpack(self._length + bytes(data[at:start]))
                self._length = b""
            else:
                (size,) = LENGTH.unpack_from(data, at)
            if size > self.limit:
                msg = f"a frame of {size} bytes is announced, {self.limit} are the most"
                raise WireError(msg)
            at = start + size
            if at > end:
                # of its own, and filled from the stream without another copy
                self._frame = bytearray(size)
                self._frame[: end - start] = data[start:end]
                self._filled = end - start
                break
            frames.append(bytearray(data[start:at]))
        return frames


def parts(head: bytes, pieces: Sequence[Buffer]) -> tuple[list[Buffer], int]:
    """What goes over the stream for a frame, and how many bytes that are."""
    size = len(head) + sum(map(len, pieces))
    length = LENGTH.pack(size)
    if size <= _SMALL:
        return [b"".join((length, head, *pieces))], LENGTH.size + size
    if len(pieces) > _PARTS:
        return [length + head, b"".join(pieces)], LENGTH.size + size
    return [length + head, *pieces], LENGTH.size + size


def after(buffers: Sequence[Buffer], sent: int) -> list[memoryview]:
    """What is left of buffers of which so many bytes are gone."""
    left = []
    for buffer in buffers:
        view = memoryview(buffer).cast("B")
        if sent >= len(view):
            sent -= len(view)
            continue
        left.append(view[sent:] if sent else view)
        sent = 0
    return left
