"""Starts the interpreters of supervisors, one of them before its options are known.

A program's first result waits for the imports that precede its supervisor's start, and for none
that follow it: so this module imports little. Apart from ``client`` for that reason.
"""

from __future__ import annotations

import atexit
import fcntl
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING

from fiber._agent.supervisor.kernel import blocked
from fiber._base.interpreter import working_folder

if TYPE_CHECKING:
    from fiber._agent.supervisor.messages import SupervisorOptions

#: end of the program text; the process that stays in the group is forked before much is imported
_MAIN = (
    "reporter = fork_reporter({0}); "
    "from fiber._agent.supervisor.server import main; "
    "main({0}, reporter, early={1})"
)


class SupervisorProcess:
    """A supervisor's process, which waits for its options.

    Args:
        python: the interpreter.
        early: True where the options may take a while to come.

    Raises:
        BackendUnavailableError: it cannot be started.
    """

    def __init__(self, python: str, *, early: bool) -> None:
        #: interpreter, options, program and folder it was started with
        self.command = _command(python)
        ours, theirs = socket.socketpair()
        # a program's default timeout would end this channel as soon as it is idle for so long
        ours.setblocking(True)
        theirs.setblocking(True)
        with theirs:
            # where standard streams are closed, the pair got their numbers
            descriptor = fcntl.fcntl(theirs.fileno(), fcntl.F_DUPFD_CLOEXEC, 3)
        argv, folder = self.command[1:-1], self.command[-1]
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
            from fiber._base.limits import explained
            from fiber.exceptions import BackendUnavailableError

            ours.close()
            # maybe of /dev/null
            file = "" if error.filename in {None, python} else f"{error.filename}: "
            msg = f"cannot start the supervisor with {python}: {file}{explained(error)}"
            raise BackendUnavailableError(msg) from error
        finally:
            os.close(descriptor)
        self.channel = ours
        self._pid = os.getpid()

    def fits(self, python: str) -> bool:
        """True where a supervisor started now would get the same command."""
        return (
            self._pid == os.getpid()
            and self.command == _command(python)
            and self.process.poll() is None
        )

    def end(self) -> None:
        """Kill the supervisor: it is not needed."""
        self.channel.close()
        if self._pid == os.getpid():
            self.process.kill()
            self.process.wait()


_prestarted: SupervisorProcess | None = None
_lock = threading.Lock()


def prestart() -> None:
    """Start a supervisor before it is known whether one is needed.

    It imports what workers need while this process reads the program's settings. If those say that
    nothing is forked on this host, call :func:`discard_prestarted`. An error is ignored: it will be
    raised by :func:`start_supervisor`.
    """
    global _prestarted  # noqa: PLW0603 - there is one a process
    with _lock:
        if _prestarted is None:
            try:
                _prestarted = SupervisorProcess(python(), early=True)
            except Exception as error:
                from fiber.exceptions import BackendUnavailableError

                if not isinstance(error, BackendUnavailableError):
                    raise
            else:
                atexit.register(discard_prestarted)


def discard_prestarted() -> None:
    """End the supervisor that :func:`prestart` started, unless it was taken. Idempotent."""
    started = take_prestarted()
    if started is not None:
        started.end()


def take_prestarted() -> SupervisorProcess | None:
    """Take over the supervisor that :func:`prestart` started; None where there is none."""
    global _prestarted
    with _lock:
        started, _prestarted = _prestarted, None
    if started is not None:
        atexit.unregister(discard_prestarted)
    return started


def python() -> str:
    """Interpreter of children: that of ``set_executable``, or this process's."""
    # set_executable() imports it; importing it here would delay the start
    spawn = sys.modules.get("multiprocessing.spawn")
    return os.fsdecode(sys.executable if spawn is None else spawn.get_executable())


def _command(python: str) -> tuple[str, ...]:
    """Command of a supervisor started now: interpreter, options, unfinished program, folder."""
    # where it was removed, some interpreters cannot even start
    folder = working_folder() or "/"
    return python, *_interpreter_options(), _program(folder), folder


def _program(folder: str) -> str:
    # the path is needed before anything of ours can be imported; relative entries would mean
    # another folder once the working directory changes; imports ignore entries that are no text
    path = [os.path.join(folder, entry) for entry in sys.path if isinstance(entry, str)]  # noqa: PTH118 - as above
    # imports leave no garbage, so collecting is disabled meanwhile; the server enables it
    return (
        f"import gc, sys; gc.disable(); sys.path[:] = {path!r}; "
        "from fiber._agent.supervisor.interrupts import fork_reporter; "
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
        options: its options.
        executable: the interpreter; if omitted that of ``set_executable``, or this process's.

    Raises:
        BackendUnavailableError: it cannot be started.
    """
    from fiber._agent.supervisor.messages import encode
    from fiber.exceptions import BackendUnavailableError

    interpreter = executable or python()
    started = take_prestarted()
    if started is not None and not started.fits(interpreter):
        started.end()
        started = None
    if started is None:
        started = SupervisorProcess(interpreter, early=False)
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
