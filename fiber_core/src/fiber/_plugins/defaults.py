"""The core's own implementations of hooks. Those that answer what a plugin may answer are called after it."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from fiber._base.entry_points import load_object
from fiber.hookspecs import hookimpl
from fiber.model import ListenAddress

if TYPE_CHECKING:
    from fiber.abc import Backend, ResourceProvider
    from fiber.model import Interface, Job, JobSpec, Peers

_LOOPBACK = "127.0.0.1"


@hookimpl(trylast=True)
def fiber_submit_job(backend: Backend, spec: JobSpec) -> Job:
    """Submit the job to the backend."""
    return backend.submit(spec)


@hookimpl(trylast=True)
def fiber_listen_address(peers: Peers, interfaces: Sequence[Interface]) -> ListenAddress:
    """Listen on a socket file for peers of this host, else with TLS on the best interface."""
    if peers.same_host:
        scheme = "unix" if sys.platform == "linux" else "ipc"
        return ListenAddress(bind_url=f"{scheme}://{peers.directory}/{peers.name}.sock")
    from fiber.backend_parts.address import tls

    usable = [interface for interface in interfaces if interface.is_up]
    # ties go to the first: the caller passes them in order of preference
    best = min(usable, key=_rank).address if usable else _LOOPBACK
    return tls(best)


def _rank(interface: Interface) -> tuple[bool, bool, bool]:
    """Sort key, best first: not loopback, not link-local, IPv4 before IPv6."""
    import ipaddress

    address = ipaddress.ip_address(interface.address.partition("%")[0])
    return interface.is_loopback or address.is_loopback, address.is_link_local, address.version == 6


# by name: they are built upon this package


@hookimpl
def fiber_resource_providers() -> Iterable[ResourceProvider]:
    """Offer NVIDIA GPUs, kind ``gpu``."""
    return (load_object("fiber._agent.resources.nvidia:NvidiaProvider")(),)


@hookimpl
def fiber_ring_frameworks() -> Iterable[Any]:
    """Offer the frameworks that :mod:`fiber._ring` prepares rings for."""
    frameworks: Iterable[Any] = load_object("fiber._ring:built_in_frameworks")()
    return frameworks
