"""Plugins: found through entry points of the group ``fiber``, loaded one by one, looked up by name.

================ ====================================================================
manager          loads plugins and calls their hooks; registries of what they offer
backend_choice   which backend a program uses, and how it is made
================ ====================================================================

A plugin is a module or object with implementations of :mod:`fiber.hookspecs`, managed by pluggy. It
may offer backends, resource providers and sub-commands; each kind has a registry by name, filled by
calling the hook once, on first use. The core's own implementations of hooks are below; those that answer what a
plugin may answer are called after it.

Invariants:

- A plugin that cannot be imported or registered, or whose hook raises or returns an invalid value,
  is recorded in ``Plugins.broken`` and logged once; it harms no other plugin.
- A name offered by two distributions is usable from neither, and the error names both, so that the
  order of installation decides nothing. Only the core keeps its own names.
- Unknown, not installed, and made for another API version are three errors, each with its fix.

One lock guards the registries; loading is done by one thread before the object is shared.
Called by ``_runtime``, ``_launch``, ``_ring``, ``cli`` and ``testing``; calls ``_config`` and
``_base``.
"""

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
