"""Starts jobs: creates their containers, starts them, hands them what is private, shows their output."""

from __future__ import annotations

import contextlib
import threading

import attrs

from fiber.exceptions import BackendError, SubmitError
from fiber.model import Job, JobSpec, JobState, JobStatus, Reason, ReasonKind
from fiber_docker.client import Client, MissingImageError
from fiber_docker.config import DockerConfig
from fiber_docker.container import Plan, Surroundings, plan
from fiber_docker.devices import Devices, Requests
from fiber_docker.feed import Feed
from fiber_docker.hands import Hands
from fiber_docker.images import Images
from fiber_docker.output import Pump
from fiber_docker.status import never_ran, start_failure

__all__ = ["Starter"]

#: seconds that output has to arrive once its container has ended
_LAST_WORDS = 2.0
_KILLED = JobStatus(
    state=JobState.FAILED,
    reason=Reason(ReasonKind.SIGNAL, 9),
    exit_code=-9,
    message="killed before it was started",
)
_NO_PYTHON = "executable file not found"


class Starter:
    """Starts the jobs of one backend; thread-safe.

    Args:
        backend: name of the backend.
        client: the engine.
        config: settings.
        feed: told what became of jobs.
        images: has images where the engine lacks them.
        devices: grants devices.
    """

    def __init__(
        self,
        backend: str,
        client: Client,
        config: DockerConfig,
        feed: Feed,
        images: Images,
        devices: Devices,
    ) -> None:
        self._backend = backend
        self._client = client
        self._config = config
        self._feed = feed
        self._images = images
        self._devices = devices
        self._hands = Hands()
        self._lock = threading.Lock()
        #: jobs that are to be killed, for those that are not started yet
        self._doomed: set[str] = set()
        self._pumps: dict[str, Pump] = {}
        self._mine: dict[str, JobSpec] = {}
        #: jobs whose first container was removed for another
        self._remade: set[str] = set()
        #: jobs whose container is being made or started
        self._starting: set[str] = set()

    def submit(self, spec: JobSpec, around: Surroundings) -> Job:
        """Create a job's container, and have it started.

        Raises:
            SubmitError: the engine refused it.
        """
        self._images.before_use(around.image)
        self._devices.check(spec.resources, around.image)
        wanted = plan(spec, self._config, around)
        job = Job(
            id=wanted.name,
            name=spec.name,
            run_id=spec.run_id,
            backend=self._backend,
            data={"container": wanted.name},
            argv=spec.argv,
        )
        failures: list[BackendError] = []

        def create(requests: Requests) -> None:
            body = wanted.body
            if requests:
                body = {**body, "HostConfig": {**body["HostConfig"], "DeviceRequests": requests}}
            try:
                self._create(attrs.evolve(wanted, body=body), around.image)
            except BackendError as error:
                failures.append(error)
                self._devices.release(job.id)
                self._feed.publish(job, start_failure(str(error)))
                return
            self._hands.do(lambda: self._start(job, spec, wanted, around))

        with self._lock:
            self._mine[job.id] = spec
            self._starting.add(job.id)
        # told before the engine tells, so that nothing is awaited in vain
        self._feed.publish(job, JobStatus(state=JobState.PENDING))
        self._devices.grant(job.id, spec.resources, create)
        if failures:
            with self._lock:
                del self._mine[job.id]
                self._starting.discard(job.id)
            raise failures[0]
        if spec.detached:
            # whoever submits it may end now
            self._feed.wait_placed([job.id], None)
            status = self._feed.status(job.id)
            if status is not None and never_ran(status):
                self._client.remove(job.id)
                raise SubmitError(status.message)
        return job

    def doom(self, job_id: str) -> None:
        """A job is to be killed, and may not be started yet."""
        with self._lock:
            self._doomed.add(job_id)

    def tells(self, job_id: str) -> bool:
        """True for a job whose container may be removed without that being its end.

        What becomes of one that cannot be started is told here, in better words than the engine's;
        and there are jobs whose first container was removed for another.
        """
        with self._lock:
            return job_id in self._starting or job_id in self._remade

    def give_up(self, job: Job) -> None:
        """A job is killed that has no container yet."""
        self._feed.publish(job, _KILLED)

    def is_mine(self, job_id: str) -> bool:
        """True for jobs that were submitted here."""
        with self._lock:
            return job_id in self._mine

    def last_words(self, job_id: str) -> tuple[str, ...]:
        """The last lines of a job that has ended, where they came here."""
        with self._lock:
            pump = self._pumps.get(job_id)
        return () if pump is None else pump.last_words(_LAST_WORDS)

    def ended(self, job: Job) -> None:
        """A job has ended: its devices are free."""
        self._devices.release(job.id)
        with self._lock:
            self._pumps.pop(job.id, None)
            if job.id not in self._starting:
                self._forget(job.id)

    def remove(self, job_id: str) -> None:
        """Remove a job's container, and wait for what it still wrote."""
        with self._lock:
            pump = self._pumps.pop(job_id, None)
        self._client.remove(job_id)
        if pump is not None:
            pump.join(_LAST_WORDS)

    def remove_all(self, job_ids: list[str]) -> None:
        """Remove the containers of many jobs; the first error is raised once all were tried."""
        failures: list[BackendError] = []

        def remove(job_id: str) -> None:
            try:
                self.remove(job_id)
            except BackendError as error:
                failures.append(error)

        self._hands.do_all([lambda job_id=job_id: remove(job_id) for job_id in job_ids])  # type: ignore[misc] # mypy does not infer it
        if failures:
            raise failures[0]

    def attached(self) -> list[str]:
        """The jobs that were submitted here and end with their submitter."""
        with self._lock:
            return [job_id for job_id, spec in self._mine.items() if not spec.detached]

    def close(self) -> None:
        """Remove the containers of jobs that end with their submitter. Idempotent."""
        for job_id in self.attached():
            self.doom(job_id)
        try:
            self.remove_all(self.attached())
        finally:
            self._hands.close()
            with self._lock:
                pumps, self._pumps = list(self._pumps.values()), {}
            for pump in pumps:
                pump.join(0.0)

    # -- within

    def _create(self, wanted: Plan, image: str) -> None:
        try:
            self._client.create(wanted.name, wanted.body)
        except MissingImageError as error:
            self._images.after_miss(image, error)
            self._client.create(wanted.name, wanted.body)

    def _forget(self, job_id: str) -> None:
        """Under the lock: of one of Fiber's own processes the container is gone by itself."""
        spec = self._mine.get(job_id)
        if spec is not None and spec.entry is not None:
            # pools that replace workers have many
            del self._mine[job_id]
            self._doomed.discard(job_id)

    def _start(self, job: Job, spec: JobSpec, wanted: Plan, around: Surroundings) -> None:
        try:
            self._begin(job, spec, wanted, around)
        finally:
            with self._lock:
                self._starting.discard(job.id)
            status = self._feed.status(job.id)
            if status is not None and status.state.is_terminal and spec.entry is not None:
                # it was killed or refused, and a container that never ran does not go by itself
                self._client.remove(job.id)
                with self._lock:
                    self._forget(job.id)

    def _begin(self, job: Job, spec: JobSpec, wanted: Plan, around: Surroundings) -> None:
        try:
            if self._is_doomed(job.id):
                self._feed.publish(job, _KILLED)
                return
            self._run(job, spec, wanted)
        except SubmitError as error:
            if _lacks_python(error) and spec.private is None and spec.entry is None:
                self._start_bare(job, spec, wanted, around)
                return
            self._feed.publish(job, start_failure(_advice(error, spec, self._config, around.image)))
        except BackendError as error:
            self._feed.publish(job, start_failure(str(error)))

    def _run(self, job: Job, spec: JobSpec, wanted: Plan) -> None:
        client = self._client
        if wanted.files is not None:
            client.put(job.id, "/", wanted.files)
        stream = None
        shown = not spec.detached
        if wanted.stdin or shown:
            stream = client.attach(job.id, stdin=bool(wanted.stdin), output=shown)
        try:
            client.start(job.id, spec.name)
        except BaseException:
            if stream is not None:
                stream.close()
            raise
        if stream is not None:
            if shown:
                prefix = f"[{spec.name}] ".encode() if spec.log_prefix else b""
                with self._lock:
                    self._pumps[job.id] = Pump(stream, prefix)
            if wanted.stdin:
                # one that has ended meanwhile reads no more
                with contextlib.suppress(OSError):
                    stream.write(wanted.stdin)
            if not shown:
                stream.close()
        if self._is_doomed(job.id):
            client.signal(job.id, 9)

    def _start_bare(self, job: Job, spec: JobSpec, wanted: Plan, around: Surroundings) -> None:
        """Without Python, a program is the first process itself."""
        bare = plan(spec, self._config, around, wrapped=False)
        host = wanted.body["HostConfig"]
        bare = attrs.evolve(bare, name=wanted.name, body={**bare.body, "HostConfig": host})
        with self._lock:
            self._remade.add(job.id)
        try:
            self._client.remove(job.id)
            self._create(bare, around.image)
            self._run(job, spec, bare)
        except BackendError as error:
            words = _advice(error, spec, self._config, around.image)
            self._feed.publish(job, start_failure(words))

    def _is_doomed(self, job_id: str) -> bool:
        with self._lock:
            return job_id in self._doomed


def _lacks_python(error: BackendError) -> bool:
    return _NO_PYTHON in str(error) or "no such file or directory" in str(error)


def _advice(error: BackendError, spec: JobSpec, config: DockerConfig, image: str) -> str:
    """The engine's words, with what to do where they say that there is no Python."""
    needs_python = spec.entry is not None or spec.private is not None
    if needs_python and _lacks_python(error):
        return (
            f"image {image} has no Python called {config.python!r}: {error}; name an image with "
            f"Python and fiber (FIBER_IMAGE), or set FIBER_DOCKER_PYTHON to its path there"
        )
    return str(error)
