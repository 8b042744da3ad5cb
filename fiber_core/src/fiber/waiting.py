"""``wait`` for several connections, sentinels of processes, sockets and pipes at once."""

from __future__ import annotations

import selectors
import time
from collections.abc import Iterable
from typing import Any

__all__ = ["wait"]


def wait(object_list: Iterable[Any], timeout: float | None = None) -> list[Any]:
    """Wait until something can be read from one of several objects; those of which it is true.

    Args:
        object_list: connections, sentinels of processes, sockets, the stdlib's connections, or
            anything else with a descriptor.
        timeout: seconds, or None.
    """
    objects = list(object_list)
    by_fd: dict[int, list[Any]] = {}
    for one in objects:
        by_fd.setdefault(one if isinstance(one, int) else one.fileno(), []).append(one)
    deadline = None if timeout is None else time.monotonic() + timeout
    # a set of descriptors of its own costs less than a kernel object for one wait
    with getattr(selectors, "PollSelector", selectors.DefaultSelector)() as selector:
        for fd in by_fd:
            selector.register(fd, selectors.EVENT_READ)
        while True:
            left = None if deadline is None else max(0.0, deadline - time.monotonic())
            found = {key.fd for key, _ in selector.select(left)}
            if found or left == 0:
                return [o for fd in found for o in by_fd[fd]]
