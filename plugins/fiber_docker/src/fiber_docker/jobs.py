"""Jobs of this process: their containers are created, started, terminated and removed, without leaving any."""

from __future__ import annotations

import contextlib
import enum
import functools
import logging
import signal
import threading
import time
from typing import Any

import attrs

from fiber.backend_parts.feed import Feed
from fiber.backend_parts.threads import ThreadPool
from fiber.exceptions import BackendError, BackendUnavailableError, SubmitError, UnknownJobError
from fiber.model import Job, JobSpec, JobState, JobStatus
from fiber_docker.client import Client, MissingImageError
from fiber_docker.config import DockerConfig, DockerTiming
from fiber_docker.container import ContainerContext, ContainerSpec, container_spec
from fiber_docker.devices import Devices, Requests
from fiber_docker.images import Images
from fiber_docker.output import OutputForwarder
from fiber_docker.status import ended_before_start, failed_to_start, lost_with_engine, start_failure

log = logging.getLogger("fiber")

#: threads that start and remove; the engine serialises much, and more calls would wait there
_START_THREADS = 8
#: threads that create
_CREATE_THREADS = 4
#: texts of engines where an image lacks the program to start
_NO_SUCH_PROGRAM = ("executable file not found", "no such file or directory")


class _Stage(enum.Enum):
    """Progress of a job's container."""

    #: it has no container, and may wait for devices
    WAITING = enum.auto()
    #: its container is being made and started
    STARTING = enum.auto()
    #: its container was started, or cannot be
    STARTED = enum.auto()


@attrs.define
class _SubmittedJob:
    """A job that this process submitted; changed with the starter's lock held."""

    job: Job
    spec: JobSpec
    context: ContainerContext
    container: ContainerSpec
    stage: _Stage = _Stage.WAITING
    #: signal of a cancellation before its start; 0 for none
    cancel_signal: int = 0
    #: True where its first container was replaced by another
    recreated: bool = False
    #: forwards its output and keeps its last lines
    forwarder: OutputForwarder | None = None


