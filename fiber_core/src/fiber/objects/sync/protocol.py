"""What processes tell each other about something that is waited for; layouts only.

A holder's messages are casts of one layout: what, a number of its own, an argument. Those that want
an answer get one ``ANSWER`` with that number, perhaps much later. ``CANCEL`` has the request of a
number answered now, if it was not.
"""

from __future__ import annotations

import enum
import struct

from fiber.exceptions import WireError
from fiber.objects.protocol import read
from fiber.objects.sync.line import Verdict
from fiber.transport.wire import Buffer


class Op(enum.IntEnum):
    """What a holder says to the owner; argument in parentheses."""

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
    #: how many are there; answered
    VALUE = 71


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
