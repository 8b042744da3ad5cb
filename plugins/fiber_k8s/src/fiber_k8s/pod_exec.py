"""Programs run in a job's container: the subresource ``exec`` over a WebSocket.

The first byte of each message is its channel: standard streams, status, terminal size (protocols
``v4.channel.k8s.io`` and ``v5.channel.k8s.io``, see k8s.io/apimachinery/pkg/util/remotecommand).
"""

from __future__ import annotations

import json
import logging
import select
import shutil
import socket
import threading
from collections.abc import Callable, Sequence
from typing import BinaryIO

from fiber.backend_parts.standard_streams import copy_input, write_all
from fiber.exceptions import BackendError, BackendUnavailableError
from fiber_k8s.client import Client
from fiber_k8s.names import CONTAINER
from fiber_k8s.websocket_client import WebSocket, open_websocket

log = logging.getLogger("fiber")

#: subprotocols; v5 can close standard input (since Kubernetes 1.30)
_NEWER, _OLDER = "v5.channel.k8s.io", "v4.channel.k8s.io"
_STDIN, _STDOUT, _STDERR, _STATUS, _SIZE, _CLOSE_STREAM = 0, 1, 2, 3, 4, 255
_END_OF_STDIN = bytes([_CLOSE_STREAM, _STDIN])
#: most bytes of standard input in a message
_STDIN_CHUNK = 64 * 2**10
_NOT_EXECUTABLE, _NOT_FOUND = 126, 127


def execute(
    client: Client,
    pod: str,
    argv: Sequence[str],
    *,
    stdin: BinaryIO | None = None,
    tty: bool = False,
    write: Callable[[int, bytes], object] = write_all,
) -> int:
    """Run a program in a job's container; return its exit code.

    Output is passed to ``write``, behind the descriptor that it is for: 1 or 2.

    Raises:
        UnknownJobError: there is no such pod.
        BackendUnavailableError: the cluster cannot be reached, or the connection was lost; the
            program may go on.
        BackendError: the cluster refused.
    """
    flags = {"stdout": True, "stderr": not tty, "stdin": stdin is not None, "tty": tty}
    query = [("container", CONTAINER), *(("command", word) for word in argv)]
    query += [(name, "true") for name, is_set in flags.items() if is_set]
    opened = open_websocket(client, pod, "exec", query, [_NEWER, _OLDER])
    if stdin is not None and not tty and opened.subprotocol != _NEWER:
        opened.close()
        msg = (
            "this cluster cannot tell a program that its standard input has ended, so it might wait "
            "for ever; that takes Kubernetes 1.30: run it without -i"
        )
        raise BackendError(msg)
    session = _ExecSession(pod, opened, write, client.timing.ping)
    try:
        if tty:
            size = shutil.get_terminal_size()
            message = json.dumps({"Width": size.columns, "Height": size.lines})
            opened.send(bytes([_SIZE]) + message.encode())
        if stdin is not None:
            session.start_stdin(stdin)
        return session.run()
    finally:
        session.close()


def kill_processes(
    client: Client, pod: str, run_soon: Callable[[Callable[[], None]], None]
) -> None:
    """Send SIGKILL to all processes of a pod but its first one, which ends after them.

    Where exec is not allowed, or the pod does not run, its deletion alone ends them.

    Args:
        client: the cluster.
        pod: its name.
        run_soon: runs a call on another thread, which is waited for a few seconds.
    """
    over = threading.Event()

    def work() -> None:
        try:
            execute(client, pod, ["sh", "-c", "kill -9 -1"], write=lambda _, __: None)
        except BackendError as error:
            # the pod may have ended under it as well
            log.debug("fiber: pod %s is not killed from within: %s", pod, error)
        finally:
            over.set()

    run_soon(work)
    over.wait(client.timing.kill)


def exit_code_of(status: bytes) -> tuple[int, str]:
    """Return exit code and message of a Status on the status channel; 126 and 127 as of shells."""
    try:
        body = json.loads(status)
        if body.get("status") == "Success":
            return 0, ""
        words = str(body.get("message") or "")
        for cause in (body.get("details") or {}).get("causes") or ():
            if cause.get("reason") == "ExitCode":
                return int(cause["message"]), ""
    except (ValueError, AttributeError, KeyError, TypeError, ArithmeticError, RecursionError):
        words = status.decode("utf-8", "replace")
    if "permission denied" in words or "is a directory" in words:
        return _NOT_EXECUTABLE, words
    if "not found" in words or "no such file" in words:
        return _NOT_FOUND, words
    msg = f"the cluster does not say how the program ended: {words}"
    raise BackendError(msg)


class _ExecSession:
    """Running program; the caller's thread passes on its output, and its standard input from a thread that reads it."""

    def __init__(
        self, pod: str, websocket: WebSocket, write: Callable[[int, bytes], object], ping: float
    ) -> None:
        self._pod = pod
        self._ping = ping
        self._websocket = websocket
        self._write = write
        #: the two ends of what standard input is passed through; it holds up the thread that reads it
        self._pair: tuple[socket.socket, ...] = ()
        self._status = b""

    def start_stdin(self, stdin: BinaryIO) -> None:
        """Start a thread that reads a stream, the program's standard input, to its end."""
        inner, outer = socket.socketpair()
        inner.setblocking(True)
        outer.setblocking(True)
        self._pair = (inner, outer)
        copy_input(stdin, outer.sendall, lambda: outer.shutdown(socket.SHUT_WR))

    def run(self) -> int:
        """Pass on input and output until the program has ended; return its exit code."""
        websocket = self._websocket
        stdin = self._pair[0] if self._pair else None
        while not websocket.is_closed:
            websocket.flush()
            messages = websocket.receive()
            for message in messages or ():
                self._handle_message(message)
            if messages is not None:
                continue
            poll = select.poll()
            poll.register(
                websocket, select.POLLIN | (select.POLLOUT if websocket.wants_write else 0)
            )
            if stdin is not None and not websocket.buffered:
                poll.register(stdin, select.POLLIN)
            ready = poll.poll(self._ping * 1000)
            if not ready:
                # load balancers drop connections that are idle for some minutes
                websocket.ping()
            elif stdin is not None and any(number == stdin.fileno() for number, _ in ready):
                data = stdin.recv(_STDIN_CHUNK)
                websocket.send(bytes([_STDIN]) + data if data else _END_OF_STDIN)
                stdin = stdin if data else None
        if not self._status:
            msg = f"the connection to the program in {self._pod} was lost; it may go on there"
            raise BackendUnavailableError(msg)
        code, words = exit_code_of(self._status)
        if words:
            self._write(_STDERR, f"fiber: {words}\n".encode())
        return code

    def close(self) -> None:
        """Close the connection."""
        self._websocket.close()
        # the reader's first: a thread that writes gets an error
        for end in self._pair:
            end.close()

    def _handle_message(self, message: bytes) -> None:
        channel, body = message[:1], message[1:]
        if channel in (bytes([_STDOUT]), bytes([_STDERR])):
            self._write(channel[0], body)
        elif channel == bytes([_STATUS]):
            self._status += body
