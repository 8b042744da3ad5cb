"""Status of a run: made of what its parts know, when somebody asks; and asked for at other programs.

:func:`collect` tells of this process. :class:`Answers` is one connection's at this program's status socket,
and :class:`Asker` the other end, in a program of this user on this host. :class:`Timeline` notes what workers
ran since its last look. The noting begins with the first look and ends with the connection, so that a program
which nobody looks at pays nothing.
"""

from __future__ import annotations

import itertools
import json
import os
import socket
import sys
import time
from collections import deque
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fiber._base import light_values, values
from fiber._base.interpreter import resident
from fiber._objects.address import Kind
from fiber._objects.queue.channel import Channel
from fiber._objects.store import Store
from fiber._runtime.inspection import NAME
from fiber._tasks.dispatcher import HeldTasks
from fiber._watch.trace import Traces
from fiber._workers.group import WorkerGroup
from fiber.exceptions import FiberError
from fiber.model import JobState
from fiber.watching import (
    FailedTask,
    PoolStatus,
    ProcessState,
    QueueStatus,
    RunStatus,
    WorkerStatus,
)

if TYPE_CHECKING:
    from fiber._launch.child import Child
    from fiber._runtime.runtime import Runtime
    from fiber._tasks.call import Call
    from fiber._tasks.pending.events import Dispatch
    from fiber._tasks.protocol import Done
    from fiber._workers.state import WorkerRecord
    from fiber.model import Job
    from fiber.model.job import Attempt


#: a task is slow once it has run for so many times the median
_SLOW_FACTOR = 5.0
#: most spans that wait for the next look; older ones are left out, and counted
_MOST_SPANS = 20_000
#: how long short tasks of a worker together are one span, and how far they may lie apart: a thousand workers
#: with tasks of milliseconds make no more of them than an eye can tell apart
_SPAN, _GAP = 0.5, 0.05
#: most lines of a log, and characters of one
_MOST_LINES, _MOST_LINE = 2000, 4000


def collect(runtime: Runtime) -> RunStatus:
    """Return the status of a run as this process of it sees it."""
    groups = [part for part in runtime.parts if isinstance(part, WorkerGroup)]
    pools = tuple(of_group(group) for group in groups if group.began)
    workers = {record.child.ident for group in groups for record in group.records()}
    return RunStatus(
        run=runtime.run_id,
        backend=runtime.info.name,
        pid=os.getpid(),
        program=tuple(sys.argv),
        pools=pools,
        processes=tuple(
            _of_child(child) for child in runtime.children() if child.ident not in workers
        ),
        queues=tuple(
            QueueStatus(number=shared.target, length=shared.size(0))
            for part in runtime.parts
            if isinstance(part, Store)
            for shared in part.owned()
            if isinstance(shared, Channel) and shared.kind is Kind.QUEUE
        ),
        host=os.uname().nodename,
        memory=resident(),
    )


def as_data(runtime: Runtime) -> dict[str, Any]:
    """Return :func:`collect` as what JSON can hold."""
    data: dict[str, Any] = light_values.plain(collect(runtime))
    return data


def of_group(group: WorkerGroup) -> PoolStatus:
    """Return the status of one group of workers."""
    tasks, outlook = group.dispatcher.look(), group.manager.outlook()
    # numbers of processes elsewhere, or in containers, mean others here: these tell themselves
    reported = None if group.is_here else group.dispatcher.ask_memory(group.timing.memory_look)
    workers = tuple(
        _of_worker(one, tasks.held.get(one.ident, HeldTasks()), group.timing.slow_task, reported)
        for one in group.records()
    )
    names = {one.ident: one.name for one in group.records()} if tasks.errors else {}
    return PoolStatus(
        name=group.name,
        wanted=outlook.desired,
        ready=outlook.ready,
        reason=outlook.reason,
        waiting=tasks.waiting,
        running=tasks.running,
        done=tasks.done,
        failed=tasks.failed,
        retried=tasks.retried,
        workers=workers,
        errors=tuple(
            FailedTask(**{**values.asdict(one), "worker": names.get(one.worker, "")})
            for one in tasks.errors
        ),
    )


