"""A pipe over mutual TLS, as between hosts, beside two bare sockets of pynng with the same TLS."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import pickle
import socket
from collections.abc import Iterator
from typing import Any

from benchmarks import tasks
from benchmarks.model import FLOOR, OURS, Bar, Metric, Round, Sizes
from benchmarks.round_trips import Exchange, over_pipe, round_of

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


@contextlib.contextmanager
def prepare(contender: str, sizes: Sizes) -> Iterator[Round]:
    with (_fiber if contender == OURS else _bare)() as exchange:
        yield round_of(exchange, "remote", sizes.messages // 5, sizes.messages // 500)


@contextlib.contextmanager
def _fiber() -> Iterator[Exchange]:
    # of this program alone, before it has a runtime
    os.environ["FIBER_LOCAL_TRANSPORT"] = "tls"
    import fiber

    with over_pipe(fiber) as exchange:
        yield exchange


@contextlib.contextmanager
def _bare() -> Iterator[Exchange]:
    import pynng

    from fiber._wire.handshake import Credentials
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
