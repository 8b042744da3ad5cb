"""What a member tells of the host that it runs on."""

from __future__ import annotations

import contextlib
import ipaddress
import platform
import socket
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import urlsplit

from fiber._ring.model import Host
from fiber._ring.protocol import Address
from fiber.model import Interface

__all__ = ["addresses", "this_host"]


def this_host() -> Host:
    """Its name, and what tells it from others of the same name."""
    name = platform.node()
    parts = [name]
    with contextlib.suppress(OSError):
        parts.append(Path("/proc/sys/kernel/random/boot_id").read_text().strip())
    with contextlib.suppress(OSError):
        # processes in two network namespaces have no address in common
        parts.append(str(Path("/proc/self/ns/net").stat().st_ino))
    return Host(name, "/".join(parts))


def addresses(interfaces: Sequence[Interface], parent_url: str = "") -> tuple[Address, ...]:
    """The host's addresses, best first: the one that its parent is reached by, loopback last.

    Args:
        interfaces: what it has.
        parent_url: where its parent listens, where that is a host.
    """
    route = _route(parent_url)
    found = []
    for position, one in enumerate(interfaces):
        ip = ipaddress.ip_address(one.address.partition("%")[0])
        # members listen at version 4
        if one.is_up and ip.version == 4:
            key = (ip.is_loopback, ip.is_link_local, one.address != route, position)
            found.append((key, Address(one.address, one.name)))
    return tuple(address for _, address in sorted(found, key=lambda pair: pair[0]))


def _route(url: str) -> str:
    """The own address by which the host of a URL is reached; empty where that tells nothing."""
    try:
        host = urlsplit(url).hostname
    except ValueError:
        return ""
    if not host:
        return ""
    with contextlib.suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.setblocking(True)
        # nothing is sent: the system chooses a way
        probe.connect((host, 9))
        return str(probe.getsockname()[0])
    return ""
