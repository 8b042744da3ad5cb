"""Descriptors that a supervisor owns, kept in a set so that a forked child can close them all; and their limit."""

from __future__ import annotations

import contextlib
import os
import resource
import sys


def fill_standard_descriptors() -> None:
    """Open ``/dev/null`` as each of the three standard descriptors that is closed."""
    # where one is closed, the next pipe would get its number and be taken for standard output
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            null = os.open(os.devnull, os.O_RDWR)
            if null != number:
                os.dup2(null, number)
                os.close(null)
            os.set_inheritable(number, True)
    # what the interpreter found closed at its start is no stream to it; jobs have pipes there
    for number, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        if getattr(sys, name) is None:
            errors = "backslashreplace" if number == 2 else None
            setattr(sys, name, os.fdopen(number, mode, errors=errors, closefd=False))


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


def raise_descriptor_limit() -> int:
    """Raise the soft limit of open files to the hard one; returns the soft limit before."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        # macOS has a hard limit of "infinity" and accepts no more than OPEN_MAX
        for limit in (hard, 10240):
            try:
                resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
            except (OSError, ValueError):
                continue
            break
    return soft
