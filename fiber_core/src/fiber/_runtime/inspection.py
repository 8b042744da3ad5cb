"""What other commands of this user on this host see of a process: the status of a run, and stacks.

A program that starts processes has a :class:`StatusSocket`, at which they ask how the run goes. It costs one
descriptor; what is answered is imported and made for the first request.

Each process has a :class:`StackFile` in the run's folder, into which its stacks are written when a signal asks
for them. The handler is :mod:`faulthandler`'s: it needs neither the interpreter's lock nor its memory, so that a
process which hangs in C code shows where, too. The signal is one that programs do not use, and it is sent
to a process alone that has a file open here (see :mod:`fiber.cli.stacks`). A program that handles it
already is left alone.

Apart from ``runtime``, since commands need the names.
"""

from __future__ import annotations

import contextlib
import faulthandler
import json
import os
import signal
import socket
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

from fiber._agent.rundir import STACKS
from fiber._base.log import lazy_logger
from fiber._base.threads import Reactor
from fiber._wire import fork
from fiber.exceptions import FiberError
from fiber.model.timing import Timing

log = lazy_logger()

#: name of the socket in the folder of the run, which is this user's alone
NAME = "status.sock"
#: longest request
_MAX_REQUEST = 4096
#: most connections at a time
_MOST = 16


class Answers(Protocol):
    """Answers to the requests of one connection."""

    def answer(self, wanted: object, request: Mapping[str, Any]) -> dict[str, Any]:
        """Return the answer to a request, of JSON's types.

        Raises:
            FiberError: it cannot be told, or there is no such thing to ask for.
        """

    def close(self) -> None:
        """Stop whatever is done for this connection."""


class StatusSocket:
    """Listener in the run's folder; a request is a line of JSON, and so is its answer. Read-only.

    Args:
        folder: of the run.
        reactor: that accepts connections.
        timing: how long things may take.
        answers: makes the answers to one connection.
    """

    def __init__(
        self, folder: Path, reactor: Reactor, timing: Timing, answers: Callable[[], Answers]
    ) -> None:
        self._path = folder / NAME
        self._reactor = reactor
        self._timing = timing
        self._answers = answers
        self._lock = threading.Lock()
        self._connections: dict[socket.socket, threading.Thread] = {}
        self._listener: socket.socket | None = None
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            listener.setblocking(False)
            listener.bind(str(self._path))
            listener.listen(_MOST)
        except OSError as error:
            # nobody can ask, and all else works
            log.debug("fiber: nobody can ask for the status of this run: %s", error)
            listener.close()
            return
        self._listener = listener
        fork.register(self)
        self._reactor.add_reader(listener.fileno(), self._accept)

    def close(self) -> None:
        """Close it and all connections; idempotent."""
        listener, self._listener = self._listener, None
        if listener is None:
            return
        self._reactor.remove_reader(listener.fileno())
        listener.close()
        self._path.unlink(missing_ok=True)
        with self._lock:
            open_now = list(self._connections.items())
        for connection, thread in open_now:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
            thread.join(self._timing.report)

    def abandon(self) -> None:
        """In a process forked by user code: close the descriptors."""
        for one in (self._listener, *self._connections):
            if one is not None:
                # not by close(), which another thread's use would defer
                with contextlib.suppress(OSError):
                    os.close(one.detach())
        self._listener = None

    def _accept(self) -> None:
        listener = self._listener
        if listener is None:
            return
        try:
            connection, _ = listener.accept()
        except OSError:
            # it has gone again
            return
        if len(self._connections) >= _MOST:
            connection.close()
            return
        # one that asks and never reads would keep a thread
        connection.settimeout(self._timing.idle_thread)
        thread = threading.Thread(
            target=self._serve, args=(connection,), name="fiber-status", daemon=True
        )
        with self._lock:
            self._connections[connection] = thread
        thread.start()

    def _serve(self, connection: socket.socket) -> None:
        answers = self._answers()
        try:
            with connection, connection.makefile("rb") as requests, contextlib.closing(answers):
                while line := requests.readline(_MAX_REQUEST):
                    answer = json.dumps(self._answer(answers, line), default=str)
                    connection.sendall(answer.encode() + b"\n")
        except OSError as error:
            log.debug("fiber: a request for the status of this run was left: %s", error)
        finally:
            with self._lock:
                self._connections.pop(connection, None)

    def _answer(self, answers: Answers, line: bytes) -> dict[str, Any]:
        try:
            request = json.loads(line)
            wanted = request["ask"]
        except (ValueError, KeyError, TypeError, RecursionError):
            return {"error": 'a request is a line such as {"ask": "status"}'}
        try:
            return answers.answer(wanted, request)
        except FiberError as error:
            return {"error": str(error)}


#: a real-time signal; where there is none (macOS), the one that is ignored by default
SIGNAL: int = (
    int(signal.SIGRTMAX) - 5 if hasattr(signal, "SIGRTMAX") else getattr(signal, "SIGINFO", 0)
)


class StackFile:
    """The file of this process, and the handler that writes into it. Its first line is the process id.

    Args:
        folder: of the run.
        ident: of the process within the run.
    """

    def __init__(self, folder: Path, ident: str) -> None:
        self._path = folder / f"{ident}{STACKS}"
        self._descriptor: int | None = None
        try:
            if not SIGNAL or signal.getsignal(SIGNAL) is not signal.SIG_DFL:
                return
            flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_CLOEXEC
            self._descriptor = os.open(self._path, flags, 0o600)
            os.write(self._descriptor, b"%d\n" % os.getpid())
            faulthandler.register(SIGNAL, self._descriptor, all_threads=True)
        except (OSError, RuntimeError, ValueError) as error:
            # nobody can ask, and all else works
            log.debug("fiber: the stacks of this process cannot be shown: %s", error)
            self.close()

    def close(self) -> None:
        """Take the handler away and remove the file; idempotent."""
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is None:
            return
        faulthandler.unregister(SIGNAL)
        with contextlib.suppress(OSError):
            # a task may have closed it, and the number may be another file's by now
            if os.path.samestat(os.fstat(descriptor), self._path.stat()):
                os.close(descriptor)
        self._path.unlink(missing_ok=True)
