"""Output of containers on this process's own stdout and stderr, in whole lines, and ``Backend.exec``.

The client knows nothing of this process's streams.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Sequence
from typing import Any, BinaryIO

from fiber._agent.supervisor.output import LineBuffer, LinePrefix, LineTail
from fiber.backend_parts.standard_streams import copy_input, write_all
from fiber_docker.client import Client
from fiber_docker.stream import STDERR, STDOUT, Stream

#: last lines that are remembered
_TAIL = 20
_write_lock = threading.Lock()


class OutputForwarder:
    """Forwards the output of one container to this process's, and keeps its last lines.

    A thread, ``fiber-docker-output``, copies from :meth:`start` until the container ends.

    Args:
        stream: attached to the container.
        prefix: put before each line.
        partial_line: seconds after which the beginning of a line is passed on without its end.
    """

    def __init__(self, stream: Stream, prefix: bytes = b"", *, partial_line: float) -> None:
        self._stream = stream
        self._partial_line = partial_line
        self._buffers = {number: LineBuffer() for number in (STDOUT, STDERR)}
        self._prefixes = {number: LinePrefix(prefix) for number in (STDOUT, STDERR)}
        self._tail = LineTail(_TAIL)
        self._ended = threading.Event()
        self._lock = threading.Lock()
        self._begun = False
        self._is_writing = False
        self._thread = threading.Thread(target=self._copy, name="fiber-docker-output", daemon=True)

    def start(self) -> None:
        """Start the thread, unless it was closed; also where the container was not started."""
        with self._lock:
            if self._ended.is_set():
                return
            self._begun = True
            self._thread.start()

    def log_tail(self, timeout: float, late: float) -> tuple[str, ...]:
        """The last lines, once all have come.

        Args:
            timeout: seconds to wait while this process blocks on writing.
            late: seconds to wait while the engine is only slow.
        """
        until = time.monotonic() + max(timeout, late)
        while not self._ended.wait(timeout):
            if self._is_writing or time.monotonic() > until:
                break
        return self._tail.lines()

    def join(self, timeout: float) -> None:
        """Wait for its end, then close it; at once if it was not started."""
        with self._lock:
            if not self._begun:
                self._stream.close()
                self._ended.set()
                return
        self._ended.wait(timeout)
        self._stream.close()
        self._ended.wait()

    def _copy(self) -> None:
        try:
            while True:
                waits = any(buffer.partial for buffer in self._buffers.values())
                self._stream.set_timeout(self._partial_line if waits else None)
                try:
                    piece = self._stream.read()
                except TimeoutError:
                    self._flush()
                    continue
                if piece is None:
                    return
                number, data = piece
                self._tail.feed(data)
                if number in self._buffers:
                    self._put(number, self._buffers[number].feed(data))
        finally:
            self._flush()
            self._stream.close()
            self._ended.set()

    def _flush(self) -> None:
        for number, buffer in self._buffers.items():
            self._put(number, buffer.flush())

    def _put(self, number: int, data: bytes) -> None:
        self._is_writing = True
        _write(number, self._prefixes[number].feed(data))
        self._is_writing = False


def _write(number: int, data: bytes) -> None:
    # what nobody reads is dropped
    with _write_lock, contextlib.suppress(OSError):
        write_all(number, data)


def execute(
    client: Client, job_id: str, argv: Sequence[str], stdin: BinaryIO | None, *, tty: bool
) -> int:
    """Run a program in a job's container, its output to ours; return its exit code."""
    options: dict[str, Any] = {
        "stdin": stdin is not None,
        "tty": tty,
        # the program must not take itself for a process of Fiber's
        "environment": ["FIBER_BOOTSTRAP="],
    }
    with client.translate_errors("run a program beside a job", job_id):
        exec_id = client.api.exec_create(job_id, list(argv), **options)["Id"]
        stream = Stream(client.api.exec_start(exec_id, socket=True, tty=tty))
    if stdin is not None:
        copy_input(stdin, stream.write, stream.end_input)
    try:
        if tty:
            while data := stream.read_raw():
                _write(STDOUT, data)
        else:
            while (piece := stream.read()) is not None:
                _write(*piece)
    finally:
        stream.close()
    with client.translate_errors("report how a program ended"):
        return int(client.api.exec_inspect(exec_id)["ExitCode"] or 0)
