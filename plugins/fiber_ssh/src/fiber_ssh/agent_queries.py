"""Queries to the agents of all hosts, and the search for a job that another program submitted.

Apart from the backend, so that the time limits and the merging of answers and errors stand once.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

from fiber.exceptions import BackendError, BackendUnavailableError, UnknownJobError
from fiber.model import Job
from fiber_ssh.agent_link import Request
from fiber_ssh.host_state import HostState
from fiber_ssh.remote.wire import Message
from fiber_ssh.scheduler import JobScheduler

__all__ = ["find_job", "query_all"]


def query_all(
    scheduler: JobScheduler, op: str, **fields: object
) -> list[tuple[HostState, Message]]:
    """Send a request to all connected hosts; the answers.

    Raises:
        BackendUnavailableError: no host is connected, or none answers.
    """
    host_states = scheduler.wait_connected(every=True)
    asked = [(host_state, _query_in_order(host_state, op, fields)) for host_state in host_states]
    deadline = time.monotonic() + scheduler.timing.answer
    answers: list[tuple[HostState, Message]] = []
    failures: list[BackendError] = []
    for host_state, request in asked:
        if not request.done.wait(max(0.0, deadline - time.monotonic())):
            failures.append(host_state.link.unavailable())
        elif request.error is not None:
            failures.append(request.error)
        else:
            answers.append((host_state, request.answer))
    if not answers:
        raise failures[0]
    return answers


def _query_in_order(host_state: HostState, op: str, fields: dict[str, object]) -> Request:
    """Send a request after all that is queued for the host, such as submissions."""
    request = host_state.link.new_request(op, fields)
    host_state.enqueue(lambda: host_state.link.send(request))
    return request


def find_job(scheduler: JobScheduler, job: Job) -> tuple[HostState, Message]:
    """The host of a job and its agent's record of it.

    Raises:
        UnknownJobError: no host knows it.
        BackendUnavailableError: its host is not connected, or, where the host is not known,
            none is.
    """
    candidates = _candidates(scheduler, job)
    missing: BackendError | None = None
    for host_state in candidates:
        try:
            answer = host_state.link.call("status", job=job.id)
        except UnknownJobError as error:
            missing = error
        except BackendUnavailableError:
            if len(candidates) == 1:
                raise
        else:
            record: Message = answer["job"]
            return host_state, record
    msg = f"there is no job {job.id} ({job.name}) on the ssh hosts {scheduler.host_states}"
    raise UnknownJobError(msg) from missing


def _candidates(scheduler: JobScheduler, job: Job) -> Sequence[HostState]:
    scheduler.start()
    submission = scheduler.submission(job.id)
    name = submission.host if submission is not None else job.data.get("host")
    if isinstance(name, str) and name in scheduler.host_states:
        return [scheduler.host_states[name]]
    return scheduler.wait_connected(every=True)
