"""Starts supervisors and tells them what they shall be."""

from __future__ import annotations

import socket
import subprocess

from fiber._agent.supervisor.messages import SupervisorOptions
from fiber._agent.supervisor.prestart import Started, python, take_early
from fiber._agent.supervisor.protocol import encode
from fiber.exceptions import BackendUnavailableError

__all__ = ["start_supervisor"]


def start_supervisor(
    options: SupervisorOptions, *, executable: str | None = None
) -> tuple[socket.socket, subprocess.Popen[bytes]]:
    """Start a supervisor; returns its channel and the process.

    The process of a supervisor of detached jobs ends at once and leaves the supervisor behind.

    Args:
        options: what it shall be.
        executable: the interpreter; if omitted what ``set_executable`` said, or this process's.

    Raises:
        BackendUnavailableError: it cannot be started.
    """
    interpreter = executable or python()
    started = take_early()
    if started is not None and not started.fits(interpreter):
        started.end()
        started = None
    if started is None:
        started = Started(interpreter, early=False)
    ours, process = started.channel, started.process
    try:
        ours.sendall(encode(options))
    except OSError as error:
        ours.close()
        process.kill()
        code = process.wait()
        msg = f"the supervisor ended at once with code {code}; its words are on standard error"
        raise BackendUnavailableError(msg) from error
    return ours, process
