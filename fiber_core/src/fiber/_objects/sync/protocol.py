"""What processes tell each other about something that is waited for; layouts only.

A holder's messages are casts of one layout: what, a number of its own, an argument. Those that want
an answer get one ``ANSWER`` with that number, perhaps much later. ``CANCEL`` has the request of a
number answered now, if it was not.
"""

from __future__ import annotations

import enum
import struct

from fiber._objects.protocol import read
from fiber._objects.sync.wait_queue import Verdict
from fiber._wire.frames import Buffer
from fiber.exceptions import WireError


class Op(enum.IntEnum):
    """What a holder says to the owner; argument in parentheses."""

    #: the request of this number is to be answered (1: its time is up, 0: nobody waits)
    CANCEL = 64
    #: this process ends normally (the permits that it leaves taken)
    ENDING = 65
    #: everything up to here has come
    ARRIVED = 66

    #: a permit is wanted (1 to wait for it); answered
    ACQUIRE = 68
    #: one that this process has comes back (1: it was told of a death and never took it)
    RELEASE = 69
    #: one that this process does not have comes back; answered
    GIVE = 70
    #: how many are there: permits, sleepers, parties at the barrier, 1 where it is set; answered
    VALUE = 71

    #: told when it is set (1 to wait for it), or notified; answered
    WAIT = 72
    #: answered, as are those below that say nothing else
    SET = 73
    CLEAR = 74

    #: wake so many; answered where it has a number
    NOTIFY = 76
    #: one of this process has heard of it (1: and was gone, so that another is to be woken)
    WOKE = 77

    #: at the barrier (1 where this party has an action)
    ARRIVE = 80
    #: the action was run (twice its number, and 1 more where it went well); answered
    RAN = 81
    RESET = 82
    ABORT = 83


class Word(enum.IntEnum):
    """What the owner says to a holder."""

    ANSWER = 64
    #: another process gave back a permit that you had
    TAKEN_OFF = 65
    #: say when everything up to here has come
    ARRIVED = 66


#: what, number, argument
SAY = struct.Struct("<BQq")
#: word, number, verdict, value; then text
ANSWER = struct.Struct("<BQBq")


def answer(number: int, verdict: Verdict, value: int, text: str) -> bytes:
    """An answer as it is sent."""
    return ANSWER.pack(Word.ANSWER, number, verdict, value) + text.encode()


def parse_answer(body: Buffer) -> tuple[int, Verdict, int, str]:
    """Number, verdict, value and text of an answer.

    Raises:
        WireError: it is none.
    """
    _, number, verdict, value = read(ANSWER, body)
    try:
        return number, Verdict(verdict), value, bytes(body[ANSWER.size :]).decode()
    except ValueError as error:
        msg = f"the answer of an owner makes no sense: verdict {verdict}"
        raise WireError(msg) from error
