"""One ring of a command, from its start to its end, with its record, its lines and its control.

What a member of ``fiber ring run`` does: it runs a command, whose lines go to who began the ring.

A ring of a command that goes on when the command that began it has ended: its owner is left.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

from fiber import queues
from fiber._base import values
from fiber._ring.command_rings import records
from fiber._ring.command_rings.control import Control
from fiber._ring.command_rings.records import Record, described
from fiber._ring.model import RingError, RingPhase, RingStatus
from fiber._ring.ring import Ring
from fiber._runtime import runtime
from fiber.exceptions import FiberError

__all__ = ["Finished", "Line", "Work", "left", "run"]


@values.frozen
class Line:
    """A line that a rank's command wrote."""

    rank: int
    host: str
    text: str


@values.frozen
class Finished:
    """A rank's command has ended."""

    rank: int
    host: str
    #: exit code, or minus the signal
    code: int


@values.frozen
class Work:
    """A command for every rank; the environment says which one it is."""

    #: program and arguments
    argv: tuple[str, ...]
    #: where lines and ends are told
    queue: Any

    def __call__(self, rank: int, size: int) -> None:
        """Run it, and end this process as it ended."""
        host = socket.gethostname()
        environ = {
            "RANK": str(rank),
            "WORLD_SIZE": str(size),
            "PYTHONUNBUFFERED": "1",
            **os.environ,
        }
        # it is of the job's own group, and ends with the job however that ends
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
                self.queue.put(Line(rank, host, line.rstrip("\n")))
        self.queue.put(Finished(rank, host, process.returncode))
        if process.returncode:
            code = process.returncode
            raise SystemExit(128 - code if code < 0 else code)


_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
#: between two writings of a status that nobody asked for
_PULSE = 1.0


def run(
    record: Record,
    argv: tuple[str, ...],
    workers: int,
    *,
    begun: Callable[[], None] = lambda: None,
    **options: Any,
) -> int:
    """Run a command in every rank of a ring; the exit code of the first that failed.

    Args:
        record: of the ring.
        argv: the command.
        workers: how many jobs.
        begun: called once it has been started.
        **options: of :class:`~fiber._ring.ring.Ring`.

    Raises:
        FiberError: the ring cannot be started.
    """
    current = runtime.current()
    door = str(current.directory / "ring.sock")
    record.owned(backend=current.info.name, door=door)
    queue: Any = queues.SimpleQueue()
    ring = Ring(workers, Work(argv, queue), name=record.name, **options)
    codes: dict[int, int] = {}

    def status() -> dict[str, Any]:
        found = described(ring.status())
        return {**found, "codes": {str(rank): codes[rank] for rank in sorted(codes)}}

    ring.start()
    records.count(created=1)
    reader = threading.Thread(
        target=_read, args=(queue, record, codes), name="fiber-ring-lines", daemon=True
    )
    reader.start()
    asked: list[int] = []
    answers: dict[str, Callable[..., Any]] = {
        "status": status,
        "suspend": ring.suspend,
        "resume": ring.resume,
        "resize": lambda jobs: ring.resize(int(jobs)),
        "terminate": ring.terminate,
    }
    try:
        with contextlib.closing(Control(door, answers)), _signals(ring, asked):
            record.write(status())
            begun()
            return _attend(ring, record, status, asked)
    finally:
        queue.put(None)
        reader.join()
        record.write(status())
        _count(ring.status())


def _count(status: RingStatus) -> None:
    """What became of it is counted once, at its end."""
    records.count(
        succeeded=int(status.phase is RingPhase.SUCCEEDED),
        failed=int(status.phase is not RingPhase.SUCCEEDED),
        restarts=status.restarts,
    )


def _attend(ring: Ring, record: Record, status: Any, asked: list[int]) -> int:
    written: RingStatus | None = None
    while True:
        now = ring.status()
        if now != written:
            record.write(status())
            written = now
        try:
            if ring.join(_PULSE) is not None:
                return 0
        except RingError as error:
            if asked:
                return 128 + asked[0]
            sys.stderr.write(f"fiber: {error}\n")
            code = error.failure.exit_code
            return 1 if code is None else 128 - code if code < 0 else code or 1


@contextlib.contextmanager
def _signals(ring: Ring, asked: list[int]) -> Iterator[None]:
    def heard(number: int, _: object) -> None:
        asked.append(number)
        threading.Thread(target=ring.terminate, name="fiber-ring-end").start()

    wanted = [number for number in _SIGNALS if signal.getsignal(number) is not signal.SIG_IGN]
    before = {number: signal.signal(number, heard) for number in wanted}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _read(queue: Any, record: Record, codes: dict[int, int]) -> None:
    with record.log.open("a", buffering=1, errors="backslashreplace") as log:
        while (told := queue.get()) is not None:
            if isinstance(told, Finished):
                codes[told.rank] = told.code
            elif isinstance(told, Line):
                log.write(f"{told.rank}\t{told.host}\t{told.text}\n")
                # who read our output may have gone
                with contextlib.suppress(OSError):
                    sys.stdout.write(f"[{told.rank}@{told.host}] {told.text}\n")
                    sys.stdout.flush()


_BEGUN = b"+"


def left(record: Record) -> Callable[[], None] | None:
    """Split this process: one half returns to who called it, the other one owns the ring.

    It must be called before anything was opened or started.

    Args:
        record: of the ring; what its owner writes is found there.

    Returns:
        in the owner, what it must call once the ring has been started; in the half that was called
        None, once that has happened.

    Raises:
        FiberError: the ring was not started, with what its owner wrote.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    told, tell = os.pipe()
    pid = os.fork()
    if pid:
        os.close(tell)
        with open(told, "rb") as answer:
            has_begun = answer.read(1) == _BEGUN
        if not has_begun:
            _, status = os.waitpid(pid, 0)
            text = record.errors.read_text(errors="replace").strip() or f"it ended with {status}"
            record.remove()
            msg = f"{record.name} was not started: {text.removeprefix('fiber: ')}"
            raise FiberError(msg)
        return None
    os.close(told)
    # signals of the terminal are for others now
    os.setsid()
    _redirect(record)
    record.owned()

    def begun() -> None:
        os.write(tell, _BEGUN)
        os.close(tell)

    return begun


def _redirect(record: Record) -> None:
    """Standard input and output lead nowhere, errors to the record."""
    nowhere = os.open(os.devnull, os.O_RDWR)
    errors = os.open(record.errors, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    for number, target in ((nowhere, 0), (nowhere, 1), (errors, 2)):
        os.dup2(number, target)
    os.close(nowhere)
    os.close(errors)
