"""Jobs that start together or not at all."""

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
from fiber_k8s.gangs import Gang
from fiber_k8s.jobs import Starter
from fiber_k8s.names import unique_name
from fiber_k8s.run import Belongings

__all__ = ["Gangs", "start_group"]

_NEVER_RAN = (ReasonKind.START, ReasonKind.IMAGE, ReasonKind.UNSCHEDULABLE)


class Gangs:
    """The gangs of a backend's jobs; the scheduler is told of each before the first of its pods is made.

    Args:
        client: the cluster.
        starter: creates pods.
        config: settings, which say what schedules gangs.
    """

    def __init__(self, client: Client, starter: Starter, config: K8sConfig) -> None:
        self._client, self._starter, self._config = client, starter, config
        self._lock = threading.Lock()
        self._known: dict[tuple[str, str], Gang] = {}
        #: how many jobs of each have ended
        self._ended: Counter[tuple[str, str]] = Counter()

    def find(self, spec: JobSpec, run: Belongings) -> Gang | None:
        """The gang of a job; None where it has none, or nothing here schedules any.

        Raises:
            SubmitError: the cluster refuses the group.
        """
        wanted = spec.gang
        if wanted is None or self._config.gang == "none":
            return None
        # those that come at the same time wait until it is there
        with self._lock:
            key = (spec.run_id, wanted.name)
            if key not in self._known:
                self._known[key] = self.make(wanted, run)
            return self._known[key]

    def make(self, wanted: model.Gang, run: Belongings) -> Gang:
        """Tell the scheduler of a gang."""
        # a name is seen long after its run, by schedulers that remember
        name = unique_name(wanted.name)
        config = self._config
        gang = Gang(kind=config.gang, name=name, size=wanted.size, queue=config.queue)
        _make_group(self._client, self._starter, run, gang, wanted.timeout)
        return gang

    def left(self, spec: JobSpec) -> None:
        """A job has ended, and its pod is gone; after the last of a gang its object goes as well."""
        wanted = spec.gang
        if wanted is None:
            return
        with self._lock:
            self._ended[spec.run_id, wanted.name] += 1
            is_last = self._ended[spec.run_id, wanted.name] == wanted.size
        if is_last:
            self._starter.do(functools.partial(self.drop, wanted, spec.run_id))

    def drop(self, wanted: model.Gang, run_id: str) -> None:
        """None of a gang's jobs is left: the scheduler need not know of it any more."""
        with self._lock:
            gang = self._known.pop((run_id, wanted.name), None)
            self._ended.pop((run_id, wanted.name), None)
        if gang is not None and gang.has_object:
            # what stays goes with the run
            with contextlib.suppress(BackendError):
                self._client.delete("podgroups", gang.name, group=gang.api)


def start_group(
    starter: Starter,
    feed: Feed,
    run: Belongings,
    specs: Sequence[JobSpec],
    gangs: Gangs,
    timeout: float,
    kill: Callable[[Job], None],
) -> Sequence[Job]:
    """Create all pods and wait until all run.

    Args:
        starter: creates pods.
        feed: tells what becomes of them.
        run: what they belong to.
        specs: the jobs.
        gangs: tells the scheduler of them.
        timeout: seconds within which all are to run.
        kill: ends a job.

    Raises:
        SubmitError: not all run in time; none is left.
    """
    first = specs[0]
    wanted = model.Gang(
        name=f"{first.name}-group-{secrets.token_hex(2)}", size=len(specs), timeout=timeout
    )
    specs = [attrs.evolve(spec, gang=wanted) for spec in specs]
    gang = gangs.find(specs[0], run)
    jobs: list[Job | None] = [None] * len(specs)
    failures: list[BackendError] = []
    lock = threading.Lock()

    def submit(index: int) -> None:
        try:
            jobs[index] = starter.submit(specs[index], run, gang=gang, at_once=True)
        except BackendError as error:
            with lock:
                failures.append(error)

    made: list[Job] = []
    try:
        starter.do_all([lambda index=index: submit(index) for index in range(len(specs))])
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
        gangs.drop(wanted, first.run_id)
        raise


def _make_group(
    client: Client, starter: Starter, run: Belongings, gang: Gang, timeout: float
) -> None:
    parent = starter.parent()
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
