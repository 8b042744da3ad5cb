"""What follows from what is seen of pods: statuses, last words, patience that runs out, removal."""

from __future__ import annotations

import contextlib
import functools
import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import attrs

from fiber.backend_parts.feed import Feed
from fiber.exceptions import FiberError
from fiber.model import Job, JobState, JobStatus, Reason, ReasonKind
from fiber_k8s.client import ApiError, Client
from fiber_k8s.config import K8sConfig
from fiber_k8s.deadlines import Deadlines
from fiber_k8s.execution import kill_processes
from fiber_k8s.groups import Gangs
from fiber_k8s.happenings import Slow, is_scaling
from fiber_k8s.jobs import Starter
from fiber_k8s.logs import last_lines
from fiber_k8s.room import Room
from fiber_k8s.status import (
    Doubt,
    as_killed,
    doubt_of,
    gone,
    grace_left,
    is_leaving,
    is_slow,
    job_of,
    lost,
    status_of,
    with_words,
)

__all__ = ["Ends"]

log = logging.getLogger("fiber")

#: lines of a log that tell why a job failed
_TAIL = 20
_STARTED_NOT = 127
#: seconds after which it is looked for what was to be removed, whatever was told
_LOOK = 1.0
#: seconds between two looks at whether a node for a pod may come
_SCALING = 60.0
#: seconds after a pod's grace within which its node has to confirm its end; the core gives up later
#: what nobody confirms, see fiber._launch.launcher
_UNCONFIRMED = 20.0
#: with the name of a pod, the key of that deadline
_LEAVING = "leaving"
_FOR_EVER = (
    "fiber: pod %s may wait for ever: the cluster's scheduler does not say whether a node could "
    "take it, were all others gone, and nodes may not be listed (fiber k8s rbac --nodes lets them be)"
)


