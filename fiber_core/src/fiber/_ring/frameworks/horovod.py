"""Horovod: ``hvd.init()`` over gloo, with a rendezvous server of our own and no ``horovodrun``.

gloo's rendezvous is a key-value store over HTTP: ``PUT`` and ``GET`` of ``/scope/key``, where 404
means that the key is not there yet; see ``horovod/runner/http/http_server.py`` of Horovod.

Apart from the other frameworks: each is a module, which is imported when it is asked for.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from fiber._ring.framework import RingFramework
from fiber._ring.frameworks.hosts import write_files
from fiber._ring.view import RingView

__all__ = ["Horovod", "RendezvousServer"]

#: longest value in bytes; those of gloo have some hundred
_MAX_VALUE = 1 << 20


class RendezvousServer:
    """Key-value server for gloo's rendezvous; serves from construction until closed.

    Args:
        host: address to listen at.
    """

    def __init__(self, host: str) -> None:
        self._server = _Server((host, 0), _Handler)
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

    def __init__(self, *args: Any) -> None:
        self.lock = threading.Lock()
        self.values: dict[str, bytes] = {}
        super().__init__(*args)
        self.socket.setblocking(True)

    def get_request(self) -> Any:
        connection, address = super().get_request()
        # a member may be silent for longer than the program's default timeout
        connection.setblocking(True)
        return connection, address


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        with self.server.lock:
            value = self.server.values.get(self.path)
        # members ask again until it is there
        self._answer(HTTPStatus.NOT_FOUND if value is None else HTTPStatus.OK, value or b"")

    def do_PUT(self) -> None:
        length = int(self.headers.get("Content-Length", "0"))
        if not 0 <= length <= _MAX_VALUE:
            self.close_connection = True
            self._answer(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, b"")
            return
        value = self.rfile.read(length)
        with self.server.lock:
            self.server.values[self.path] = value
        self._answer(HTTPStatus.OK, b"")

    def do_DELETE(self) -> None:
        """Accept the deletion of a leaving member; its values stay readable."""
        self._answer(HTTPStatus.OK, b"")

    def _answer(self, status: HTTPStatus, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        """Suppress request logs, which would mix with the user's output."""


class Horovod(RingFramework):
    """Ranks by variables, and a rendezvous server in the process of rank 0."""

    name = "horovod"

    def host(self, ring: RingView) -> Mapping[str, Any]:
        """Start the server, at a port of the system's choice."""
        server = RendezvousServer(ring.me.ip)
        ring.on_leave(server.close)
        return {"port": server.port}

    def environ(self, ring: RingView, facts: Mapping[str, Any]) -> Mapping[str, str]:
        """Return the variables that ``horovodrun`` would have set."""
        me, first = ring.me, ring.members[0]
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
            "HOROVOD_GLOO_RENDEZVOUS_ADDR": first.ip,
            "HOROVOD_GLOO_RENDEZVOUS_PORT": str(facts["port"]),
            "HOROVOD_CONTROLLER": "gloo",
            "HOROVOD_CPU_OPERATIONS": "gloo",
        }

    def preferences(self, ring: RingView) -> Mapping[str, str]:
        """Return the network interface for gloo."""
        return {"HOROVOD_GLOO_IFACE": ring.me.interface} if ring.me.interface else {}

    def enter(self, ring: RingView, facts: Mapping[str, Any]) -> Mapping[str, str]:
        """Write the host discovery script of Horovod's elastic launcher."""
        return write_files(ring)

    def changed(self, ring: RingView) -> None:
        """Write the script again."""
        write_files(ring)
