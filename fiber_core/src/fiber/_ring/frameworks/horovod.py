"""Horovod: ``hvd.init()`` over gloo, with a rendezvous server of our own and no ``horovodrun``.

gloo's rendezvous is a key-value store over HTTP: ``PUT`` and ``GET`` of ``/scope/key``, where 404
means that the key is not there yet; see ``horovod/runner/http/http_server.py`` of Horovod. It has
no key, and whoever writes to it decides whom ranks connect to. So each member has a server on its
own loopback, which answers from the store in the process of rank 0 through a pipe of the run.
Apart from the other frameworks for this server.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

from fiber._ring.forwarding import LOOPBACK, PipeClient, PipeServer, may_connect
from fiber._ring.frameworks import RingFramework
from fiber._ring.frameworks.others import write_files
from fiber._ring.model import RingTiming
from fiber._ring.view import RingView
from fiber.exceptions import WireError

if TYPE_CHECKING:
    from fiber.connection import Connection

log = logging.getLogger("fiber")

#: longest value in bytes; gloo's have some 150 for each rank
_MAX_VALUE = 1 << 20
#: keys and bytes of all values, where few ranks would have fewer
_MIN_KEYS, _MIN_BYTES = 1 << 10, 64 << 20
#: keys for each rank, and bytes for each two: a rank has a value for each communicator it is in
_KEYS_PER_RANK, _BYTES_PER_PAIR = 64, 1 << 10
#: connections of a member at once, which asks for one key after the other
_MAX_CONNECTIONS = 64


class Store:
    """The rendezvous' keys and values, in the process of rank 0.

    Args:
        ranks: most ranks of the ring, which bound the number of keys and their size.
    """

    def __init__(self, ranks: int) -> None:
        self._lock = threading.Lock()
        self._values: dict[bytes, bytes] = {}
        self._free_keys = max(_MIN_KEYS, ranks * _KEYS_PER_RANK)
        self._free_bytes = max(_MIN_BYTES, ranks * ranks * _BYTES_PER_PAIR)

    def answer(self, request: bytes) -> bytes:
        """Answer ``METHOD PATH VALUE`` by ``STATUS VALUE``.

        Raises:
            WireError: it is another text.
        """
        method, *rest = request.split(b" ", 2)
        if len(rest) != 2:
            msg = f"a request of {len(request)} bytes to Horovod's rendezvous makes no sense"
            raise WireError(msg)
        path, value = rest
        with self._lock:
            old = self._values.get(path)
            if method == b"GET":
                return _response(HTTPStatus.NOT_FOUND) if old is None else _response(value=old)
            size = len(value) - len(old) if old is not None else len(path) + len(value)
            if size > self._free_bytes or (old is None and not self._free_keys):
                log.warning(
                    "fiber: Horovod's rendezvous does not take %s of %d bytes, for there is room "
                    "for no more values; ranks that wait for it will fail",
                    path.decode("latin-1"),
                    len(value),
                )
                return _response(HTTPStatus.INSUFFICIENT_STORAGE)
            self._free_bytes -= size
            self._free_keys -= old is None
            self._values[path] = value
        return _response()


def _response(status: HTTPStatus = HTTPStatus.OK, value: bytes = b"") -> bytes:
    return b"%d %b" % (status, value)


class _RemoteStore:
    """A member's connection to the store, opened by its first request."""

    def __init__(self, pipes: PipeClient) -> None:
        self._pipes = pipes
        self._lock = threading.Lock()
        self._pipe: Connection | None = None

    def answer(self, request: bytes) -> bytes:
        """Return the store's answer.

        Raises:
            OSError, EOFError: the process of rank 0 is gone.
        """
        with self._lock:
            if self._pipe is None:
                self._pipe = self._pipes.open("")
            self._pipe.send_bytes(request)
            return self._pipe.recv_bytes()

    def close(self) -> None:
        """Close the connection; requests that wait fail."""
        if self._pipe is not None:
            self._pipe.close()


