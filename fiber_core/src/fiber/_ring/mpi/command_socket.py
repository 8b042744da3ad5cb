"""The launcher's door: a private socket at which agents ask for commands on members."""

from __future__ import annotations

import contextlib
import os
import select
import socket
import threading
from collections.abc import Callable
from pathlib import Path

from fiber._ring.mpi.streams import Execution
from fiber._wire.accept_thread import Accepting, private_listener

__all__ = ["Call", "Door"]

_PIECE = 64 * 1024
#: no header of an agent is longer: arguments are not
_LONGEST = 4 * 1024 * 1024


class Call:
    """One agent that waits for its command."""

    def __init__(self, connection: socket.socket, streams: list[int]) -> None:
        self._connection = connection
        self._streams = streams
        self._lock = threading.Lock()
        self._over = False
        self._writing = threading.Lock()
        self._closed = False
        # wakes who reads the agent's standard input
        self._ending, self._end = os.pipe()

    def out(self, number: int, data: bytes) -> None:
        """Write to the agent's standard output or errors."""
        with self._writing, contextlib.suppress(OSError):
            # who read them may have gone, and so may the agent
            while data and not self._closed:
                data = data[os.write(self._streams[number], data) :]

    def ended(self, code: int) -> None:
        """The command has ended."""
        self._answer(f"exit {code}\n")

    def refuse(self, text: str) -> None:
        """There is no such command, or it is lost."""
        self._answer(f"error {text}\n")

    def _answer(self, text: str) -> None:
        with self._lock:
            if self._over:
                return
            self._over = True
        os.write(self._end, b"x")
        with contextlib.suppress(OSError):
            self._connection.sendall(text.encode())
            self._connection.shutdown(socket.SHUT_RDWR)

    def carry(self, execution: Execution) -> None:
        """Pass on what the agent reads and the signals it gets, until one of the two ends."""
        reader = threading.Thread(
            target=self._read_input, args=(execution,), name="fiber-agent-input", daemon=True
        )
        reader.start()
        rest = b""
        with contextlib.suppress(OSError):
            while data := self._connection.recv(4096):
                *lines, rest = (rest + data).split(b"\n")
                for line in lines:
                    execution.signal(int(line))
        with self._lock:
            gone, self._over = not self._over, True
        if gone:
            # the agent was killed, and its command has nobody any more
            os.write(self._end, b"x")
            execution.signal(9)
        reader.join()

    def close(self) -> None:
        """Release what the call holds."""
        with self._writing:
            self._closed = True
            for descriptor in (*self._streams, self._ending, self._end):
                os.close(descriptor)
        self._connection.close()

    def _read_input(self, execution: Execution) -> None:
        poll = select.poll()
        poll.register(self._ending, select.POLLIN)
        poll.register(self._streams[0], select.POLLIN)
        while True:
            ready = {descriptor for descriptor, _ in poll.poll()}
            if self._ending in ready:
                return
            try:
                data = os.read(self._streams[0], _PIECE)
            except OSError:
                data = b""
            execution.feed(data)
            if not data:
                return


class Door:
    """Listens in a private folder, and has a thread for each agent.

    Args:
        folder: a folder that this user alone may enter.
        begin: starts a host's command for a call; raises LookupError for a host that is none.
    """

    def __init__(self, folder: Path, begin: Callable[[str, str, Call], Execution]) -> None:
        #: where agents find it
        self.path = str(folder / "door")
        self._begin = begin
        self._accepting = Accepting(
            private_listener(self.path), self._serve, name="fiber-door", at_once=True
        )

    def close(self) -> None:
        """Listen no more. Calls that wait are their commands' affair."""
        self._accepting.close()
        Path(self.path).unlink(missing_ok=True)

    def _serve(self, connection: socket.socket) -> None:
        try:
            header, streams = _read_header(connection)
        except (OSError, ValueError):
            # whoever that was, it was no agent
            connection.close()
            return
        call = Call(connection, streams)
        host, _, command = header.decode("utf-8", "surrogateescape").partition("\0")
        try:
            execution = self._begin(host, command, call)
        except LookupError as error:
            call.refuse(str(error.args[0]))
        else:
            call.carry(execution)
        call.close()


def _read_header(connection: socket.socket) -> tuple[bytes, list[int]]:
    data, streams, _, _ = socket.recv_fds(connection, _PIECE, 3)
    try:
        if len(streams) != 3:
            msg = "an agent sends its three streams first"
            raise ValueError(msg)
        while b"\n" not in data:
            data += _some(connection)
        length, _, data = data.partition(b"\n")
        if not 0 <= int(length) <= _LONGEST:
            msg = f"a header of {int(length)} bytes is none"
            raise ValueError(msg)
        while len(data) < int(length):
            data += _some(connection)
    except (OSError, ValueError):
        for descriptor in streams:
            os.close(descriptor)
        raise
    return data, streams


def _some(connection: socket.socket) -> bytes:
    data = connection.recv(_PIECE)
    if not data:
        msg = "it ended in the middle"
        raise ValueError(msg)
    return data
