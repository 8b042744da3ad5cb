"""WebSockets to the API server, for exec and port-forward.

The official client's library opens them, through the proxies of its configuration; the Sans-I/O
layer of ``websockets`` (RFC 6455) makes and parses frames. The socket itself stays ours and does not
block, so that one thread can poll many.
"""

from __future__ import annotations

import logging
import socket
import ssl
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

from fiber.exceptions import BackendError, BackendUnavailableError, UnknownJobError
from fiber_k8s import rbac
from fiber_k8s.client import Client, advice, status_message
from fiber_k8s.connection import Connection

if TYPE_CHECKING:
    from websockets.frames import Frame


#: most bytes read at once
_CHUNK = 64 * 2**10
#: most bytes in a message of a server; usual ones have some tens of kilobytes
_MAX_MESSAGE = 64 * 2**20
_NORMAL_CLOSURE = 1000

_frames_log = logging.getLogger("fiber.k8s.frames")
# the library would log what users send and receive
_frames_log.setLevel(logging.INFO)


class WebSocket:
    """A WebSocket after its handshake: whole messages over a socket that does not block.

    Pings are answered by :meth:`receive`. Not thread-safe.

    Args:
        sock: the connected socket; from now on this object's.
        subprotocol: the subprotocol that the cluster chose.
    """

    def __init__(self, sock: socket.socket, subprotocol: str = "") -> None:
        from websockets.protocol import OPEN, Protocol, Side

        sock.setblocking(False)
        self._sock = sock
        self._protocol = Protocol(
            Side.CLIENT, state=OPEN, max_size=_MAX_MESSAGE, logger=_frames_log
        )
        self._fragments: list[bytes] = []
        self._out: deque[memoryview] = deque()
        self._tls_wants_write = False
        #: the subprotocol that the cluster chose
        self.subprotocol = subprotocol
        #: bytes that wait to be sent
        self.buffered = 0
        #: True once the other side closed it or the connection was lost
        self.is_closed = False

    def fileno(self) -> int:
        """Return the socket's descriptor, to poll."""
        return self._sock.fileno()

    @property
    def wants_write(self) -> bool:
        """True where :meth:`flush` has to be called once the socket can be written."""
        return bool(self._out) or self._tls_wants_write

    def send(self, message: bytes) -> None:
        """Send a binary message, or keep in memory what cannot be sent now."""
        if not self.is_closed:
            self._protocol.send_binary(message)
            self.flush()

    def ping(self) -> None:
        """Send a ping, which shows those between here and there that the connection is in use."""
        if not self.is_closed:
            self._protocol.send_ping(b"")
            self.flush()

    def flush(self) -> None:
        """Send what waits, as far as it can be sent now.

        Where the connection is lost nothing is raised: readers see its end, behind the data before it.
        """
        self._tls_wants_write = False
        for data in filter(None, self._protocol.data_to_send()):
            self._out.append(memoryview(data))
            self.buffered += len(data)
        while self._out:
            try:
                sent = self._sock.send(self._out[0])
            except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
                return
            except OSError:
                self._out.clear()
                self.buffered = 0
                return
            self.buffered -= sent
            if sent < len(self._out[0]):
                self._out[0] = self._out[0][sent:]
            else:
                self._out.popleft()

    def receive(self) -> list[bytes] | None:
        """Return the messages that are complete after one more read; None where nothing has come.

        Raises:
            BackendError: the bytes are no WebSocket of a server.
        """
        self._tls_wants_write = False
        try:
            data = self._sock.recv(_CHUNK)
        except (BlockingIOError, ssl.SSLWantReadError):
            return None
        except ssl.SSLWantWriteError:
            # the TLS layer has to send first
            self._tls_wants_write = True
            return None
        except OSError:
            data = b""
        if not data:
            self.is_closed = True
            return []
        self._protocol.receive_data(data)
        messages = [
            message
            for event in self._protocol.events_received()
            if (message := self._message_of(event)) is not None
        ]
        if self._protocol.parser_exc is not None:
            msg = (
                "the cluster's answer is no WebSocket; is a proxy between here and there? "
                f"({self._protocol.parser_exc})"
            )
            raise BackendError(msg)
        self.flush()
        return messages

    def _message_of(self, event: Any) -> bytes | None:
        """Return the message that a frame completes; None where it completes none."""
        from websockets.frames import CTRL_OPCODES, Opcode

        frame: Frame = event
        if frame.opcode in CTRL_OPCODES:
            self.is_closed = self.is_closed or frame.opcode is Opcode.CLOSE
            return None
        self._fragments.append(bytes(frame.data))
        if not frame.fin:
            return None
        message = b"".join(self._fragments)
        self._fragments.clear()
        return message

    def close(self) -> None:
        """Send the closing frame where that is possible now, and close the socket. Idempotent."""
        from websockets.protocol import OPEN

        if self._sock.fileno() >= 0:
            if self._protocol.state is OPEN:
                self._protocol.send_close(_NORMAL_CLOSURE)
            self.flush()
        self.is_closed = True
        self._sock.close()


