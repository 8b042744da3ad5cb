"""Timeline of a program's pools as a file of trace events, which Perfetto and Chrome show.

A :class:`GroupTrace` notes what the dispatcher of one group does, a tuple an event; the thread of
:class:`Trace` makes lines of them and writes them. A file that cannot be written ends the trace, and
nothing else. Apart from ``status``, since programs that write traces answer nobody. https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU has the format.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import json
import logging
import os
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from multiprocessing import util
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Generic, Protocol, TextIO, TypeVar

from fiber._tasks.dispatcher import Tracer, text_of
from fiber._workers.group import WorkerGroup

if TYPE_CHECKING:
    from fiber._runtime.runtime import Runtime
    from fiber._tasks.call import Call
    from fiber._tasks.pending.events import Dispatch
    from fiber._tasks.protocol import Done
    from fiber.model.job import Attempt

log = logging.getLogger("fiber")

#: most events that wait to be written; more are counted only
_MOST_WAITING = 500_000
#: most characters of the text of an error
_MOST_TEXT = 200
#: row of the pool itself
_POOL_ROW = 0


class OfGroup(Tracer, Protocol):
    """Recorder of the tasks of one group."""

    @property
    def group(self) -> WorkerGroup:
        """The group."""


Noted = TypeVar("Noted", bound=OfGroup)


class Traces(Generic[Noted]):
    """Recorders of the tasks of all groups of a program.

    Args:
        runtime: of the program.
        make: makes what notes the tasks of one group.
    """

    def __init__(self, runtime: Runtime, make: Callable[[WorkerGroup], Noted]) -> None:
        self._runtime = runtime
        self._make = make
        self._lock = threading.Lock()
        self._noted: list[Noted] = []

    def of(self, group: WorkerGroup) -> Noted:
        """Make what notes the tasks of one group."""
        made = self._make(group)
        with self._lock:
            self._noted.append(made)
        return made

    def noted(self) -> list[Noted]:
        """Recorders of all groups; that of a group which is over is returned for the last time."""
        with self._lock:
            found, parts = self._noted, self._runtime.parts
            self._noted = [one for one in found if one.group in parts]
            return found

    def attach(self) -> None:
        """Record tasks from now on, of all present and future groups."""
        self._runtime.traces.append(self)
        for part in self._runtime.parts:
            if isinstance(part, WorkerGroup):
                part.trace(self, self.of(part))

    def detach(self) -> None:
        """Record no more tasks. Idempotent."""
        with contextlib.suppress(ValueError):
            self._runtime.traces.remove(self)
        for part in self._runtime.parts:
            if isinstance(part, WorkerGroup):
                part.trace(self, None)


#: an entry that a worker holds: its worker, call, function and stop, when its call was added and when
#: it was sent, and the mean size of an item. A plain tuple is made in a fifth of a named one's time.
_Held = tuple[str, int, str, int, float, float, float]
_WORKER: Final = 0
_STOP: Final = 3
#: tasks that a worker has reported: when they began, for how long they ran, the group's number, the
#: worker's row, their entry, the first of them, how many, seconds in the worker, bytes of results
_Tasks = tuple[float, float, int, int, _Held, int, int, float, int]
#: the latter, or a rarer event as it is written
_Event = _Tasks | dict[str, Any]


#: a name as text of JSON
_quoted = functools.lru_cache(maxsize=1024)(json.dumps)


def _line_of(event: _Event, start: float) -> str:
    """The line of an event; ``start`` is when the trace began, on the monotonic clock."""
    if isinstance(event, dict):
        if "ts" in event:
            event["ts"] = round((event["ts"] - start) * 1e6)
        return json.dumps(event, default=str)
    begin, lasted, group, row, held, first, count, seconds, size = event
    _, call, function, _, added, sent, item_size = held
    # a quarter of the time of json.dumps(): there is one for each message of a worker
    return (
        f'{{"name": {_quoted(function)}, "cat": "task", "ph": "X", "ts": {(begin - start) * 1e6:.0f}, '
        f'"dur": {lasted * 1e6:.0f}, "pid": {group}, "tid": {row}, "args": {{"call": {call}, '
        f'"first": {first}, "count": {count}, "seconds": {seconds:.9f}, '
        f'"waited": {max(0.0, sent - added):.9f}, "held": {max(0.0, begin - sent):.9f}, '
        f'"bytes_in": {item_size * count:.0f}, "bytes_out": {size}}}}}'
    )


class GroupTrace:
    """Receiver of what the dispatcher of one group reports; called under its lock.

    Args:
        trace: receives the events.
        number: of the group, unique in the trace.
        group: the group.
    """

    def __init__(self, trace: Trace, number: int, group: WorkerGroup) -> None:
        self._trace = trace
        self._number = number
        self.group = group
        self._added: dict[int, float] = {}
        self._held: dict[int, _Held] = {}
        #: rows by worker, and when the last task of each ended
        self._rows: dict[str, int] = {}
        self._ends: dict[str, float] = {}
        #: workers that were ready and wanted at the last look, and why they are fewer
        self._outlook: tuple[int, int, str] | None = None
        self._note("process_name", _POOL_ROW, name=group.name)
        self._note("thread_name", _POOL_ROW, name="the pool")

    def added(self, call: Call) -> None:
        """A call was added."""
        self._added[call.number] = time.monotonic()
        self._mark(_POOL_ROW, f"{call.name} begins", items=call.count)

    def ended(self, call: Call) -> None:
        """A call is over."""
        self._added.pop(call.number, None)
        self._mark(_POOL_ROW, f"{call.name} ends", items=call.count)

    def dispatched(self, worker: str, step: Dispatch, call: Call, size: float) -> None:
        """An entry was sent to a worker."""
        now = time.monotonic()
        added = self._added.get(call.number, now)
        self._held[step.entry] = worker, call.number, call.name, step.stop, added, now, size
        if worker not in self._rows:
            self._rows[worker] = row = len(self._rows) + 1
            self._note("thread_name", row, name=self._name_of(worker))

    def done(self, worker: str, done: Done, size: int, later: float = 0.0) -> None:
        """A worker has reported tasks."""
        held = self._held.get(done.entry)
        if held is None or held[_WORKER] != worker:
            return
        if done.stop >= held[_STOP]:
            del self._held[done.entry]
        end = time.monotonic() - later
        begin = min(max(end - done.seconds, self._ends.get(worker, 0.0)), end)
        self._ends[worker] = end
        count = done.stop - done.start
        self._trace.put(
            (
                begin,
                end - begin,
                self._number,
                self._rows[worker],
                held,
                done.start,
                count,
                done.seconds,
                size,
            )
        )

    def failed(self, call: Call, errors: Mapping[int, BaseException | None]) -> None:
        """Some tasks have failed."""
        for index, error in errors.items():
            if error is not None:
                name, said = type(error).__name__, " ".join(text_of(error).split())[:_MOST_TEXT]
                text = f"{call.name}[{index}] failed: {name}{f': {said}' if said else ''}"
                count = sum(one is not None for one in errors.values())
                facts = {"function": call.name, "item": index, "error": name, "text": said}
                self._mark(_POOL_ROW, text, kind="failed", count=count, **facts)
                return

    def look(self) -> None:
        """Note how many workers there are, where that has changed; for the trace's thread."""
        if not self.group.began:
            return
        outlook = self.group.manager.outlook()
        now = outlook.ready, outlook.desired, outlook.reason
        if now == self._outlook:
            return
        self._outlook = now
        self._trace.put(
            {
                "name": "workers",
                "cat": "workers",
                "ph": "C",
                "ts": time.monotonic(),
                "pid": self._number,
                "args": {"ready": now[0], "missing": max(0, now[1] - now[0])},
            }
        )
        if now[0] < now[1] and now[2]:
            text = f"{now[1] - now[0]} of {now[1]} workers are missing: {now[2]}"
            self._mark(_POOL_ROW, text, kind="missing", reason=now[2])

    def lost(self, worker: str, attempt: Attempt | None, requeued: int, abandoned: int) -> None:
        """A worker has ended."""
        for entry in [number for number, held in self._held.items() if held[_WORKER] == worker]:
            del self._held[entry]
        row = self._rows.get(worker, _POOL_ROW)
        if attempt is None:
            text, why = "disconnected", "disconnected"
        else:
            text, why = f"{attempt.worker} ended: {attempt.reason}", str(attempt.reason)
        kind = "death" if requeued or abandoned else "end"
        self._mark(row, text, kind=kind, reason=why, again=requeued, given_up=abandoned)

    def _name_of(self, worker: str) -> str:
        for record in self.group.records():
            if record.ident == worker:
                host = record.child.host
                return f"{record.name} on {host}" if host else record.name
        return worker

    def _mark(self, row: int, text: str, /, **facts: Any) -> None:
        self._trace.put(
            {
                "name": text,
                "cat": "mark",
                "ph": "i",
                "s": "t" if row else "p",
                "ts": time.monotonic(),
                "pid": self._number,
                "tid": row,
                "args": facts,
            }
        )

    def _note(self, what: str, row: int, **facts: Any) -> None:
        self._trace.put({"name": what, "ph": "M", "pid": self._number, "tid": row, "args": facts})


