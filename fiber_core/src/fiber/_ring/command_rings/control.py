"""Control socket of a ring of commands: one command a connection, a line of text; JSON back.

The owner of a ring runs a :class:`ControlServer`; ``fiber ring`` in other shells calls
:func:`request`.
"""

from __future__ import annotations

import contextlib
import json
import socket
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from fiber._wire.accept_thread import AcceptThread, private_listener
from fiber.exceptions import FiberError

__all__ = ["ControlServer", "request"]

_MAX_COMMAND = 4096


class ControlServer:
    """Server at a Unix socket in a folder that only its user may enter.

    Args:
        path: of the socket.
        handlers: function of each command, by its first word; the other words are its arguments,
            and its result is the answer.
        timeout: seconds for a client to send its command and to take the answer.
    """

    def __init__(
        self, path: str, handlers: Mapping[str, Callable[..., Any]], timeout: float
    ) -> None:
        self._path, self._handlers, self._timeout = path, handlers, timeout
        # one connection after another, for handlers return at once
        self._accepting = AcceptThread(
            private_listener(path), self._serve, name="fiber-ring-control"
        )

    def close(self) -> None:
        """Stop listening and remove the socket."""
        self._accepting.close()
        Path(self._path).unlink(missing_ok=True)

    def _serve(self, connection: socket.socket) -> None:
        with connection, contextlib.suppress(OSError):
            connection.settimeout(self._timeout)
            command = connection.recv(_MAX_COMMAND).decode(errors="replace").strip()
            connection.sendall(json.dumps(self._answer(command)).encode())

    def _answer(self, command: str) -> dict[str, Any]:
        word, _, rest = command.partition(" ")
        handler = self._handlers.get(word)
        if handler is None:
            return {"error": f"a ring does not know what {word!r} is"}
        try:
            return {"answer": handler(*rest.split())}
        except (FiberError, ValueError, TypeError) as error:
            return {"error": str(error)}


def request(path: str, command: str, timeout: float) -> Any:
    """Send a command to the owner of a ring, and return its answer.

    Args:
        path: of the control socket.
        command: its name and arguments, with spaces between them.
        timeout: seconds for the answer.

    Raises:
        FiberError: the owner does not answer, or refused the command.
    """
    data = b""
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.settimeout(timeout)
            connection.connect(path)
            connection.sendall(command.encode() + b"\n")
            while piece := connection.recv(1 << 16):
                data += piece
    except OSError as error:
        msg = f"the ring does not answer ({error}); has it ended just now?"
        raise FiberError(msg) from error
    return read_answer(data)


def read_answer(data: bytes) -> Any:
    """Read what the owner of a ring answered.

    Raises:
        FiberError: it refused the command, or was cut off in the midst of its answer.
    """
    try:
        found = json.loads(data)
    except (ValueError, RecursionError) as error:
        msg = f"the ring does not answer ({error}); has it ended just now?"
        raise FiberError(msg) from error
    if not isinstance(found, dict) or "answer" not in found:
        why = found.get("error") if isinstance(found, dict) else None
        raise FiberError(str(why or "the ring's answer makes no sense"))
    return found["answer"]
