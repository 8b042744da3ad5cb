"""Listen addresses of processes whose peers are on other hosts; pure."""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence

from fiber.model import Interface, ListenAddress, Peers
from fiber_ssh.config import SshConfig

__all__ = ["ADDRESS_VARIABLE", "UNREACHABLE", "listen_address"]

#: environment variable of jobs: the address at which other hosts reach theirs
ADDRESS_VARIABLE = "_FIBER_SSH_ADDRESS"
#: its value where no other host reaches it: jobs listen on loopback alone
UNREACHABLE = "127.0.0.1"


def listen_address(peers: Peers, interfaces: Sequence[Interface]) -> ListenAddress:
    """The URL to bind and the host to advertise.

    Args:
        peers: the processes that will dial, with the settings.
        interfaces: network interfaces of this host.
    """
    config = peers.config if isinstance(peers.config, SshConfig) else SshConfig()
    assigned = peers.environ.get(ADDRESS_VARIABLE)
    # config.reach is the master's: a job's process goes by the variable alone
    routed = config.reach != "direct"
    chosen = assigned or config.address
    advertised = chosen or _first(interfaces)
    if advertised in (None, UNREACHABLE) or (assigned is None and config.reach == "reversed"):
        return ListenAddress(bind_url=f"tls+tcp://{UNREACHABLE}:0", routed=routed)
    assert advertised is not None
    if chosen in {one.address for one in interfaces if one.is_up}:
        host = f"[{advertised}]" if _is_ipv6(advertised) else advertised
        return ListenAddress(bind_url=f"tls+tcp://{host}:0", routed=routed)
    # a name, or an address that is translated on the way, cannot be bound; and each host dials a
    # program at the address that it sees it under, where none was chosen
    every = "[::]" if _is_ipv6(advertised) else "0.0.0.0"  # noqa: S104 - behind mutual TLS
    return ListenAddress(bind_url=f"tls+tcp://{every}:0", advertise_host=advertised, routed=routed)


def _first(interfaces: Sequence[Interface]) -> str | None:
    up = [one for one in interfaces if one.is_up and not one.is_loopback]
    usable = [one.address for one in up if not _is_link_local(one.address)]
    return next(iter(sorted(usable, key=_is_ipv6)), None)


def _is_ipv6(address: str) -> bool:
    try:
        return ipaddress.ip_address(address).version == 6
    except ValueError:
        # a name
        return False


def _is_link_local(address: str) -> bool:
    return ipaddress.ip_address(address.partition("%")[0]).is_link_local
