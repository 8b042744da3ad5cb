"""Listen addresses of processes whose peers are on other hosts, behind mutual TLS; addresses of this host.

Pure but for :func:`source_address` and :func:`interfaces`.
"""

from __future__ import annotations

import functools
import ipaddress
import socket
from collections.abc import Sequence

from fiber.model import Interface, ListenAddress

__all__ = ["interfaces", "listen_address", "outward", "source_address", "tls"]


def tls(host: str, advertised: str | None = None, *, routed: bool = False) -> ListenAddress:
    """Listen by mutual TLS on an address of this host, at any port.

    Args:
        host: the address.
        advertised: what peers dial, where that is another one.
        routed: True where connections may come over streams as well.
    """
    bound = f"[{host}]" if ":" in host else host
    return ListenAddress(bind_url=f"tls+tcp://{bound}:0", advertise_host=advertised, routed=routed)


def outward(interfaces: Sequence[Interface]) -> list[str]:
    """Addresses of this host that others may reach, in the order of the interfaces."""
    return [one.address for one in interfaces if one.is_up and not _is_inward(one)]


def listen_address(
    address: str | None,
    interfaces: Sequence[Interface],
    *,
    routed: bool = False,
    everywhere: bool = False,
) -> ListenAddress:
    """The URL to bind and the host to advertise.

    Args:
        address: the setting; None for this host's first address that others may reach, IPv4 before
            IPv6, and loopback where it has none.
        interfaces: network interfaces of this host.
        routed: True where connections may come over streams as well.
        everywhere: True to bind all addresses where none is set.
    """
    first = next(iter(sorted(outward(interfaces), key=lambda one: ":" in one)), None)
    advertised = address or first
    if advertised is None:
        return tls("127.0.0.1", routed=routed)
    mine = {one.address.partition("%")[0] for one in interfaces if one.is_up}
    if advertised.partition("%")[0] in mine and not (everywhere and address is None):
        return tls(advertised, routed=routed)
    # a name, or an address that is translated on the way, cannot be bound
    every = "::" if ":" in advertised else "0.0.0.0"  # noqa: S104 - behind mutual TLS
    return tls(every, advertised, routed=routed)


def source_address(host: str, port: int) -> str | None:
    """Return this host's source address for connections to another; no packet is sent."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)
    except OSError:
        return None
    for family, kind, protocol, _, address in found:
        try:
            with socket.socket(family, kind, protocol) as probe:
                probe.setblocking(True)
                probe.connect(address)
                return str(probe.getsockname()[0])
        except OSError:
            continue
    return None


def _is_inward(interface: Interface) -> bool:
    address = ipaddress.ip_address(interface.address.partition("%")[0])
    return interface.is_loopback or address.is_loopback or address.is_link_local


@functools.cache
def interfaces() -> tuple[Interface, ...]:
    """List the IP addresses of all network interfaces of this host, in the system's order; read once."""
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
