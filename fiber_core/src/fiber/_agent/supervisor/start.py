"""Starts supervisors and tells them what they shall be.

Starts the interpreters of supervisors, one of them before it is known what it shall be.

A program's first result waits for what is imported here before its supervisor is started, and for
nothing that is imported afterwards: so this module imports little.
"""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Sequence

from fiber._agent.supervisor.interrupts import blocked
from fiber._agent.supervisor.messages import SupervisorOptions, encode
from fiber.exceptions import BackendUnavailableError

__all__ = ["Started", "end_early", "python", "start_early", "start_supervisor", "take_early"]

#: how the program ends; the process that stays in the group is forked before much is imported
_MAIN = (
    "interrupts = leave_group({0}); "
    "from fiber._agent.supervisor.main import main; "
    "main({0}, interrupts, early={1})"
)


class Started:
    """A supervisor's process, which waits for its options.

    Args:
        python: the interpreter.
        early: True where the options may take a while to come.

    Raises:
        BackendUnavailableError: it cannot be started.
    """

    def __init__(self, python: str, *, early: bool) -> None:
        #: what it was started with
        self.way = _way(python)
        ours, theirs = socket.socketpair()
        # a program's default timeout would end this channel as soon as it is idle for so long
        ours.setblocking(True)
        theirs.setblocking(True)
        with theirs:
            # where standard streams are closed, the pair got their numbers
            descriptor = fcntl.fcntl(theirs.fileno(), fcntl.F_DUPFD_CLOEXEC, 3)
        argv, folder = self.way[1:-1], self.way[-1]
        try:
            # it leaves this process's group by itself, and until then takes no signal of the group's
            with blocked():
                self.process = subprocess.Popen(
                    [python, *argv[:-1], "-c", argv[-1] + _MAIN.format(descriptor, early)],
                    stdin=subprocess.DEVNULL,
                    cwd=folder,
                    pass_fds=[descriptor],
                )
        except OSError as error:
            ours.close()
            msg = f"cannot start the supervisor with {python}: {error.strerror or error}"
            raise BackendUnavailableError(msg) from error
        finally:
            os.close(descriptor)
        self.channel = ours
        self._pid = os.getpid()

    def fits(self, python: str) -> bool:
        """True where it is what would be started now."""
        return self._pid == os.getpid() and self.way == _way(python) and self.process.poll() is None

    def end(self) -> None:
        """It is not needed."""
        self.channel.close()
        if self._pid == os.getpid():
            self.process.kill()
            self.process.wait()


_early: Started | None = None
_lock = threading.Lock()


def start_early() -> None:
    """Start a supervisor that gets ready before anybody asks for one; nobody may ever.

    It imports what workers need while this process finds out what its program is set to. Whoever
    finds that nothing is forked here calls :func:`end_early`. An error is none: it comes again.
    """
    global _early  # noqa: PLW0603 - there is one a process
    with _lock:
        if _early is None:
            with contextlib.suppress(BackendUnavailableError):
                _early = Started(python(), early=True)
                atexit.register(end_early)


def end_early() -> None:
    """End what :func:`start_early` began, if nobody took it. Idempotent."""
    started = take_early()
    if started is not None:
        started.end()


def take_early() -> Started | None:
    """What :func:`start_early` began, for whoever needs it or ends it; None where there is none."""
    global _early
    with _lock:
        started, _early = _early, None
    if started is not None:
        atexit.unregister(end_early)
    return started


def python() -> str:
    """The interpreter of children: what ``set_executable`` said, or this process's."""
    # who said anything imported it; whoever starts early has not the time to
    spawn = sys.modules.get("multiprocessing.spawn")
    return os.fsdecode(sys.executable if spawn is None else spawn.get_executable())


def _way(python: str) -> tuple[str, ...]:
    """How a supervisor is started now: interpreter, options, program without its end, folder."""
    folder = _folder()
    return python, *_interpreter_options(), _program(folder), folder


def _folder() -> str:
    try:
        return os.getcwd()  # noqa: PTH109 - pathlib is imported later
    except FileNotFoundError:
        # it was removed; some interpreters cannot even start in such a place
        return "/"


def _program(folder: str) -> str:
    # the path is needed before anything of ours can be imported; relative entries would mean
    # another folder once somebody changes the working directory
    path = [os.path.join(folder, entry) for entry in sys.path]  # noqa: PTH118 - as above
    # what is imported stays, so that looking for garbage meanwhile is in vain; the server enables it
    return (
        f"import gc, sys; gc.disable(); sys.path[:] = {path!r}; "
        "from fiber._agent.supervisor.interrupts import leave_group; "
    )


def _interpreter_options() -> Sequence[str]:
    """Options that make the new interpreter behave as this one: -W, -X, -I and so on."""
    options: list[str] = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]  # noqa: SLF001
    return options


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
