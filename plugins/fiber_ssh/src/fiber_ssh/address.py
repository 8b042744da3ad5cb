"""Where processes listen whose peers are on other hosts."""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence

from fiber.model import Interface, ListenAddress, Peers
from fiber_ssh.config import SshConfig

__all__ = ["HERE", "NOWHERE", "listen_address"]

#: variable in the environment of jobs: the address at which their host is reached by others
HERE = "_FIBER_SSH_ADDRESS"
#: its value where it is reached by none
NOWHERE = "127.0.0.1"


def listen_address(peers: Peers, interfaces: Sequence[Interface]) -> ListenAddress:
    """Where to bind and what to tell peers; a pure function.

    Args:
        peers: who will dial, with the settings.
        interfaces: those of this host.
    """
    config = peers.config if isinstance(peers.config, SshConfig) else SshConfig()
    here = peers.environ.get(HERE)
    # of a job's processes it says nothing; one of its programs may be a master itself
    routed = config.reach != "direct"
    advertised = here or config.address or _first(interfaces)
    if advertised in (None, NOWHERE) or (here is None and config.reach == "reversed"):
        return ListenAddress(bind_url=f"tls+tcp://{NOWHERE}:0", routed=routed)
    assert advertised is not None
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
