"""Owner of a ring of commands: runs the ring, prints and records output, serves control commands.

:func:`run` is the owner's part, in the foreground or after :func:`detach`;
:class:`RankCommand` the ranks', which run the command as a child process and send its lines back.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import Any

from fiber import queues
from fiber._base import values
from fiber._base.threads import ending_signals
from fiber._ring.command_rings import records
from fiber._ring.command_rings.records import ControlServer, Record, to_json
from fiber._ring.model import RingError, RingPhase, RingStatus, RingTiming
from fiber._ring.ring import Ring
from fiber._runtime import runtime
from fiber.exceptions import FiberError


@values.frozen
class OutputLine:
    """A line of output of a rank's command."""

    rank: int
    host: str
    text: str


@values.frozen
class CommandBegan:
    """Start of a rank's command."""

    rank: int
    #: differs for each command; a rank has one after another when it is started again
    command: str


@values.frozen
class CommandEnded:
    """End of a rank's command."""

    rank: int
    #: that of its :class:`CommandBegan`
    command: str
    #: exit code, or minus the signal's number
    code: int


@values.frozen
class RankCommand:
    """The function of the ring's members: runs a command, which has its rank in the environment."""

    #: program and arguments
    argv: tuple[str, ...]
    #: receives :class:`CommandBegan`, :class:`OutputLine` and :class:`CommandEnded`
    queue: Any

    def __call__(self, rank: int, size: int) -> None:
        """Run the command, and exit with its exit code."""
        host, command = socket.gethostname(), secrets.token_hex(8)
        self.queue.put(CommandBegan(rank, command))
        environ = {
            "RANK": str(rank),
            "WORLD_SIZE": str(size),
            "PYTHONUNBUFFERED": "1",
            **os.environ,
        }
        # in the job's process group, so that it ends with the job
        with subprocess.Popen(
            self.argv,
            env=environ,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        ) as process:
            with contextlib.suppress(ValueError):
                # a ring that is ended or restarted ends its commands
                signal.signal(signal.SIGTERM, lambda *_: process.terminate())
            assert process.stdout is not None
            for line in process.stdout:
                self.queue.put(OutputLine(rank, host, line.rstrip("\n")))
        self.queue.put(CommandEnded(rank, command, process.returncode))
        if process.returncode:
            code = process.returncode
            raise SystemExit(128 - code if code < 0 else code)


def run(
    record: Record,
    argv: tuple[str, ...],
    workers: int,
    *,
    on_start: Callable[[], None] = lambda: None,
    **options: Any,
) -> int:
    """Run a command in every rank of a ring; returns the exit code of the first that failed.

    Args:
        record: of the ring.
        argv: the command.
        workers: number of jobs.
        on_start: called once the ring has been started.
        **options: of :class:`~fiber._ring.ring.Ring`.

    Raises:
        FiberError: the ring cannot be started.
    """
    current = runtime.current()
    control_path = str(current.directory / "ring.sock")
    record.take_ownership(backend=current.info.name, door=control_path)
    timing = RingTiming.at(current.timing.scale)
    queue: Any = queues.SimpleQueue()
    ring = Ring(workers, RankCommand(argv, queue), name=record.name, **options)
    codes: dict[int, int] = {}

    def status() -> dict[str, Any]:
        found = to_json(ring.status())
        return {**found, "codes": {str(rank): codes[rank] for rank in sorted(codes)}}

    ring.start()
    records.add_counts(created=1)
    reader = threading.Thread(
        target=_read, args=(queue, record, codes), name="fiber-ring-lines", daemon=True
    )
    reader.start()
    received: list[int] = []

    def handle(number: int) -> None:
        received.append(number)
        threading.Thread(target=ring.terminate, name="fiber-ring-end").start()

    handlers: dict[str, Callable[..., Any]] = {
        "status": status,
        "suspend": ring.suspend,
        "resume": ring.resume,
        "resize": lambda jobs: ring.resize(int(jobs)),
        "terminate": ring.terminate,
    }
    try:
        server = ControlServer(control_path, handlers, timing.request)
        with contextlib.closing(server), ending_signals(handle):
            record.write(status())
            on_start()
            return _wait(ring, record, status, received, timing.status)
    finally:
        queue.put(None)
        reader.join()
        record.write(status())
        _count(ring.status())


def _count(status: RingStatus) -> None:
    """Add the outcome of a ring to the user's counters."""
    records.add_counts(
        succeeded=int(status.phase is RingPhase.SUCCEEDED),
        failed=int(status.phase is not RingPhase.SUCCEEDED),
        restarts=status.restarts,
    )


def _wait(ring: Ring, record: Record, status: Any, received: list[int], interval: float) -> int:
    written: RingStatus | None = None
    while True:
        now = ring.status()
        if now != written:
            record.write(status())
            written = now
        try:
            if ring.join(interval) is not None:
                return 0
        except RingError as error:
            if received:
                return 128 + received[0]
            sys.stderr.write(f"fiber: {error}\n")
            code = error.failure.exit_code
            return 1 if code is None else 128 - code if code < 0 else code or 1


def _read(queue: Any, record: Record, codes: dict[int, int]) -> None:
    running: dict[int, str] = {}
    with record.log.open("a", buffering=1, errors="backslashreplace") as log:
        while (item := queue.get()) is not None:
            if isinstance(item, CommandBegan):
                running[item.rank] = item.command
                codes.pop(item.rank, None)
            elif isinstance(item, CommandEnded):
                # one that is being ended may end after its successor began
                if running.get(item.rank) == item.command:
                    codes[item.rank] = item.code
            elif isinstance(item, OutputLine):
                log.write(f"{item.rank}\t{item.host}\t{item.text}\n")
                # the reader of our output may have gone
                with contextlib.suppress(OSError):
                    sys.stdout.write(f"[{item.rank}@{item.host}] {item.text}\n")
                    sys.stdout.flush()


_STARTED = b"+"


def detach(record: Record) -> Callable[[], None] | None:
    """Fork a detached owner of the ring; called before any thread or connection exists.

    Args:
        record: of the ring; the owner's standard error goes to its folder.

    Returns:
        in the owner, a function that it must call once the ring has been started; in the calling
        process None, once it was called.

    Raises:
        FiberError: the ring was not started; the text has the owner's standard error.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    read_end, write_end = os.pipe()
    pid = os.fork()
    if pid:
        os.close(write_end)
        with open(read_end, "rb") as answer:
            has_started = answer.read(1) == _STARTED
        if not has_started:
            _, status = os.waitpid(pid, 0)
            text = record.errors.read_text(errors="replace").strip() or f"it ended with {status}"
            record.remove()
            msg = f"{record.name} was not started: {text.removeprefix('fiber: ')}"
            raise FiberError(msg)
        return None
    os.close(read_end)
    # leave the terminal's process group, and with it the terminal's signals
    os.setsid()
    _redirect(record)
    record.take_ownership()

    def notify_started() -> None:
        os.write(write_end, _STARTED)
        os.close(write_end)

    return notify_started


def _redirect(record: Record) -> None:
    """Redirect standard input and output to the null device, and errors to the record."""
    null = os.open(os.devnull, os.O_RDWR)
    errors = os.open(record.errors, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    for number, target in ((null, 0), (null, 1), (errors, 2)):
        os.dup2(number, target)
    os.close(null)
    os.close(errors)
