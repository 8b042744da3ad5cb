"""Closes TLS connections whose end nng has missed.

nng reads ahead of what it is asked for (1.11, ``tls_common.c``): the end of a TLS connection that
arrives while no frame is awaited closes the socket and is told to nobody, ever, and what is sent
afterwards vanishes in a buffer. About one in twenty ends in the midst of traffic goes that way. No
event tells of it, so every second each pipe is asked for its peer's address, which only a socket
that is connected has. The thread for it is there as long as there are such pipes.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from pynng import ffi, lib

#: seconds between two looks
INTERVAL = 1.0

_lock = threading.Lock()
_pipes: dict[int, tuple[Any, Callable[[], bool]]] = {}
_empty = threading.Event()
_thread: threading.Thread | None = None


def add(pipe: Any, is_ours: Callable[[], bool] = lambda: True) -> None:
    """Watch a pipe of pynng's where it is one between hosts.

    Args:
        pipe: it.
        is_ours: asked before nng is; False where user code has taken nng's descriptors away, which
            would end the process if nng met it.
    """
    global _thread  # noqa: PLW0603 - one thread a process
    address = ffi.new("nng_sockaddr *")
    if lib.nng_pipe_get_addr(pipe.pipe, b"remote-address", address):
        return
    if address.s_family not in (lib.NNG_AF_INET, lib.NNG_AF_INET6):
        return
    with _lock:
        _pipes[pipe.id] = pipe.pipe, is_ours
        _empty.clear()
        if _thread is None:
            _thread = threading.Thread(target=_run, name="fiber-watch", daemon=True)
            try:
                _thread.start()
            except RuntimeError:
                # the interpreter is ending
                _thread = None


def remove(pipe: Any) -> None:
    """Watch a pipe no more."""
    with _lock:
        _pipes.pop(pipe.id, None)
        if not _pipes:
            _empty.set()


def _run() -> None:
    global _thread  # noqa: PLW0603 - as above
    while True:
        _empty.wait(INTERVAL)
        with _lock:
            if not _pipes:
                _thread = None
                return
            pipes = list(_pipes.items())
        for number, (pipe, is_ours) in pipes:
            if not is_ours():
                with _lock:
                    _pipes.pop(number, None)
                continue
            address = ffi.new("nng_sockaddr *")
            if lib.nng_pipe_get_addr(pipe, b"remote-address", address):
                with _lock:
                    _pipes.pop(number, None)
                # its end is now told as any other; nothing happens where it was told already
                lib.nng_pipe_close(pipe)
