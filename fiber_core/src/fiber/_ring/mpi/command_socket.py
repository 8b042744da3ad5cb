"""Command socket of the launcher: agents of mpirun request commands on members.

An agent sends its three standard streams as descriptors with a line that has the length of the
header; the header, host and command with a NUL between them; and then signal numbers, a line each.
The answer is ``exit <code>`` or ``error <text>``. Apart from the member agent, which uses it on the
launcher alone, for it is the only part of a run that other programs talk to.
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
import threading
from collections.abc import Callable
from pathlib import Path

from fiber._ring.mpi.streams import Execution
from fiber._wire.accept_thread import AcceptThread, private_listener

__all__ = ["AgentCall", "CommandSocket"]

_CHUNK_SIZE = 64 * 1024
#: no header of an agent is longer: arguments are not
_MAX_HEADER = 4 * 1024 * 1024


class AgentCall:
    """Request of one agent, which waits for the end of its command.

    Args:
        connection: to the agent.
        streams: descriptors of its standard streams.
    """

    def __init__(self, connection: socket.socket, streams: list[int]) -> None:
        self._connection = connection
        self._streams = streams
        self._lock = threading.Lock()
        self._over = False
        self._writing = threading.Lock()
        self._closed = False
        # wakes the thread that reads the agent's standard input
        self._ending, self._end = os.pipe()

    def out(self, number: int, data: bytes) -> None:
        """Write to the agent's standard output or errors."""
        with self._writing, contextlib.suppress(OSError):
            # their reader may have gone, and so may the agent
            while data and not self._closed:
                data = data[os.write(self._streams[number], data) :]

    def ended(self, code: int) -> None:
        """Answer with the command's exit code, or minus its signal."""
        self._answer(f"exit {code}\n")

    def refuse(self, text: str) -> None:
        """Answer with an error: the command cannot be run, or is lost."""
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
        """Forward the agent's input and signals to the command, until one of the two ends."""
        reader = threading.Thread(
            target=self._read_input, args=(execution,), name="fiber-agent-input", daemon=True
        )
        reader.start()
        rest = b""
        # ValueError: a line that is no number is no agent's, and ends like one that hangs up
        with contextlib.suppress(OSError, ValueError):
            while data := self._connection.recv(4096):
                *lines, rest = (rest + data).split(b"\n")
                for line in lines:
                    execution.signal(int(line))
        with self._lock:
            gone, self._over = not self._over, True
        if gone:
            # the agent was killed, so its command is killed as well
            os.write(self._end, b"x")
            execution.signal(9)
        reader.join()

    def close(self) -> None:
        """Close the connection and all descriptors."""
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
                data = os.read(self._streams[0], _CHUNK_SIZE)
            except OSError:
                data = b""
            execution.feed(data)
            if not data:
                return


class CommandSocket:
    """Listening socket for agents, with a thread for each of them.

    Args:
        folder: a folder that only this user may enter.
        begin: starts a command on a host for an agent's call; raises LookupError for unknown hosts.
    """

    def __init__(self, folder: Path, begin: Callable[[str, str, AgentCall], Execution]) -> None:
        #: path of the socket
        self.path = str(folder / "door")
        self._begin = begin
        self._accepting = AcceptThread(
            private_listener(self.path),
            self._serve,
            name="fiber-command-socket",
            thread_per_connection=True,
        )

    def close(self) -> None:
        """Stop listening; open calls go on until their commands end."""
        self._accepting.close()
        Path(self.path).unlink(missing_ok=True)

    def _serve(self, connection: socket.socket) -> None:
        try:
            header, streams = _read_header(connection)
        except (OSError, ValueError):
            # the client is no agent
            connection.close()
            return
        call = AgentCall(connection, streams)
        host, _, command = header.decode("utf-8", "surrogateescape").partition("\0")
        try:
            execution = self._begin(host, command, call)
        except LookupError as error:
            call.refuse(str(error.args[0]))
        else:
            call.carry(execution)
        call.close()


def _read_header(connection: socket.socket) -> tuple[bytes, list[int]]:
    data, streams, _, _ = socket.recv_fds(connection, _CHUNK_SIZE, 3)
    try:
        if len(streams) != 3:
            msg = "an agent sends its three streams first"
            raise ValueError(msg)
        while b"\n" not in data:
            data += _receive(connection)
        length, _, data = data.partition(b"\n")
        if not 0 <= int(length) <= _MAX_HEADER:
            msg = f"a header of {int(length)} bytes is none"
            raise ValueError(msg)
        while len(data) < int(length):
            data += _receive(connection)
    except (OSError, ValueError):
        for descriptor in streams:
            os.close(descriptor)
        raise
    return data, streams


def _receive(connection: socket.socket) -> bytes:
    data = connection.recv(_CHUNK_SIZE)
    if not data:
        msg = "it ended in the middle"
        raise ValueError(msg)
    return data
