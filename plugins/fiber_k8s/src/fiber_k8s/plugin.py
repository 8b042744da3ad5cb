"""Hook implementations (the entry point); the backend is imported when it is chosen."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from fiber.hookspecs import hookimpl
from fiber.model import (
    BackendClaim,
    BackendInfo,
    Capabilities,
    Interface,
    ListenAddress,
    Peers,
)
from fiber_k8s.config import K8sConfig
from fiber_k8s.in_pod import pod_evidence

if TYPE_CHECKING:
    import click


NAME = "k8s"

CAPABILITIES = Capabilities(
    logs=True,
    follow_logs=True,
    images=True,
    volumes=True,
    cpu_limit=True,
    memory_limit=True,
    devices=True,
    detached=True,
    exec=True,
    copy=True,
    streams=True,
    drain=True,
)


@hookimpl
def fiber_backends() -> Sequence[BackendInfo]:
    """Offer the backend."""
    return [
        BackendInfo(
            name=NAME,
            aliases=("kubernetes",),
            api=(1, 0),
            summary="pods of a Kubernetes cluster",
            noun="pod",
            capabilities=CAPABILITIES,
            config=K8sConfig,
            lease=30.0,
            load="fiber_k8s.backend:K8sBackend",
        )
    ]


@hookimpl
def fiber_commands() -> Sequence[click.Command]:
    """Offer ``fiber k8s``."""
    from fiber_k8s.cli import command

    return [command]


@hookimpl
def fiber_detect_backend(environ: Mapping[str, str]) -> BackendClaim | None:
    """Claim the process where it runs in a pod with credentials."""
    evidence = pod_evidence(environ)
    return None if evidence is None else BackendClaim(NAME, evidence)


@hookimpl
def fiber_listen_address(
    backend: str, peers: Peers, interfaces: Sequence[Interface]
) -> ListenAddress | None:
    """Listen by TLS on an address that pods can dial."""
    if backend != NAME:
        return None
    config = peers.config if isinstance(peers.config, K8sConfig) else K8sConfig()
    from fiber_k8s.address import choose

    return choose(config, peers.environ, interfaces)
