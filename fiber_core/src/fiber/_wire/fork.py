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
import stat
import sys
import weakref
from collections.abc import Callable
from typing import Any, Protocol
from urllib.parse import urlsplit

from fiber._wire import descriptors
from fiber.exceptions import ForkedError


class _Abandonable(Protocol):
    def abandon(self) -> None: ...


_sockets: weakref.WeakSet[_Abandonable] = weakref.WeakSet()
_addresses: set[str] = set()
#: ports that we listen on, and that we dialled
_own_ports: set[int] = set()
_peer_ports: set[int] = set()
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
    _remember(url, _own_ports)


def remember_dialled(url: str) -> None:
    """Have the descriptors of a dialled pipe closed in forked children."""
    _remember(url, _peer_ports)


def _remember(url: str, ports: set[int]) -> None:
    parts = urlsplit(url)
    if parts.scheme == "ipc":
        _addresses.add(url[len("ipc://") :])
    elif parts.port:
        ports.add(parts.port)


def _after_fork_in_child() -> None:
    # other threads are gone with whatever locks they held: nothing here waits for any
    global _stranger  # noqa: PLW0603 - a process has forked once and for all
    holders = list(_sockets)
    if not holders and not _addresses and not _own_ports and not _peer_ports:
        return
    _stranger = True
    for holder in holders:
        holder.abandon()
    # not imported here: another thread may have held the import's lock
    nng = sys.modules.get("pynng.nng")
    if nng is not None:
        # it would wait for threads that are not here
        atexit.unregister(nng._pynng_atexit)  # noqa: SLF001 - pynng offers no other way
    _close_descriptors()


def _close_descriptors() -> None:
    for number in descriptors.numbers():
        if _is_ours(number):
            os.close(number)


def _is_ours(number: int) -> bool:
    try:
        if not stat.S_ISSOCK(os.fstat(number).st_mode):
            return False
        probe = descriptors.borrowed(number)
    except OSError:
        return False
    try:
        return _name(probe.getsockname, _own_ports) or _name(probe.getpeername, _peer_ports)
    finally:
        probe.detach()


def _name(ask: Callable[[], Any], ports: set[int]) -> bool:
    try:
        name = ask()
    except OSError:
        return False
    if isinstance(name, str):
        return name in _addresses
    return isinstance(name, tuple) and len(name) > 1 and name[1] in ports


os.register_at_fork(after_in_child=_after_fork_in_child)
