"""Settings of the ssh backend, and the durations that it waits for."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from fiber._base import values
from fiber.model import Durations

#: default of the setting ``lease``, in seconds
LEASE = 30.0


@values.frozen(kw_only=True)
class SshConfig:
    """Settings by ``FIBER_SSH_<KEY>`` or the section ``[ssh]``."""

    #: the hosts: ``a:8,b:8`` with their slots, or the path of a hosts file
    hosts: str = ""
    #: the user's ssh configuration
    config: Path = Path("~/.ssh/config")
    #: the Python of hosts that name none
    python: str = "python3"
    #: where jobs run on hosts that name no directory; a new folder for each run if it is not set
    directory: str | None = None
    #: patterns of files of the working directory that hosts get, such as ``data/**``
    send: tuple[str, ...] = ()
    #: how jobs reach this program: ``direct``; ``reversed``, by streams over the ssh connections,
    #: and each other too where they cannot dial; or ``auto``, which tries
    reach: Literal["auto", "direct", "reversed"] = "auto"
    #: the address at which hosts reach this machine, where it is not the one that ssh shows
    address: str | None = None
    #: seconds for a connection to be made
    connect_timeout: float = values.field(default=10.0, validator=values.gt(0.0))
    #: folder of the agent's files on hosts, ``~/.cache/fiber/ssh`` if it is not set
    root: str | None = None


@values.frozen(kw_only=True)
class SshTiming(Durations):
    """Durations in seconds that the ssh backend waits for, besides the core's."""

    #: between attempts to connect, the first and the longest
    first_pause: float = 0.1
    longest_pause: float = 5.0
    #: for an agent to answer
    answer: float = 20.0
    #: for a device probe
    device_probe: float = 30.0
    #: for a host to report what it can dial, which takes a Python to start there
    route_probe: float = 30.0
    #: for a connection that dropped to be made again, before its host is said not to answer
    reconnect: float = 10.0
    #: that the first job waits for other hosts, once one has answered
    wait_for_all: float = 2.0
    #: for hosts to end what they run; they do so by themselves when the lease ends
    release: float = 15.0
    #: for the last output to come
    last_output: float = 3.0
    #: for the threads of a host to end, besides the time to connect
    host_end: float = 10.0
    #: for which a listing of files is reused
    fresh_listing: float = 1.0
    #: for workers to end after SIGTERM, their FIBER_GRACE; nothing but Fiber kills them then
    grace: float = 30.0
