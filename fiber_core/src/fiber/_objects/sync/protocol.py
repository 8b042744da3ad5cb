"""Messages about locks, semaphores, conditions, events and barriers; layouts only.

A holder's messages are casts of one layout: operation, a number of the holder's own, an argument.
A request is answered by one ``ANSWER`` with its number, perhaps much later. ``CANCEL`` has the
request of that number answered now, if it was not.
"""

from __future__ import annotations

import enum
import struct

from fiber._objects.protocol import read
from fiber._objects.sync.wait_queue import Status
from fiber._wire.frames import Buffer
from fiber.exceptions import WireError


class Op(enum.IntEnum):
    """Operations of a holder; their argument in parentheses."""

    #: answer the request of this number now (1: it timed out, 0: its thread was interrupted)
    CANCEL = 64
    #: this process exits normally (permits that it leaves taken)
    ENDING = 65
    #: all messages up to ``CONFIRM`` have arrived
    CONFIRMED = 66

    #: acquire a permit (1 to wait for it); answered
    ACQUIRE = 68
    #: release a permit of this process (1: a grant that reported a death and was not used)
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