class RendezvousServer:
    """HTTP server on loopback for a rank's rendezvous; serves from construction until closed.

    Args:
        answer: the store's answer to a request.
        timing: has the seconds for a client to send its request.
    """

    def __init__(self, answer: Callable[[bytes], bytes], timing: RingTiming) -> None:
        self._server = _Server(answer, timing.request)
        #: port that it listens on
        self.port: int = self._server.server_address[1]
        self._thread = threading.Thread(
            target=self._server.serve_forever, name="fiber-ring-rendezvous", daemon=True
        )
        self._thread.start()

    def close(self) -> None:
        """Stop the server; idempotent."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(5)


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    #: connections that wait to be accepted: the kernel lets others try again after a second
    request_queue_size = 128

    def __init__(self, answer: Callable[[bytes], bytes], timeout: float) -> None:
        self.answer = answer
        self.timeout = timeout
        self._free = threading.Semaphore(_MAX_CONNECTIONS)
        super().__init__((LOOPBACK, 0), _Handler)
        self.socket.setblocking(True)

    def process_request(self, request: Any, client_address: Any) -> None:
        if self._free.acquire(blocking=False):
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._free.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Suppress tracebacks of clients that hang up, which would mix with the user's output."""


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    protocol_version = "HTTP/1.1"

    def setup(self) -> None:
        self.request.settimeout(self.server.timeout)
        super().setup()

    def do_GET(self) -> None:
        # members ask again until it is there
        self._ask()

    def do_PUT(self) -> None:
        length = self.headers.get("Content-Length", "0")
        # whoever reads learns addresses; the check takes long where a host has many connections
        if not may_connect(self.connection):
            self._refuse(HTTPStatus.FORBIDDEN)
        elif not (length.isascii() and length.isdecimal()):
            self._refuse(HTTPStatus.BAD_REQUEST)
        elif len(length) > len(str(_MAX_VALUE)) or int(length) > _MAX_VALUE:
            self._refuse(HTTPStatus.REQUEST_ENTITY_TOO_LARGE)
        else:
            value = self.rfile.read(int(length))
            if len(value) == int(length):
                self._ask(value)
            else:
                # it hung up
                self.close_connection = True

    def do_DELETE(self) -> None:
        """Accept the deletion of a leaving member; its values stay readable."""
        self._answer(HTTPStatus.OK, b"")

    def _ask(self, value: bytes = b"") -> None:
        words = (self.command.encode(), self.path.encode("latin-1"), value)
        try:
            status, _, found = self.server.answer(b" ".join(words)).partition(b" ")
        except (OSError, EOFError):
            # the process of rank 0 is gone
            self._refuse(HTTPStatus.SERVICE_UNAVAILABLE)
        else:
            self._answer(HTTPStatus(int(status)), found)

    def _refuse(self, status: HTTPStatus) -> None:
        self.close_connection = True
        self._answer(status, b"")

    def _answer(self, status: HTTPStatus, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        """Suppress request logs, which would mix with the user's output."""


class Horovod(RingFramework):
    """Ranks by variables, and a rendezvous in the process of rank 0."""

    name = "horovod"

    def host(self, ring: RingView) -> Mapping[str, Any]:
        """Open the store, and the pipes by which members reach it."""
        store = Store(ring.size if ring.bounds is None else ring.bounds[1])
        host = PipeServer(lambda _, pipe: host.streams.answer(pipe, store.answer), ring.timing)
        ring.on_leave(host.close)
        return {"pipes": host.pipes}

    def environ(self, ring: RingView, facts: Mapping[str, Any]) -> Mapping[str, str]:
        """Return the variables that ``horovodrun`` would have set."""
        me = ring.me
        # members with the same local rank, one on each host
        across = [one for one in ring.members if one.local_rank == me.local_rank]
        return {
            "HOROVOD_HOSTNAME": me.host,
            "HOROVOD_RANK": str(ring.rank),
            "HOROVOD_SIZE": str(ring.size),
            "HOROVOD_LOCAL_RANK": str(me.local_rank),
            "HOROVOD_LOCAL_SIZE": str(me.local_size),
            "HOROVOD_CROSS_RANK": str([one.rank for one in across].index(ring.rank)),
            "HOROVOD_CROSS_SIZE": str(len(across)),
            "HOROVOD_GLOO_RENDEZVOUS_ADDR": LOOPBACK,
            "HOROVOD_CONTROLLER": "gloo",
            "HOROVOD_CPU_OPERATIONS": "gloo",
        }

    def preferences(self, ring: RingView) -> Mapping[str, str]:
        """Return the network interface for gloo."""
        return {"HOROVOD_GLOO_IFACE": ring.me.interface} if ring.me.interface else {}

    def enter(self, ring: RingView, facts: Mapping[str, Any]) -> Mapping[str, str]:
        """Start the member's server, and write the script of Horovod's elastic launcher."""
        store = _RemoteStore(facts["pipes"])
        ring.on_leave(store.close)
        server = RendezvousServer(store.answer, ring.timing)
        ring.on_leave(server.close)
        return {"HOROVOD_GLOO_RENDEZVOUS_PORT": str(server.port), **write_files(ring)}

    def changed(self, ring: RingView) -> None:
        """Write the script again."""
        write_files(ring)
