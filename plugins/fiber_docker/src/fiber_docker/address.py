"""Listen address of a master whose jobs are containers; pure."""

from __future__ import annotations

from collections.abc import Sequence

import attrs

from fiber.backend_parts.address import listen_address, outward, tls
from fiber.exceptions import BackendError
from fiber.model import Interface, ListenAddress

#: the name by which containers of Docker Desktop reach the machine that it runs on
DESKTOP_HOST = "host.docker.internal"


@attrs.frozen(kw_only=True)
class Facts:
    """The engine's network, and the container of this process where it is in one."""

    #: the network that jobs join; None for the engine's default
    network: str | None = None
    #: the setting ``address``
    address: str | None = None
    #: this process's own addresses in that network, where it is in a container itself
    own: tuple[str, ...] = ()
    #: the network's gateways: with a bridge on this host, addresses of this host
    gateways: tuple[str, ...] = ()
    #: True where the engine runs in a virtual machine that forwards to this host's loopback
    desktop: bool = False
    #: True where the engine's networks are in a namespace of its user's
    rootless: bool = False
    #: True where the engine is Ubuntu's snap of Docker
    snap: bool = False
    #: the address of this host from which the engine was asked, where it is on another host
    route: str | None = None
    #: the image that this process runs in, where it is in a container itself
    image: str | None = None
    #: id of that container
    container: str | None = None


def choose(facts: Facts, interfaces: Sequence[Interface]) -> ListenAddress:
    """Choose the address to listen on.

    Raises:
        BackendError: containers reach none of this host's addresses; the text says what to set.
    """
    mine = {interface.address.partition("%")[0] for interface in interfaces if interface.is_up}
    if facts.address is not None:
        return listen_address(facts.address, interfaces)
    # another engine's bridge may have the same address
    gateways = (
        () if facts.rootless or facts.route not in (None, "127.0.0.1", "::1") else facts.gateways
    )
    # a bridge is down while it has no container
    bridges = {interface.address.partition("%")[0] for interface in interfaces}
    for address in (*facts.own, *gateways):
        if address in bridges:
            return tls(address)
    if facts.desktop:
        return tls("127.0.0.1", DESKTOP_HOST)
    if facts.route is not None and facts.route in mine:
        return tls(facts.route)
    reachable = [one for one in outward(interfaces) if ":" not in one]
    if reachable:
        # rootless engines have their bridge in a namespace of their own, and reach what others do
        return tls(reachable[0])
    network = facts.network or "the default one"
    msg = (
        f"containers of network {network} reach none of this host's addresses "
        f"({', '.join(sorted(mine)) or 'it has none'}); set FIBER_DOCKER_ADDRESS to one that they reach"
    )
    raise BackendError(msg)
