"""The Kubernetes backend: each job is a pod; see the package's docstring."""

from __future__ import annotations

import contextlib
import functools
import itertools
import logging
import math
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from fiber.abc import Backend
from fiber.backend_parts.containers import user_name
from fiber.backend_parts.feed import Feed
from fiber.backend_parts.threads import Timers
from fiber.backend_parts.watch import Watches
from fiber.exceptions import BackendError, SubmitError, UnknownJobError
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
from fiber_k8s.capacity import ClusterCapacity
from fiber_k8s.client import ApiError, Client
from fiber_k8s.config import K8sConfig
from fiber_k8s.lifecycle import PodLifecycle
from fiber_k8s.names import PREFIX, object_name
from fiber_k8s.pod_exec import kill_processes
from fiber_k8s.port_forward import PortForwarder
from fiber_k8s.run_objects import RunObjects
from fiber_k8s.status import deleted_status, job_of, status_of
from fiber_k8s.submission import JobSubmitter
from fiber_k8s.sweeping import Sweeper, sweep_finished
from fiber_k8s.watch import Watch

if TYPE_CHECKING:
    import socket
    from typing import BinaryIO


log = logging.getLogger("fiber")

_MANAGED = "app.kubernetes.io/managed-by=fiber"


class K8sBackend(Backend):
    """Runs jobs as pods of one cluster, in one namespace.

    Args:
        context: settings and run; no request is made before the first job.
    """

    name = "k8s"

    def __init__(self, context: BackendContext) -> None:
        config = context.config if isinstance(context.config, K8sConfig) else K8sConfig()
        self._context = context
        self._config = config
        self._client = Client(config, context.timing)
        self._streams = PortForwarder(self._client)
        self._feed = Feed(self._ended)
        self._submitter = JobSubmitter(
            self.name, self._client, config, self._feed, context.providers, user_name()
        )
        self._capacity = ClusterCapacity(self._client, context.providers)
        self._timers = Timers("fiber-k8s-timers")
        self._lifecycle = PodLifecycle(
            self.name,
            self._client,
            config,
            self._feed,
            self._submitter,
            self._capacity,
            self._timers,
            self._on_foreign_deletion,
        )
        self._lock = threading.Lock()
        self._watches = Watches(
            lambda run_id: Watch(
                self._client, run_id, self._lifecycle.on_pod, self._lifecycle.on_deleted
            )
        )
        self._run_objects: dict[str, RunObjects] = {}
        self._owner = os.getpid()

    # -- jobs ---------------------------------------------------------------------------------

    def submit(self, spec: JobSpec) -> Job:
        """Create a pod."""
        self._check(spec)
        return self._submitter.submit(spec, self._run(spec.run_id))

    def events(self, run_id: str) -> Iterator[tuple[Job, JobStatus]]:
        """Return a stream of (job, status) of a run's pods, also those of other programs."""
        events = self._feed.events(run_id)
        self._watches.wait_ready(run_id)
        return events

    def status(self, jobs: Sequence[Job]) -> Sequence[JobStatus]:
        """Return the present status of jobs, of any run."""
        found: dict[str, JobStatus | None] = {job.id: self._feed.status(job.id) for job in jobs}
        unsure = [job for job in jobs if not _is_certain(found[job.id])]
        unsure = [job for job in unsure if not self._submitter.is_being_created(job.id)]
        if unsure:
            runs = {job.run_id for job in unsure}
            selector = f"{PREFIX}run={runs.pop()}" if len(runs) == 1 else _MANAGED
            listed = {pod["metadata"]["name"]: pod for pod in self._client.pods(selector)}
            for job in unsure:
                pod = listed.get(job.id)
                if pod is not None:
                    found[job.id] = self._feed.end(job.id) or status_of(pod)
                elif found[job.id] is None:
                    msg = f"there is no job {job.id} ({job.name}) in namespace {self._client.namespace}"  # fmt: skip
                    raise UnknownJobError(msg)
                else:
                    found[job.id] = deleted_status({"metadata": {}, "status": {}})  # published soon
        return [known for job in jobs if (known := found[job.id]) is not None]

    def terminate(self, job: Job, *, grace: float = 5.0) -> None:
        """Delete a job's pod: SIGTERM now, SIGKILL after ``grace`` seconds, rounded up."""
        if self._is_unplaced(job):
            # without a process there is nothing to end in an orderly way
            self.kill(job)
            return
        self._end(job, max(1, math.ceil(grace)), kill=False)

    def kill(self, job: Job) -> None:
        """Kill a job's pod; its object stays until the node confirms that no process is left."""
        self._end(job, 1, kill=True)

    def _read(self, job: Job, begin: Callable[[], Iterator[str]]) -> Iterator[str]:
        """Yield "" once the log is open, then its lines; the pod is kept until all were read."""
        with self._lifecycle.reading_log(job.id):
            lines = begin()
            yield ""
            yield from lines

    def logs(self, job: Job, *, tail: int | None = None, follow: bool = False) -> Iterator[str]:
        """Yield the lines that a job wrote, without their newlines."""
        if follow:
            if self._feed.status(job.id) is None:
                # another program submitted it
                self._watches.wait_ready(job.run_id)
            self._feed.wait_placed([job.id], None)
        if self._is_unplaced(job):
            return iter(())
        begin = functools.partial(
            logs.follow,
            self._client,
            job.id,
            tail=tail,
            to_the_end=follow,
            has_ended=lambda: self._feed.end(job.id) is not None,
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
        from fiber_k8s.pod_exec import execute

        return execute(self._client, job.id, argv, stdin=stdin, tty=tty)

    def copy(self, src: str, dst: str) -> None:
        """Copy files to or from a claim, or a pod."""
        from fiber_k8s.file_copy import copy

        copy(self, self._client, self._config.python, self._context.image, src, dst)

    def open_stream(self, job: Job) -> socket.socket:
        """Open a stream through the API server to the job's supervisor."""
        return self._streams.open(job.id, self._submitter.stream_port(job.id))

    def list(self, run_id: str | None = None) -> Sequence[Job]:
        """Return jobs of one run, or of all runs in the namespace; ended ones included."""
        selector = f"{PREFIX}run={run_id}" if run_id else f"{_MANAGED},{PREFIX}run"
        return [job_of(self.name, pod) for pod in self._client.pods(selector)]

    def cleanup(self, run_id: str) -> None:
        """Kill the pods of a run and delete its Lease and Secrets."""
        with self._lock:
            objects = self._run_objects.pop(run_id, None)
        if run_id == self._context.run_id:
            for job_id in self._submitter.attached():
                self._submitter.cancel_creation(job_id)
        self._lifecycle.remove_all(f"{PREFIX}run={run_id}", self._client.timing.deletion)
        if objects is not None:
            objects.close()
        name = object_name(run_id)
        from fiber_k8s.run_objects import LEASES

        self._client.delete("leases", name, group=LEASES)
        self._client.delete("secrets", name)

    def sweep(self, *, dry_run: bool = False) -> Sequence[str]:
        """Delete runs of programs proven to be dead, and detached programs that have ended.

        Where the proof takes time, a warning is logged, and it is waited for.
        """
        sweeper, runs = Sweeper(self._client, dry_run=dry_run), list[str]()
        announced: float | None = None
        while True:
            result = sweeper.sweep_once()
            runs += result.removed
            if not result.observed:
                break
            if announced is None:
                announced = max(result.observed.values())
                log.warning(
                    "fiber: waiting %.0f s to see whether programs that do not renew their Leases are "
                    "there (%s)",
                    announced,
                    ", ".join(sorted(result.observed)),
                )
            # the proof is that time passes without a renewal
            time.sleep(min(result.interval, max(result.observed.values())))
        for run_id, sign in sorted(result.kept.items()):
            log.warning(
                "fiber: run %s is kept: nobody renews its Lease, but %s", run_id, sign.value
            )
        # a dry run finds dead ones in each call
        return [*dict.fromkeys(runs), *sweep_finished(self._client, dry_run=dry_run)]

    # -- the platform -------------------------------------------------------------------------

    def prepare_image(self, context: str) -> str | None:
        """Build the image of a folder, and push or load it; return its name, None without one."""
        from fiber_k8s.images import prepare
        from fiber_k8s.registries import configured_cluster

        return prepare(context, self._config, lambda: configured_cluster(self._config))

    def capacity(self) -> Capacity:
        """Return CPUs and memory of the own container, outside of the nodes; devices of the nodes."""
        return self._capacity.capacity()

    def reach(self, job: Job) -> Reach:
        """Return how jobs are reached: directly in the cluster, by port-forward from outside."""
        if is_outside(self._config, os.environ):
            return Reach(ReachKind.REVERSED, "streams through the API server's port-forward")
        return Reach(ReachKind.DIRECT, "the pod dials its parent's pod")

    def check(self) -> Iterable[Check]:
        """Check the cluster, from here and from pods that it runs."""
        from fiber_k8s.doctor import run_checks

        context = self._context
        run_id = context.run_id or "0" * 8
        return run_checks(
            self, self._client, self._config, context.providers, run_id, context.image
        )

    def close(self) -> None:
        """Kill the pods of attached jobs, delete the run's objects, end all streams and threads."""
        if os.getpid() != self._owner:
            return
        with self._lock:
            objects, self._run_objects = list(self._run_objects.values()), {}
        with contextlib.ExitStack() as stack:
            # each one also where those before it fail
            stack.callback(self._client.close)
            stack.callback(self._streams.close)
            stack.callback(self._feed.close)
            stack.callback(self._watches.close)
            stack.callback(self._submitter.close)
            stack.callback(self._timers.close)
            for one in objects:
                stack.callback(one.close)
            stack.callback(self._end_all)

    # -- within -------------------------------------------------------------------------------

    def _check(self, spec: JobSpec) -> None:
        if not spec.argv:
            msg = f"{spec.name} has no program to run: argv is empty"
            raise SubmitError(msg)
        try:
            self._watches.wait_ready(spec.run_id)
        except ApiError as error:
            # its message says it all
            raise SubmitError(str(error)) from None

    @functools.cached_property
    def _garbage_collection(self) -> bool:
        """Start the garbage collection of dead programs' runs, once; True."""
        sweeper = Sweeper(self._client)
        self._submitter.threads.submit(functools.partial(self._collect_garbage, sweeper))
        return True

    def _collect_garbage(self, sweeper: Sweeper) -> None:
        """Look for Leases of dead programs; repeat by a timer while some are observed."""
        try:
            result = sweeper.sweep_once()
        except BackendError as error:
            # the next program tries again
            log.debug("fiber: runs of dead programs are not looked for: %s", error)
            return
        if result.removed:
            log.info("fiber: removed what runs left whose programs are gone: %s", result.removed)
        if result.observed:
            again = functools.partial(
                self._submitter.threads.submit, functools.partial(self._collect_garbage, sweeper)
            )
            self._timers.set("sweep", min(result.interval, max(result.observed.values())), again)

    def _on_foreign_deletion(self, run_id: str) -> None:
        """Check a run's Lease: another client deletes its pods, or the garbage collector does."""
        with self._lock:
            objects = self._run_objects.get(run_id)
        if objects is not None:
            objects.recheck()

    def _run(self, run_id: str) -> RunObjects:
        _ = self._garbage_collection
        with self._lock:
            found = self._run_objects.get(run_id)
            if found is None:
                duration = (self._context.lease or 30.0) + self._client.timing.lease_margin
                found = RunObjects(self._client, run_id, duration, user_name())
                self._run_objects[run_id] = found
            return found

    def _end(self, job: Job, grace: int, *, kill: bool) -> None:
        if self._feed.end(job.id) or self._submitter.cancel_creation(job.id):
            return
        was_requested = self._lifecycle.request_end(job.id, kill=kill)
        spec = self._submitter.spec(job.id)
        if kill and (was_requested or spec is None or spec.entry is None):
            # a kubelet sends SIGTERM first, and waits out an earlier grace period
            kill_processes(self._client, job.id, self._submitter.threads.submit)
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
        attached = self._submitter.attached()
        for job_id in attached:
            self._submitter.cancel_creation(job_id)
        if attached and self._context.run_id is not None:
            self._lifecycle.remove_all(
                f"{PREFIX}run={self._context.run_id},{PREFIX}detached=false",
                self._client.timing.deletion,
            )

    def _ended(self, job: Job) -> None:
        self._lifecycle.on_end(job)

    def _remembered(self, job: Job, tail: int | None, error: ApiError) -> Sequence[str]:
        """Return the last known lines of a pod whose log cannot be read; else raise the error."""
        known = self._feed.status(job.id)
        if error.status == 400 or (error.status == 404 and known is not None):
            # it never ran, or is gone and its last lines are in its status
            return self._feed.last_lines(job.id, tail)
        if error.status == 404:
            msg = f"there is no job {job.id} in namespace {self._client.namespace}"
            raise UnknownJobError(msg) from error
        raise error

    def _is_unplaced(self, job: Job) -> bool:
        known = self._feed.status(job.id)
        return known is not None and known.state is JobState.PENDING


def _is_certain(status: JobStatus | None) -> bool:
    return status is not None and status.state.is_terminal
