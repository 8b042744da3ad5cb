"""Hook implementations of the Slurm plugin; the backend is imported once it is chosen."""

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
from fiber_slurm.config import SlurmConfig

__all__ = ["CAPABILITIES", "NAME"]

NAME = "slurm"

CAPABILITIES = Capabilities(
    logs=True,
    follow_logs=True,
    exec=True,
    memory_limit=True,
    devices=True,
    detached=True,
    suspend=True,
    streams=True,
    drain=True,
)


@hookimpl
def fiber_backends() -> Sequence[BackendInfo]:
    """Offer the backend."""
    return [
        BackendInfo(
            name=NAME,
            api=(1, 0),
            summary="batch jobs of a Slurm cluster",
            capabilities=CAPABILITIES,
            config=SlurmConfig,
            lease=30.0,
            load="fiber_slurm.backend:SlurmBackend",
            witness="fiber_slurm.testing:SlurmWitness",
        )
    ]


@hookimpl
def fiber_listen_address(
    backend: str, peers: Peers, interfaces: Sequence[Interface]
) -> ListenAddress | None:
    """This host's first address, or the one that is set, behind mutual TLS."""
    if backend != NAME:
        return None
    from fiber.backend_parts.address import listen_address, tls

    config = peers.config if isinstance(peers.config, SlurmConfig) else SlurmConfig()
    if config.reach == "streams":
        return tls("127.0.0.1", routed=True)
    return listen_address(config.address, interfaces)
