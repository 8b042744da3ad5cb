"""Handling of open sockets in a process forked by user code.

nng is not fork-safe: opening, closing or merely collecting one of its objects in a forked child
aborts that child, and the child's copies of the descriptors keep peers from seeing the parent's
death. So in the child every socket of ours is abandoned, pynng's atexit handler is taken off, our
descriptors are closed, and calls of fiber raise :class:`~fiber.exceptions.ForkedError`.

Children of Fiber's own fork server are not concerned: no socket is opened before that fork.

Apart from :mod:`~fiber._wire.nng`, since Unix sockets need it too and must not import nng.
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
#: ports that we listen on, and ports that we dialed
_own_ports: set[int] = set()
_peer_ports: set[int] = set()
#: what :func:`is_forked_child` returns, for code that asks for each message
in_child = False


def is_forked_child() -> bool:
    """True in a process forked by the user after a socket was opened."""
    return in_child


def check() -> None:
    """Raise ForkedError in a process forked by the user after a socket was opened."""
    if in_child:
        msg = (
            f"process {os.getpid()} was forked from one that already used fiber, where its "
            "connections cannot work; start it with fiber.Process, or fork before the first use"
        )
        raise ForkedError(msg)


def register(holder: _Abandonable) -> None:
    """Register a socket to be abandoned in forked children."""
    _sockets.add(holder)


def remember_listener(url: str) -> None:
    """Register a listener's URL: its descriptors and pipes' are closed in forked children."""
    _remember(url, _own_ports)


def remember_dialed(url: str) -> None:
    """Register a dialed URL: its pipe's descriptor is closed in forked children."""
    _remember(url, _peer_ports)


def _remember(url: str, ports: set[int]) -> None:
    parts = urlsplit(url)
    if parts.scheme == "ipc":
        _addresses.add(url[len("ipc://") :])
    elif parts.port:
        ports.add(parts.port)


def _after_fork_in_child() -> None:
    # other threads are gone and may have held any lock: none is acquired here
    global in_child  # noqa: PLW0603 - a process has forked once and for all
    holders = list(_sockets)
    if not holders and not _addresses and not _own_ports and not _peer_ports:
        return
    in_child = True
    for holder in holders:
        holder.abandon()
    # not imported here: another thread may have held the import's lock
    nng = sys.modules.get("pynng.nng")
    if nng is not None:
        # it would wait for threads that do not exist here
        atexit.unregister(nng._pynng_atexit)  # noqa: SLF001 - pynng offers no other way
    _close_descriptors()


def _close_descriptors() -> None:
    for number in descriptors.open_numbers():
        if _is_ours(number):
            os.close(number)


def _is_ours(number: int) -> bool:
    try:
        if not stat.S_ISSOCK(os.fstat(number).st_mode):
            return False
        probe = descriptors.borrowed_socket(number)
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
