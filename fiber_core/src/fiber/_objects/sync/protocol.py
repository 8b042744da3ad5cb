"""Requests about locks, semaphores, conditions, events and barriers, which wait in order, and messages of them.

A holder's messages are casts of one layout: operation, a number of the holder's own, an argument.
A request is answered by one ``ANSWER`` with its number, perhaps much later. ``CANCEL`` has the
request of that number answered now, if it was not.
"""

from __future__ import annotations

import enum
import struct
from collections.abc import Callable, Hashable
from typing import TypeAlias

from fiber._base import values
from fiber._objects.protocol import read
from fiber._wire.frames import Buffer
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
    #: slot of its process's notes for the object; -1 where it cannot keep a permit
    slot: int = -1
    #: False where it is to be answered at once
    waits: bool = True


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


class Op(enum.IntEnum):
    """Operations of a holder; their argument in parentheses."""

    #: answer the request of this number now (1: it timed out, 0: its thread was interrupted)
    CANCEL = 64
    #: this process exits normally (permits that it leaves taken)
    ENDING = 65
    #: all messages up to ``CONFIRM`` have arrived
    CONFIRMED = 66
    #: the recalled permit, kept since the ``ACQUIRE`` of this number, is held; ``RELEASE`` follows
    HELD = 67
    #: of the parent of a process that kept the permit and was killed, see ``fiber._launch.wills``:
    #: identity of that process and what it had noted follow
    NOTED = 79

    #: acquire a permit (1 to wait for it, plus twice the slot after that in which it is noted
    #: while this process keeps it); answered, with the value 1 where it is to be kept
    ACQUIRE = 68
    #: release a permit of this process (1: a grant that reported a death and was not used), or give
    #: back a kept one that is not held
    RELEASE = 69
    #: release a permit that another process holds; answered
    RELEASE_FOR_OTHER = 70
    #: free permits, waiting threads, parties at the barrier, or 1 for an event that is set; answered
    VALUE = 71

    #: wait until the event is set (0: answer now) or the condition is notified; answered
    WAIT = 72
    #: set or clear an event; answered
    SET = 73
    CLEAR = 74

    #: wake so many; answered where it has a number
    NOTIFY = 76
    #: a notification has arrived (1: its thread was interrupted, so wake another)
    WOKEN = 77

    #: arrive at the barrier (1 where this party has an action); answered
    ARRIVE = 80
    #: the action has ended (twice its number, plus 1 where it succeeded); answered
    ACTION_ENDED = 81
    #: reset or abort a barrier; answered
    RESET = 82
    ABORT = 83


class Notice(enum.IntEnum):
    """Messages of the owner."""

    ANSWER = 64
    #: another process released a permit that the holder had
    RELEASED_BY_OTHER = 65
    #: answer ``CONFIRMED`` once all messages up to here have arrived
    CONFIRM = 66
    #: give the permit back that this process keeps; answered by ``RELEASE`` or ``HELD``
    RECALL = 67


#: operation, number, argument
REQUEST = struct.Struct("<BQq")
#: notice, number, status, value; then text
ANSWER = struct.Struct("<BQBq")


def answer(number: int, status: Status, value: int, text: str) -> bytes:
    """Bytes of an answer."""
    return ANSWER.pack(Notice.ANSWER, number, status, value) + text.encode()


def parse_answer(body: Buffer) -> tuple[int, Status, int, str]:
    """Number, status, value and text of an answer.

    Raises:
        WireError: it is malformed.
    """
    _, number, status, value = read(ANSWER, body)
    try:
        return number, Status(status), value, bytes(body[ANSWER.size :]).decode()
    except ValueError as error:
        msg = f"the answer of an owner makes no sense: status {status}"
        raise WireError(msg) from error
