"""The Kubernetes backend: each job is a pod."""

from __future__ import annotations

import contextlib
import functools
import getpass
import itertools
import logging
import math
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from fiber.abc import Backend
from fiber.backend_parts.feed import Feed
from fiber.exceptions import BackendError, CapabilityError, SubmitError, UnknownJobError
from fiber.model import (
    BackendContext,
    Capacity,
    Check,
    Job,
    JobSpec,
    JobState,
    JobStatus,
    Reach,
    ReachKind,
)
from fiber_k8s import logs
from fiber_k8s.address import is_outside
from fiber_k8s.client import ApiError, Client
from fiber_k8s.config import K8sConfig
from fiber_k8s.deadlines import Deadlines
from fiber_k8s.ends import Ends
from fiber_k8s.execution import kill_processes
from fiber_k8s.groups import Gangs, start_group
from fiber_k8s.jobs import Starter
from fiber_k8s.names import PREFIX, object_name
from fiber_k8s.room import Room
from fiber_k8s.run import Belongings
from fiber_k8s.status import gone, job_of, status_of
from fiber_k8s.streams import Streams
from fiber_k8s.sweeping import Sweeper, sweep_finished
from fiber_k8s.watch import Watch

if TYPE_CHECKING:
    import socket
    from typing import BinaryIO

__all__ = ["K8sBackend"]

log = logging.getLogger("fiber")

#: seconds that a Lease outlasts the silence after which processes end by themselves
_LONGER = 10.0
#: seconds that killed pods may take to be gone when the backend is closed
_GONE = 20.0
_MANAGED = "app.kubernetes.io/managed-by=fiber"


