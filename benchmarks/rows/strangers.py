"""Tasks over TLS while strangers are at the port: some silent, some that only shake hands."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import socket
import ssl
import time
from collections.abc import Iterator
from multiprocessing.connection import Connection

from benchmarks import contenders, tasks
from benchmarks.model import OURS, Bar, Metric, Round, Sizes

CONTENDERS = (OURS,)
METRICS = (
    Metric(
        "strangers",
        "tasks of 1 ms over TLS, with strangers at the port / without",
        "x",
        bars=(Bar(0.9, against=None),),
        more=True,
    ),
)
#: of a second, in which one part of the handshakes is made
_TURN = 0.1


@contextlib.contextmanager
def prepare(contender: str, sizes: Sizes) -> Iterator[Round]:
    # of this program alone, before it has a runtime
    os.environ["FIBER_LOCAL_TRANSPORT"] = "tls"
    with contenders.session(contender, sizes.workers) as pool:
        pool.map(tasks.noop, range(sizes.workers))
        address = _listening()

        def rate() -> float:
            start = time.perf_counter()
            pool.map(tasks.sleep, [0.001] * sizes.stranger_tasks)
            return sizes.stranger_tasks / (time.perf_counter() - start)

        def once() -> dict[str, float]:
            alone = rate()
            with _strangers(address, sizes.strangers, sizes.handshakes):
                return {"strangers": rate() / alone}

        yield once


def _listening() -> tuple[str, int]:
    """Host and port at which this process listens for its workers."""
    from fiber._runtime import runtime

    (url,) = (url for url in runtime.current().endpoint.urls if url.startswith("tls+"))
    host, _, port = url.rpartition("/")[2].rpartition(":")
    return host, int(port)


@contextlib.contextmanager
def _strangers(address: tuple[str, int], silent: int, handshakes: int) -> Iterator[None]:
    """Have a process of its own connect, until the end of the block.

    Args:
        address: host and port.
        silent: connections that say nothing; each that is cut is made anew.
        handshakes: handshakes of TLS a second, by clients without a certificate.
    """
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_connect, args=(theirs, address, silent, handshakes))
    process.start()
    theirs.close()
    with ours:
        # all are there
        ours.recv()
        yield
    process.join()


def _connect(end: Connection, address: tuple[str, int], silent: int, handshakes: int) -> None:
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client.check_hostname, client.verify_mode = False, ssl.CERT_NONE
    held: list[socket.socket] = []
    turn, is_ready = time.monotonic(), False
    while True:
        held = [one for one in held if not _is_cut(one)]
        while len(held) < silent:
            held.append(socket.create_connection(address, timeout=10))
        for _ in range(round(handshakes * _TURN)):
            # it is refused for having no certificate
            with (
                contextlib.suppress(OSError),
                socket.create_connection(address, timeout=10) as raw,
                client.wrap_socket(raw) as connection,
            ):
                connection.recv(1)
        if not is_ready:
            end.send(None)
            is_ready = True
        turn = max(turn + _TURN, time.monotonic())
        # readable once the other side is closed
        if end.poll(turn - time.monotonic()):
            return


def _is_cut(connection: socket.socket) -> bool:
    """Close a connection that the other side has ended; True where it has."""
    connection.setblocking(False)
    try:
        is_cut = connection.recv(1) == b""
    except BlockingIOError:
        return False
    except OSError:
        is_cut = True
    connection.close()
    return is_cut
