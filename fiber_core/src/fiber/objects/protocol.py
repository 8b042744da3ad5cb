"""What processes tell each other about a shared object; layouts only.

Every message is for the object's target. The first byte says what it is; all numbers are
little-endian. Calls are answered: ``PUT``, ``ASK``, ``SIZE``. All else is cast.

A reader's items are numbered from 1 on as they are delivered to it. ``ASK`` and ``SETTLE`` say up
to which number the reader has handed them to its user; ``GIVE`` says that those after the first
number and up to the second go back.
"""

from __future__ import annotations

import enum
import struct
from typing import Any

from fiber.exceptions import WireError
from fiber.transport.wire import Buffer


class Op(enum.IntEnum):
    """What a holder says to the owner."""

    ATTACH = 1
    DETACH = 2
    TICKET = 3
    VOID = 4
    PUT = 16
    ASK = 17
    SETTLE = 18
    GIVE = 19
    CANCEL = 20
    WITHDRAW = 21
    SIZE = 22


class Word(enum.IntEnum):
    """What the owner says to a holder unasked."""

    #: give back what you have not handed out: another reader waits
    RECALL = 1
    #: say at once what you hand out: the owner is about to end
    HURRY = 2
    #: nobody reads any more
    BROKEN = 3


class Mode(enum.IntEnum):
    """How a reader asks."""

    #: a thread waits
    WAIT = 0
    #: answer at once
    NOWAIT = 1
    #: nobody waits, and a descriptor is to tell when something comes
    STANDING = 2


class Outcome(enum.IntEnum):
    """The answer to ``PUT``."""

    ACCEPTED = 0
    FULL = 1
    BROKEN = 2


class Answer(enum.IntEnum):
    """The answer to ``ASK``."""

    ITEMS = 0
    NOTHING = 1
    END = 2


#: end, ticket, slot of the reader's progress or -1, 16 bytes that identify its page, page's name
ATTACH = struct.Struct("<BBQi16s")
DETACH = struct.Struct("<BB")
#: end, ticket, uses (0: any number)
TICKET = struct.Struct("<BBQI")
VOID = struct.Struct("<BQ")
#: lane, 1 to wait for room
PUT = struct.Struct("<BBB")
#: lane, mode, items wanted, settled
ASK = struct.Struct("<BBBIQ")
SETTLE = struct.Struct("<BBQ")
GIVE = struct.Struct("<BBQQ")
CANCEL = struct.Struct("<BB")
#: lane, number of the PUT
WITHDRAW = struct.Struct("<BBQ")
SIZE = struct.Struct("<BB")

WORD = struct.Struct("<BB")
#: answer, number of the first item
ANSWER = struct.Struct("<BQ")
OUTCOME = struct.Struct("<B")
SIZED = struct.Struct("<Q")


def read(layout: struct.Struct, body: Buffer) -> tuple[Any, ...]:
    """The fields of a message.

    Raises:
        WireError: it is too short.
    """
    try:
        return layout.unpack_from(body)
    except struct.error as error:
        msg = f"a message about a shared object has {len(body)} bytes, expected {layout.size}"
        raise WireError(msg) from error
