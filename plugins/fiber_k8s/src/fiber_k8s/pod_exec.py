"""Programs beside a job: ``exec`` over a WebSocket, with its streams and its exit code."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import select
import shutil
import socket
import ssl
import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import BinaryIO

from fiber.exceptions import BackendError, BackendUnavailableError
from fiber_k8s.channels import Opened, open_channels
from fiber_k8s.client import Client
from fiber_k8s.manifest import CONTAINER
from fiber_k8s.websocket import BINARY, CLOSE, PING, PONG, Frames, frame

__all__ = ["code_of", "execute", "kill_processes"]

log = logging.getLogger("fiber")

#: the newer one can say that standard input has ended (since Kubernetes 1.30)
_NEWER, _OLDER = "v5.channel.k8s.io", "v4.channel.k8s.io"
_STDIN, _STDOUT, _STDERR, _STATUS, _SIZE, _END = 0, 1, 2, 3, 4, 255
_PIECE = 64 * 2**10
#: pieces of standard input that wait to be sent
_PIECES = 16
#: seconds without a word after which one is said
_SILENCE = 30
_NOT_EXECUTABLE, _NOT_FOUND = 126, 127
#: seconds that killing the processes of a pod from within may take
_INSIDE = 3.0


def execute(
    client: Client,
    pod: str,
    argv: Sequence[str],
    *,
    stdin: BinaryIO | None = None,
    tty: bool = False,
    write: Callable[[int, bytes], None] | None = None,
) -> int:
    """Run a program in a job's container; return its exit code.

    Args:
        client: the cluster.
        pod: name of the pod.
        argv: the program and its arguments.
        stdin: what it reads; nothing where None.
        tty: give it a terminal.
        write: takes what it writes, to 1 or 2; by default it is written there.

    Raises:
        UnknownJobError: there is no such pod.
        BackendUnavailableError: the cluster cannot be asked, or the connection was lost; the
            program may go on.
        BackendError: the cluster refuses.
    """
    flags = {"stdout": True, "stderr": not tty, "stdin": stdin is not None, "tty": tty}
    query = [("container", CONTAINER), *(("command", word) for word in argv)]
    query += [(name, "true") for name, wanted in flags.items() if wanted]
    opened = open_channels(client, pod, "exec", query, [_NEWER, _OLDER])
    if stdin is not None and not tty and opened.protocol != _NEWER:
        opened.sock.close()
        msg = (
            "this cluster cannot tell a program that its standard input has ended, so it might wait "
            "for ever; that takes Kubernetes 1.30: run it without -i"
        )
        raise BackendError(msg)
    conversation = _Conversation(pod, opened, write or _write)
    try:
        if tty:
            size = shutil.get_terminal_size()
            told = json.dumps({"Width": size.columns, "Height": size.lines})
            conversation.say(_SIZE, told.encode())
        if stdin is not None:
            conversation.read_from(stdin)
        return conversation.run()
    finally:
        conversation.close()


def kill_processes(client: Client, pod: str, do: Callable[[Callable[[], None]], None]) -> None:
    """SIGKILL to all processes of a pod but its first one, which ends when they have.

    Where that is not allowed, or the pod does not run, the node's own way has to do.

    Args:
        client: the cluster.
        pod: its name.
        do: runs a call on another thread; it is waited for a moment.
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

    do(work)
    over.wait(_INSIDE)


def code_of(status: bytes) -> tuple[int, str]:
    """Exit code and words of what the status channel says; as a shell has them."""
    try:
        told = json.loads(status)
        if told.get("status") == "Success":
            return 0, ""
        words = str(told.get("message") or "")
        for cause in (told.get("details") or {}).get("causes") or ():
            if cause.get("reason") == "ExitCode":
                return int(cause["message"]), ""
    except (ValueError, AttributeError, KeyError, TypeError):
        words = status.decode("utf-8", "replace")
    if "permission denied" in words or "is a directory" in words:
        return _NOT_EXECUTABLE, words
    if "not found" in words or "no such file" in words:
        return _NOT_FOUND, words
    msg = f"the cluster does not say how the program ended: {words}"
    raise BackendError(msg)


class _Conversation:
    """One program; its output is taken on the caller's thread."""

    def __init__(self, pod: str, opened: Opened, write: Callable[[int, bytes], None]) -> None:
        self._pod = pod
        self._sock = opened.sock
        self._write = write
        self._frames = Frames()
        self._lock = threading.Lock()
        self._out: deque[bytes] = deque()
        self._room = threading.Semaphore(_PIECES)
        self._bell, self._ring = socket.socketpair()
        self._bell.setblocking(False)
        self._ring.setblocking(True)
        self._status = b""
        self._over = False
        self._writes = False

    def say(self, channel: int, data: bytes) -> None:
        """Have something sent."""
        with self._lock:
            self._out.append(frame(BINARY, bytes([channel]), data))
        with contextlib.suppress(OSError):
            self._ring.send(b"\0")

    def read_from(self, stdin: BinaryIO) -> None:
        """Pass on what comes from a stream, to its end."""

        def feed() -> None:
            read = getattr(stdin, "read1", stdin.read)
            while not self._over and (data := read(_PIECE)):
                self._room.acquire()
                self.say(_STDIN, data)
            self.say(_END, bytes([_STDIN]))

        threading.Thread(target=feed, name="fiber-k8s-stdin", daemon=True).start()

    def run(self) -> int:
        """Take what it writes until it has ended; its exit code."""
        poll = select.poll()
        poll.register(self._bell, select.POLLIN)
        while not self._over:
            self._send()
            if not self._receive() and not self._over:
                wanted = select.POLLIN | (select.POLLOUT if self._out or self._writes else 0)
                poll.register(self._sock, wanted)
                if not poll.poll(_SILENCE * 1000):
                    # balancers forget a connection on which nothing is said for some minutes
                    with self._lock:
                        self._out.append(frame(PING))
                with contextlib.suppress(BlockingIOError):
                    self._bell.recv(4096)
        if not self._status:
            msg = f"the connection to the program in {self._pod} was lost; it may go on there"
            raise BackendUnavailableError(msg)
        code, words = code_of(self._status)
        if words:
            self._write(_STDERR, f"fiber: {words}\n".encode())
        return code

    def close(self) -> None:
        """End the connection."""
        self._over = True
        # whoever reads for it is let go
        self._room.release()
        self._sock.close()
        self._bell.close()
        self._ring.close()

    def _send(self) -> None:
        self._writes = False
        while self._out:
            data = self._out[0]
            try:
                sent = self._sock.send(data)
            except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
                return
            except OSError:
                # the end is read, with what came before it
                self._out.clear()
                return
            with self._lock:
                if sent < len(data):
                    self._out[0] = data[sent:]
                    continue
                self._out.popleft()
            self._room.release()

    def _receive(self) -> bool:
        """True where there may be more at once."""
        try:
            data = self._sock.recv(_PIECE)
        except (BlockingIOError, ssl.SSLWantReadError):
            return False
        except ssl.SSLWantWriteError:
            self._writes = True
            return False
        except OSError:
            data = b""
        if not data:
            self._over = True
        for opcode, body in self._frames.feed(data):
            if opcode == PING:
                with self._lock:
                    self._out.append(frame(PONG, body))
            elif opcode == CLOSE:
                self._over = True
            elif body and body[0] in (_STDOUT, _STDERR):
                self._write(body[0], body[1:])
            elif body and body[0] == _STATUS:
                self._status += body[1:]
        return True


def _write(where: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(where, view) :]
