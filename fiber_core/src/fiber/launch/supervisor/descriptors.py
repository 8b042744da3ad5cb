"""The descriptors that a supervisor owns, so that a forked child can close them all at once."""

from __future__ import annotations

import contextlib
import os

__all__ = ["Descriptors"]


class Descriptors:
    """A set of open descriptors, as bare numbers.

    Bare numbers, because objects left over in a forked child would close theirs a second time,
    when another file has the number.
    """

    def __init__(self) -> None:
        self._owned: set[int] = set()

    def __len__(self) -> int:
        return len(self._owned)

    def own(self, descriptor: int) -> int:
        """Take over a descriptor; returns it."""
        self._owned.add(descriptor)
        return descriptor

    def pipe(self) -> tuple[int, int]:
        """A close-on-exec pipe, both ends owned: read end, write end."""
        reader, writer = os.pipe()
        self._owned |= {reader, writer}
        return reader, writer

    def close(self, descriptor: int) -> None:
        """Close a descriptor that is owned; others are left alone."""
        if descriptor in self._owned:
            self._owned.discard(descriptor)
            os.close(descriptor)

    def release(self, descriptor: int) -> int:
        """Stop owning a descriptor without closing it; returns it."""
        self._owned.discard(descriptor)
        return descriptor

    def close_all(self) -> None:
        """Close everything that is owned, in as few calls as possible."""
        ranges: list[list[int]] = []
        for descriptor in sorted(self._owned):
            if ranges and ranges[-1][1] == descriptor:
                ranges[-1][1] += 1
            else:
                ranges.append([descriptor, descriptor + 1])
        self._owned.clear()
        for low, high in ranges:
            with contextlib.suppress(OSError):
                os.closerange(low, high)
