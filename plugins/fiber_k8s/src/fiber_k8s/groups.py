"""Jobs that start together or not at all."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Sequence

from fiber.backend_parts.feed import Feed
from fiber.exceptions import BackendError, SubmitError, UnknownJobError
from fiber.model import Job, JobSpec, ReasonKind
from fiber_k8s.client import ApiError, Client
from fiber_k8s.gangs import Gang
from fiber_k8s.jobs import Starter
from fiber_k8s.run import Belongings

__all__ = ["start_group"]

_NEVER_RAN = (ReasonKind.START, ReasonKind.IMAGE, ReasonKind.UNSCHEDULABLE)


def start_group(
    client: Client,
    starter: Starter,
    feed: Feed,
    run: Belongings,
    specs: Sequence[JobSpec],
    gang: Gang | None,
    timeout: float,
    kill: Callable[[Job], None],
) -> Sequence[Job]:
    """Create all pods and wait until all run.

    Args:
        client: the cluster.
        starter: creates pods.
        feed: tells what becomes of them.
        run: what they belong to.
        specs: the jobs.
        gang: marks for a scheduler that starts groups; None where they are only created together.
        timeout: seconds within which all are to run.
        kill: ends a job.

    Raises:
        SubmitError: not all run in time; none is left.
    """
    if gang is not None:
        _make_group(client, starter, run, gang, timeout)
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
        raise


def _make_group(
    client: Client, starter: Starter, run: Belongings, gang: Gang, timeout: float
) -> None:
    parent = starter.parent()
    own = parent if parent and parent["metadata"].get("namespace") == client.namespace else None
    body = gang.group(timeout, run.owner(own))
    if body is None:
        return
    path = client.path("podgroups", group=gang.api)
    try:
        client.call("POST", path, f"create the group {gang.name} for {gang.kind}", body=body)
    except ApiError as error:
        raise SubmitError(str(error)) from error
