"""Requests that wait in order, and their answers: values that all state machines share."""

from __future__ import annotations

import enum
from collections.abc import Callable, Hashable
from typing import TypeAlias

from fiber._base import values
from fiber.exceptions import WireError


class Status(enum.IntEnum):
    """Outcome of a request."""

    #: acquired, set, notified, done
    OK = 0
    #: not free, not set, or cancelled
    REFUSED = 1
    #: acquired from a process that died holding it, which the text names
    OK_HOLDER_DIED = 2
    #: refused because the process that the text names died holding it
    REFUSED_HOLDER_DIED = 3
    #: a release beyond the maximum
    TOO_MANY = 4
    #: the barrier is broken
    BROKEN = 5
    #: the last party at the barrier: it runs the action
    RUN_ACTION = 6


#: statuses with which a permit was acquired
ACQUIRED = frozenset({Status.OK, Status.OK_HOLDER_DIED})


@values.define(eq=False)
class Request:
    """A request for something that may have to be waited for."""

    #: the process that makes it; None for a thread of the owner
    process: Hashable
    #: the process's number for it
    number: int = 0


@values.frozen
class Answer:
    """Answer to one request."""

    request: Request
    status: Status
    value: int = 0
    text: str = ""


Answers: TypeAlias = list[Answer]
#: waits in shared memory for so many seconds; returns what makes the answers
Wait: TypeAlias = Callable[[float], Callable[[], Answers]]


class WaitQueue:
    """Requests, first come, first served."""

    def __init__(self) -> None:
        self._requests: dict[tuple[Hashable, int], Request] = {}

    def __len__(self) -> int:
        return len(self._requests)

    def add(self, request: Request) -> None:
        """Append a request.

        Raises:
            WireError: its process has another one of that number.
        """
        key = (request.process, request.number)
        if key in self._requests:
            msg = f"a process uses number {request.number} for two requests at once"
            raise WireError(msg)
        self._requests[key] = request

    def first(self) -> Request:
        """Remove the first one."""
        return self._requests.pop(next(iter(self._requests)))

    def remove(self, process: Hashable, number: int) -> Request | None:
        """Remove one, if it is in the queue."""
        return self._requests.pop((process, number), None)

    def remove_all(self, process: Hashable) -> list[Request]:
        """Remove all of a process."""
        mine = [key for key in self._requests if key[0] == process]
        return [self._requests.pop(key) for key in mine]

    def clear(self) -> list[Request]:
        """Remove all."""
        everybody = list(self._requests.values())
        self._requests.clear()
        return everybody