class Trace:
    """A trace that is being written; a context manager that ends with its block.

    Args:
        runtime: whose groups are traced, those there are and those to come.
        path: the file, which is written anew.

    Raises:
        OSError: it cannot be written.
    """

    def __init__(self, runtime: Runtime, path: str | os.PathLike[str]) -> None:
        self.path = Path(path).absolute()
        self._runtime = runtime
        self._began = time.monotonic()
        self._waiting: deque[_Event] = deque()
        self._dropped = 0
        self._numbers = itertools.count(1)
        self._traces = Traces(runtime, self._of)
        self._closing = threading.Event()
        self._is_closed = False
        file = self.path.open("w", encoding="utf-8")
        # a viewer takes a file without its end, too: a program that is killed leaves one, or an empty one
        head = {
            "run": runtime.run_id,
            "pid": os.getpid(),
            "program": sys.argv,
            "began": time.time(),
        }
        file.write("[\n" + json.dumps({"name": "fiber", "ph": "M", "pid": 0, "args": head}))
        self._thread = threading.Thread(
            target=self._run, args=(file,), name="fiber-trace", daemon=True
        )
        runtime.own(self)
        self._traces.attach()
        # after the finalizers of pools, whose last tasks belong to it
        self._finalizer = util.Finalize(None, self.close, exitpriority=5)
        self._thread.start()

    def _of(self, group: WorkerGroup) -> GroupTrace:
        return GroupTrace(self, next(self._numbers), group)

    def put(self, event: _Event) -> None:
        """Take an event, its times on the monotonic clock; never waits."""
        if self._is_closed or len(self._waiting) >= _MOST_WAITING:
            self._dropped += 1
            return
        self._waiting.append(event)

    def close(self) -> None:
        """End the trace and complete the file; idempotent."""
        if self._closing.is_set():
            return
        self._closing.set()
        self._finalizer.cancel()
        self._traces.detach()
        self._runtime.disown(self)
        # a disk that takes for ever must not keep the program
        self._thread.join(self._runtime.timing.report)

    def __enter__(self) -> Trace:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- its thread

    def _run(self, file: TextIO) -> None:
        try:
            with file:
                is_over = False
                while not is_over:
                    is_over = self._closing.wait(self._runtime.timing.progress)
                    for one in self._traces.noted():
                        one.look()
                    self._write(file)
                if self._dropped:
                    log.warning(
                        "fiber: %d events are missing in %s: the disk was too slow",
                        self._dropped,
                        self.path,
                    )
                file.write("\n]\n")
        except OSError as error:
            log.warning(
                "fiber: trace %s ends before its program, whose tasks go on: %s", self.path, error
            )
        finally:
            self._is_closed = True
            self._waiting.clear()

    def _write(self, file: TextIO) -> None:
        file.writelines(
            ",\n" + _line_of(self._waiting.popleft(), self._began)
            for _ in range(len(self._waiting))
        )
        file.flush()
