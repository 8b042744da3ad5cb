"""Lifecycle of pods: publishes their statuses, gives up those that cannot start, deletes them.

:class:`PodLifecycle` is called on the thread of the run's watch with each change of a pod. Slow
calls (logs, deletions) run on the submitter's threads, timeouts on that of :class:`~fiber.backend_parts.threads.Timers`.

Why a pending pod does not start (volumes or networks that fail, autoscalers that add a node) is not in its status, only
in its event objects. They need the right to list events, which is optional.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import attrs

from fiber.backend_parts.containers import timestamp
from fiber.backend_parts.feed import Feed, with_log_tail
from fiber.backend_parts.threads import Timers
from fiber.exceptions import BackendError, FiberError
from fiber.model import Job, JobState, JobStatus, Reason, ReasonKind
from fiber_k8s.capacity import ClusterCapacity
from fiber_k8s.client import ApiError, Client
from fiber_k8s.config import K8sConfig
from fiber_k8s.logs import last_lines
from fiber_k8s.names import PREFIX
from fiber_k8s.pod_exec import kill_processes
from fiber_k8s.status import (
    PendingCause,
    as_killed,
    deleted_status,
    grace_left,
    is_creating_container,
    is_terminating,
    job_of,
    lost_status,
    pending_cause,
    status_of,
)
from fiber_k8s.submission import JobSubmitter

log = logging.getLogger("fiber")

#: event reasons of autoscalers that add a node for a pod: Cluster Autoscaler's, and Karpenter's
_SCALING = frozenset({"TriggeredScaleUp", "Nominated"})
#: event reasons of kubelets and controllers for which a container is not made; others, such as
#: ``MissingClusterDNS`` and ``DNSConfigForming``, come with pods that run all the same
_STUCK = frozenset(
    {
        *("FailedMount", "FailedMapVolume", "FailedAttachVolume"),
        *("FailedMountOnFilesystemMismatch", "FailedPrepareDynamicResources"),
        *("FailedCreatePodSandBox", "FailedPodSandBoxStatus", "NetworkNotReady"),
        "FailedCreatePodContainer",
    }
)
_PAGE = 500
_KEY = "slow"


def is_scaling_up(client: Client, pod: str) -> bool:
    """True where an autoscaler adds a node for a pod, by an event of the last minutes.

    Args:
        client: the cluster.
        pod: name of the pod.
    """
    try:
        found = _events(client, f"involvedObject.name={pod}")
    except BackendError:
        # without the right to list events it counts as no
        return False
    since = client.now() - client.timing.scale_up
    return any(
        one.get("reason") in _SCALING and (timestamp(_time(one)) or 0.0) > since for one in found
    )


def latest_messages(events: Iterable[Mapping[str, Any]]) -> dict[str, str]:
    """Return why containers are not made, ``REASON: MESSAGE`` by the pod's name, the latest; pure.

    Args:
        events: as the API returned them; those of other reasons are left out.
    """
    found: dict[str, str] = {}
    for one in sorted((one for one in events if one.get("reason") in _STUCK), key=_time):
        name = str((one.get("involvedObject") or {}).get("name"))
        found[name] = f"{one.get('reason')}: {one.get('message')}"
    return found


class StuckPods:
    """Polls warning events of scheduled pods whose containers are not created; thread-safe.

    One list is for all of them, after waits that double. It only adds a message to their statuses:
    missing volumes and networks are often there in the end, so no pod is given up for it.

    Args:
        client: the cluster.
        timers: delayed calls.
        publish: called with the job and its status with an event's message.
    """

    def __init__(
        self, client: Client, timers: Timers, publish: Callable[[Job, JobStatus], None]
    ) -> None:
        self._client = client
        self._timers = timers
        self._publish = publish
        self._lock = threading.Lock()
        self._pods: dict[str, tuple[Job, JobStatus]] = {}
        #: the last wait; None before the first
        self._wait: float | None = None
        #: True once the cluster refused to list events
        self._refused = False

    def add(self, job: Job, status: JobStatus) -> None:
        """Poll for a pod whose container is being created."""
        with self._lock:
            if self._refused:
                return
            self._pods[job.id] = (job, status)
            wait = self._wait or self._client.timing.stuck
        self._timers.set(_KEY, wait, self._poll)

    def drop(self, job_id: str) -> None:
        """Stop polling for a pod."""
        with self._lock:
            self._pods.pop(job_id, None)

    def _poll(self) -> None:
        with self._lock:
            if not self._pods:
                self._wait = None
                return
        try:
            messages = latest_messages(
                _events(self._client, "involvedObject.kind=Pod,type=Warning")
            )
        except BackendError as error:
            messages = {}
            if isinstance(error, ApiError) and error.status == 403:
                with self._lock:
                    self._refused = True
                    self._pods.clear()
                return
        with self._lock:
            for name, message in messages.items():
                known = self._pods.get(name)
                if known is None or known[1].message == message:
                    continue
                job, status = known
                status = attrs.evolve(status, reason=Reason(ReasonKind.START), message=message)
                self._pods[name] = (job, status)
                # within the lock, so that it is published before later statuses
                self._publish(job, status)
            timing = self._client.timing
            wait = min(timing.stuck_most, 2 * (self._wait or timing.stuck))
            self._wait = wait
        self._timers.set(_KEY, wait, self._poll)


def _events(client: Client, selector: str) -> list[Mapping[str, Any]]:
    query = {"fieldSelector": selector, "limit": _PAGE}
    found = client.call("GET", client.path("events"), "list events", query=query)
    return list(found.get("items") or ())


def _time(event: Mapping[str, Any]) -> str:
    series = event.get("series") or {}
    return str(
        series.get("lastObservedTime")
        or event.get("lastTimestamp")
        or event.get("eventTime")
        or (event.get("metadata") or {}).get("creationTimestamp")
        or ""
    )


#: lines of a log kept with the status of a failed job
_TAIL = 20
_START_FAILED = 127
#: with the name of a pod, the key of that timer
_LEAVING = "leaving"
_FOR_EVER = (
    "fiber: pod %s may wait for ever: the cluster's scheduler does not say whether a node could "
    "take it, were all others gone, and nodes may not be listed (fiber k8s rbac --nodes lets them be)"
)


@attrs.define
class _PodState:
    """What is known of a pod, and what this program does with it; guarded by the lifecycle's lock."""

    #: labels of its object; None while there is none that the watch has reported
    labels: Mapping[str, str] | None = None
    #: True while its final status is about to be published
    is_ending: bool = False
    #: True where its node does not confirm its end, for which nothing waits any more
    is_lost: bool = False
    #: True where this program terminates it: its log is not read for a reason
    end_requested: bool = False
    #: True where this program kills it
    is_killed: bool = False
    #: True where it has ended, and this program deletes it
    is_deleting: bool = False
    #: number of readers that follow its log
    log_readers: int = 0
    #: True where it is to be deleted once the last of them is done
    is_unwanted: bool = False

    @property
    def is_terminating(self) -> bool:
        """True where its processes got SIGTERM of this program, and their grace period goes on."""
        return self.end_requested and not self.is_killed


