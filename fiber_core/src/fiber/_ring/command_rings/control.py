"""How a ring that runs is asked for something by another process of its user: a private socket."""

from __future__ import annotations

import contextlib
import json
import socket
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from fiber._wire.accept_thread import Accepting, private_listener
from fiber.exceptions import FiberError

__all__ = ["Control", "ask"]

_LONGEST = 4096
_TIMEOUT = 10.0


class Control:
    """Answers questions at a socket in a folder that its user alone may enter.

    Args:
        path: the socket.
        answers: what is done and answered for each question, by its first word; the other words
            are arguments.
    """

    def __init__(self, path: str, answers: Mapping[str, Callable[..., Any]]) -> None:
        self._path, self._answers = path, answers
        # one after another: each is answered at once, or not at all
        self._accepting = Accepting(private_listener(path), self._serve, name="fiber-ring-control")

    def close(self) -> None:
        """Answer no more."""
        self._accepting.close()
        Path(self._path).unlink(missing_ok=True)

    def _serve(self, connection: socket.socket) -> None:
        with connection, contextlib.suppress(OSError):
            connection.settimeout(_TIMEOUT)
            question = connection.recv(_LONGEST).decode(errors="replace").strip()
            connection.sendall(json.dumps(self._answer(question)).encode())

    def _answer(self, question: str) -> dict[str, Any]:
        word, _, rest = question.partition(" ")
        answer = self._answers.get(word)
        if answer is None:
            return {"error": f"a ring does not know what {word!r} is"}
        try:
            return {"answer": answer(*rest.split())}
        except (FiberError, ValueError, TypeError) as error:
            return {"error": str(error)}


def ask(path: str, question: str) -> Any:
    """Ask a ring for something, in words with blanks between them.

    Raises:
        FiberError: nobody is there, or it refuses.
    """
    data = b""
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.settimeout(_TIMEOUT)
            connection.connect(path)
            connection.sendall(question.encode() + b"\n")
            while piece := connection.recv(1 << 16):
                data += piece
        found = json.loads(data)
    except (OSError, ValueError) as error:
        msg = f"the ring does not answer ({error}); has it ended just now?"
        raise FiberError(msg) from error
    if "error" in found:
        raise FiberError(found["error"])
    return found["answer"]
