"""Values that tell how a program's work goes: the progress of one call, the status of a run.

They are facts of one moment, for people and for scripts; nothing of them is kept while nobody asks.
"""

from __future__ import annotations

import contextlib
import os
import sys
from typing import TYPE_CHECKING

from fiber._base import values
from fiber._base.entry_points import load_object

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = [
    "FailedTask",
    "PoolStatus",
    "ProcessState",
    "Progress",
    "QueueStatus",
    "RunStatus",
    "WorkerStatus",
    "status",
    "trace",
]


@values.frozen(kw_only=True)
class Progress:
    """Progress of one ``map``, ``imap`` or ``starmap``."""

    #: name of the function
    function: str
    #: items in all; None while an iterable is drawn whose length is not known
    total: int | None
    #: items that have ended, the failed ones among them
    done: int
    #: items that raised, or were given up
    failed: int
    #: seconds since it began
    elapsed: float
    #: workers that are ready
    workers: int
    #: workers that there should be
    wanted: int
    #: workers that wait for a place
    waiting: int
    #: why there are fewer than wanted, in the platform's words; "" where it has said nothing
    reason: str
    #: True for the last one: all items have ended, or no more will
    is_over: bool

    @property
    def rate(self) -> float:
        """Items a second so far."""
        return self.done / self.elapsed if self.elapsed > 0 else 0.0

    @property
    def remaining(self) -> float | None:
        """Seconds left at this rate; None where that cannot be told."""
        if self.total is None or not self.done:
            return None
        return max(0, self.total - self.done) * self.elapsed / self.done

    def __str__(self) -> str:
        parts = [f"{self.done} of {'?' if self.total is None else self.total} done"]
        if self.done:
            parts.append(f"{self.rate:.3g}/s")
        if self.remaining and not self.is_over:
            parts.append(f"{_span(self.remaining)} left")
        if self.is_over:
            parts.append(f"took {_span(self.elapsed)}")
        if self.failed:
            parts.append(f"{self.failed} failed")
        if not self.is_over:
            parts.append(self.crew)
        return ", ".join(parts)

    @property
    def crew(self) -> str:
        """The workers in words, and why there are no more."""
        if self.workers >= self.wanted:
            return f"{self.workers} workers"
        said = f"{self.workers} of {self.wanted} workers"
        if self.waiting:
            said += f", {self.waiting} {'waits' if self.waiting == 1 else 'wait'}"
        return f"{said}: {self.reason}" if self.reason else said


