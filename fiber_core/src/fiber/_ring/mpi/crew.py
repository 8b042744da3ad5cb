"""Member agents of a run as its controller sees them: jobs, pipes, and one queue of events."""

from __future__ import annotations

import contextlib
import os
import queue
import secrets
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from multiprocessing.connection import wait
from typing import TYPE_CHECKING, Any, TypeAlias, cast

from fiber._base import values
from fiber._base.waits import next_item
from fiber._ring.mpi import messages
from fiber._ring.mpi.station import serve
from fiber._ring.mpi.timing import MpiTiming
from fiber._runtime import runtime
from fiber.connection import Pipe
from fiber.exceptions import FiberError, StartError
from fiber.model import Gang, ResourceRequest, Volume
from fiber.process import Process

if TYPE_CHECKING:
    from fiber._launch.child import Child
    from fiber.model import JobStatus

__all__ = ["Crew", "Event", "Lost", "Need"]


@values.frozen(kw_only=True)
class Need:
    """What a station's job asks of the platform; None and empty mean what the settings say."""

    resources: ResourceRequest = values.field(factory=ResourceRequest)
    image: str | None = None
    volumes: tuple[Volume, ...] = ()


@values.frozen
class Lost:
    """A station has ended, or was given up."""

    why: str


#: a station's name and what came from it, or the number of a signal for us
Event: TypeAlias = tuple[str, "messages.FromStation | Lost"] | int


class _Stations(Process):
    """The stations of one job, whose job has needs of its own.

    Args:
        names: of its stations, each in a process of its own.
        ends: their ends of pipes, in the same order.
        token: what stations show each other.
        timing: durations of the run.
    """

    def __init__(
        self,
        names: tuple[str, ...],
        ends: Sequence[Any],
        token: str,
        timing: MpiTiming,
    ) -> None:
        super().__init__(name=names[-1], daemon=True)
        self._names, self._ends, self._token = names, list(ends), token
        self._timing = timing

    def run(self) -> None:
        """Be one of them."""
        index = runtime.current().index
        for other in [end for number, end in enumerate(self._ends) if number != index]:
            other.close()
        serve(self._ends[index], self._names[index], self._token, self._timing)


def _options(
    names: tuple[str, ...], need: Need, gang: Gang, ended: Callable[[int, str], None]
) -> dict[str, Any]:
    """How the job of some stations is launched.

    Args:
        names: of its stations.
        need: what it asks of the platform.
        gang: the jobs that it is of use with.
        ended: called with the number of one that has ended before the job, and why.
    """
    asked, config = need.resources, runtime.current().config

    def told(_: Child, status: JobStatus) -> None:
        for one in status.processes:
            if one.state.is_terminal:
                ended(one.index, one.message or _code(one.exit_code))

    return {
        "resources": ResourceRequest(
            cpu=config.cpu if asked.cpu is None else asked.cpu,
            memory=config.memory if asked.memory is None else asked.memory,
            devices=asked.devices,
        ),
        "image": need.image,
        "volumes": need.volumes,
        "processes": len(names),
        "gang": gang,
        "on_status": told if len(names) > 1 else None,
    }