class K8sBackend(Backend):
    """Runs jobs as pods of one cluster, in one namespace.

    Args:
        context: settings and run; the cluster is not asked before the first job.
    """

    name = "k8s"

    def __init__(self, context: BackendContext) -> None:
        config = context.config if isinstance(context.config, K8sConfig) else K8sConfig()
        self._context = context
        self._config = config
        self._client = Client(config)
        self._streams = Streams(self._client)
        self._feed = Feed(self._ended)
        self._starter = Starter(
            self.name, self._client, config, self._feed, context.providers, _user()
        )
        self._gangs = Gangs(self._client, self._starter, config)
        self._room = Room(self._client, context.providers)
        self._deadlines = Deadlines("fiber-k8s-deadlines")
        self._ends = Ends(
            self.name,
            self._client,
            config,
            self._feed,
            self._starter,
            self._gangs,
            self._room,
            self._deadlines,
            self._taken,
        )
        self._lock = threading.Lock()
        self._watches: dict[str, Watch] = {}
        self._belongings: dict[str, Belongings] = {}
        self._closed = False
        self._owner = os.getpid()

    # -- jobs ---------------------------------------------------------------------------------

    def submit(self, spec: JobSpec) -> Job:
        """Create a pod."""
        self._check(spec)
        run = self._run(spec.run_id)
        gang = None if spec.gang is None else self._gangs.find(spec, run)
        return self._starter.submit(spec, run, gang=gang)

    def submit_group(self, specs: Sequence[JobSpec], timeout: float) -> Sequence[Job]:
        """Start all jobs or none."""
        for spec in specs:
            self._check(spec)
        if not specs:
            return []
        run = self._run(specs[0].run_id)
        return start_group(self._starter, self._feed, run, specs, self._gangs, timeout, self.kill)

    def events(self, run_id: str) -> Iterator[tuple[Job, JobStatus]]:
        """Changes of the pods of a run, whoever created them."""
        events = self._feed.events(run_id)
        if not self._closed:
            self._watch(run_id).wait_ready()
        return events

    def status(self, jobs: Sequence[Job]) -> Sequence[JobStatus]:
        """The present status of jobs, of any run."""
        found: dict[str, JobStatus | None] = {job.id: self._feed.status(job.id) for job in jobs}
        unsure = [job for job in jobs if not _is_certain(found[job.id])]
        unsure = [job for job in unsure if not self._starter.is_coming(job.id)]
        if unsure:
            runs = {job.run_id for job in unsure}
            selector = f"{PREFIX}run={runs.pop()}" if len(runs) == 1 else _MANAGED
            listed = {pod["metadata"]["name"]: pod for pod in self._client.pods(selector)}
            for job in unsure:
                pod = listed.get(job.id)
                if pod is not None:
                    found[job.id] = self._settled(job, status_of(pod))
                elif found[job.id] is None:
                    msg = f"there is no job {job.id} ({job.name}) in namespace {self._client.namespace}"  # fmt: skip
                    raise UnknownJobError(msg)
                else:
                    found[job.id] = gone({"metadata": {}, "status": {}})  # it is told of soon
        return [known for job in jobs if (known := found[job.id]) is not None]

    def terminate(self, job: Job, *, grace: float = 5.0) -> None:
        """SIGTERM now, SIGKILL to what is left after ``grace`` seconds."""
        if self._is_unplaced(job):
            # what does not run has nothing to end in an orderly way
            self.kill(job)
            return
        self._end(job, max(1, math.ceil(grace)), kill=False)

    def kill(self, job: Job) -> None:
        """End a pod; its object stays until the node says that no process is left."""
        self._end(job, 1, kill=True)

    def _read(self, job: Job, begin: Callable[[], Iterator[str]]) -> Iterator[str]:
        """What begins at once, with an empty word first; the pod stays until it was read."""
        with self._ends.reading(job.id):
            lines = begin()
            yield ""
            yield from lines

    def logs(self, job: Job, *, tail: int | None = None, follow: bool = False) -> Iterator[str]:
        """Yield the lines that a job wrote, without their newlines."""
        if follow:
            with contextlib.suppress(UnknownJobError):
                self._follow_status(job)
            self._feed.wait_placed([job.id], None)
        if self._is_unplaced(job):
            return iter(())
        begin = functools.partial(
            logs.follow,
            self._client,
            job.id,
            tail=tail,
            to_the_end=follow,
            has_ended=lambda: self._has_ended(job),
        )
        lines = self._read(job, begin) if follow else begin()
        try:
            first = next(lines, None)
        except ApiError as error:
            return iter(self._remembered(job, tail, error))
        if follow:
            return lines
        return iter(()) if first is None else itertools.chain((first,), lines)

    def exec(
        self,
        job: Job,
        argv: Sequence[str],
        *,
        stdin: BinaryIO | None = None,
        tty: bool = False,
    ) -> int:
        """Run a program in a job's container."""
        from fiber_k8s.execution import execute

        return execute(self._client, job.id, argv, stdin=stdin, tty=tty)

    def copy(self, src: str, dst: str) -> None:
        """Copy files to or from a claim, or a pod."""
        from fiber_k8s.files import copy

        copy(self, self._client, self._config.python, self._context.image, src, dst)

    def await_start(self, job: Job) -> None:
        """Wait until a job runs.

        Raises:
            BackendError: it has ended instead, with the reason.
        """
        self._watch(job.run_id).wait_ready()
        self._feed.wait_placed([job.id], None)
        (status,) = self.status([job])
        if status.state.is_terminal:
            msg = f"{job.name} did not start: {status.message or status.reason}"
            raise BackendError(msg)

    def open_stream(self, job: Job) -> socket.socket:
        """A stream through the API server to where the job's supervisor waits for it."""
        return self._streams.open(job.id, self._starter.landing(job.id))

    def list(self, run_id: str | None = None) -> Sequence[Job]:
        """Pods of one run, or of all runs in the namespace; ended ones included."""
        selector = f"{PREFIX}run={run_id}" if run_id else f"{_MANAGED},{PREFIX}run"
        return [job_of(self.name, pod) for pod in self._client.pods(selector)]

    def cleanup(self, run_id: str) -> None:
        """End the pods of a run and remove everything that it has."""
        with self._lock:
            belongings = self._belongings.pop(run_id, None)
        if run_id == self._context.run_id:
            for job_id in self._starter.attached():
                self._starter.doom(job_id)
        self._ends.remove_all(f"{PREFIX}run={run_id}", _GONE)
        if belongings is not None:
            belongings.close()
        name = object_name(run_id)
        from fiber_k8s.run import LEASES

        self._client.delete("leases", name, group=LEASES)
        self._client.delete("secrets", name)

    def sweep(self, *, dry_run: bool = False) -> Sequence[str]:
        """Remove what belongs to programs that are proven to be gone, and programs that have ended.

        Where it takes time to prove it, that is said, and waited for.
        """
        sweeper, runs = Sweeper(self._client, dry_run=dry_run), list[str]()
        told: float | None = None
        while True:
            look = sweeper.look()
            runs += look.removed
            if not look.observed:
                break
            if told is None:
                told = max(look.observed.values())
                log.warning(
                    "fiber: waiting %.0f s to see whether programs that do not renew their Leases are "
                    "there (%s)",
                    told,
                    ", ".join(sorted(look.observed)),
                )
            # time itself is what is waited for
            time.sleep(min(look.interval, max(look.observed.values())))
        for run_id, doubt in sorted(look.kept.items()):
            log.warning(
                "fiber: run %s is kept: nobody renews its Lease, but %s", run_id, doubt.value
            )
        # a dry run finds those that are over in each look
        return [*dict.fromkeys(runs), *sweep_finished(self._client, dry_run=dry_run)]

    # -- the platform -------------------------------------------------------------------------

    def prepare_image(self, context: str) -> str | None:
        """Build the image that a folder describes, and bring it to where the cluster has it from."""
        from fiber_k8s.building.context import cluster_of
        from fiber_k8s.building.images import prepare

        return prepare(context, self._config, lambda: cluster_of(self._config))

    def capacity(self) -> Capacity:
        """CPUs and memory of the program's own container, where it is in one."""
        return self._room.capacity()

    def reach(self, job: Job) -> Reach:
        """Pods dial each other; from outside it takes streams."""
        if is_outside(self._config, os.environ):
            return Reach(ReachKind.REVERSED, "streams through the API server's port-forward")
        return Reach(ReachKind.DIRECT, "the pod dials its parent's pod")

    def check(self) -> Iterable[Check]:
        """Check the cluster, with pods of its own."""
        from fiber_k8s.doctor.checks import run_checks

        context = self._context
        run_id = context.run_id or "0" * 8
        return run_checks(
            self, self._client, self._config, context.providers, run_id, context.image
        )

    def close(self) -> None:
        """End all pods of jobs that are not detached, delete what the run has, end the streams."""
        if os.getpid() != self._owner:
            return
        with self._lock:
            watches = [] if self._closed else list(self._watches.values())
            self._closed = True
            belongings, self._belongings = list(self._belongings.values()), {}
        with contextlib.ExitStack() as stack:
            # each whatever becomes of those before it
            stack.callback(self._client.close)
            stack.callback(self._streams.close)
            stack.callback(self._feed.close)
            for watch in watches:
                stack.callback(watch.close)
            stack.callback(self._starter.close)
            stack.callback(self._deadlines.close)
            for one in belongings:
                stack.callback(one.close)
            stack.callback(self._end_all)

    # -- within -------------------------------------------------------------------------------

    def _check(self, spec: JobSpec) -> None:
        if not spec.argv:
            msg = f"{spec.name} has no program to run: argv is empty"
            raise SubmitError(msg)
        if spec.processes > 1:
            raise CapabilityError(self.name, "fork", f"a job of {spec.processes} processes")
        try:
            self._watch(spec.run_id).wait_ready()
        except ApiError as error:
            # it has all the words
            raise SubmitError(str(error)) from None

    @functools.cached_property
    def _swept(self) -> bool:
        """True once it is being seen to that what belongs to programs that are gone is removed."""
        sweeper = Sweeper(self._client)
        self._starter.do(functools.partial(self._look, sweeper))
        return True

    def _look(self, sweeper: Sweeper) -> None:
        """Look at others' Leases, again and again while there are some that may be removed."""
        try:
            look = sweeper.look()
        except BackendError as error:
            # the next program does it
            log.debug("fiber: what programs left that are gone is not looked for: %s", error)
            return
        if look.removed:
            log.info("fiber: removed what runs left whose programs are gone: %s", look.removed)
        if look.observed:
            again = functools.partial(self._starter.do, functools.partial(self._look, sweeper))
            self._deadlines.set("sweep", min(look.interval, max(look.observed.values())), again)

    def _taken(self, run_id: str) -> None:
        """Somebody else removes pods of a run: perhaps the cluster, for its Lease is gone."""
        with self._lock:
            belongings = self._belongings.get(run_id)
        if belongings is not None:
            belongings.doubt()

    def _run(self, run_id: str) -> Belongings:
        _ = self._swept
        with self._lock:
            found = self._belongings.get(run_id)
            if found is None:
                duration = (self._context.lease or 30.0) + _LONGER
                found = Belongings(self._client, run_id, duration, _user())
                self._belongings[run_id] = found
            return found

    def _watch(self, run_id: str) -> Watch:
        with self._lock:
            watch = self._watches.get(run_id)
            if watch is None or not watch.is_alive:
                watch = Watch(self._client, run_id, self._ends.seen, self._ends.gone)
                self._watches[run_id] = watch
            return watch

    def _end(self, job: Job, grace: int, *, kill: bool) -> None:
        if self._has_ended(job) or self._starter.doom(job.id):
            return
        was_asked = self._ends.asked(job.id, kill=kill)
        spec = self._starter.spec(job.id)
        if kill and (was_asked or spec is None or spec.entry is None):
            # a node sends SIGTERM first, and waits out a grace of before; supervisors do not
            kill_processes(self._client, job.id, self._starter.do)
        try:
            known = self._client.delete("pods", job.id, grace=grace)
        except ApiError as error:
            if error.status == 409:
                return
            raise
        if not known and self._feed.status(job.id) is None:
            msg = f"there is no job {job.id} in namespace {self._client.namespace}"
            raise UnknownJobError(msg)

    def _end_all(self) -> None:
        attached = self._starter.attached()
        for job_id in attached:
            self._starter.doom(job_id)
        if attached and self._context.run_id is not None:
            self._ends.remove_all(
                f"{PREFIX}run={self._context.run_id},{PREFIX}detached=false", _GONE
            )

    def _ended(self, job: Job) -> None:
        self._ends.ended(job)

    def _follow_status(self, job: Job) -> None:
        """Know of a job that another program submitted."""
        if self._feed.status(job.id) is None:
            self._watch(job.run_id).wait_ready()

    def _remembered(self, job: Job, tail: int | None, error: ApiError) -> Sequence[str]:
        """Lines of a pod whose log cannot be had."""
        known = self._feed.status(job.id)
        if error.status == 400 or (error.status == 404 and known is not None):
            # it never ran, or is gone and the last lines are here
            words = [] if known is None else [l for p in known.processes for l in p.log_tail]  # noqa: E741
            return words if tail is None else words[max(0, len(words) - tail) :]
        if error.status == 404:
            msg = f"there is no job {job.id} in namespace {self._client.namespace}"
            raise UnknownJobError(msg) from error
        raise error

    def _settled(self, job: Job, status: JobStatus) -> JobStatus:
        """A status that was looked up, unless more is known of that job by now."""
        known = self._feed.status(job.id)
        return known if known is not None and known.state.is_terminal else status

    def _has_ended(self, job: Job) -> bool:
        known = self._feed.status(job.id)
        return known is not None and known.state.is_terminal

    def _is_unplaced(self, job: Job) -> bool:
        known = self._feed.status(job.id)
        return known is not None and known.state is JobState.PENDING


def _is_certain(status: JobStatus | None) -> bool:
    return status is not None and status.state.is_terminal


@functools.cache
def _user() -> str:
    """Whose jobs these are, for people."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        # a user id without a name
        return str(os.getuid())