def _span(seconds: float) -> str:
    """A span of time: ``4.2 s``, ``3:05``, ``2:03:04``."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


@values.frozen(kw_only=True)
class WorkerStatus:
    """A worker of a pool or executor."""

    #: name, as in the log
    name: str
    #: host that it runs on; "" where that is not known yet
    host: str
    #: process id on that host, once known
    pid: int | None
    #: ``waiting`` for a place, ``starting``, ``idle``, ``busy``, ``leaving``, ``suspended`` by its
    #: platform, or ``stopped`` by a signal
    state: str
    #: why it waits or is suspended, in the platform's words
    reason: str
    #: items that it holds, those that wait on it among them
    running: int
    #: name of the function that it runs; "" where it holds nothing
    function: str
    #: seconds for which its current task has run, or the chunk of tasks where the call has a
    #: ``chunksize``; 0.0 where it holds nothing
    seconds: float = 0.0
    #: seconds of the median task, or chunk, of that call lately; None until one has ended
    usual: float | None = None
    #: True where the current task has run for a second and five times as long as usual
    is_slow: bool = False
    #: id of its job, by which ``fiber logs`` and ``fiber exec`` name it; "" until it has one
    job: str = ""
    #: bytes of its resident memory; None until it is known: a worker elsewhere is asked for it at the first
    #: look, and every five seconds while somebody looks
    memory: int | None = None
    #: tasks that it has finished
    done: int = 0
    #: seconds of its median task lately, of the function that it ran last; None until eight of its reports
    #: came: short tasks are reported several at once
    lately: float | None = None
    #: seconds of a task on the other workers lately, where this one takes at least twice as long; else None
    others: float | None = None


@values.frozen(kw_only=True)
class FailedTask:
    """A task that raised, or was given up."""

    #: name of its function
    function: str
    #: position among the items of its call
    item: int
    #: class and text of its error, shortened
    error: str
    #: seconds since the epoch
    when: float
    #: traceback in its worker, the end of a long one; "" where there is none, as of one given up
    traceback: str = ""
    #: name of the worker that ran it; "" where that has ended
    worker: str = ""
    #: name for ``fiber replay``; "" where it is not kept
    replay: str = ""


@values.frozen(kw_only=True)
class PoolStatus:
    """A pool or executor; where its functions ask for different resources, one for each of these."""

    #: name, as in the log
    name: str
    #: workers that there should be
    wanted: int
    #: workers that are ready
    ready: int
    #: why there are fewer than wanted, in the platform's words; "" where it has said nothing
    reason: str
    #: items that no worker holds
    waiting: int
    #: items that workers hold
    running: int
    #: items that have ended, the failed ones among them
    done: int
    #: items that raised, or were given up
    failed: int
    #: items that ran again because a worker was lost
    retried: int
    #: the workers that have not ended
    workers: tuple[WorkerStatus, ...]
    #: the last tasks that failed, oldest first, eight at most
    errors: tuple[FailedTask, ...]

    @property
    def states(self) -> Mapping[str, int]:
        """Number of workers in each state."""
        found: dict[str, int] = {}
        for worker in self.workers:
            found[worker.state] = found.get(worker.state, 0) + 1
        return found


@values.frozen(kw_only=True)
class ProcessState:
    """A process that the program has started, and that is no worker of a pool."""

    #: its name
    name: str
    #: host that it runs on; "" where that is not known yet
    host: str
    #: process id on that host, once known
    pid: int | None
    #: as ``fiber ps`` has it: ``pending``, ``running``, ``suspended``
    state: str
    #: why, in the platform's words
    reason: str
    #: id of its job, by which ``fiber logs`` and ``fiber exec`` name it; "" until it has one
    job: str = ""


@values.frozen(kw_only=True)
class QueueStatus:
    """A queue that the program has made and sent to another process."""

    #: its number in the program
    number: int
    #: items in it
    length: int


@values.frozen(kw_only=True)
class RunStatus:
    """A run as one of its processes sees it: what that has started, at one moment."""

    #: id of the run; "" where nothing was started yet
    run: str
    #: name of the backend
    backend: str
    #: process id of the program
    pid: int
    #: words of its command line
    program: tuple[str, ...]
    #: its pools and executors
    pools: tuple[PoolStatus, ...]
    #: its other processes
    processes: tuple[ProcessState, ...]
    #: its queues
    queues: tuple[QueueStatus, ...]
    #: host of the program
    host: str = ""
    #: bytes of the program's own resident memory; None where that is not known
    memory: int | None = None


def status() -> RunStatus:
    """Return the present status of the pools, processes and queues of this process.

    It is made from what they know anyhow, by a walk over all workers and calls; a program that does
    not ask pays nothing.
    """
    from fiber._runtime import runtime

    started = runtime.started()
    if started is None:
        return RunStatus(
            run="",
            backend="",
            pid=os.getpid(),
            program=tuple(map(str, sys.argv)),
            pools=(),
            processes=(),
            queues=(),
            host=os.uname().nodename,
        )
    # by name: what collects is built upon these values
    found: RunStatus = load_object("fiber._watch.status:collect")(started)
    return found


def trace(path: str | os.PathLike[str]) -> contextlib.AbstractContextManager[object]:
    """Write a timeline of this process's pools and executors to a file, until the program ends.

    It has a row for each worker, with what it ran, and marks for deaths and failures.
    https://ui.perfetto.dev shows it, and ``fiber trace summary`` says in words what is in it. A disk that
    is full ends the trace and nothing else.

    Args:
        path: the file, which is written anew.

    Returns:
        The trace; in a ``with`` statement it ends with the block.

    Raises:
        OSError: the file cannot be written.
    """
    from fiber._runtime import runtime

    # by name: what writes it is built upon these values
    begun: contextlib.AbstractContextManager[object] = load_object("fiber._watch.trace:Trace")(
        runtime.current(), path
    )
    return begun
