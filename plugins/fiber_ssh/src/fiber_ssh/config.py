"""Settings of the ssh backend."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from fiber._base import values

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