class JobStarter:
    """Starts and removes the jobs of one backend; thread-safe.

    Containers are created by one set of threads and started or removed by another.

    Args:
        backend: name of the backend.
        client: the engine.
        config: settings.
        feed: statuses of jobs are published to it.
        images: pulls images.
        devices: grants devices.
        timing: durations.
        partial_line: seconds for which the beginning of a line is kept back.
    """

    def __init__(
        self,
        backend: str,
        client: Client,
        config: DockerConfig,
        feed: Feed,
        images: Images,
        devices: Devices,
        timing: DockerTiming,
        partial_line: float,
    ) -> None:
        self._backend = backend
        self._client = client
        self._config = config
        self._feed = feed
        self._images = images
        self._devices = devices
        self._timing = timing
        self._partial_line = partial_line
        self._start_threads = ThreadPool("docker", "the Docker engine", _START_THREADS)
        # not on a user's thread: Ctrl-C between the request and its answer would leave a container
        # that no record has
        self._create_threads = ThreadPool("docker-create", "the Docker engine", _CREATE_THREADS)
        self._lock = threading.Lock()
        self._submitted: dict[str, _SubmittedJob] = {}
        #: names of containers whose creation was not answered; they were never started
        self._maybe_created: set[str] = set()
        self._engine_failure: BackendUnavailableError | None = None
        self._closed = False

    def submit(self, spec: JobSpec, context: ContainerContext) -> Job:
        """Create a job's container; it is started by another thread.

        Raises:
            SubmitError: the engine refused it.
        """
        self._images.ensure(context.image)
        self._devices.probe(spec.resources, context.image)
        container = container_spec(spec, self._config, context)
        job = Job(
            id=container.name,
            name=spec.name,
            run_id=spec.run_id,
            backend=self._backend,
            data={"container": container.name},
            argv=spec.argv,
        )
        record = _SubmittedJob(job, spec, context, container)
        failures: list[Exception] = []
        created = threading.Event()

        def create(requests: Requests) -> None:
            try:
                if self._mark_starting(record, requests):
                    self._create_and_start(record)
            except Exception as error:
                failures.append(error)
            finally:
                created.set()

        with self._lock:
            self._submitted[job.id] = record
        # published before any event of the engine, so that nothing is awaited in vain
        self._feed.publish(job, JobStatus(state=JobState.PENDING))
        if self._devices.grant(
            job.id, spec.resources, lambda found: self._create_threads.submit(lambda: create(found))
        ):
            try:
                created.wait()
            except BaseException:
                # the caller gets no job
                self.cancel(job, signal.SIGKILL)
                raise
        if failures:
            raise failures[0]
        if spec.detached:
            # the submitter may end after this returns
            self._feed.wait_placed([job.id], None)
            status = self._feed.status(job.id)
            if status is not None and failed_to_start(status):
                self._client.remove(job.id)
                raise SubmitError(status.message)
        return job

    def cancel(self, job: Job, signum: int) -> bool:
        """Cancel a job before its start, as by a signal; False where it is started, or not ours.

        It ends at once where it waits for devices, and else by the thread that is starting it.
        """
        with self._lock:
            record = self._submitted.get(job.id)
            if record is None or record.stage is _Stage.STARTED:
                return False
            record.cancel_signal = record.cancel_signal or signum
            waits = record.stage is _Stage.WAITING
        if waits:
            self._publish_end(job, signum)
        return True

    def cancel_unstarted(self) -> list[Job]:
        """Cancel all jobs that are not started and not detached; returns them."""
        with self._lock:
            attached = [record for record in self._submitted.values() if not record.spec.detached]
            for record in attached:
                record.cancel_signal = record.cancel_signal or signal.SIGKILL
            return [record.job for record in attached if record.stage is not _Stage.STARTED]

    def publish_cancelled(self, jobs: list[Job]) -> None:
        """Publish the end of cancelled jobs whose containers were removed."""
        for job in jobs:
            self._publish_end(job, signal.SIGKILL)

    def reports_end(self, job_id: str) -> bool:
        """True where this class publishes a job's end, and the removal of its container is none.

        So it is before the start, since failed starts are published here with more detail than the
        engine's, and where the first container was replaced by another.
        """
        record = self._submitted.get(job_id)
        return record is not None and (record.recreated or record.stage is not _Stage.STARTED)

    def is_starting(self, job_id: str) -> bool:
        """True for a job whose container is not started yet."""
        record = self._submitted.get(job_id)
        return record is not None and record.stage is not _Stage.STARTED

    def is_submitted_here(self, job_id: str) -> bool:
        """True for jobs that this process submitted."""
        return job_id in self._submitted

    def log_tail(self, job_id: str) -> tuple[str, ...]:
        """The last lines of a job that has ended, if its output was forwarded."""
        record = self._submitted.get(job_id)
        forwarder = None if record is None else record.forwarder
        if forwarder is None:
            return ()
        return forwarder.log_tail(self._timing.log_tail, self._timing.late_output)

    def ended(self, job: Job) -> None:
        """Release the devices of a job that has ended, and forget it where it can be."""
        with self._lock:
            record = self._submitted.get(job.id)
            if record is not None:
                record.forwarder = None
                if record.stage is _Stage.WAITING:
                    # it was cancelled while it waited for devices
                    del self._submitted[job.id]
                elif record.stage is _Stage.STARTED:
                    self._forget(job.id)
        self._devices.release(job.id)

    def remove(self, job_id: str) -> None:
        """Remove a job's container, and wait for the rest of its output."""
        with self._lock:
            forwarder = self._take_forwarder(self._submitted.get(job_id))
        self._remove(job_id)
        if forwarder is not None:
            forwarder.join(self._timing.output)

    def remove_all(self, job_ids: list[str]) -> None:
        """Remove the containers of many jobs; then raise the first error."""
        failures: list[BackendError] = []

        def remove(job_id: str) -> None:
            try:
                self.remove(job_id)
            except BackendError as error:
                failures.append(error)

        self._start_threads.run_all([functools.partial(remove, job_id) for job_id in job_ids])
        if failures:
            raise failures[0]

    def close(self) -> None:
        """Remove the containers of jobs that end with their submitter. Idempotent."""
        with self._lock:
            self._closed = True
        self.cancel_unstarted()
        # after this, each requested container exists or was refused
        self._create_threads.close()
        with self._lock:
            records = self._submitted.items()
            starting = {job for job, record in records if record.stage is _Stage.STARTING}
            attached = {job for job, record in records if not record.spec.detached}
            maybe_created = set(self._maybe_created)
        try:
            self.remove_all([*attached, *maybe_created])
        finally:
            self._start_threads.close()
            with self._lock:
                forwarders = [self._take_forwarder(record) for record in self._submitted.values()]
                recreated = {job for job, record in self._submitted.items() if record.recreated}
            for forwarder in forwarders:
                if forwarder is not None:
                    forwarder.join(0.0)
            with self._lock:
                # another close or cleanup tries the engine again
                self._engine_failure = None
        for job_id in starting & recreated & attached:
            # a thread that was starting it may have created its second container after the removal
            self._remove(job_id)

    # -- private

    def _remove(self, job_id: str) -> None:
        """Remove a container; once :meth:`close` has begun, a failed engine is not retried."""
        with self._lock:
            failure = self._engine_failure
        if failure is not None:
            raise failure
        try:
            self._client.remove(job_id)
        except BackendUnavailableError as error:
            with self._lock:
                if self._closed:
                    # each of many would wait for a timeout
                    self._engine_failure = error
            raise

    def _create_and_start(self, record: _SubmittedJob) -> None:
        """Create a job's container and have it started; on a thread for creation."""
        job = record.job
        try:
            self._create(record)
        except Exception as error:
            with self._lock:
                del self._submitted[job.id]
                if isinstance(error, BackendUnavailableError):
                    self._maybe_created.add(job.id)
            self._feed.publish(job, start_failure(str(error)))
            raise
        self._start_threads.submit(functools.partial(self._start_job, record))

    def _create(self, record: _SubmittedJob) -> None:
        container = record.container
        try:
            self._client.create(container.name, container.body)
        except MissingImageError as error:
            self._images.pull_missing(record.context.image, error)
            self._client.create(container.name, container.body)

    def _mark_starting(self, record: _SubmittedJob, requests: Requests) -> bool:
        """Mark a job that got its devices; False where it was cancelled meanwhile."""
        job = record.job
        with self._lock:
            if job.id in self._submitted and not (record.cancel_signal or self._closed):
                record.stage = _Stage.STARTING
                if requests:
                    _host(record.container)["DeviceRequests"] = list(requests)
                return True
        self._publish_end(job, record.cancel_signal)
        # its end may have been published before they were granted
        self._devices.release(job.id)
        return False

    def _forget(self, job_id: str) -> None:
        """Under the lock: forget a process of Fiber's, whose container removes itself."""
        record = self._submitted.get(job_id)
        if record is not None and record.spec.entry is not None:
            # pools that replace workers have many
            del self._submitted[job_id]

    @staticmethod
    def _take_forwarder(record: _SubmittedJob | None) -> OutputForwarder | None:
        """Under the lock: take a job's forwarder, to wait for its end."""
        if record is None:
            return None
        forwarder, record.forwarder = record.forwarder, None
        return forwarder

    def _start_job(self, record: _SubmittedJob) -> None:
        try:
            self._start_or_fail(record)
        finally:
            with self._lock:
                record.stage = _Stage.STARTED
            if record.cancel_signal:
                self._publish_end(record.job, record.cancel_signal)
            try:
                self._remove_unneeded(record)
            except BackendUnavailableError:
                # close() removes it
                log.debug("fiber: %s stays until the engine is back", record.job.id, exc_info=True)

    def _remove_unneeded(self, record: _SubmittedJob) -> None:
        """Kill a cancelled program, and remove a container that never ran."""
        job = record.job
        if record.cancel_signal and record.spec.entry is None:
            # SIGKILL: it has done nothing yet, and may not handle other signals
            with contextlib.suppress(UnknownJobError):
                self._client.signal(job.id, signal.SIGKILL)
        status = self._feed.status(job.id)
        if status is not None and status.state.is_terminal and record.spec.entry is not None:
            # AutoRemove does not apply to a container that never ran
            self._remove(job.id)
            with self._lock:
                self._forget(job.id)

    def _start_or_fail(self, record: _SubmittedJob) -> None:
        spec = record.spec
        try:
            with self._lock:
                if record.cancel_signal:
                    return
            try:
                self._run(record)
            except SubmitError as error:
                if spec.private is not None or spec.entry is not None or not _lacks_python(error):
                    raise
                self._unwrap(record)
                self._run(record)
        except BackendUnavailableError as error:
            # it may run, but has got no instructions
            self._feed.publish(record.job, lost_with_engine(str(error)))
        except BackendError as error:
            words = _advice(error, spec, self._config, record.context.image)
            self._feed.publish(record.job, start_failure(words))

    def _run(self, record: _SubmittedJob) -> None:
        """Send a created container its files and standard input, forward its output, and start it.

        Raises:
            SubmitError: its first program cannot be started.
        """
        client, spec, container = self._client, record.spec, record.container
        if container.files is not None:
            client.put(container.name, "/", container.files)
        shown = not spec.detached
        if not (container.stdin or shown):
            client.start(container.name, spec.name)
            return
        stream = client.attach(container.name, stdin=bool(container.stdin), output=shown)
        prefix = f"[{spec.name}] ".encode() if spec.log_prefix else b""
        forwarder = OutputForwarder(stream, prefix, partial_line=self._partial_line)
        if shown:
            # before the start: the container may end before the engine has answered
            with self._lock:
                record.forwarder = forwarder
        try:
            client.start(container.name, spec.name)
            if container.stdin:
                # it may have ended by now
                with contextlib.suppress(OSError):
                    stream.write(container.stdin)
        except BaseException:
            stream.close()
            raise
        finally:
            if shown:
                forwarder.start()
            else:
                stream.close()

    def _unwrap(self, record: _SubmittedJob) -> None:
        """Make a container whose program is the first process itself, for an image without Python."""
        bare = container_spec(record.spec, self._config, record.context, wrapped=False)
        body = {**bare.body, "HostConfig": _host(record.container)}
        with self._lock:
            record.recreated = True
            record.container = attrs.evolve(bare, name=record.container.name, body=body)
        self._client.remove(record.job.id)
        self._create(record)

    def _publish_end(self, job: Job, signum: int) -> None:
        """Publish the end of a cancelled job; dropped where an end is known."""
        self._feed.publish(job, ended_before_start(signum or signal.SIGKILL))


