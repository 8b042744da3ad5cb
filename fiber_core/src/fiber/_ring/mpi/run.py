"""Entry point of a run of ``mpirun``: connects it to this process's streams and signals."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import threading
from collections.abc import Callable, Iterator

from fiber._ring.mpi.arguments import RunSpec
from fiber._ring.mpi.conductor import Conductor, Stopped
from fiber._ring.mpi.crew import Crew
from fiber._ring.mpi.timing import MpiTiming
from fiber._ring.mpi.vigil import Verdict
from fiber._runtime import runtime

__all__ = ["run"]

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_CHUNK_SIZE = 64 * 1024


def run(plan: RunSpec) -> Verdict:
    """Run mpirun to its end with this process's standard streams, and return its outcome.

    Raises:
        FiberError: mpirun was not started; the text has the reason, and all jobs have ended.
    """
    timing = MpiTiming.at(runtime.current().timing.scale)
    crew = Crew(plan.token, plan.start_timeout, timing)
    conductor = Conductor(plan, crew, output=_write, timing=timing)
    with _signals(crew.put), contextlib.ExitStack() as stack:
        stack.callback(crew.end)
        stack.enter_context(_input(conductor))
        try:
            return conductor.run()
        except Stopped as stopped:
            return Verdict(128 + stopped.number, is_asked=True)


@contextlib.contextmanager
def _signals(put: Callable[[int], None]) -> Iterator[None]:
    # ignored signals stay ignored, as nohup wants
    handled = [number for number in _SIGNALS if signal.getsignal(number) is not signal.SIG_IGN]
    before = {number: signal.signal(number, lambda got, _: put(got)) for number in handled}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def _input(conductor: Conductor) -> Iterator[None]:
    """Forward standard input to mpirun while the block runs."""
    ending, end = os.pipe()
    thread = threading.Thread(
        target=_read, args=(conductor, ending), name="fiber-mpirun-input", daemon=True
    )
    thread.start()
    try:
        yield
    finally:
        os.write(end, b"x")
        thread.join()
        os.close(ending)
        os.close(end)


def _read(conductor: Conductor, ending: int) -> None:
    conductor.started.wait()
    poll = select.poll()
    poll.register(ending, select.POLLIN)
    poll.register(0, select.POLLIN)
    while True:
        if any(descriptor == ending for descriptor, _ in poll.poll()):
            return
        try:
            data = os.read(0, _CHUNK_SIZE)
        except OSError:
            data = b""
        conductor.feed(data)
        if not data:
            return


def _write(stream: int, data: bytes) -> None:
    # the reader may have gone; the run goes on
    with contextlib.suppress(OSError):
        while data:
            data = data[os.write(stream, data) :]
