"""Ways between hosts that can be cut."""

from __future__ import annotations

import contextlib
import random
import selectors
import socket
import threading
from typing import Any


class Wire:
    """Forwards connections to its own port to another one.

    Args:
        port: the port on this machine that connections are forwarded to; may be set later.
    """

    def __init__(self, port: int | None = None) -> None:
        self.port = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        #: what to dial
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self._selector = selectors.DefaultSelector()
        self._pairs: dict[socket.socket, socket.socket] = {}
        self._lock = threading.Lock()
        self._silent = False
        self._pause = threading.Event()
        self._closed = False
        #: connections that were forwarded
        self.count = 0
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._thread = threading.Thread(target=self._run, name="cuttable-wire", daemon=True)
        self._thread.start()

    def __enter__(self) -> Wire:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def silence(self, silent: bool = True) -> None:
        """Forward nothing, as where a cable is cut: nobody is told."""
        self._silent = silent

    def cut(self) -> None:
        """End all connections."""
        with self._lock:
            for one in list(self._pairs):
                self._drop(one)

    def close(self) -> None:
        """End it all."""
        self._closed = True
        self._thread.join(10)
        self.cut()
        self._listener.close()
        self._selector.close()

    def _run(self) -> None:
        while not self._closed:
            ready = self._selector.select(0.05)
            if self._silent:
                self._pause.wait(0.05)
                continue
            for key, _ in ready:
                with self._lock:
                    self._serve(key.fileobj)

    def _serve(self, ready: object) -> None:
        if ready is self._listener:
            one, _ = self._listener.accept()
            try:
                other = socket.create_connection(("127.0.0.1", self.port or 0), timeout=5)
            except OSError:
                one.close()
                return
            self.count += 1
            for end, far in ((one, other), (other, one)):
                end.settimeout(10)
                self._pairs[end] = far
                self._selector.register(end, selectors.EVENT_READ)
            return
        assert isinstance(ready, socket.socket)
        far = self._pairs.get(ready)
        if far is None:
            return
        try:
            data = ready.recv(1 << 16)
            if data:
                far.sendall(data)
        except OSError:
            data = b""
        if not data:
            self._drop(ready)

    def _drop(self, one: socket.socket) -> None:
        for end in (one, self._pairs.get(one)):
            if end is not None and self._pairs.pop(end, None) is not None:
                with contextlib.suppress(KeyError, ValueError):
                    self._selector.unregister(end)
                end.close()


class StreamCutter:
    """Cuts streams into jobs, half of them at a time, as a server does that is restarted.

    Args:
        backend: opens the streams.
    """

    def __init__(self, backend: Any) -> None:
        self._opened: list[socket.socket] = []
        self._open_stream = backend.open_stream
        self._finished = threading.Event()
        self._is_out_of_reach = False
        self._thread = threading.Thread(target=self._run)
        #: streams that were cut
        self.cuts = 0
        backend.open_stream = self._open

    def __enter__(self) -> StreamCutter:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._finished.set()
        self._thread.join(10)

    def cut_for_good(self) -> None:
        """Cut all streams, and have no other one opened."""
        self._is_out_of_reach = True
        for one in self._opened:
            self._cut(one)

    def _open(self, job: Any) -> socket.socket:
        if self._is_out_of_reach:
            raise ConnectionRefusedError
        self._opened.append(self._open_stream(job))
        return self._opened[-1]

    def _run(self) -> None:
        chance = random.Random(1)
        while not self._finished.wait(0.05 + 0.1 * chance.random()):
            alive = [one for one in self._opened if one.fileno() >= 0]
            for one in chance.sample(alive, (len(alive) + 1) // 2):
                self._cut(one)
                self.cuts += 1

    def _cut(self, one: socket.socket) -> None:
        with contextlib.suppress(OSError):
            one.shutdown(socket.SHUT_RDWR)
