"""Hook implementations; the backend itself is imported when it is chosen."""

from __future__ import annotations

from collections.abc import Sequence

from fiber.abc import Backend
from fiber.hookspecs import hookimpl
from fiber.model import (
    BackendContext,
    BackendInfo,
    Capabilities,
    Interface,
    ListenAddress,
    Peers,
)
from fiber_docker.config import DockerConfig

__all__ = ["CAPABILITIES", "NAME"]

NAME = "docker"

CAPABILITIES = Capabilities(
    logs=True,
    follow_logs=True,
    output=True,
    exec=True,
    copy=True,
    images=True,
    volumes=True,
    cpu_limit=True,
    memory_limit=True,
    devices=True,
    groups=True,
    detached=True,
)


@hookimpl
def fiber_backends() -> Sequence[BackendInfo]:
    """Offer the backend."""
    return [
        BackendInfo(
            name=NAME,
            api=(1, 0),
            summary="containers of a Docker engine",
            capabilities=CAPABILITIES,
            config=DockerConfig,
            near=True,
            load=_load,
        )
    ]


@hookimpl
def fiber_listen_address(
    backend: str, peers: Peers, interfaces: Sequence[Interface]
) -> ListenAddress | None:
    """TLS, on the address at which containers find this process."""
    if backend != NAME:
        return None
    config = peers.config if isinstance(peers.config, DockerConfig) else DockerConfig()
    from fiber_docker.address import choose
    from fiber_docker.endpoint import is_alone, is_visible

    if is_alone(peers.environ) or not is_visible(config, peers.environ):
        # its peers reach a job where they reach any container
        return None
    from fiber_docker.network import find

    return choose(find(config), interfaces)


def _load(context: BackendContext) -> Backend:
    from fiber_docker.backend import DockerBackend

    return DockerBackend(context)
