"""What becomes of nng in a process that the user's own fork makes.

nng is not fork-safe: opening, closing or merely collecting one of its objects in a forked child
aborts that child, and the child's copies of the descriptors keep peers from seeing the parent's
death. So in the child every socket of ours is abandoned, pynng's atexit handler is taken off, our
descriptors are closed, and calls of fiber raise :class:`~fiber.exceptions.ForkedError`.

The child of Fiber's own fork server is no stranger: no socket was ever opened before that fork.
"""

from __future__ import annotations

import atexit
import os
import socket
import stat
import weakref
from typing import Protocol
from urllib.parse import urlsplit

from fiber.exceptions import ForkedError


class _Abandonable(Protocol):
    def abandon(self) -> None: ...


_sockets: weakref.WeakSet[_Abandonable] = weakref.WeakSet()
_addresses: set[str] = set()
_ports: set[int] = set()
_stranger = False


def is_stranger() -> bool:
    """True in a process forked by the user after a socket was opened."""
    return _stranger


def check() -> None:
    """Raise ForkedError in a process forked by the user after a socket was opened."""
    if _stranger:
        msg = (
            f"process {os.getpid()} was forked from one that already used fiber, where its "
            "connections cannot work; start it with fiber.Process, or fork before the first use"
        )
        raise ForkedError(msg)


def register(holder: _Abandonable) -> None:
    """Have a socket abandoned in forked children."""
    _sockets.add(holder)


def remember_listener(url: str) -> None:
    """Have the descriptors of a listener and its pipes closed in forked children."""
    _remember(url)


def remember_dialled(url: str) -> None:
    """Have the descriptors of a dialled pipe closed in forked children."""
    _remember(url)


def _remember(url: str) -> None:
    parts = urlsplit(url)
    if parts.scheme == "ipc":
        _addresses.add(url[len("ipc://") :])
    elif parts.port:
        _ports.add(parts.port)


def _after_fork_in_child() -> None:
    global _stranger  # noqa: PLW0603 - a process has forked once and for all
    holders = list(_sockets)
    if not holders and not _addresses and not _ports:
        return
    _stranger = True
    for holder in holders:
        holder.abandon()
    import pynng.nng

    atexit.unregister(pynng.nng._pynng_atexit)  # noqa: SLF001 - it would wait for threads that are not here
    _close_descriptors()


def _close_descriptors() -> None:
    for folder in ("/proc/self/fd", "/dev/fd"):
        try:
            numbers = [int(name) for name in os.listdir(folder)]
        except OSError:
            continue
        for number in numbers:
            if _is_ours(number):
                os.close(number)
        return


def _is_ours(number: int) -> bool:
    try:
        if not stat.S_ISSOCK(os.fstat(number).st_mode):
            return False
        probe = socket.socket(fileno=os.dup(number))
    except OSError:
        return False
    with probe:
        for ask in (probe.getsockname, probe.getpeername):
            try:
                name = ask()
            except OSError:
                continue
            if isinstance(name, str) and name in _addresses:
                return True
            if isinstance(name, tuple) and len(name) >= 2 and name[1] in _ports:
                return True
    return False


os.register_at_fork(after_in_child=_after_fork_in_child)
