"""Comparison of a host's versions of Python and fiber-core with this program's; pure."""

from __future__ import annotations

import shlex
import sys

from fiber_ssh.exec_channel import HostInfo

__all__ = ["incompatibility"]


def incompatibility(
    info: HostInfo, host: str, fiber: str, python: tuple[int, int] | None = None
) -> str:
    """Why processes of this program cannot run on a host, and the fix; empty where they can.

    Args:
        info: the host's versions.
        host: its name in the settings.
        fiber: this program's version of fiber-core.
        python: this program's version of Python; the running one if omitted.
    """
    mine = python or sys.version_info[:2]
    theirs = info.python[:2]
    if theirs != mine:
        local, remote = ".".join(map(str, mine)), ".".join(map(str, theirs))
        return (
            f"{info.executable} on host {host} is Python {remote}, and this program runs on "
            f"{local}: functions cannot be sent between the two; name a Python {local} with "
            f"'python = …' in the hosts file, or with FIBER_SSH_PYTHON"
        )
    install = f"ssh {host} {shlex.quote(info.executable)} -m pip install fiber-core=={fiber}"
    if info.fiber is None:
        return f"{info.executable} on host {host} has no fiber; run: {install}"
    if info.fiber != fiber:
        return f"host {host} has fiber-core {info.fiber}, and this program {fiber}; run: {install}"
    return ""
