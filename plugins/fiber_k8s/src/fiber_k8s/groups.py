"""PodGroup objects of jobs that start together or not at all."""

from __future__ import annotations

import contextlib
import functools
import threading
from collections import Counter

from fiber import model
from fiber.exceptions import BackendError, SubmitError
from fiber.model import JobSpec
from fiber_k8s.client import ApiError, Client
from fiber_k8s.config import K8sConfig
from fiber_k8s.names import unique_name
from fiber_k8s.pod_group import PodGroup
from fiber_k8s.run_objects import RunObjects
from fiber_k8s.submission import JobSubmitter

__all__ = ["PodGroups"]


class PodGroups:
    """Pod groups of a backend's gangs; thread-safe.

    A gang's object is created before its first pod, and deleted after its last one.
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
