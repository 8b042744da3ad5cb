"""Programs run in a job's container: the subresource ``exec`` over a WebSocket.

The first byte of each message is its channel: standard streams, status, terminal size (protocols
``v4.channel.k8s.io`` and ``v5.channel.k8s.io``, see k8s.io/apimachinery/pkg/util/remotecommand).
"""

from __future__ import annotations

import contextlib
import json
import logging
import select
import shutil
import socket
import threading
from collections import deque
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
#: chunks of standard input that wait to be sent, at most
_STDIN_CHUNKS = 16
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
            session.send(_SIZE, message.encode())
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
    """Running program; the caller's thread receives, a thread of its own reads stdin."""

    def __init__(
        self, pod: str, websocket: WebSocket, write: Callable[[int, bytes], object], ping: float
    ) -> None:
        self._pod = pod
        self._ping = ping
        self._websocket = websocket
        self._write = write
        self._out: deque[bytes] = deque()
        self._stdin_slots = threading.Semaphore(_STDIN_CHUNKS)
        self._wake_reader, self._wake_writer = socket.socketpair()
        self._wake_reader.setblocking(False)
        self._wake_writer.setblocking(True)
        self._status = b""
        self._closed = False

    def send(self, channel: int, data: bytes) -> None:
        """Queue a message for a channel; thread-safe."""
        self._out.append(bytes([channel]) + data)
        with contextlib.suppress(OSError):
            self._wake_writer.send(b"\0")

    def start_stdin(self, stdin: BinaryIO) -> None:
        """Start a thread that sends a stream as standard input, to its end."""

        def write(data: bytes) -> None:
            self._stdin_slots.acquire()
            if self._closed:
                raise BrokenPipeError
            self.send(_STDIN, data)

        copy_input(stdin, write, lambda: self.send(_CLOSE_STREAM, bytes([_STDIN])))

    def run(self) -> int:
        """Pass on output until the program has ended; return its exit code."""
        websocket = self._websocket
        poll = select.poll()
        poll.register(self._wake_reader, select.POLLIN)
        while not websocket.is_closed:
            self._send()
            messages = websocket.receive()
            for message in messages or ():
                self._handle_message(message)
            if messages is None:
                poll.register(
                    websocket, select.POLLIN | (select.POLLOUT if websocket.wants_write else 0)
                )
                if not poll.poll(self._ping * 1000):
                    # load balancers drop connections that are idle for some minutes
                    websocket.ping()
                with contextlib.suppress(BlockingIOError):
                    self._wake_reader.recv(4096)
        if not self._status:
            msg = f"the connection to the program in {self._pod} was lost; it may go on there"
            raise BackendUnavailableError(msg)
        code, words = exit_code_of(self._status)
        if words:
            self._write(_STDERR, f"fiber: {words}\n".encode())
        return code

    def close(self) -> None:
        """Close the connection."""
        self._closed = True
        # the thread that reads stdin may wait for a slot
        self._stdin_slots.release()
        self._websocket.close()
        self._wake_reader.close()
        self._wake_writer.close()

    def _send(self) -> None:
        self._websocket.flush()
        while self._out and not self._websocket.buffered:
            self._websocket.send(self._out.popleft())
            self._stdin_slots.release()

    def _handle_message(self, message: bytes) -> None:
        channel, body = message[:1], message[1:]
        if channel in (bytes([_STDOUT]), bytes([_STDERR])):
            self._write(channel[0], body)
        elif channel == bytes([_STATUS]):
            self._status += body
