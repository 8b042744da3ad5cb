"""Hook implementations of the Docker plugin; the backend is imported once it is chosen."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from fiber.hookspecs import hookimpl
from fiber.model import (
    BackendInfo,
    Capabilities,
    Interface,
    ListenAddress,
    Peers,
)
from fiber_docker.config import DockerConfig

if TYPE_CHECKING:
    from fiber_docker.address import Facts


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
    detached=True,
    suspend=True,
    drain=True,
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
            facts=_facts,
            load="fiber_docker.backend:DockerBackend",
        )
    ]


@hookimpl
def fiber_listen_address(
    backend: str, peers: Peers, interfaces: Sequence[Interface]
) -> ListenAddress | None:
    """TLS, on the address at which containers find this process."""
    if backend != NAME:
        return None
    from fiber_docker.address import Facts, choose

    # a job without an engine listens as the core chooses
    return choose(peers.facts, interfaces) if isinstance(peers.facts, Facts) else None


def _facts(settings: Any, environ: Mapping[str, str]) -> Facts | None:
    """Facts of the engine's network; None in a process without an engine."""
    config = settings if isinstance(settings, DockerConfig) else DockerConfig()
    from fiber_docker.endpoint import has_no_engine, is_visible

    if has_no_engine(environ) or not is_visible(config, environ):
        return None
    from fiber_docker.network import find_facts

    return find_facts(config)
