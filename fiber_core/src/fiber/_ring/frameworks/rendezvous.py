"""The key-value server by which gloo's members meet: ``GET`` and ``PUT`` of ``/scope/key``."""

from __future__ import annotations

import threading
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

__all__ = ["Rendezvous"]

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
