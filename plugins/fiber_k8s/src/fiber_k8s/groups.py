"""Groups of jobs that start together or not at all, and their PodGroup objects."""

from __future__ import annotations

import contextlib
import functools
import secrets
import threading
from collections import Counter
from collections.abc import Callable, Sequence

import attrs

from fiber import model
from fiber.backend_parts.feed import Feed
from fiber.exceptions import BackendError, SubmitError, UnknownJobError
from fiber.model import Job, JobSpec, ReasonKind
from fiber_k8s.client import ApiError, Client
from fiber_k8s.config import K8sConfig
from fiber_k8s.names import unique_name
from fiber_k8s.pod_group import PodGroup
from fiber_k8s.run_objects import RunObjects
from fiber_k8s.submission import JobSubmitter

__all__ = ["PodGroups", "start_group"]

_NEVER_RAN = (ReasonKind.START, ReasonKind.IMAGE, ReasonKind.UNSCHEDULABLE)


class PodGroups:
    """Pod groups of a backend's gangs; thread-safe.

    A gang's object is created before its first pod, and deleted after its last one.

    Args:
        client: the cluster.
        submitter: creates pods.
        config: settings, with the scheduler of gangs.
    """

    def __init__(self, client: Client, submitter: JobSubmitter, config: K8sConfig) -> None:
        self._client, self._submitter, self._config = client, submitter, config
        self._lock = threading.Lock()
        self._groups: dict[tuple[str, str], PodGroup] = {}
        #: number of ended jobs, by run and gang
        self._ended: Counter[tuple[str, str]] = Counter()

    def get(self, spec: JobSpec, run: RunObjects) -> PodGroup | None:
        """Return the pod group of a job; None where it has no gang, or no gang scheduler is set.

        Raises:
            SubmitError: the cluster refused the object.
        """
        spec_gang = spec.gang
        if spec_gang is None or self._config.gang == "none":
            return None
        # with the lock held, so that concurrent members wait for the object
        with self._lock:
            key = (spec.run_id, spec_gang.name)
            if key not in self._groups:
                self._groups[key] = self.create(spec_gang, run)
            return self._groups[key]

    def create(self, spec_gang: model.Gang, run: RunObjects) -> PodGroup:
        """Create the pod group of a gang."""
        # unique: schedulers remember names for longer than a run
        name = unique_name(spec_gang.name)
        config = self._config
        gang = PodGroup(kind=config.gang, name=name, size=spec_gang.size, queue=config.queue)
        _create_object(self._client, self._submitter, run, gang, spec_gang.timeout)
        return gang

    def member_ended(self, spec: JobSpec) -> None:
        """Count a member whose pod is gone; after the last one the gang's object is deleted."""
        spec_gang = spec.gang
        if spec_gang is None:
            return
        with self._lock:
            self._ended[spec.run_id, spec_gang.name] += 1
            is_last = self._ended[spec.run_id, spec_gang.name] == spec_gang.size
        if is_last:
            self._submitter.run_soon(functools.partial(self.drop, spec_gang, spec.run_id))

    def drop(self, spec_gang: model.Gang, run_id: str) -> None:
        """Delete the object of a gang, none of whose jobs is left."""
        with self._lock:
            gang = self._groups.pop((run_id, spec_gang.name), None)
            self._ended.pop((run_id, spec_gang.name), None)
        if gang is not None and gang.has_object:
            # otherwise it is deleted with the run's Lease
            with contextlib.suppress(BackendError):
                self._client.delete("podgroups", gang.name, group=gang.api)


def start_group(
    submitter: JobSubmitter,
    feed: Feed,
    run: RunObjects,
    specs: Sequence[JobSpec],
    gangs: PodGroups,
    timeout: float,
    kill: Callable[[Job], None],
) -> Sequence[Job]:
    """Create all pods and wait until all run.

    Args:
        submitter: creates pods.
        feed: has their statuses.
        run: the Lease and the Secret of their run.
        specs: the jobs.
        gangs: creates their pod group.
        timeout: seconds within which all are to run.
        kill: ends a job.

    Raises:
        SubmitError: not all run in time; none is left.
    """
    first = specs[0]
    spec_gang = model.Gang(
        name=f"{first.name}-group-{secrets.token_hex(2)}", size=len(specs), timeout=timeout
    )
    specs = [attrs.evolve(spec, gang=spec_gang) for spec in specs]
    gang = gangs.get(specs[0], run)
    jobs: list[Job | None] = [None] * len(specs)
    failures: list[BackendError] = []
    lock = threading.Lock()

    def submit(index: int) -> None:
        try:
            jobs[index] = submitter.submit(specs[index], run, gang=gang, at_once=True)
        except BackendError as error:
            with lock:
                failures.append(error)

    made: list[Job] = []
    try:
        submitter.run_all([lambda index=index: submit(index) for index in range(len(specs))])
        made = [job for job in jobs if job is not None]
        if failures:
            raise failures[0]
        placed = feed.wait_placed([job.id for job in made], timeout)
        for job in made:
            status = feed.status(job.id)
            if status is not None and status.reason and status.reason.kind in _NEVER_RAN and status.state.is_terminal:  # fmt: skip
                raise SubmitError(status.message)
        if placed:
            return made
        waiting = {s.message for job in made if (s := feed.status(job.id)) and s.message}
        msg = f"not all of {len(specs)} jobs run after {timeout:g} s: {'; '.join(sorted(waiting)) or 'their pods wait'}"  # fmt: skip
        raise SubmitError(msg)
    except BaseException:
        for job in [job for job in jobs if job is not None]:
            with contextlib.suppress(UnknownJobError):
                kill(job)
        gangs.drop(spec_gang, first.run_id)
        raise


def _create_object(
    client: Client, submitter: JobSubmitter, run: RunObjects, gang: PodGroup, timeout: float
) -> None:
    parent = submitter.parent()
    own = parent if parent and parent["metadata"].get("namespace") == client.namespace else None
    body = gang.group(timeout, run.owner(own))
    if body is None:
        return
    what = f"create the group {gang.name} for {gang.kind}"
    try:
        client.create("podgroups", body, what, group=gang.api)
    except SubmitError as error:
        cause = error.__cause__
        # no Status: there is no such path
        if isinstance(cause, ApiError) and cause.status == 404 and not cause.reason:
            msg = (
                f"the cluster has no PodGroup of {gang.api}: {gang.kind} is not installed there; have "
                "it installed, or unset FIBER_K8S_GANG, and members are created together"
            )
            raise SubmitError(msg) from error
        raise
