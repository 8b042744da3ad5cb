"""Network interfaces of this host, read once."""

from __future__ import annotations

import functools
import socket

from fiber.model import Interface


@functools.cache
def interfaces() -> tuple[Interface, ...]:
    """List the IP addresses of all interfaces, in the system's order."""
    import psutil

    up = {name: stats.isup for name, stats in psutil.net_if_stats().items()}
    found = []
    for name, addresses in psutil.net_if_addrs().items():
        for address in addresses:
            if address.family not in (socket.AF_INET, socket.AF_INET6):
                continue
            loopback = address.address.startswith("127.") or address.address == "::1"
            found.append(
                Interface(
                    name=name,
                    address=address.address,
                    is_loopback=loopback,
                    is_up=up.get(name, False),
                )
            )
    return tuple(found)