class Crew:
    """Starts stations, tells them what to do, and collects what they say.

    Args:
        token: what stations show each other.
        start_timeout: seconds within which all of them are to run.
        timing: durations of the run, also of the stations.
    """

    def __init__(self, token: str, start_timeout: float, timing: MpiTiming) -> None:
        self._timing = timing
        self._token = token
        self._start_timeout = start_timeout
        self._processes: dict[str, _Stations] = {}
        self._pipes: dict[str, Any] = {}
        self._threads: list[threading.Thread] = []
        self._lock = threading.Lock()
        self._lost: set[str] = set()
        # put() may be called by a signal handler, in the middle of get()
        self._events: queue.SimpleQueue[Event] = queue.SimpleQueue()
        self._woken, self._wake = os.pipe()

    def start(self, jobs: Mapping[tuple[str, ...], Need]) -> None:
        """Start jobs, each with the stations that it is named by; each says Up, or is Lost.

        Raises:
            SubmitError: the platform refuses one.
        """
        name = f"mpirun-{secrets.token_hex(2)}"
        gang = Gang(name=name, size=len(jobs), timeout=self._start_timeout)
        made: list[tuple[Any, dict[str, Any]]] = []
        given: list[Any] = []
        for names, need in jobs.items():
            pairs = [Pipe() for _ in names]
            ends = [theirs for _, theirs in pairs]
            process = _Stations(names, ends, self._token, self._timing)
            made.append((process, _options(names, need, gang, self._teller(names))))
            given += ends
            for name, (ours, _) in zip(names, pairs, strict=True):
                self._pipes[name] = ours
                self._processes[name] = process
        launcher = runtime.current().launcher
        try:
            for call in [made] if launcher.takes_many else [[one] for one in made]:
                for child in launcher.launch_many(call):
                    if isinstance(child, BaseException):
                        raise child
        finally:
            for end in given:
                end.close()
        for name, pipe in self._pipes.items():
            self._spawn(self._read, name, pipe)
        self._spawn(self._watch)

    def _teller(self, names: tuple[str, ...]) -> Callable[[int, str], None]:
        return lambda number, why: self._lose(names[number], why)

    def tell(self, name: str, message: messages.ToStation) -> None:
        """Tell a station something; one that is gone hears nothing."""
        with contextlib.suppress(OSError):
            self._pipes[name].send(message)

    def put(self, event: Event) -> None:
        """Add an event, from any thread or a signal handler."""
        self._events.put(event)

    def get(self, until: float | None) -> Event | None:
        """The next event, or None after a time on the monotonic clock."""
        return next_item(self._events, until)

    def waits_for(self, name: str) -> str:
        """Why a station is not up yet, in the platform's words where it has any."""
        child = self._processes[name]._popen  # noqa: SLF001 - ours
        status = None if child is None else child.status
        if status is None:
            return "nothing is known of it"
        return status.message or f"it is {status.state.value}"

    def end(self) -> None:
        """End all stations, and wait for them."""
        named = {name: p for name, p in self._processes.items() if p._popen is not None}  # noqa: SLF001 - ours
        for name in named:
            self.tell(name, messages.Close())
        started = list(dict.fromkeys(named.values()))
        deadline = time.monotonic() + self._timing.end
        for process in started:
            if not _has_ended(process, deadline - time.monotonic()):
                process.kill()
        for process in started:
            _has_ended(process, self._timing.end)
        os.write(self._wake, b"x")
        for pipe in self._pipes.values():
            pipe.close()
        for thread in self._threads:
            thread.join()
        os.close(self._woken)
        os.close(self._wake)

    def _spawn(self, target: Any, *args: Any) -> None:
        thread = threading.Thread(target=target, args=args, name="fiber-crew", daemon=True)
        self._threads.append(thread)
        thread.start()

    def _read(self, name: str, pipe: Any) -> None:
        while True:
            try:
                self._events.put((name, pipe.recv()))
            except (EOFError, OSError):
                # why, the end of its process tells
                return

    def _watch(self) -> None:
        alive = {process.sentinel: process for process in self._processes.values()}
        while alive:
            ready = wait([self._woken, *alive])
            if self._woken in ready:
                return
            for sentinel in ready:
                process = alive.pop(cast(int, sentinel))
                for name in [n for n, other in self._processes.items() if other is process]:
                    self._lose(name, _how(process))

    def _lose(self, name: str, why: str) -> None:
        """A station has ended; the first word on it counts, from any thread."""
        with self._lock:
            if name in self._lost:
                return
            self._lost.add(name)
        self._events.put((name, Lost(why)))


def _has_ended(process: Process, timeout: float) -> bool:
    try:
        process.join(max(0.0, timeout))
    except StartError:
        # it never was there
        return True
    return process.exitcode is not None


def _how(process: Process) -> str:
    child = process._popen  # noqa: SLF001 - ours
    status = None if child is None else child.status
    try:
        code = process.exitcode
    except FiberError as error:
        return str(error)
    if status is not None and status.message:
        return status.message
    return _code(code)


def _code(code: int | None) -> str:
    return f"its process ended with exit code {code}"
