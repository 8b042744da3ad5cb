"""Connections that begin inside another network namespace, as a port-forward's do."""

from __future__ import annotations

import asyncio
import ctypes
import os
import socket
import threading

__all__ = ["dial"]

_CLONE_NEWNET = 0x40000000


async def dial(pid: int, port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Connect to a port of the loopback that a process sees."""
    loop = asyncio.get_running_loop()
    made: asyncio.Future[socket.socket] = loop.create_future()

    def work() -> None:
        try:
            sock = _socket(pid, port)
        except OSError as error:
            loop.call_soon_threadsafe(_fail, made, error)
        else:
            loop.call_soon_threadsafe(_give, made, sock)

    # a thread of its own: its namespace is not given back
    thread = threading.Thread(target=work, name="cluster-dial")
    thread.start()
    try:
        sock = await made
    finally:
        thread.join()
    return await asyncio.open_connection(sock=sock)


def _socket(pid: int, port: int) -> socket.socket:
    libc = ctypes.CDLL(None, use_errno=True)
    place = os.open(f"/proc/{pid}/ns/net", os.O_RDONLY)
    try:
        if libc.setns(place, _CLONE_NEWNET) != 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))
    finally:
        os.close(place)
    sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        sock.settimeout(5)
        sock.connect(("127.0.0.1", port))
        sock.setblocking(False)
    except OSError:
        sock.close()
        raise
    return sock


def _give(made: asyncio.Future[socket.socket], sock: socket.socket) -> None:
    if made.cancelled():
        sock.close()
    else:
        made.set_result(sock)


def _fail(made: asyncio.Future[socket.socket], error: OSError) -> None:
    if not made.cancelled():
        made.set_exception(error)
