"""Whether a host's Python and fiber are those that processes of this program need; pure."""

from __future__ import annotations

import shlex
import sys

from fiber_ssh.shell import About

__all__ = ["unfit"]


def unfit(about: About, host: str, fiber: str, python: tuple[int, int] | None = None) -> str:
    """Why processes of this program cannot run on a host, with the fix; empty where they can.

    Args:
        about: what the host said.
        host: what the user calls it.
        fiber: version of fiber-core here.
        python: version of Python here, this one's if omitted.
    """
    mine = python or sys.version_info[:2]
    theirs = about.python[:2]
    if theirs != mine:
        here, there = ".".join(map(str, mine)), ".".join(map(str, theirs))
        return (
            f"{about.executable} on host {host} is Python {there}, and this program runs on "
            f"{here}: functions cannot be sent between the two; name a Python {here} with "
            f"'python = …' in the hosts file, or with FIBER_SSH_PYTHON"
        )
    install = f"ssh {host} {shlex.quote(about.executable)} -m pip install fiber-core=={fiber}"
    if about.fiber is None:
        return f"{about.executable} on host {host} has no fiber; run: {install}"
    if about.fiber != fiber:
        return f"host {host} has fiber-core {about.fiber}, and this program {fiber}; run: {install}"
    return ""
