"""Listen address of processes whose peers are on other nodes of a cluster; pure."""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence

from fiber.model import Interface, ListenAddress

__all__ = ["listen_address"]


def listen_address(
    address: str | None, interfaces: Sequence[Interface], *, routed: bool = False
) -> ListenAddress:
    """The URL to bind and the host to advertise: behind mutual TLS in any case.

    Args:
        address: the setting; None for this host's first address that is not its own alone.
        interfaces: network interfaces of this host.
        routed: True where connections may come over streams as well.
    """
    up = [one for one in interfaces if one.is_up]
    found = [one.address for one in up if not one.is_loopback and not _is_link_local(one.address)]
    advertised = address or next(iter(sorted(found, key=_is_ipv6)), None)
    if advertised is None:
        return ListenAddress(bind_url="tls+tcp://127.0.0.1:0", routed=routed)
    if advertised in {one.address for one in up}:
        host = f"[{advertised}]" if _is_ipv6(advertised) else advertised
        return ListenAddress(bind_url=f"tls+tcp://{host}:0", routed=routed)
    # a name, or an address that is translated on the way, cannot be bound
    every = "[::]" if _is_ipv6(advertised) else "0.0.0.0"  # noqa: S104 - behind mutual TLS
    return ListenAddress(bind_url=f"tls+tcp://{every}:0", advertise_host=advertised, routed=routed)


def _is_ipv6(address: str) -> bool:
    try:
        return ipaddress.ip_address(address.partition("%")[0]).version == 6
    except ValueError:
        # a name
        return False


def _is_link_local(address: str) -> bool:
    return ipaddress.ip_address(address.partition("%")[0]).is_link_local
