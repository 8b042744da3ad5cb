"""Starts jobs: has their containers made, started and removed, whatever comes in between."""

from __future__ import annotations

import contextlib
import enum
import logging
import signal
import threading

import attrs

from fiber.backend_parts.feed import Feed
from fiber.backend_parts.threads import Hands
from fiber.exceptions import (
    BackendError,
    BackendUnavailableError,
    SubmitError,
    UnknownJobError,
)
from fiber.model import Job, JobSpec, JobState, JobStatus
from fiber_docker.client import Client, MissingImageError
from fiber_docker.config import DockerConfig
from fiber_docker.container import Plan, Surroundings, plan
from fiber_docker.devices import Devices, Requests
from fiber_docker.images import Images
from fiber_docker.output import Pump
from fiber_docker.refusals import advice, lacks_python
from fiber_docker.starting import start
from fiber_docker.status import lost_with_engine, never_began, never_ran, start_failure

__all__ = ["Starter"]

log = logging.getLogger("fiber")

#: seconds that output has to arrive once its container has ended
_LAST_WORDS = 2.0
#: the same where a verdict waits for it; the engine tells of an end after all was written
_LAST_WORDS_OF_A_VERDICT = 0.5
#: calls; the engine serialises much of what it does, and more would only wait there
_AT_ONCE = 8
#: containers that are created meanwhile; few threads submit
_MADE_AT_ONCE = 4


class _Stage(enum.Enum):
    """How far a job has come."""

    #: it has no container, and may wait for devices
    WAITING = enum.auto()
    #: its container is being made and started
    STARTING = enum.auto()
    #: its container was started, or cannot be
    STARTED = enum.auto()


