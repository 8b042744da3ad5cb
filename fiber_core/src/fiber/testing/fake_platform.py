"""Platform in memory for the fake backend: jobs are processes of this host, and faults on demand.

:class:`FakePlatform` accepts jobs and publishes their statuses; :class:`FakeJob` is a job,
:class:`FakeProcess` one of its processes, :class:`OutputLines` its output.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import attrs

from fiber._agent.resources import Allocator
from fiber._agent.supervisor.jobs import (
    ExitReport,
    combine,
    ended_before_start,
    not_started,
    report_exit,
)
from fiber.exceptions import BackendUnavailableError, ResourceError, SubmitError, UnknownJobError
from fiber.model import (
    Allocation,
    Device,
    Job,
    JobSpec,
    JobState,
    JobStatus,
    ProcessStatus,
    Reason,
    ReasonKind,
    Timing,
)

if TYPE_CHECKING:
    from fiber.abc import ResourceProvider

_TAIL = 10


class OutputLines:
    """Lines written by the processes of a job; thread-safe."""

    def __init__(self) -> None:
        self._lines: list[str] = []
        self._changed = threading.Condition()
        self._complete = False

    def read(self, fd: int) -> None:
        """Read lines from a descriptor until its end, and close it."""
        with os.fdopen(fd, "rb") as stream:
            for line in stream:
                text = line.removesuffix(b"\n").decode(errors="replace")
                with self._changed:
                    self._lines.append(text)
                    self._changed.notify_all()

    def complete(self) -> None:
        """Note that all lines were read."""
        with self._changed:
            self._complete = True
            self._changed.notify_all()

    def tail(self, count: int = _TAIL) -> tuple[str, ...]:
        """Return the last lines."""
        with self._changed:
            return tuple(self._lines[-count:])

    def __call__(self, tail: int | None, follow: bool) -> Iterator[str]:
        """Yield the lines; with ``follow`` until all were read."""
        with self._changed:
            position = 0 if tail is None else max(0, len(self._lines) - tail)

        def is_more() -> bool:
            return self._complete or len(self._lines) > position

        while True:
            with self._changed:
                if follow:
                    self._changed.wait_for(is_more)
                fresh = self._lines[position:]
                over = self._complete or not follow
            yield from fresh
            position += len(fresh)
            if over:
                return


class FakeProcess:
    """Process of a job: a process of this host in a session of its own.

    Args:
        index: its position within the job.
        lines: receives its output.
        on_change: called after each change of :attr:`status`, on a thread of its own.
        timing: has the seconds for the end of output that other processes hold open.
    """

    def __init__(
        self,
        index: int,
        lines: OutputLines,
        on_change: Callable[[FakeProcess], None],
        timing: Timing,
    ) -> None:
        self._timing = timing
        self.status = ProcessStatus(index=index, state=JobState.PENDING)
        self._lines = lines
        self._on_change = on_change
        self._lock = threading.Lock()
        self._pid: int | None = None

    def start(
        self,
        argv: Sequence[str],
        env: Mapping[str, str],
        cwd: str | None,
        private: bytes | None,
    ) -> None:
        """Start the program; a failure to start becomes a terminal status."""
        with contextlib.ExitStack() as stack:
            keep: list[int] = []
            environ = dict(env)
            if private is not None:
                file = stack.enter_context(tempfile.TemporaryFile(buffering=0))
                file.write(private)
                file.seek(0)
                keep.append(file.fileno())
                environ["FIBER_BOOTSTRAP"] = f"fd:{file.fileno()}"
            try:
                process = subprocess.Popen(
                    argv,
                    env=environ,
                    cwd=cwd,
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                    pass_fds=keep,
                )
            except OSError as error:
                self._end(not_started(f"{argv[0]} cannot be started: {error.strerror}"))
                return
        assert process.stdout is not None
        self._pid = process.pid
        self._set(state=JobState.RUNNING, pid=process.pid)
        reader = threading.Thread(
            target=self._lines.read, args=(os.dup(process.stdout.fileno()),), daemon=True
        )
        process.stdout.close()
        reader.start()
        threading.Thread(target=self._watch, args=(process, reader), daemon=True).start()

    def signal(self, number: int, *, group: bool = False) -> None:
        """Send a signal to the process or to its group; nothing happens after its end."""
        with self._lock, contextlib.suppress(ProcessLookupError, PermissionError):
            if self._pid is not None:
                (os.killpg if group else os.kill)(self._pid, number)

    def _watch(self, process: subprocess.Popen[bytes], reader: threading.Thread) -> None:
        pid = process.pid
        while True:
            _, status = os.waitpid(pid, os.WUNTRACED | os.WCONTINUED)
            if not os.WIFSTOPPED(status) and not os.WIFCONTINUED(status):
                break
            stopped = os.WIFSTOPPED(status)
            state = JobState.SUSPENDED if stopped else JobState.RUNNING
            why = Reason(ReasonKind.SIGNAL, os.WSTOPSIG(status)) if stopped else None
            self._set(state=state, reason=why)
        with self._lock:
            self._pid = None
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(pid, signal.SIGKILL)
        process.returncode = os.waitstatus_to_exitcode(status)
        reader.join(self._timing.output)
        self._end(report_exit(status), log_tail=self._lines.tail())

    def _end(self, report: ExitReport, **more: Any) -> None:
        self._set(**attrs.asdict(report, recurse=False), **more)

    def _set(self, **changes: Any) -> None:
        self.status = attrs.evolve(self.status, **changes)
        self._on_change(self)


def python_entry(entry: str, index: int) -> tuple[str, ...]:
    """Return an argv that calls an entry."""
    return (sys.executable, "-m", "fiber.testing.programs", entry, str(index))


_HOST = "fake-host"


class FakePlatform:
    """Platform of fake backends, which several may share; thread-safe.

    Args:
        devices: devices that jobs can be granted.
        timing: durations that it waits for.
    """

    #: name of its jobs' backend
    name = "fake"

    def __init__(self, devices: Sequence[Device] = (), timing: Timing = Timing()) -> None:
        #: durations that it waits for
        self.timing = timing
        #: False makes every request raise BackendUnavailableError
        self.available = True
        #: number of requests so far
        self.calls = 0
        #: seconds after which a job killed on a lost host counts as ended; None: never
        self.unconfirmed: float | None = 20.0
        self._cuts = 0
        self._changed = threading.Condition(threading.RLock())
        self._jobs: dict[str, FakeJob] = {}
        #: all statuses published, in order; a stream of events is a position in it
        self._history: list[tuple[Job, JobStatus]] = []
        self._numbers = itertools.count(1)
        self._refusal: str | None = None
        self._held = False
        self._is_host_lost = False
        self._kinds = {device.kind for device in devices}
        self._allocator = Allocator(devices)

    # -- faults

    def refuse(self, words: str | None) -> None:
        """Refuse every job with these words from now on; None to accept them again."""
        self._refusal = words

    def hold(self) -> None:
        """Accept jobs and start none, until :meth:`release`."""
        self._held = True

    def release(self) -> None:
        """Start the jobs that were held."""
        self._held = False
        self._start_waiting()

    @contextlib.contextmanager
    def lost_host(self) -> Iterator[None]:
        """Place jobs on a lost host in the ``with`` block: it starts none and confirms no end."""
        self._is_host_lost = True
        try:
            yield
        finally:
            self._is_host_lost = False

    def obscure(self, job: Job) -> None:
        """Report UNKNOWN for a job from now on."""
        self._find(job).obscure()

    def lose(
        self, job: Job, reason: Reason, message: str = "", *, grace: float | None = None
    ) -> None:
        """End a job's processes, as a platform does, and report this reason.

        Args:
            job: the job.
            reason: of its end.
            message: the platform's words.
            grace: seconds from SIGTERM to SIGKILL; None for SIGKILL at once.
        """
        self._find(job).end_with_reason(reason, message, grace)

    def cut_events(self) -> None:
        """Break every stream of events that is open now, as a network does."""
        with self._changed:
            self._cuts += 1
            self._changed.notify_all()

    # -- what a backend asks

    def submit(self, spec: JobSpec, providers: Mapping[str, ResourceProvider]) -> Job:
        """Accept a job, and start it once there are devices for it."""
        with self._changed:
            self.ask()
            if self._refusal is not None:
                msg = f"the fake platform refused {spec.name!r}: {self._refusal}"
                raise SubmitError(msg)
            for kind in spec.resources.devices:
                if kind not in self._kinds or kind not in providers:
                    known = ", ".join(sorted(self._kinds)) or "none"
                    msg = f"the fake platform has no {kind!r} devices; it has {known}"
                    raise SubmitError(msg)
            job = Job(
                id=f"fake-{next(self._numbers)}",
                name=spec.name,
                run_id=spec.run_id,
                backend=self.name,
                data={"host": _HOST},
                argv=spec.argv,
                submitted=time.time(),
            )
            try:
                allocation = self._allocator.allocate(job.id, spec.resources.devices)
            except ResourceError as error:
                raise SubmitError(str(error)) from error
            if allocation is not None:
                # only a check that it can be granted at all; granted when the job starts
                self._allocator.release(job.id)
            made = FakeJob(self, job, spec, providers, is_host_lost=self._is_host_lost)
            self._jobs[job.id] = made
            self._publish(job, JobStatus(state=JobState.PENDING, host=_HOST))
        self._start_waiting()
        return job

    def find(self, job: Job) -> FakeJob:
        """Find a job.

        Raises:
            UnknownJobError: there is none of that id.
        """
        self.ask()
        return self._find(job)

    def statuses(self, jobs: Sequence[Job]) -> list[JobStatus]:
        """Return the statuses of jobs, as one request.

        Raises:
            UnknownJobError: one of the jobs does not exist.
        """
        with self._changed:
            self.ask()
            return [self._find(job).status for job in jobs]

    def jobs(self, run_id: str | None = None) -> list[Job]:
        """List the jobs of a run, or all."""
        with self._changed:
            self.ask()
            return [j.job for j in self._jobs.values() if run_id in (None, j.job.run_id)]

    def end(self, jobs: Sequence[Job], *, forget: bool) -> None:
        """Kill jobs, wait for their end, and forget them if asked to."""
        found = [self._jobs[job.id] for job in jobs if job.id in self._jobs]
        for job in found:
            job.kill()
            job.declare_lost()
        for job in found:
            assert job.ended.wait(self.timing.unconfirmed), f"{job.job} did not end by SIGKILL"
        if forget:
            with self._changed:
                for job in found:
                    self._jobs.pop(job.job.id, None)

    def events(
        self, run_id: str, closed: threading.Event, since: int | None = None
    ) -> Iterator[tuple[int, Job, JobStatus]]:
        """Yield the statuses of a run's jobs, and then every change, until ``closed`` is set.

        Args:
            run_id: the run.
            closed: ends the stream, once :meth:`wake` was called.
            since: position to resume at: the first value of the last item before the break.

        Raises:
            ConnectionError: the stream was cut.
        """
        with self._changed:
            self.ask()
            cuts = self._cuts
            position = len(self._history) if since is None else since
            present = [(j.job, j.status) for j in self._jobs.values() if j.job.run_id == run_id]
        if since is None:
            yield from ((position, job, status) for job, status in present)

        def is_more() -> bool:
            return len(self._history) > position or closed.is_set() or self._cuts != cuts

        while True:
            with self._changed:
                self._changed.wait_for(is_more)
                if closed.is_set():
                    return
                if self._cuts != cuts:
                    msg = "the fake platform cut this stream of events"
                    raise ConnectionError(msg)
                fresh = self._history[position:]
            for job, status in fresh:
                position += 1
                if job.run_id == run_id:
                    yield position, job, status

    def wait_for(self, predicate: Callable[[], bool], timeout: float) -> bool:
        """Wait for a predicate, evaluated after each change; False after ``timeout`` seconds."""
        with self._changed:
            return self._changed.wait_for(predicate, timeout)

    def wake(self) -> None:
        """Make the streams of events check whether they were closed."""
        with self._changed:
            self._changed.notify_all()

    def ask(self) -> None:
        """Count a request; raises BackendUnavailableError where the platform is unavailable."""
        with self._changed:
            self.calls += 1
        if not self.available:
            msg = "the fake platform does not answer; set its 'available' to True"
            raise BackendUnavailableError(msg)

    def free_devices(self) -> Mapping[str, int]:
        """Return the numbers of free devices by kind."""
        with self._changed:
            self.ask()
            return dict(self._allocator.free())

    # -- how it starts programs

    def environment(self, spec: JobSpec) -> dict[str, str]:
        """Return the whole environment of a job."""
        environ = {k: v for k, v in os.environ.items() if k not in spec.unset_env}
        environ.pop("FIBER_BOOTSTRAP", None)
        return {**environ, **spec.env}

    def program(self, spec: JobSpec, index: int) -> Sequence[str]:
        """Return the argv of one of a job's processes."""
        return spec.argv if spec.entry is None else python_entry(spec.entry, index)

    def folder(self, spec: JobSpec) -> str | None:
        """Return the working directory of a job."""
        return spec.cwd

    # -- within

    def _find(self, job: Job) -> FakeJob:
        with self._changed:
            if job.id not in self._jobs:
                msg = f"the fake platform has no job {job.id} ({job.name})"
                raise UnknownJobError(msg)
            return self._jobs[job.id]

    def _start_waiting(self) -> None:
        with self._changed:
            for job in list(self._jobs.values()):
                if self._held or job.was_started or job.is_host_lost or job.ended.is_set():
                    continue
                allocation = self._allocator.allocate(job.job.id, job.spec.resources.devices)
                if allocation is not None:
                    job.start(allocation)

    def _publish(self, job: Job, status: JobStatus) -> None:
        with self._changed:
            self._history.append((job, status))
            self._changed.notify_all()

    def _ended(self, job: Job) -> None:
        with self._changed:
            self._allocator.release(job.id)
        self._start_waiting()


