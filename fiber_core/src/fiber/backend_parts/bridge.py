"""Bridge of standard input and output to a job's socket for streams; a program of its own.

``python -m fiber.backend_parts.bridge WHERE`` is for platforms that can run a program beside a job and
forward no port: the backend runs it with the value that the job got as ``FIBER_REACH``, and its
standard input and output are the stream. Apart from ``main``, so that it imports nothing of
Fiber's.
"""

from __future__ import annotations

import os
import select
import socket
import sys

__all__ = ["copy", "main"]

_PIECE = 256 * 2**10
_FORM = "streams:"


def main(argv: list[str]) -> int:
    """Copy bytes both ways until one side ends; returns the exit code."""
    if len(argv) != 1:
        os.write(2, b"fiber: say where, as FIBER_REACH has it: streams:HOST:PORT or streams:PATH\n")
        return 2
    where = argv[0].removeprefix(_FORM)
    try:
        stream = _connect(where)
    except (OSError, ValueError) as error:
        os.write(2, f"fiber: nothing listens for streams at {where}: {error}\n".encode())
        return 1
    with stream:
        copy(stream)
    return 0


def _connect(where: str) -> socket.socket:
    if where.startswith("/"):
        stream = socket.socket(socket.AF_UNIX)
        stream.setblocking(True)
        stream.connect(where)
        return stream
    host, _, port = where.rpartition(":")
    return socket.create_connection((host.strip("[]"), int(port)), timeout=None)


def copy(stream: socket.socket) -> None:
    """Copy bytes between a stream and the standard ones until one side ends."""
    poll = select.poll()
    poll.register(0, select.POLLIN)
    poll.register(stream, select.POLLIN)
    while True:
        for descriptor, _ in poll.poll():
            data = os.read(descriptor, _PIECE)
            if not data:
                return
            # a side that does not read holds the other one up, as one pipe does
            rest = memoryview(data)
            while rest:
                rest = rest[os.write(1 if descriptor else stream.fileno(), rest) :]


if __name__ == "__main__":
    try:
        code = main(sys.argv[1:])
    except OSError:
        # one side is gone, which is an end
        code = 0
    sys.exit(code)
