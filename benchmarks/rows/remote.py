"""A pipe over mutual TLS, as between hosts, beside two bare sockets of pynng with the same TLS."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import pickle
import socket
import time
from collections.abc import Callable, Iterator
from typing import Any

from benchmarks import tasks
from benchmarks.model import FLOOR, OURS, Bar, Metric, Round, Sizes

CONTENDERS = (OURS, FLOOR)
METRICS = (
    Metric(
        "remote", "Pipe over TLS, a small message there and back", "µs", bars=(Bar(1.3, FLOOR),)
    ),
    Metric(
        "remote-bytes",
        "Pipe over TLS, 4 MB there and back",
        "MB/s",
        bars=(Bar(0.8, FLOOR),),
        more=True,
    ),
)
_LARGE = 4_000_000


@contextlib.contextmanager
def prepare(contender: str, sizes: Sizes) -> Iterator[Round]:
    with (_fiber if contender == OURS else _bare)() as exchange:

        def seconds(message: Any, count: int) -> float:
            start = time.perf_counter()
            for _ in range(count):
                exchange(message)
            return (time.perf_counter() - start) / count

        large = bytes(_LARGE)
        # the process is up
        seconds(large, 1)

        def once() -> dict[str, float]:
            return {
                "remote": 1e6 * seconds({"step": 1}, max(1, sizes.messages // 5)),
                "remote-bytes": 2 * _LARGE / seconds(large, max(1, sizes.messages // 500)) / 1e6,
            }

        yield once


@contextlib.contextmanager
def _fiber() -> Iterator[Callable[[Any], Any]]:
    # of this program alone, before it has a runtime
    os.environ["FIBER_LOCAL_TRANSPORT"] = "tls"
    import fiber

    here, there = fiber.Pipe()
    process = fiber.Process(target=tasks.echo, args=(there,))
    process.start()
    there.close()

    def exchange(message: Any) -> Any:
        here.send(message)
        return here.recv()

    yield exchange
    here.send(None)
    process.join()


@contextlib.contextmanager
def _bare() -> Iterator[Callable[[Any], Any]]:
    import pynng

    from fiber._wire.identity import Credentials
    from fiber._wire.nng import tls

    credentials = Credentials.new().with_certificate()
    with pynng.Pair0() as listening:
        # as large as what is sent
        listening.recv_max_size = 0
        listening.tls_config = tls(credentials, pynng.TLSConfig.MODE_SERVER)
        listener = listening.listen("tls+tcp://127.0.0.1:0")
        url = f"tls+tcp://127.0.0.1:{socket.ntohs(listener.local_address.port)}"
        process = multiprocessing.get_context("spawn").Process(
            target=tasks.echo_bare, args=(url, credentials)
        )
        process.start()
        # it has connected
        listening.recv()

        def exchange(message: Any) -> Any:
            listening.send(pickle.dumps(message))
            return pickle.loads(listening.recv())

        yield exchange
        listening.send(pickle.dumps(None))
        process.join()