def _of_worker(
    record: WorkerRecord,
    held: HeldTasks,
    slow: float,
    reported: Mapping[str, int | None] | None = None,
) -> WorkerStatus:
    child, status = record.child, record.child.status
    process = child.process_status(record.index)
    if record.suspended_at is not None:
        state = "suspended"
    elif record.stopped_at is not None:
        state = "stopped"
    elif record.leaving or record.killed_at is not None:
        state = "leaving"
    elif not record.ready:
        state = "waiting" if status is not None and _is_pending(child) else "starting"
    else:
        state = "busy" if held.items else "idle"
    pid = None if process is None else process.pid
    here = None if pid is None or reported is not None else resident(pid)
    said = status.message if status is not None and state in {"suspended", "waiting"} else ""
    return WorkerStatus(
        name=record.name,
        host=child.host,
        pid=pid,
        state=state,
        reason=said,
        running=held.items,
        function=held.function,
        seconds=round(held.seconds, 3),
        usual=held.usual,
        is_slow=_is_slow(held, slow),
        done=held.done,
        lately=_rounded(held.lately.seconds),
        others=_rounded(held.lately.others),
        job=_job_of(child),
        memory=here if reported is None else reported.get(record.ident),
    )


def _rounded(seconds: float | None) -> float | None:
    return None if seconds is None else float(f"{seconds:.3g}")


def _is_slow(held: HeldTasks, least: float) -> bool:
    if held.usual is None:
        return False
    return held.seconds >= max(least, _SLOW_FACTOR * held.usual)


def _of_child(child: Child) -> ProcessState:
    status = child.status
    return ProcessState(
        name=child.name,
        host=child.host,
        pid=child.known_pid,
        state="starting" if status is None else status.state.value,
        reason="" if status is None else status.message,
        job=_job_of(child),
    )


def _job_of(child: Child) -> str:
    return "" if child.job is None else child.job.id


def _is_pending(child: Child) -> bool:
    return child.status is not None and child.status.state is JobState.PENDING


@values.define(eq=False)
class _Span:
    """Tasks of one function that a worker ran without a pause."""

    #: on the monotonic clock
    begin: float
    end: float
    function: str
    #: items, and those of them that failed
    count: int
    failed: int


class GroupTimeline:
    """Receiver of what the dispatcher of one group reports; called under its lock."""

    def __init__(self, timeline: Timeline, group: WorkerGroup) -> None:
        self._timeline = timeline
        self.group = group
        #: functions of the entries that workers hold
        self._held: dict[int, tuple[str, str, int, int]] = {}
        self._spans: dict[str, _Span] = {}
        #: the last report: its call and items, and the span that they are in
        self._last: tuple[int, range, _Span] | None = None

    def added(self, call: Call) -> None:
        """A call was added."""

    def ended(self, call: Call) -> None:
        """A call is over."""

    def dispatched(self, worker: str, step: Dispatch, call: Call, size: float) -> None:
        """An entry was sent to a worker."""
        self._held[step.entry] = worker, call.name, call.number, step.stop

    def done(self, worker: str, done: Done, size: int, later: float = 0.0) -> None:
        """A worker has reported tasks."""
        # what was sent before this began is not known
        _, function, call, stop = self._held.get(done.entry, ("", "", 0, 0))
        if done.credits or done.stop >= stop:
            self._held.pop(done.entry, None)
        end, count = time.monotonic() - later, done.stop - done.start
        begin, span = end - done.seconds, self._spans.get(worker)
        if span is not None:
            begin = max(begin, span.end)
        if (
            span is not None
            and span.function == function
            and begin - span.end < _GAP
            and end - span.begin < _SPAN
        ):
            span.end = end
            span.count += count
        else:
            if span is not None:
                self._timeline.put(self.group.name, worker, span)
            span = self._spans[worker] = _Span(begin, end, function, count, 0)
        self._last = call, range(done.start, done.stop), span

    def failed(self, call: Call, errors: Mapping[int, BaseException | None]) -> None:
        """Some tasks have failed."""
        if self._last is not None:
            number, items, span = self._last
            # those of a worker that was lost are in no span
            if call.number == number or not number:
                span.failed += sum(index in items for index in errors)

    def lost(self, worker: str, attempt: Attempt | None, requeued: int, abandoned: int) -> None:
        """A worker has ended."""
        for entry in [number for number, held in self._held.items() if held[0] == worker]:
            del self._held[entry]
        span = self._spans.pop(worker, None)
        if span is not None:
            self._timeline.put(self.group.name, worker, span)

    def cut(self) -> None:
        """Hand out what there is."""
        for worker, span in self._spans.items():
            if span.count:
                self._timeline.put(self.group.name, worker, span)
                # what ends next does not begin before
                self._spans[worker] = _Span(span.end, span.end, "", 0, 0)
        self._last = None