def open_websocket(
    client: Client,
    pod: str,
    part: str,
    query: Sequence[tuple[str, str]],
    protocols: Sequence[str],
) -> WebSocket:
    """Open a WebSocket to a subresource of a pod.

    Args:
        client: the cluster.
        pod: the pod's name.
        part: ``exec`` or ``portforward``.
        query: its parameters, in order.
        protocols: offered subprotocols, best first.

    Raises:
        UnknownJobError: there is no such pod.
        BackendUnavailableError: the cluster cannot be reached.
        BackendError: it refused, with its message.
    """
    from websocket import WebSocketBadStatusException, WebSocketException

    path = f"{client.path('pods', pod, part)}?{urlencode(query)}"
    while True:
        connection = client.connection
        scheme, _, rest = connection.host.partition("://")
        url = f"{'wss' if scheme == 'https' else 'ws'}://{rest}{path}"
        header = [f"{key}: {value}" for key, value in connection.headers().items()]
        try:
            made = _connect(connection, url, header, protocols, client.timing.stream_answer)
            break
        except WebSocketBadStatusException as error:
            if error.status_code != 401 or not client.renew(connection):
                raise _refusal(pod, part, error) from error
        except (WebSocketException, OSError) as error:
            msg = f"the cluster at {connection.host} opens no {part} stream into {pod}: {error}"
            raise BackendUnavailableError(msg) from error
    sock = made.sock
    # the library's object must not close the socket when it is collected
    made.sock = None
    if not isinstance(sock, ssl.SSLSocket):
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return WebSocket(sock, made.getsubprotocol() or protocols[-1])


def _connect(
    connection: Connection, url: str, header: list[str], protocols: Sequence[str], timeout: float
) -> Any:
    """Connect as the official client does, but with a timeout, which that does not offer."""
    from kubernetes.client.rest import should_bypass_proxies
    from kubernetes.stream.ws_client import websocket_proxycare
    from websocket import WebSocket as Opener

    configuration = connection.configuration
    options: dict[str, Any] = {"context": connection.websocket_tls}
    if configuration.tls_server_name:
        options["server_hostname"] = configuration.tls_server_name
    parameters: dict[str, Any] = {
        "header": header,
        "subprotocols": list(protocols),
        "timeout": timeout,
    }
    if configuration.proxy or configuration.proxy_headers:
        parameters = websocket_proxycare(parameters, configuration, url, None)
        if should_bypass_proxies(configuration.host, configuration.no_proxy or ""):
            # as for other requests: the WebSocket library matches NO_PROXY's domains differently
            parameters["http_no_proxy"] = ["*"]
    made: Any = Opener(sslopt=options)
    made.connect(url, **parameters)
    return made


def _refusal(pod: str, part: str, error: Any) -> BackendError:
    body = error.resp_body or b""
    text = body.decode("utf-8", "replace") if isinstance(body, bytes) else str(body)
    message = status_message(text)[0] or str(error)
    if error.status_code == 404 and "pods" in message and "not found" in message:
        msg = f"there is no job {pod}: {message}"
        return UnknownJobError(msg)
    fix = advice(error.status_code, message)
    if error.status_code == 403 and not fix:
        # a refused stream may come without a message that names the right
        fix = f"; grant it: {rbac.grant(message)}"
    msg = f"the cluster refused {part} into {pod}: {message}{fix}"
    return BackendError(msg)
