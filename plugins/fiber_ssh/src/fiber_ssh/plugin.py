"""Hook implementations of the ssh plugin; the backend is imported once it is chosen."""

from __future__ import annotations

from collections.abc import Sequence

from fiber.hookspecs import hookimpl
from fiber.model import (
    BackendInfo,
    Capabilities,
    Interface,
    ListenAddress,
    Peers,
)
from fiber_ssh.config import SshConfig

NAME = "ssh"

CAPABILITIES = Capabilities(
    logs=True,
    follow_logs=True,
    output=True,
    exec=True,
    devices=True,
    detached=True,
    suspend=True,
    drain=True,
    streams=True,
)


@hookimpl
def fiber_backends() -> Sequence[BackendInfo]:
    """Offer the backend."""
    return [
        BackendInfo(
            name=NAME,
            api=(1, 0),
            summary="machines that one reaches by ssh",
            capabilities=CAPABILITIES,
            config=SshConfig,
            lease=30.0,
            load="fiber_ssh.backend:SshBackend",
        )
    ]


@hookimpl
def fiber_listen_address(
    backend: str, peers: Peers, interfaces: Sequence[Interface]
) -> ListenAddress | None:
    """All addresses, behind mutual TLS; loopback alone where jobs use streams."""
    if backend != NAME:
        return None
    from fiber_ssh.address import listen_address

    return listen_address(peers, interfaces)
