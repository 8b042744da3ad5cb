"""Listen addresses of processes whose peers are on other hosts; pure."""

from __future__ import annotations

from collections.abc import Sequence

from fiber.backend_parts import address
from fiber.model import Interface, ListenAddress, Peers
from fiber_ssh.config import SshConfig

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
    if chosen == UNREACHABLE or (assigned is None and config.reach == "reversed"):
        return address.tls(UNREACHABLE, routed=routed)
    # each host dials a program at the address that it sees it under, where none was chosen
    return address.listen_address(chosen, interfaces, routed=routed, everywhere=True)
