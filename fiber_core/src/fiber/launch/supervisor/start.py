"""Starts supervisor processes."""

from __future__ import annotations

import fcntl
import os
import socket
import subprocess
import sys
from collections.abc import Sequence
from multiprocessing import spawn
from pathlib import Path

from fiber.exceptions import BackendUnavailableError
from fiber.launch.supervisor.messages import SupervisorOptions
from fiber.launch.supervisor.protocol import encode

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
    ours, theirs = socket.socketpair()
    with theirs:
        # where standard streams are closed, the pair got their numbers
        descriptor = fcntl.fcntl(theirs.fileno(), fcntl.F_DUPFD_CLOEXEC, 3)
    python = executable or os.fsdecode(spawn.get_executable())
    folder = _folder()
    argv = [python, *_interpreter_options(), "-c", _program(descriptor, folder)]
    try:
        process = subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            cwd=folder,
            pass_fds=[descriptor],
            start_new_session=True,
        )
    except OSError as error:
        ours.close()
        msg = f"cannot start the supervisor with {python}: {error.strerror or error}"
        raise BackendUnavailableError(msg) from error
    finally:
        os.close(descriptor)
    try:
        ours.sendall(encode(options))
    except OSError as error:
        ours.close()
        process.kill()
        code = process.wait()
        msg = f"the supervisor ended at once with code {code}; its words are on standard error"
        raise BackendUnavailableError(msg) from error
    return ours, process


def _folder() -> str:
    try:
        return str(Path.cwd())
    except FileNotFoundError:
        # it was removed; some interpreters cannot even start in such a place
        return "/"


def _program(descriptor: int, folder: str) -> str:
    # the path is needed before anything of ours can be imported; relative entries would mean
    # another folder once somebody changes the working directory
    path = [str(Path(folder, entry)) for entry in sys.path]
    return (
        f"import sys; sys.path[:] = {path!r}; "
        f"from fiber.launch.supervisor.main import main; main({descriptor})"
    )


def _interpreter_options() -> Sequence[str]:
    """Options that make the new interpreter behave as this one: -W, -X, -I and so on."""
    options: list[str] = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]  # noqa: SLF001
    return options
