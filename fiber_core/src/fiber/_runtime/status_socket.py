"""Socket at which other commands of this user on this host ask how a run goes.

Apart from ``runtime``, so that only a program that starts processes imports it. It costs such a program
one descriptor; what is answered is imported and made for the first request.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol

from fiber._base.entry_points import load_object
from fiber._base.log import lazy_logger
from fiber._wire import fork
from fiber.exceptions import FiberError

if TYPE_CHECKING:
    from fiber._runtime.runtime import Runtime

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
        runtime: of the program that began the run.
    """

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._path = runtime.directory / NAME
        self._reactor = runtime.reactor
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
            thread.join(self._runtime.timing.report)

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
        connection.settimeout(self._runtime.timing.idle_thread)
        thread = threading.Thread(
            target=self._serve, args=(connection,), name="fiber-status", daemon=True
        )
        with self._lock:
            self._connections[connection] = thread
        thread.start()

    def _serve(self, connection: socket.socket) -> None:
        answers: Answers = load_object("fiber._watch.status:Answers")(self._runtime)
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
