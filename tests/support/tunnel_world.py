"""A tunnel's client and servers in one process, over loopback; streams can be cut."""

import contextlib
import socket
import threading
from collections.abc import Callable
from pathlib import Path

from cuttable import Wire
from fiber._tunnel.client import TunnelClient
from fiber._tunnel.server import TunnelServer, register
from fiber._wire.handshake import Credentials, Hello
from fiber.model.timing import Timing

RUN = Credentials(run_id="0badcafe", key=b"k" * 32)


class Echo:
    """Says back what it is told, to its end."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        #: with whom it has talked
        self.talked: list[socket.socket] = []
        self._threads: list[threading.Thread] = []
        self._accepting = threading.Thread(target=self._accept, daemon=True)
        self._accepting.start()

    def close(self) -> None:
        """End, again or for the first time; what is connected must have ended before."""
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._accepting.join(10)
        self._listener.close()
        for thread in self._threads:
            thread.join(10)

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                sock, _ = self._listener.accept()
                self.talked.append(sock)
                self._threads.append(threading.Thread(target=_echo, args=(sock,), daemon=True))
                self._threads[-1].start()


def _echo(sock: socket.socket) -> None:
    with sock, contextlib.suppress(OSError):
        while data := sock.recv(1 << 16):
            sock.sendall(data)


class TunnelWorld:
    """A client called ``program``, and jobs called what they are made as.

    Args:
        folder: for the sockets of servers.
        patience: of the client and the servers.
        timing: durations of the client.
        of_servers: durations of the servers.
    """

    def __init__(
        self,
        folder: Path,
        *,
        patience: float = 10.0,
        timing: Timing = Timing(),
        of_servers: Timing = Timing(),
    ) -> None:
        self._folder = folder
        self._of_servers = of_servers
        self._patience = patience
        self._stack = contextlib.ExitStack()
        self.speeds: list[tuple[float, float]] = []
        on_speed = self.speeds.append
        self.client = TunnelClient(
            RUN, Hello.mine("program"), patience=patience, on_speed=on_speed, timing=timing
        )
        self.wires: dict[str, Wire] = {}
        self.servers: dict[str, TunnelServer] = {}
        self.ports: dict[str, int] = {}

    def job(
        self, ident: str, *, begin: bool = True, add: bool = True, run: Credentials = RUN
    ) -> TunnelServer:
        """A job whose streams can be cut: ``wires[ident]``; they come in at ``ports[ident]``."""
        folder = self._folder / ident
        folder.mkdir()
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        server = TunnelServer(
            f"127.0.0.1:{port}",
            credentials=run,
            ident=ident,
            patience=self._patience,
            timing=self._of_servers,
        )
        self.servers[ident] = server
        self.ports[ident] = port
        self.wires[ident] = self._stack.enter_context(Wire(port))
        server.serve(str(folder))
        if add:
            self.client.add(ident, ident, self.opener(ident))
        if begin:
            self.client.begin(ident)
        return server

    def echo(self) -> Echo:
        """Somebody to talk to, whom nobody told of."""
        made = Echo()
        self._stack.callback(made.close)
        return made

    def serve(self, ident: str, echo: Echo) -> str:
        """Have somebody be reached as a process of the client's or of a job; the route."""
        route = f"tunnel+tcp://{ident}@127.0.0.1:{echo.port}"
        if ident == "program":
            self.client.register(route)
        else:
            self._stack.enter_context(
                register(self._folder / ident.partition(".")[0], route, timeout=30)
            )
        return route

    def connect(self, way: str) -> socket.socket:
        """Dial what a client or server says."""
        host, _, port = way.partition("://")[2].rpartition(":")
        return self._stack.enter_context(socket.create_connection((host, int(port)), timeout=30))

    def close(self) -> None:
        """End it all."""
        self.client.close()
        for server in self.servers.values():
            server.close()
        self._stack.close()

    def opener(self, ident: str) -> Callable[[], socket.socket]:
        """A function that opens a stream into a job."""

        def open_stream() -> socket.socket:
            host, _, port = self.wires[ident].address.partition(":")
            return socket.create_connection((host, int(port)), timeout=5)

        return open_stream