class PodLifecycle:
    """Publishes the statuses of pods, and deletes those that have ended; thread-safe.

    Args:
        backend: name of the backend.
        client: the cluster.
        config: settings.
        feed: receives statuses.
        submitter: the jobs submitted here, and threads for slow calls.
        capacity: what nodes have.
        timers: delayed calls.
        on_foreign_deletion: called with the run id of a pod that another client deletes.
    """

    def __init__(
        self,
        backend: str,
        client: Client,
        config: K8sConfig,
        feed: Feed,
        submitter: JobSubmitter,
        capacity: ClusterCapacity,
        timers: Timers,
        on_foreign_deletion: Callable[[str], None],
    ) -> None:
        self._backend = backend
        self._client = client
        self._config = config
        self._feed = feed
        self._submitter = submitter
        self._capacity = capacity
        self._timers = timers
        self._on_foreign_deletion = on_foreign_deletion
        self._stuck = StuckPods(client, self._timers, feed.publish)
        self._changed = threading.Condition()
        self._pods: defaultdict[str, _PodState] = defaultdict(_PodState)
        #: whether the warning was logged that a pod may wait for ever
        self._has_warned = False

    # -- callbacks of the watch, on its thread

    def on_pod(self, pod: Mapping[str, Any]) -> None:
        """Handle a pod that was added or changed, or was listed."""
        job, status = job_of(self._backend, pod), status_of(pod)
        self._stuck.drop(job.id)
        with self._changed:
            state = self._pods[job.id]
            state.labels = pod["metadata"].get("labels") or {}
            is_foreign = is_terminating(pod) and not (state.end_requested or state.is_deleting)
        if is_foreign:
            # before a replacement is started
            self._on_foreign_deletion(job.run_id)
        if status.state.is_terminal:
            self._end(job, status, pod)
            return
        self._feed.publish(job, status)
        if is_terminating(pod):
            self._timers.set(
                (job.id, _LEAVING),
                grace_left(pod, self._client.now()) + self._client.timing.unconfirmed,
                functools.partial(self._confirm, job),
            )
        if is_creating_container(pod) and self._submitter.is_own(job.id):
            self._stuck.add(job, status)
        cause = pending_cause(pod)
        for one in PendingCause:
            if one is not cause:
                self._timers.cancel((job.id, one))
        if cause is not None and self._submitter.is_own(job.id) and not is_terminating(pod):
            is_made = cause is PendingCause.CONTAINER
            self._timers.set(
                (job.id, cause),
                self._config.image_timeout if is_made else self._config.unschedulable_timeout,
                functools.partial(self._give_up, job, status, cause, pod),
            )

    def on_deleted(self, pod: Mapping[str, Any]) -> None:
        """Handle the deletion of a pod's object."""
        job = job_of(self._backend, pod)
        self._stuck.drop(job.id)
        self._timers.cancel((job.id, _LEAVING))
        with self._changed:
            state = self._pods.pop(job.id, _PodState())
            if state.is_ending or state.log_readers:
                self._pods[job.id] = _PodState(
                    is_ending=state.is_ending, log_readers=state.log_readers
                )
            self._changed.notify_all()
        if not (state.end_requested or state.is_deleting):
            self._on_foreign_deletion(job.run_id)
        if not state.is_ending:
            self._feed.publish(job, deleted_status(pod))
        self._submitter.forget(job.id)

    # -- calls of the backend

    def on_end(self, job: Job) -> None:
        """Cancel the timers of a job whose final status was published."""
        for key in (*PendingCause, _LEAVING):
            self._timers.cancel((job.id, key))

    def request_end(self, job_id: str, *, kill: bool) -> bool:
        """Note that a job is terminated or killed; True where it was terminated before."""
        with self._changed:
            state = self._pods[job_id]
            was_requested = state.is_terminating
            state.end_requested = True
            state.is_killed |= kill
        return was_requested

    @contextlib.contextmanager
    def reading_log(self, job_id: str) -> Iterator[None]:
        """Within, the pod is not deleted, so that its log can be followed to the end."""
        with self._changed:
            self._pods[job_id].log_readers += 1
        try:
            yield
        finally:
            with self._changed:
                state = self._pods[job_id]
                state.log_readers -= 1
                self._drop_if_gone(job_id)
                is_unread = state.is_unwanted and not state.log_readers
            if is_unread:
                self._submitter.threads.submit(functools.partial(self._delete, job_id))

    def remove_all(self, selector: str, timeout: float) -> None:
        """Delete pods and wait until they are gone, so that none of their processes is left.

        Args:
            selector: labels, ``KEY=VALUE,…``.
            timeout: seconds to wait.
        """
        labels = dict(pair.split("=", 1) for pair in selector.split(","))
        with self._changed:
            existing = self._remaining(labels)
            # a kubelet waits out the grace period of the first deletion
            slow = [name for name in existing if self._pods[name].is_terminating]
            for name in existing:
                self._pods[name].end_requested = True
        for name in slow:
            kill_processes(self._client, name, self._submitter.threads.submit)
        path = self._client.path("pods")
        body = {
            "apiVersion": "v1", "kind": "DeleteOptions", "gracePeriodSeconds": 1,
            "propagationPolicy": "Background",
        }  # fmt: skip
        try:
            self._client.call(
                "DELETE", path, "delete pods", body=body, query={"labelSelector": selector}
            )
        except ApiError as error:
            if error.reason != "Forbidden":
                raise
            # one by one, which needs the verb delete only
            names = [pod["metadata"]["name"] for pod in self._client.pods(selector)]
            self._submitter.threads.run_all(
                [functools.partial(self._delete, name) for name in names]
            )
        deadline, check = time.monotonic() + timeout, self._client.timing.deletion_check
        while (left := deadline - time.monotonic()) > 0:
            with self._changed:
                self._changed.wait_for(lambda: not self._remaining(labels), min(left, check))
            # the watch may not have reported the newest ones, and reports none of other programs
            names = [pod["metadata"]["name"] for pod in self._client.pods(selector)]
            if all(name in self._pods and self._pods[name].is_lost for name in names):
                # their ends are about to be reported
                with self._changed:
                    self._changed.wait_for(
                        lambda: not self._remaining(labels), max(left - check, 0)
                    )
                return
            with self._changed:
                if not self._remaining(labels):
                    self._changed.wait(min(left, check))

    # -- within

    def _remaining(self, selected: Mapping[str, str]) -> list[str]:
        """Return the existing pods with these labels, except lost ones; with the lock held."""
        return [
            name
            for name, state in self._pods.items()
            if state.labels is not None
            and not state.is_lost
            and selected.items() <= state.labels.items()
        ]

    def _drop_if_gone(self, name: str) -> None:
        """Forget a pod whose object is gone and that nothing is done with; with the lock held."""
        if self._pods[name] in (_PodState(), _PodState(is_unwanted=True)):
            del self._pods[name]

    def _end(self, job: Job, status: JobStatus, pod: Mapping[str, Any]) -> None:
        known = self._feed.status(job.id)
        is_own = self._submitter.is_own(job.id)
        if known is not None and known.state.is_terminal:
            return
        with self._changed:
            state = self._pods[job.id]
            if state.is_ending:
                return
            state.is_ending = True
            end_requested, killed = state.end_requested, state.is_killed
        if killed:
            status = as_killed(status)
        spec = self._submitter.spec(job.id)
        is_process = spec is not None and spec.entry is not None
        started = (pod.get("status") or {}).get("startTime") is not None
        needs_no_log = (
            status.state is JobState.SUCCEEDED or end_requested or not is_own or not started
        )

        def publish_end() -> None:
            lines = () if needs_no_log else last_lines(self._client, job.id, _TAIL)
            self._feed.publish(job, with_log_tail(status, lines))
            with self._changed:
                state = self._pods[job.id]
                state.is_ending = False
                has_object = state.labels is not None
                self._drop_if_gone(job.id)
            if not has_object:
                self._submitter.forget(job.id)
            elif is_process and not is_terminating(pod):
                if self._config.keep_failed and status.state is JobState.FAILED:
                    self._keep(job.id)
                else:
                    self._delete_unless_read(job.id)

        if needs_no_log and not is_process:
            publish_end()
        else:
            # reading a log takes a while, and changes of other pods must not wait for it
            self._submitter.threads.submit(publish_end)

    def _give_up(
        self, job: Job, status: JobStatus, cause: PendingCause, pod: Mapping[str, Any]
    ) -> None:
        """Fail a job whose pod was pending for too long, unless its cause may still pass."""
        if cause is not PendingCause.CONTAINER and self._may_be_scheduled(job, cause, pod):
            again = functools.partial(self._give_up, job, status, cause, pod)
            self._timers.set((job.id, cause), self._client.timing.scale_up_check, again)
            return
        reason = status.reason or Reason(ReasonKind.UNSCHEDULABLE)
        failed = attrs.evolve(
            status,
            state=JobState.FAILED,
            reason=reason,
            exit_code=_START_FAILED,
            is_starting=False,
        )
        self._feed.publish(job, failed)
        self._delete(job.id)

    def _confirm(self, job: Job) -> None:
        """Read a pod whose grace period is over; report it lost where it still exists."""
        path, what = self._client.path("pods", job.id), f"read pod {job.id}"
        try:
            pod = self._client.call("GET", path, what, again=lambda _: False)
        except FiberError as error:
            if isinstance(error, ApiError) and error.status == 404:
                # the watch is about to report it
                return
            # an unreachable cluster proves nothing, and once it answers its nodes may report first
            log.debug("fiber: the end of pod %s is not confirmed: %s", job.id, error)
            again = functools.partial(self._confirm, job)
            self._timers.set((job.id, _LEAVING), self._client.timing.unconfirmed, again)
            return
        status = status_of(pod)
        if status.state.is_terminal or pod["metadata"].get("uid") != job.data["uid"]:
            return
        with self._changed:
            self._pods[job.id].is_lost = True
            self._changed.notify_all()
        found = lost_status(pod)
        if status.state is JobState.PENDING:
            # a job that ran is missed by the core itself, which warns
            log.warning("fiber: pod %s is given up: %s", job.id, found.message)
        self._feed.publish(job, found)

    def _may_be_scheduled(self, job: Job, cause: PendingCause, pod: Mapping[str, Any]) -> bool:
        """True where an autoscaler adds a node, or an existing node would do if it were empty."""
        if cause is PendingCause.CAPACITY:
            try:
                holds = self._capacity.may_fit(pod)
            except FiberError as error:
                log.debug("fiber: nodes cannot be asked, pod %s waits: %s", job.id, error)
                return True
            if holds is None and not self._has_warned:
                self._has_warned = True
                log.warning(_FOR_EVER, job.id)
            if holds is not False:
                return True
        return is_scaling_up(self._client, job.id)

    def _delete_unless_read(self, name: str) -> None:
        """Delete a pod, now or once the last reader of its log is done."""
        with self._changed:
            state = self._pods[name]
            state.is_unwanted = state.log_readers > 0
        if not state.is_unwanted:
            self._delete(name)

    def _keep(self, name: str) -> None:
        """Make a pod outlive its run, until ``fiber gc`` removes it as it does ended programs."""
        labels = {f"{PREFIX}detached": "true"}
        body = {"metadata": {"ownerReferences": None, "labels": labels}}
        try:
            path = self._client.path("pods", name)
            self._client.call("PATCH", path, f"keep pod {name}", body=body)
        except FiberError as error:
            log.warning("fiber: pod %s is removed with its run all the same: %s", name, error)

    def _delete(self, name: str) -> None:
        with self._changed:
            state = self._pods.get(name)
            if state is not None:
                state.is_deleting = state.labels is not None
        try:
            self._client.delete("pods", name, grace=1)
        except FiberError as error:
            log.warning("fiber: pod %s stays until its run is removed: %s", name, error)
