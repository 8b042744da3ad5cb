"""WebSocket handshakes with the API server, for exec and port-forward.

Only the handshake is the library's; frames are ``websocket_frames``', on the bare socket, so that
readers can poll and set timeouts.
"""

from __future__ import annotations

import socket
import ssl
from collections.abc import Sequence
from typing import Any
from urllib.parse import urlencode

import attrs

from fiber.exceptions import BackendError, BackendUnavailableError, UnknownJobError
from fiber_k8s import api_errors, rbac
from fiber_k8s.client import Client
from fiber_k8s.connection import Connection

__all__ = ["OpenWebSocket", "open_websocket"]


@attrs.frozen
class OpenWebSocket:
    """A WebSocket after its handshake; the caller reads and writes frames."""

    #: non-blocking
    sock: socket.socket
    #: the subprotocol that the cluster chose
    protocol: str


def open_websocket(
    client: Client,
    pod: str,
    part: str,
    query: Sequence[tuple[str, str]],
    protocols: Sequence[str],
) -> OpenWebSocket:
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
    sock.setblocking(False)
    if not isinstance(sock, ssl.SSLSocket):
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return OpenWebSocket(sock, made.getsubprotocol() or protocols[-1])


def _connect(
    connection: Connection, url: str, header: list[str], protocols: Sequence[str], timeout: float
) -> Any:
    """Connect as the official client does, but with a timeout, which that does not offer."""
    from kubernetes.client.rest import should_bypass_proxies
    from kubernetes.stream.ws_client import websocket_proxycare
    from websocket import WebSocket

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
    made: Any = WebSocket(sslopt=options)
    made.connect(url, **parameters)
    return made


def _refusal(pod: str, part: str, error: Any) -> BackendError:
    body = error.resp_body or b""
    text = body.decode("utf-8", "replace") if isinstance(body, bytes) else str(body)
    message = api_errors.status_message(text)[0] or str(error)
    if error.status_code == 404 and "pods" in message and "not found" in message:
        msg = f"there is no job {pod}: {message}"
        return UnknownJobError(msg)
    advice = api_errors.advice(error.status_code, message)
    if error.status_code == 403 and not advice:
        # a refused stream may come without a message that names the right
        advice = f"; grant it: {rbac.grant(message)}"
    msg = f"the cluster refused {part} into {pod}: {message}{advice}"
    return BackendError(msg)
