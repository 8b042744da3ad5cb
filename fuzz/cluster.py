"""What a cluster's API server, and proxies before it, send on streams into pods."""

from __future__ import annotations

import socket
from unittest import mock

from fiber.exceptions import BackendError
from fiber_k8s import pod_exec, port_forward
from fiber_k8s.websocket_frames import FrameParser
from fuzz.target import target

#: bytes that come at once
_PIECE = 61


@target(BackendError)
def websocket(data: bytes) -> None:
    """Frames of a WebSocket in pieces: messages, how a program ended among them, or BackendError."""
    parser = FrameParser()
    for start in range(0, len(data), _PIECE):
        for opcode, body in parser.feed(data[start : start + _PIECE]):
            assert opcode in {1, 2, 8, 9, 10}
            assert len(body) <= len(data)
            if body[:1] == b"\3":
                pod_exec.exit_code_of(body[1:])


@target()
def port_forwarding(data: bytes) -> None:
    """A port-forward's WebSocket: bytes for the connection, and its end; nothing is raised."""
    websocket_, server = socket.socketpair()
    local, user = socket.socketpair()
    with websocket_, server, local, user:
        for sock in (websocket_, local, server):
            sock.setblocking(False)
        server.send(data[: 2**16])
        # it is never woken: what has come is read at once
        port_forward._Forward(mock.Mock(), "pod", websocket_, local, mock.Mock()).begin()