class FakeJob:
    """A job and its processes."""

    def __init__(
        self,
        platform: FakePlatform,
        job: Job,
        spec: JobSpec,
        providers: Mapping[str, ResourceProvider],
        *,
        is_host_lost: bool,
    ) -> None:
        self.job = job
        self.spec = spec
        self.is_host_lost = is_host_lost
        self.lines = OutputLines()
        #: status that the platform reports
        self.status = JobStatus(state=JobState.PENDING, host=_HOST)
        self.ended = threading.Event()
        self.was_started = False
        self._platform = platform
        self._providers = providers
        self._lock = platform._changed  # noqa: SLF001  one lock orders the whole platform
        self._real = self.status
        self._obscured = False
        self._lost_reason: tuple[Reason, str] | None = None
        self._processes = [
            FakeProcess(index, self.lines, self._on_process, platform.timing)
            for index in range(spec.processes)
        ]
        self._timers: list[threading.Timer] = []

    def start(self, allocation: Allocation) -> None:
        """Start its processes."""
        self.was_started = True
        spec = self.spec
        environ = self._platform.environment(spec)
        for kind in spec.resources.devices:
            environ |= self._providers[kind].environment(allocation.of_kind(kind))
        for process in self._processes:
            argv = self._platform.program(spec, process.status.index)
            process.start(argv, environ, self._platform.folder(spec), spec.private)

    def terminate(self, grace: float) -> None:
        """Send SIGTERM now, and SIGKILL after the grace."""
        with self._lock:
            if self.ended.is_set():
                return
            if not self.was_started:
                self.kill()
                return
            for process in self._processes:
                process.signal(signal.SIGTERM, group=True)
            self._later(grace, self.kill)

    def kill(self) -> None:
        """Send SIGKILL to all processes."""
        with self._lock:
            if self.is_host_lost:
                seconds = self._platform.unconfirmed
                if seconds is not None and not (self._timers or self.ended.is_set()):
                    self._later(seconds, self.declare_lost)
                return
            if not self.was_started and not self.ended.is_set():
                self.was_started = True
                report = attrs.asdict(ended_before_start(signal.SIGKILL), recurse=False)
                self._finish(JobStatus(**report, host=_HOST))
            for process in self._processes:
                process.signal(signal.SIGKILL, group=True)

    def declare_lost(self) -> None:
        """End a job whose host is lost, with the reason NODE_LOST."""
        with self._lock:
            if self.is_host_lost and not self.ended.is_set():
                message = f"it was to end, and {_HOST} has not confirmed that"
                reason = Reason(ReasonKind.NODE_LOST)
                self._finish(
                    JobStatus(state=JobState.FAILED, reason=reason, message=message, host=_HOST)
                )

    def signal(self, index: int, number: int) -> None:
        """Send a signal to one process; SIGTERM and SIGKILL also end a job that is not started."""
        is_for_all = len(self._processes) == 1
        if is_for_all and not self.was_started and number in (signal.SIGTERM, signal.SIGKILL):
            self.kill()
        self._processes[index].signal(number)

    def end_with_reason(self, reason: Reason, message: str, grace: float | None) -> None:
        """Kill the job, or terminate it with a grace, and report this reason."""
        with self._lock:
            self._lost_reason = reason, message
            if grace is None:
                self.kill()
            else:
                self.terminate(grace)

    def obscure(self) -> None:
        """Report UNKNOWN from now on."""
        with self._lock:
            self._obscured = True
            self._publish_status()

    def _later(self, seconds: float, call: Callable[[], None]) -> None:
        timer = threading.Timer(seconds, call)
        timer.daemon = True
        self._timers.append(timer)
        timer.start()

    def _on_process(self, _: FakeProcess) -> None:
        with self._lock:
            if self._real.state.is_terminal:
                return
            status = combine([process.status for process in self._processes], host=_HOST)
            if not status.state.is_terminal:
                self._real = status
                self._publish_status()
                return
            self._finish(status)

    def _finish(self, status: JobStatus) -> None:
        if self._lost_reason is not None:
            reason, message = self._lost_reason
            status = attrs.evolve(
                status, state=JobState.FAILED, reason=reason, message=message or f"lost: {reason}"
            )
        for timer in self._timers:
            timer.cancel()
        self._real = status
        self.lines.complete()
        self._platform._ended(self.job)  # noqa: SLF001  the platform's own part
        self._publish_status()
        self.ended.set()

    def _publish_status(self) -> None:
        reported = self._real
        if self._obscured:
            reported = JobStatus(state=JobState.UNKNOWN, message="the platform does not know")
        if reported != self.status:
            self.status = reported
            self._platform._publish(self.job, reported)  # noqa: SLF001  the platform's own part
