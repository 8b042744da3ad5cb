"""Hook implementations (the entry point); the backend is imported when it is chosen."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from fiber.hookspecs import hookimpl
from fiber.model import BackendInfo, Capabilities, ListenAddress, Peers
from fiber_local.config import LocalConfig

__all__ = ["CAPABILITIES", "NAME"]

NAME = "local"

CAPABILITIES = Capabilities(
    logs=True,
    follow_logs=True,
    output=True,
    cpu_limit=True,
    memory_limit=True,
    devices=True,
    detached=True,
    fork=True,
    suspend=True,
    same_host=True,
)


@hookimpl
def fiber_backends() -> Sequence[BackendInfo]:
    """Offer the backend."""
    return [
        BackendInfo(
            name=NAME,
            api=(1, 0),
            summary="processes on this machine, started by a fork server",
            capabilities=CAPABILITIES,
            config=LocalConfig,
            default=True,
            load="fiber_local.backend:LocalBackend",
        )
    ]


@hookimpl
def fiber_listen_address(backend: str, peers: Peers) -> ListenAddress | None:
    """Listen on a Unix socket in the run directory, or by TLS on loopback, as set."""
    if backend != NAME:
        return None
    config = peers.config
    transport = config.transport if isinstance(config, LocalConfig) else LocalConfig().transport
    if transport == "tls":
        return ListenAddress(bind_url="tls+tcp://127.0.0.1:0")
    return ListenAddress(bind_url=f"{transport}://{Path(peers.directory, peers.name)}.sock")