class Ends:
    """Turns pods into statuses, and removes those that have ended.

    Args:
        backend: name of the backend.
        client: the cluster.
        config: settings.
        feed: told of statuses.
        starter: what was submitted here, and hands for slow calls.
        gangs: told of members that are gone.
        room: what nodes have.
        deadlines: calls at their time.
        on_taken: called with the run of a pod that is being removed, and not by this program.
    """

    def __init__(
        self,
        backend: str,
        client: Client,
        config: K8sConfig,
        feed: Feed,
        starter: Starter,
        gangs: Gangs,
        room: Room,
        deadlines: Deadlines,
        on_taken: Callable[[str], None],
    ) -> None:
        self._backend = backend
        self._client = client
        self._config = config
        self._feed = feed
        self._starter = starter
        self._gangs = gangs
        self._room = room
        self._deadlines = deadlines
        self._on_taken = on_taken
        self._slow = Slow(client, self._deadlines, feed.publish)
        self._changed = threading.Condition()
        #: pods that are there, with their labels
        self._there: dict[str, Mapping[str, str]] = {}
        #: pods whose end is about to be told
        self._ending: set[str] = set()
        #: those of them that are there whose nodes do not confirm their end: nobody waits for it
        self._lost: set[str] = set()
        #: pods that were asked to end from here: nobody asks why they did
        self._asked: set[str] = set()
        #: those of them that were to be killed
        self._killed: set[str] = set()
        #: pods that have ended, and that are deleted from here
        self._removed: set[str] = set()
        #: how many follow the log of a pod here
        self._readers: Counter[str] = Counter()
        #: whether it was said that nobody knows if a pod waits in vain
        self._is_warned = False
        #: pods that are removed once nobody reads their log
        self._unread: set[str] = set()

    # -- what the watch tells, on its thread

    def seen(self, pod: Mapping[str, Any]) -> None:
        """A pod is as it is."""
        job, status = job_of(self._backend, pod), status_of(pod)
        self._slow.drop(job.id)
        with self._changed:
            self._there[job.id] = pod["metadata"].get("labels") or {}
            is_taken = is_leaving(pod) and not self._is_ours(job.id)
        if is_taken:
            # before others are started in its place
            self._on_taken(job.run_id)
        if status.state.is_terminal:
            self._end(job, status, pod)
            return
        self._feed.publish(job, status)
        if is_leaving(pod):
            self._deadlines.set(
                (job.id, _LEAVING),
                grace_left(pod, self._client.now()) + _UNCONFIRMED,
                functools.partial(self._confirm, job),
            )
        if is_slow(pod) and self._starter.is_mine(job.id):
            self._slow.add(job, status)
        doubt = doubt_of(pod)
        for one in Doubt:
            if one is not doubt:
                self._deadlines.drop((job.id, one))
        if doubt is not None and self._starter.is_mine(job.id) and not is_leaving(pod):
            self._deadlines.set(
                (job.id, doubt),
                self._patience(doubt),
                functools.partial(self._give_up, job, status, doubt, pod),
            )

    def gone(self, pod: Mapping[str, Any]) -> None:
        """A pod's object was deleted."""
        job = job_of(self._backend, pod)
        self._slow.drop(job.id)
        self._deadlines.drop((job.id, _LEAVING))
        with self._changed:
            is_told = job.id in self._ending
            is_taken = not self._is_ours(job.id)
            self._removed.discard(job.id)
            self._there.pop(job.id, None)
            self._lost.discard(job.id)
            self._asked.discard(job.id)
            self._killed.discard(job.id)
            self._changed.notify_all()
        if is_taken:
            self._on_taken(job.run_id)
        if not is_told:
            self._feed.publish(job, gone(pod))
        self._forget(job.id)

    # -- what follows

    def ended(self, job: Job) -> None:
        """A job's end was told."""
        for key in (*Doubt, _LEAVING):
            self._deadlines.drop((job.id, key))

    def asked(self, job_id: str, *, kill: bool) -> bool:
        """A job is asked to end, or is killed; True where it was asked before, and not killed."""
        with self._changed:
            was_asked = job_id in self._asked and job_id not in self._killed
            self._asked.add(job_id)
            if kill:
                self._killed.add(job_id)
        return was_asked

    @contextlib.contextmanager
    def reading(self, job_id: str) -> Iterator[None]:
        """The log of a pod is followed meanwhile: the pod stays until it was read to its end."""
        with self._changed:
            self._readers[job_id] += 1
        try:
            yield
        finally:
            with self._changed:
                self._readers[job_id] -= 1
                is_last = self._readers[job_id] == 0
                if is_last:
                    del self._readers[job_id]
                is_unread = is_last and job_id in self._unread
                if is_unread:
                    self._unread.remove(job_id)
            if is_unread:
                self._starter.do(functools.partial(self._delete, job_id))

    def remove_all(self, selector: str, timeout: float) -> None:
        """Delete pods and wait until they are gone, so that none of their processes is left.

        Args:
            selector: of labels.
            timeout: seconds to wait.
        """
        wanted = dict(pair.split("=", 1) for pair in selector.split(","))
        with self._changed:
            there = self._left(wanted)
            # a node waits out the grace that it was told of first
            slow = [name for name in there if name in self._asked and name not in self._killed]
            self._asked.update(there)
        for name in slow:
            kill_processes(self._client, name, self._starter.do)
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
            # one by one: that takes another verb
            names = [pod["metadata"]["name"] for pod in self._client.pods(selector)]
            self._starter.do_all([functools.partial(self._delete, name) for name in names])
        deadline = time.monotonic() + timeout
        while (left := deadline - time.monotonic()) > 0:
            with self._changed:
                self._changed.wait_for(lambda: not self._left(wanted), min(left, _LOOK))
            # one that was created a moment ago may not have been told of yet, and of those of other
            # programs nobody tells
            if all(pod["metadata"]["name"] in self._lost for pod in self._client.pods(selector)):
                # of their ends it is told in a moment
                with self._changed:
                    self._changed.wait_for(lambda: not self._left(wanted), max(left - _LOOK, 0))
                return
            with self._changed:
                if not self._left(wanted):
                    self._changed.wait(min(left, _LOOK))

    # -- within

    def _left(self, wanted: Mapping[str, str]) -> list[str]:
        return [
            name
            for name, labels in self._there.items()
            if name not in self._lost
            and all(labels.get(key) == value for key, value in wanted.items())
        ]

    def _end(self, job: Job, status: JobStatus, pod: Mapping[str, Any]) -> None:
        known = self._feed.status(job.id)
        mine = self._starter.is_mine(job.id)
        if known is not None and known.state.is_terminal:
            return
        with self._changed:
            if job.id in self._ending:
                return
            self._ending.add(job.id)
            asked, killed = job.id in self._asked, job.id in self._killed
        if killed:
            status = as_killed(status)
        spec = self._starter.spec(job.id)
        is_process = spec is not None and spec.entry is not None
        started = (pod.get("status") or {}).get("startTime") is not None
        wordless = status.state is JobState.SUCCEEDED or asked or not mine or not started

        def tell() -> None:
            lines = () if wordless else last_lines(self._client, job.id, _TAIL)
            self._feed.publish(job, with_words(status, lines))
            with self._changed:
                self._ending.discard(job.id)
                is_there = job.id in self._there
            if not is_there:
                self._forget(job.id)
            elif is_process and not is_leaving(pod) and not self._is_kept(status):
                with self._changed:
                    is_read = job.id in self._readers
                    if is_read:
                        self._unread.add(job.id)
                if not is_read:
                    self._delete(job.id)

        if wordless and not is_process:
            tell()
        else:
            # asking takes a while, and others' changes must not wait for it
            self._starter.do(tell)

    def _forget(self, job_id: str) -> None:
        spec = self._starter.forget(job_id)
        if spec is not None:
            self._gangs.left(spec)

    def _is_kept(self, status: JobStatus) -> bool:
        return self._config.keep_failed and status.state is JobState.FAILED

    def _patience(self, doubt: Doubt) -> float:
        if doubt is Doubt.CONTAINER:
            return self._config.image_timeout
        return self._config.unschedulable_timeout

    def _give_up(self, job: Job, status: JobStatus, doubt: Doubt, pod: Mapping[str, Any]) -> None:
        """A pod has waited long enough for what it may never get."""
        if doubt is not Doubt.CONTAINER and self._may_come(job, doubt, pod):
            again = functools.partial(self._give_up, job, status, doubt, pod)
            self._deadlines.set((job.id, doubt), _SCALING, again)
            return
        reason = status.reason or Reason(ReasonKind.UNSCHEDULABLE)
        failed = attrs.evolve(status, state=JobState.FAILED, reason=reason, exit_code=_STARTED_NOT)
        self._feed.publish(job, failed)
        self._delete(job.id)

    def _confirm(self, job: Job) -> None:
        """A pod was to end, and its node has had the time to confirm that it did."""
        path, what = self._client.path("pods", job.id), f"read pod {job.id}"
        try:
            pod = self._client.call("GET", path, what, again=lambda _: False)
        except FiberError as error:
            if isinstance(error, ApiError) and error.status == 404:
                # of which the stream is about to tell
                return
            # a cluster that cannot be asked proves nothing, and once it can, its nodes may tell first
            log.debug("fiber: the end of pod %s is not confirmed: %s", job.id, error)
            again = functools.partial(self._confirm, job)
            self._deadlines.set((job.id, _LEAVING), _UNCONFIRMED, again)
            return
        status = status_of(pod)
        if status.state.is_terminal or pod["metadata"].get("uid") != job.data["uid"]:
            return
        with self._changed:
            self._lost.add(job.id)
            self._changed.notify_all()
        found = lost(pod)
        if status.state is JobState.PENDING:
            # of one that ran the core has heard, and misses it before
            log.warning("fiber: pod %s is given up: %s", job.id, found.message)
        self._feed.publish(job, found)

    def _may_come(self, job: Job, doubt: Doubt, pod: Mapping[str, Any]) -> bool:
        """Whether a node for a pod is on its way, or there is one where others are now."""
        if doubt is Doubt.ROOM:
            try:
                holds = self._room.may_hold(pod)
            except FiberError as error:
                log.debug("fiber: nodes cannot be asked, pod %s waits: %s", job.id, error)
                return True
            if holds is None and not self._is_warned:
                self._is_warned = True
                log.warning(_FOR_EVER, job.id)
            if holds is not False:
                return True
        return is_scaling(self._client, job.id)

    def _is_ours(self, job_id: str) -> bool:
        """True for a pod that is deleted from here, where it is deleted; with the lock held."""
        return job_id in self._asked or job_id in self._removed

    def _delete(self, name: str) -> None:
        with self._changed:
            if name in self._there:
                self._removed.add(name)
        try:
            self._client.delete("pods", name, grace=1)
        except FiberError as error:
            log.warning("fiber: pod %s stays until its run is removed: %s", name, error)
