"""One ring of a command, from its start to its end, with its record, its lines and its control."""

from __future__ import annotations

import contextlib
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

from fiber import queues
from fiber._ring.command_rings import totals
from fiber._ring.command_rings.control import Control
from fiber._ring.command_rings.member import Finished, Line, Work
from fiber._ring.command_rings.records import Record, described
from fiber._ring.errors import RingError
from fiber._ring.model import RingPhase, RingStatus
from fiber._ring.ring import Ring
from fiber._runtime import runtime

__all__ = ["run"]

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
    totals.count(created=1)
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
    totals.count(
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
