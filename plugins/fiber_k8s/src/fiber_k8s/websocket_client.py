"""Opens WebSockets of the cluster: exec and port-forward, with the official client's credentials."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Sequence
from typing import Any
from urllib.parse import urlencode

import attrs

from fiber.exceptions import BackendError, BackendUnavailableError, UnknownJobError
from fiber_k8s import rbac, refusals
from fiber_k8s.client import Client

__all__ = ["Opened", "open_channels"]

#: seconds to connect and be answered
_TIMEOUT = 15.0


@attrs.frozen
class Opened:
    """A WebSocket whose handshake is done; its frames are the caller's."""

    #: does not block
    sock: socket.socket
    #: which of the offered protocols the cluster chose
    protocol: str


def open_channels(
    client: Client,
    pod: str,
    part: str,
    query: Sequence[tuple[str, str]],
    protocols: Sequence[str],
) -> Opened:
    """Open one.

    Args:
        client: the cluster.
        pod: the pod's name.
        part: ``exec`` or ``portforward``.
        query: its parameters, in order.
        protocols: offered ones, best first.

    Raises:
        UnknownJobError: there is no such pod.
        BackendUnavailableError: the cluster cannot be asked.
        BackendError: it refused, with its words.
    """
    from websocket import WebSocketBadStatusException, WebSocketException

    path = f"{client.path('pods', pod, part)}?{urlencode(query)}"
    while True:
        connection = client.connection
        scheme, _, rest = connection.host.partition("://")
        url = f"{'wss' if scheme == 'https' else 'ws'}://{rest}{path}"
        header = [f"{key}: {value}" for key, value in connection.headers().items()]
        try:
            made = _connect(connection.configuration, url, header, protocols)
            break
        except WebSocketBadStatusException as error:
            if error.status_code != 401 or not client.renew(connection):
                raise _refusal(pod, part, error) from error
        except (WebSocketException, OSError) as error:
            msg = f"the cluster at {connection.host} opens no {part} stream into {pod}: {error}"
            raise BackendUnavailableError(msg) from error
    sock = made.sock
    # what is left of it must not close the socket when it is collected
    made.sock = None
    sock.setblocking(False)
    if not isinstance(sock, ssl.SSLSocket):
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return Opened(sock, made.getsubprotocol() or protocols[-1])


def _connect(configuration: Any, url: str, header: list[str], protocols: Sequence[str]) -> Any:
    """As the official client does it, which offers no timeout, and so may wait for ever."""
    import certifi
    from kubernetes.client.rest import should_bypass_proxies
    from kubernetes.stream.ws_client import websocket_proxycare
    from websocket import WebSocket

    options: dict[str, Any] = {"cert_reqs": ssl.CERT_NONE}
    if configuration.verify_ssl:
        known = configuration.ssl_ca_cert or certifi.where()
        options = {"cert_reqs": ssl.CERT_REQUIRED, "ca_certs": known}
        if configuration.assert_hostname is not None:
            options["check_hostname"] = configuration.assert_hostname
    for key, value in (
        ("certfile", configuration.cert_file),
        ("keyfile", configuration.key_file),
        ("server_hostname", configuration.tls_server_name),
    ):
        if value:
            options[key] = value
    told: dict[str, Any] = {
        "header": header,
        "subprotocols": list(protocols),
        "timeout": _TIMEOUT,
    }
    if configuration.proxy or configuration.proxy_headers:
        told = websocket_proxycare(told, configuration, url, None)
        if should_bypass_proxies(configuration.host, configuration.no_proxy or ""):
            # as all other requests go: WebSockets have their own idea of what a domain's name means
            told["http_no_proxy"] = ["*"]
    made: Any = WebSocket(sslopt=options)
    made.connect(url, **told)
    return made


def _refusal(pod: str, part: str, error: Any) -> BackendError:
    body = error.resp_body or b""
    text = body.decode("utf-8", "replace") if isinstance(body, bytes) else str(body)
    message = refusals.words(text)[0] or str(error)
    if error.status_code == 404 and "pods" in message and "not found" in message:
        msg = f"there is no job {pod}: {message}"
        return UnknownJobError(msg)
    advice = refusals.advice(error.status_code, message)
    if error.status_code == 403 and not advice:
        # a refused stream may come without the words that tell of what right
        advice = f"; grant it: {rbac.grant(message)}"
    msg = f"the cluster refused {part} into {pod}: {message}{advice}"
    return BackendError(msg)
