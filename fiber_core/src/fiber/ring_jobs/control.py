"""How a ring that runs is asked for something by another process of its user: a private socket."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from fiber.exceptions import FiberError

__all__ = ["Control", "ask"]

_LONGEST = 4096
_TIMEOUT = 10.0


class Control:
    """Answers questions at a socket in a folder that its user alone may enter.

    Args:
        path: the socket.
        answers: what is done and answered for each word.
    """

    def __init__(self, path: str, answers: Mapping[str, Callable[[], Any]]) -> None:
        self._path, self._answers = path, answers
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(path)
        Path(path).chmod(0o600)
        self._listener.listen(16)
        self._thread = threading.Thread(target=self._serve, name="fiber-ring-control", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Answer no more."""
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._listener.close()
        Path(self._path).unlink(missing_ok=True)

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            with connection, contextlib.suppress(OSError):
                # one after another: each is answered at once, or not at all
                connection.settimeout(_TIMEOUT)
                word = connection.recv(_LONGEST).decode(errors="replace").strip()
                connection.sendall(json.dumps(self._answer(word)).encode())

    def _answer(self, word: str) -> dict[str, Any]:
        answer = self._answers.get(word)
        if answer is None:
            return {"error": f"a ring does not know what {word!r} is"}
        try:
            return {"answer": answer()}
        except (FiberError, ValueError) as error:
            return {"error": str(error)}


def ask(path: str, word: str) -> Any:
    """Ask a ring for something.

    Raises:
        FiberError: nobody is there, or it refuses.
    """
    data = b""
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.settimeout(_TIMEOUT)
            connection.connect(path)
            connection.sendall(word.encode() + b"\n")
            while piece := connection.recv(1 << 16):
                data += piece
        found = json.loads(data)
    except (OSError, ValueError) as error:
        msg = f"the ring does not answer ({error}); has it ended just now?"
        raise FiberError(msg) from error
    if "error" in found:
        raise FiberError(found["error"])
    return found["answer"]