def _host(container: ContainerSpec) -> dict[str, Any]:
    host: dict[str, Any] = container.body["HostConfig"]
    return host


def _lacks_python(error: BackendError) -> bool:
    """True where an image lacks the program to start."""
    return any(words in str(error) for words in _NO_SUCH_PROGRAM)


def _advice(error: BackendError, spec: JobSpec, config: DockerConfig, image: str) -> str:
    """The engine's message, with a remedy where the image lacks Python."""
    needs_python = spec.entry is not None or spec.private is not None
    if needs_python and _lacks_python(error):
        return (
            f"image {image} has no Python called {config.python!r}: {error}; name an image with "
            f"Python and fiber (FIBER_IMAGE), or set FIBER_DOCKER_PYTHON to its path there"
        )
    return str(error)


class Terminator:
    """Terminates containers, with a thread (``fiber-docker-grace``) for each.

    Args:
        client: the engine.
        handler_check: seconds between two checks whether a first process handles signals yet.
    """

    def __init__(self, client: Client, handler_check: float) -> None:
        self._client = client
        self._handler_check = handler_check
        self._lock = threading.Lock()
        self._threads: list[threading.Thread] = []

    def terminate(self, job_id: str, grace: float) -> None:
        """Send SIGTERM now and SIGKILL after ``grace`` seconds; returns at once."""
        thread = threading.Thread(
            target=self._end, args=(job_id, grace), name="fiber-docker-grace", daemon=True
        )
        with self._lock:
            self._threads = [one for one in self._threads if one.is_alive()]
            self._threads.append(thread)
        thread.start()

    def close(self) -> None:
        """Wait until all of these containers have ended. Idempotent."""
        with self._lock:
            threads, self._threads = self._threads, []
        for thread in threads:
            thread.join()

    def _end(self, job_id: str, grace: float) -> None:
        deadline = time.monotonic() + grace
        try:
            self._wait_for_handlers(job_id, deadline)
            self._client.stop(job_id, deadline - time.monotonic())
        except UnknownJobError:
            # one that is gone has ended
            return
        except BackendError as error:
            log.warning("fiber: job %s may not have been ended: %s", job_id, error)

    def _wait_for_handlers(self, job_id: str, deadline: float) -> None:
        """Wait until the first process has a child, and so has set its signal handlers.

        Linux drops signals that PID 1 of a namespace has no handler for.
        """
        found = self._client.inspect(job_id)
        if found["Config"]["Labels"].get("fiber.kind") == "bare":
            return
        while time.monotonic() < deadline:
            if not found["State"].get("Running") or self._process_count(job_id) != 1:
                return
            # there is no event for this
            time.sleep(self._handler_check)
            found = self._client.inspect(job_id)

    def _process_count(self, job_id: str) -> int:
        answer: Any = {}
        with contextlib.suppress(BackendError):
            # it has ended meanwhile
            answer = self._client.call("list processes", lambda api: api.top(job_id))
        return len(answer.get("Processes") or ())
