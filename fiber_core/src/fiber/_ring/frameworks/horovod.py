"""Horovod: ``hvd.init()`` over gloo, with a rendezvous server of our own and no ``horovodrun``.

The key-value server by which gloo's members meet: ``GET`` and ``PUT`` of ``/scope/key``.
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

__all__ = ["Horovod", "Rendezvous"]

#: longest value; those of gloo have some hundred bytes
_MOST = 1 << 20


class Rendezvous:
    """Serves from its making until it is closed.

    Args:
        host: where members reach it.
    """

    def __init__(self, host: str) -> None:
        self._server = _Server((host, 0), _Handler)
        #: where it listens
        self.port: int = self._server.server_address[1]
        self._thread = threading.Thread(
            target=self._server.serve_forever, name="fiber-ring-rendezvous", daemon=True
        )
        self._thread.start()

    def close(self) -> None:
        """Serve nobody any more; idempotent."""
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
        if not 0 <= length <= _MOST:
            self.close_connection = True
            self._answer(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, b"")
            return
        value = self.rfile.read(length)
        with self.server.lock:
            self.server.values[self.path] = value
        self._answer(HTTPStatus.OK, b"")

    def do_DELETE(self) -> None:
        """A member leaves; what it said may still be asked for."""
        self._answer(HTTPStatus.OK, b"")

    def _answer(self, status: HTTPStatus, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        """Nothing: nobody looks for requests among the user's output."""


class Horovod(RingFramework):
    """Every member is told its place; they meet at a server in rank 0's process."""

    name = "horovod"

    def host(self, ring: RingView) -> Mapping[str, Any]:
        """Start the server, at a port of the system's choice."""
        server = Rendezvous(ring.me.ip)
        ring.on_leave(server.close)
        return {"port": server.port}

    def environ(self, ring: RingView, facts: Mapping[str, Any]) -> Mapping[str, str]:
        """What ``horovodrun`` would have set."""
        me, first = ring.me, ring.members[0]
        # hosts that have a rank at the same position as ours
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
        """By which interface."""
        return {"HOROVOD_GLOO_IFACE": ring.me.interface} if ring.me.interface else {}

    def enter(self, ring: RingView, facts: Mapping[str, Any]) -> Mapping[str, str]:
        """Write the script that Horovod's elastic launcher asks for hosts."""
        return write_files(ring)

    def changed(self, ring: RingView) -> None:
        """Write it again."""
        write_files(ring)