class Timeline:
    """Tasks that the workers of a program's pools ran, since the last request.

    Args:
        runtime: of the program.
    """

    def __init__(self, runtime: Runtime) -> None:
        self._waiting: deque[tuple[str, str, _Span]] = deque(maxlen=_MOST_SPANS)
        self._missing = 0
        self._traces = Traces(runtime, lambda group: GroupTimeline(self, group))
        self._traces.attach()

    def put(self, pool: str, worker: str, span: _Span) -> None:
        """Take a span."""
        if span.count:
            self._missing += len(self._waiting) == _MOST_SPANS
            self._waiting.append((pool, worker, span))

    def look(self) -> dict[str, Any]:
        """Return what was run since the last look.

        ``spans`` has for each the pool, the name of the worker, the function, when it began and ended in
        seconds since the epoch, how many tasks it was and how many of them failed; ``missing`` is how many
        more there were.
        """
        names: dict[str, str] = {}
        for one in self._traces.noted():
            names.update((record.ident, record.name) for record in one.group.records())
            with one.group.dispatcher.lock:
                one.cut()
        offset = time.time() - time.monotonic()
        spans = []
        for _ in range(len(self._waiting)):
            pool, worker, span = self._waiting.popleft()
            begin, end = round(span.begin + offset, 3), round(span.end + offset, 3)
            name = names.get(worker, worker)
            spans.append((pool, name, span.function, begin, end, span.count, span.failed))
        missing, self._missing = self._missing, 0
        return {"now": time.time(), "missing": missing, "spans": spans}

    def close(self) -> None:
        """End it."""
        self._traces.detach()


class Answers:
    """Answers to one connection.

    Args:
        runtime: of the program.
    """

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._timeline: Timeline | None = None

    def answer(self, wanted: object, request: Mapping[str, Any]) -> dict[str, Any]:
        """Return the status, the timeline since the last look of this connection, or lines of a log.

        Raises:
            FiberError: there is no such thing to ask for, or it cannot be told.
        """
        if wanted == "status":
            return as_data(self._runtime)
        if wanted == "timeline":
            if self._timeline is None:
                self._timeline = Timeline(self._runtime)
            return self._timeline.look()
        if wanted == "log":
            return self._log(str(request.get("job", "")), request.get("lines", _MOST_LINES))
        msg = f"there is no {wanted!r} to ask for; ask for 'status', 'timeline' or 'log'"
        raise FiberError(msg)

    def close(self) -> None:
        """End what is noted for this connection."""
        if self._timeline is not None:
            self._timeline.close()

    def _log(self, ident: str, lines: object) -> dict[str, Any]:
        job = self._job(ident)
        if not self._runtime.info.capabilities.logs:
            msg = f"{self._runtime.info.name} keeps no logs of jobs"
            raise FiberError(msg)
        most = min(lines, _MOST_LINES) if isinstance(lines, int) and lines > 0 else _MOST_LINES
        found = itertools.islice(self._runtime.backend.logs(job, tail=most), most)
        return {"job": ident, "lines": [line[:_MOST_LINE] for line in found]}

    def _job(self, ident: str) -> Job:
        for child in self._runtime.children():
            if child.job is not None and child.job.id == ident:
                return child.job
        msg = f"no worker or process that this program has now is job {ident!r}"
        raise FiberError(msg)


class Asker:
    """Connection to the program of a run, to ask how it goes again and again; a context manager.

    Args:
        folder: the run's.
        timeout: seconds to wait for an answer.

    Raises:
        FiberError: nobody answers there.
    """

    def __init__(self, folder: Path, timeout: float) -> None:
        self._run = folder.name
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.settimeout(timeout)
        try:
            self._socket.connect(str(folder / NAME))
        except OSError as error:
            self._socket.close()
            raise self._failure(error) from error
        self._answers = self._socket.makefile("rb")

    def status(self) -> dict[str, Any]:
        """Return the status as :class:`~fiber.watching.RunStatus` has it, of JSON's types.

        Raises:
            FiberError: the program does not answer any more.
        """
        return self.ask("status")

    def ask(self, what: str, **facts: object) -> dict[str, Any]:
        """Return what :class:`Answers` answers.

        Args:
            what: ``status``, ``timeline`` or ``log``.
            facts: which.

        Raises:
            FiberError: the program does not answer any more, or cannot tell that.
        """
        try:
            self._socket.sendall(json.dumps({"ask": what, **facts}).encode() + b"\n")
            answer = json.loads(self._answers.readline())
        except (OSError, ValueError) as error:
            raise self._failure(error) from error
        if not isinstance(answer, dict) or "error" in answer:
            said = answer.get("error") if isinstance(answer, dict) else answer
            msg = f"the program of run {self._run} answers: {said}"
            raise FiberError(msg)
        return answer

    def close(self) -> None:
        """Close the connection."""
        self._answers.close()
        self._socket.close()

    def __enter__(self) -> Asker:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _failure(self, cause: object) -> FiberError:
        return FiberError(f"the program of run {self._run} does not answer: {cause}")