@attrs.define
class _Own:
    """A job that was submitted here; changed under the lock alone."""

    job: Job
    spec: JobSpec
    stage: _Stage = _Stage.WAITING
    #: the signal that is to end it, started or not
    doomed: int = 0
    #: its first container was removed for another
    remade: bool = False
    #: shows its output, and has its last lines
    pump: Pump | None = None


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
        self._hands = Hands("docker", "the Docker engine", _AT_ONCE)
        # a user's thread asks for no container: Ctrl-C would take it away from the answer, and nobody
        # would know of what the engine has made
        self._makers = Hands("docker-create", "the Docker engine", _MADE_AT_ONCE)
        self._lock = threading.Lock()
        self._own: dict[str, _Own] = {}
        #: containers that were perhaps made before the engine went away; they were never started
        self._unsure: set[str] = set()
        self._unanswered: BackendUnavailableError | None = None
        self._closed = False

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
        failures: list[Exception] = []
        made = threading.Event()

        def make(requests: Requests) -> None:
            try:
                if self._may_begin(job):
                    self._make(job, spec, _with_devices(wanted, requests), around)
            except Exception as error:
                failures.append(error)
            finally:
                made.set()

        with self._lock:
            self._own[job.id] = _Own(job, spec)
        # told before the engine tells, so that nothing is awaited in vain
        self._feed.publish(job, JobStatus(state=JobState.PENDING))
        if self._devices.grant(
            job.id, spec.resources, lambda found: self._makers.do(lambda: make(found))
        ):
            try:
                made.wait()
            except BaseException:
                # nobody will know of it
                self.end_early(job, signal.SIGKILL)
                raise
        if failures:
            raise failures[0]
        if spec.detached:
            # whoever submits it may end now
            self._feed.wait_placed([job.id], None)
            status = self._feed.status(job.id)
            if status is not None and never_ran(status):
                self._client.remove(job.id)
                raise SubmitError(status.message)
        return job

    def end_early(self, job: Job, signum: int) -> bool:
        """End a job that is not started, as by a signal; False where it is, or is none of ours.

        It ends at once where it waits for devices, and else by whoever is about to start it.
        """
        with self._lock:
            own = self._own.get(job.id)
            if own is None or own.stage is _Stage.STARTED:
                return False
            own.doomed = own.doomed or signum
            waits = own.stage is _Stage.WAITING
        if waits:
            self._give_up(job, signum)
        return True

    def start_none(self) -> list[Job]:
        """What is not started and ends with its submitter is not to be started any more: those jobs."""
        with self._lock:
            attached = [own for own in self._own.values() if not own.spec.detached]
            for own in attached:
                own.doomed = own.doomed or signal.SIGKILL
            return [own.job for own in attached if own.stage is not _Stage.STARTED]

    def tell_unstarted(self, jobs: list[Job]) -> None:
        """Tell the ends of jobs that were not to be started, and have no container any more."""
        for job in jobs:
            self._give_up(job, signal.SIGKILL)

    def tells(self, job_id: str) -> bool:
        """True for a job whose container may be removed without that being its end.

        What becomes of one that cannot be started is told here, in better words than the engine's;
        and there are jobs whose first container was removed for another.
        """
        with self._lock:
            own = self._own.get(job_id)
            return own is not None and (own.remade or own.stage is not _Stage.STARTED)

    def is_coming(self, job_id: str) -> bool:
        """True for a job of whose container nothing can be said yet."""
        with self._lock:
            own = self._own.get(job_id)
            return own is not None and own.stage is not _Stage.STARTED

    def is_mine(self, job_id: str) -> bool:
        """True for jobs that were submitted here."""
        with self._lock:
            return job_id in self._own

    def last_words(self, job_id: str) -> tuple[str, ...]:
        """The last lines of a job that has ended, where they came here."""
        with self._lock:
            own = self._own.get(job_id)
            pump = None if own is None else own.pump
        return () if pump is None else pump.last_words(_LAST_WORDS_OF_A_VERDICT)

    def ended(self, job: Job) -> None:
        """A job has ended: its devices are free."""
        with self._lock:
            own = self._own.get(job.id)
            if own is not None:
                own.pump = None
                if own.stage is _Stage.WAITING:
                    # it gave up waiting: nobody will start it
                    del self._own[job.id]
                elif own.stage is _Stage.STARTED:
                    self._forget(job.id)
        self._devices.release(job.id)

    def remove(self, job_id: str) -> None:
        """Remove a job's container, and wait for what it still wrote."""
        with self._lock:
            pump = self._take_pump(self._own.get(job_id))
        self._remove(job_id)
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
            return [job_id for job_id, own in self._own.items() if not own.spec.detached]

    def close(self) -> None:
        """Remove the containers of jobs that end with their submitter. Idempotent."""
        with self._lock:
            self._closed = True
        self.start_none()
        # what the engine was asked to make is there then, or was refused
        self._makers.close()
        with self._lock:
            starting = [job for job, own in self._own.items() if own.stage is _Stage.STARTING]
        attached = self.attached()
        with self._lock:
            unsure = list(self._unsure)
        try:
            self.remove_all([*attached, *unsure])
        finally:
            self._hands.close()
            with self._lock:
                pumps = [self._take_pump(own) for own in self._own.values()]
                remade = [job for job, own in self._own.items() if own.remade]
            for pump in pumps:
                if pump is not None:
                    pump.join(0.0)
            with self._lock:
                # whoever closes or cleans up again may find it back
                self._unanswered = None
        for job_id in {*starting} & {*remade} & {*attached}:
            # removed, and then made once more by a thread that was at it
            self._remove(job_id)

    # -- within

    def _remove(self, job_id: str) -> None:
        """Remove a container; at the end an engine that did not answer once is not asked again."""
        with self._lock:
            failure = self._unanswered
        if failure is not None:
            raise failure
        try:
            self._client.remove(job_id)
        except BackendUnavailableError as error:
            with self._lock:
                if self._closed:
                    # it may take its time over each of many, and nobody waits for that
                    self._unanswered = error
            raise

    def _make(self, job: Job, spec: JobSpec, wanted: Plan, around: Surroundings) -> None:
        """Create a job's container and have it started, on a thread of our own."""
        try:
            self._create(wanted, around.image)
        except Exception as error:
            with self._lock:
                del self._own[job.id]
                if isinstance(error, BackendUnavailableError):
                    self._unsure.add(job.id)
            self._feed.publish(job, start_failure(str(error)))
            raise
        self._hands.do(lambda: self._start(job, spec, wanted, around))

    def _create(self, wanted: Plan, image: str) -> None:
        try:
            self._client.create(wanted.name, wanted.body)
        except MissingImageError as error:
            self._images.after_miss(image, error)
            self._client.create(wanted.name, wanted.body)

    def _may_begin(self, job: Job) -> bool:
        """A job has its devices; False where it was killed while it waited for them."""
        with self._lock:
            own = self._own.get(job.id)
            if own is not None and not (own.doomed or self._closed):
                own.stage = _Stage.STARTING
                return True
            doomed = 0 if own is None else own.doomed
        self._give_up(job, doomed)
        # told before, perhaps, and then they were granted after that
        self._devices.release(job.id)
        return False

    def _forget(self, job_id: str) -> None:
        """Under the lock: of one of Fiber's own processes the container is gone by itself."""
        own = self._own.get(job_id)
        if own is not None and own.spec.entry is not None:
            # pools that replace workers have many
            del self._own[job_id]

    @staticmethod
    def _take_pump(own: _Own | None) -> Pump | None:
        """Under the lock: what shows a job's output, for whoever waits for its end."""
        if own is None:
            return None
        pump, own.pump = own.pump, None
        return pump

    def _start(self, job: Job, spec: JobSpec, wanted: Plan, around: Surroundings) -> None:
        try:
            self._begin(job, spec, wanted, around)
        finally:
            with self._lock:
                own = self._own[job.id]
                own.stage = _Stage.STARTED
            if own.doomed:
                self._give_up(job, own.doomed)
            try:
                self._clear_up(job, own)
            except BackendUnavailableError:
                # at the end it is removed as one of ours
                log.debug("fiber: %s stays until the engine is back", job.id, exc_info=True)

    def _clear_up(self, job: Job, own: _Own) -> None:
        """End what is not to run, and remove what never will."""
        if own.doomed and own.spec.entry is None:
            # it has done nothing yet, and may not listen to any other signal
            with contextlib.suppress(UnknownJobError):
                self._client.signal(job.id, signal.SIGKILL)
        status = self._feed.status(job.id)
        if status is not None and status.state.is_terminal and own.spec.entry is not None:
            # it was killed or refused, and a container that never ran does not go by itself
            self._remove(job.id)
            with self._lock:
                self._forget(job.id)

    def _begin(self, job: Job, spec: JobSpec, wanted: Plan, around: Surroundings) -> None:
        try:
            with self._lock:
                if self._own[job.id].doomed:
                    return
            self._run(job, spec, wanted)
        except SubmitError as error:
            if lacks_python(error) and spec.private is None and spec.entry is None:
                self._start_bare(job, spec, wanted, around)
                return
            self._feed.publish(job, start_failure(advice(error, spec, self._config, around.image)))
        except BackendUnavailableError as error:
            # whether it runs is not known; nobody has told it what to do
            self._feed.publish(job, lost_with_engine(str(error)))
        except BackendError as error:
            self._feed.publish(job, start_failure(str(error)))

    def _run(self, job: Job, spec: JobSpec, wanted: Plan) -> None:
        def keep(pump: Pump) -> None:
            with self._lock:
                self._own[job.id].pump = pump

        start(self._client, spec, wanted, keep)

    def _start_bare(self, job: Job, spec: JobSpec, wanted: Plan, around: Surroundings) -> None:
        """Without Python, a program is the first process itself."""
        bare = plan(spec, self._config, around, wrapped=False)
        host = wanted.body["HostConfig"]
        bare = attrs.evolve(bare, name=wanted.name, body={**bare.body, "HostConfig": host})
        with self._lock:
            self._own[job.id].remade = True
        try:
            self._client.remove(job.id)
            self._create(bare, around.image)
            self._run(job, spec, bare)
        except BackendUnavailableError as error:
            self._feed.publish(job, lost_with_engine(str(error)))
        except BackendError as error:
            words = advice(error, spec, self._config, around.image)
            self._feed.publish(job, start_failure(words))

    def _give_up(self, job: Job, signum: int) -> None:
        """Tell the end of a job that did nothing; dropped where another one was told."""
        self._feed.publish(job, never_began(signum or signal.SIGKILL))


def _with_devices(wanted: Plan, requests: Requests) -> Plan:
    if not requests:
        return wanted
    host = {**wanted.body["HostConfig"], "DeviceRequests": list(requests)}
    return attrs.evolve(wanted, body={**wanted.body, "HostConfig": host})
