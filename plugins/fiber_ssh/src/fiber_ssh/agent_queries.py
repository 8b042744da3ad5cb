"""Finds jobs on hosts, whoever submitted them, and asks all hosts at once."""

from __future__ import annotations

import time
from collections.abc import Sequence

from fiber.exceptions import BackendError, BackendUnavailableError, UnknownJobError
from fiber.model import Job
from fiber_ssh.desk import Desk
from fiber_ssh.link import Request
from fiber_ssh.remote.wire import Message
from fiber_ssh.station import Station

__all__ = ["ask_all", "find"]

#: seconds for an agent to answer what it can answer at once
PATIENCE = 20.0


def ask_all(desk: Desk, op: str, **fields: object) -> list[tuple[Station, Message]]:
    """Ask all hosts that can be asked.

    Raises:
        BackendUnavailableError: none can.
    """
    stations = desk.up(every=True)
    asked = [(station, _ask_in_turn(station, op, fields)) for station in stations]
    deadline = time.monotonic() + PATIENCE
    answers: list[tuple[Station, Message]] = []
    failures: list[BackendError] = []
    for station, request in asked:
        if not request.done.wait(max(0.0, deadline - time.monotonic())):
            failures.append(station.link.unavailable())
        elif request.error is not None:
            failures.append(request.error)
        else:
            answers.append((station, request.answer))
    if not answers:
        raise failures[0]
    return answers


def _ask_in_turn(station: Station, op: str, fields: dict[str, object]) -> Request:
    """Ask a host once it was told of all that it was given before."""
    request = station.link.prepare(op, fields)
    station.soon(lambda: station.link.send(request))
    return request


def find(desk: Desk, job: Job) -> tuple[Station, Message]:
    """The host of a job and what its agent says of it.

    Raises:
        UnknownJobError: no host knows it.
        BackendUnavailableError: its host cannot be asked, or, where nobody knows which that is,
            none can.
    """
    candidates = _candidates(desk, job)
    missing: BackendError | None = None
    for station in candidates:
        try:
            answer = station.link.request("status", timeout=PATIENCE, job=job.id)
        except UnknownJobError as error:
            missing = error
        except BackendUnavailableError:
            if len(candidates) == 1:
                raise
        else:
            record: Message = answer["job"]
            return station, record
    msg = f"there is no job {job.id} ({job.name}) on the ssh hosts {desk.stations}"
    raise UnknownJobError(msg) from missing


def _candidates(desk: Desk, job: Job) -> Sequence[Station]:
    desk.begin()
    order = desk.order(job.id)
    name = order.host if order is not None else job.data.get("host")
    if isinstance(name, str) and name in desk.stations:
        return [desk.stations[name]]
    return desk.up(every=True)
