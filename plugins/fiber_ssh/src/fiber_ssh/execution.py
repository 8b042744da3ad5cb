"""``Backend.exec``: a program on a host with this program's own standard streams.

Apart from :mod:`~fiber_ssh.exec_channel`, which captures output, so that neither has both kinds.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import PurePosixPath
from typing import BinaryIO

import paramiko

from fiber.backend_parts.standard_streams import copy_input, write_all
from fiber.exceptions import BackendError, BackendUnavailableError
from fiber_ssh.agent_link import AgentLink
from fiber_ssh.connect import CONNECTION_ERRORS
from fiber_ssh.exec_channel import open_session, run
from fiber_ssh.shell_command import command_line, environment_file

_PIECE = 64 * 1024


def execute(
    link: AgentLink,
    argv: Sequence[str],
    *,
    timeout: float,
    stdin: BinaryIO | None = None,
    tty: bool = False,
) -> int:
    """Run a program to its end; return its exit code, or 128 and the number of its signal.

    Args:
        link: the host's connection.
        argv: program and arguments.
        timeout: seconds for its start.
        stdin: its standard input; None for an empty one.
        tty: True to give it a terminal.

    Raises:
        BackendUnavailableError: the host is not connected, allows no further program, or the
            connection dropped meanwhile.
    """
    host = link.host
    info = link.info
    path = None if info is None else str(PurePosixPath(info.executable).parent)
    try:
        env = _send_environment(link, timeout) if host.env else None
        line = command_line(argv, env=env, directory=host.directory, path=path)
        channel = open_session(link.transport, timeout)
    except (paramiko.SSHException, BackendUnavailableError) as error:
        msg = f"host {host.name} opens no session on its connection: {error}"
        raise BackendUnavailableError(msg) from error
    with channel:
        if tty:
            columns, rows = shutil.get_terminal_size()
            channel.get_pty(os.environ.get("TERM", "vt100"), columns, rows)
        channel.exec_command(line)
        errors = threading.Thread(
            target=_copy_out, args=(channel.recv_stderr, sys.stderr.fileno()), daemon=True
        )
        errors.start()
        if stdin is None:
            channel.shutdown_write()
        else:
            copy_input(stdin, channel.sendall, channel.shutdown_write, CONNECTION_ERRORS)
        _copy_out(channel.recv, sys.stdout.fileno())
        errors.join()
        code = int(channel.recv_exit_status())
    if code < 0:
        if link.is_up and link.transport.is_active():
            # sshd reports a signal in place of a code
            msg = f"{argv[0]} on host {host.name} was ended by a signal"
            raise BackendError(msg)
        msg = f"the connection to host {host.name} dropped while {argv[0]} ran there"
        raise BackendUnavailableError(msg)
    return code


def _send_environment(link: AgentLink, timeout: float) -> str:
    """Write the host's variables into a file that only this user can read; return its path."""
    info = link.info
    assert info is not None, "a host that is connected has told about itself"
    path = f"{info.root}/env-{secrets.token_hex(8)}"
    content = environment_file(path, link.host.env).encode()
    words = ("sh", "-c", 'umask 077; cat > "$1"', "sh", path)
    done = run(link.transport, words, stdin=content, timeout=timeout)
    if done.code:
        msg = f"host {link.host.name} does not take the variables of its processes: {done.errors}"
        raise BackendError(msg)
    return path


def _copy_out(read: Callable[[int], bytes], descriptor: int) -> None:
    with contextlib.suppress(OSError):
        while data := read(_PIECE):
            write_all(descriptor, data)
