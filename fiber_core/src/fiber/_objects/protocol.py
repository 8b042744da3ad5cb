"""What processes tell each other about a shared object; layouts only.

Every message is for the object's target. The first byte says what it is; all numbers are
little-endian. ``ATTACH``, ``OFFER``, ``SIZE``, ``TASK_DONE`` and ``JOIN`` are calls, all else is
cast, in both directions.

A reader's items are numbered from 1 on as they are delivered to it. ``ASK`` and ``SETTLE`` say up
to which number the reader has handed them to its user; ``GIVE`` says that those after the first
number and up to the second go back. An ``ASK`` is over with its first ``ITEMS``, unless they say
that it is kept: then what comes later is sent at once, up to the number asked for.

A writer sends ``PUT`` while no more than a few are on their way that the owner has not said to have
``TAKEN`` in. Where the number of items is limited it first makes an ``OFFER``, the answer to which
says how many it may ``PUT`` from then on.
"""

from __future__ import annotations

import enum
import struct
from typing import Any

from fiber._wire.frames import Buffer
from fiber.exceptions import WireError


class Op(enum.IntEnum):
    """What a holder says to the owner."""

    ATTACH = 1
    DETACH = 2
    TICKET = 3
    VOID = 4
    PUT = 16
    OFFER = 17
    ASK = 18
    SETTLE = 19
    GIVE = 20
    CANCEL = 21
    WITHDRAW = 22
    GIVE_UP = 23
    SIZE = 24
    #: of a queue of tasks, see task_channel.py
    TASKS_DONE = 25
    TASK_DONE = 26
    JOIN = 27
    TOLD = 28
    ENDING = 29


class Word(enum.IntEnum):
    """What the owner says to a holder."""

    #: give back what you have not handed out: another reader waits
    RECALL = 1
    #: say at once what you hand out: the owner is about to end
    HURRY = 2
    #: nobody reads any more
    BROKEN = 3
    #: so many of your batches are in
    TAKEN = 4
    #: here is what you asked for
    ITEMS = 5
    #: there is nothing now
    NOTHING = 6
    #: there is nothing and never will be
    END = 7
    #: give up the room that was set aside for you: another writer waits
    REVOKE = 8
    #: there is something for whoever asks for it first
    READY = 10
    #: what there was is gone
    UNREADY = 11
    #: say so once all that was put is on its way: somebody waits for all tasks
    TELL = 9


class Mode(enum.IntEnum):
    """How a reader asks."""

    #: a thread waits
    WAIT = 0
    #: answer at once
    NOWAIT = 1
    #: nobody waits, and a descriptor is to tell when something comes
    STANDING = 2


class Outcome(enum.IntEnum):
    """The answer to ``OFFER``."""

    ACCEPTED = 0
    FULL = 1
    BROKEN = 2


#: batches that a writer has on their way at most, and after how many the owner says so
WINDOW = 8
TAKEN_AFTER = 4

#: end, ticket, slot of the reader's progress or -1, 16 bytes that identify its page, page's name
ATTACH = struct.Struct("<BBQi16s")
#: the answer: 1 where the owner sees the reader's progress
ATTACHED = struct.Struct("<B")
DETACH = struct.Struct("<BB")
#: end, ticket, uses
TICKET = struct.Struct("<BBQI")
VOID = struct.Struct("<BQ")
#: lane
PUT = struct.Struct("<BB")
#: lane, 1 to wait for room
OFFER = struct.Struct("<BBB")
#: lane, mode, items wanted, settled, the reader's number for the session
ASK = struct.Struct("<BBBIQI")
SETTLE = struct.Struct("<BBQ")
GIVE = struct.Struct("<BBQQ")
CANCEL = struct.Struct("<BB")
#: lane, number of the OFFER
WITHDRAW = struct.Struct("<BBQ")
#: lane, items
GIVE_UP = struct.Struct("<BBI")
SIZE = struct.Struct("<BB")
#: lane, handed out, done
TASKS_DONE = struct.Struct("<BBQQ")
TASK_DONE = struct.Struct("<BB")
#: the answer: 0 where all tasks were done already
COUNTED = struct.Struct("<B")
JOIN = struct.Struct("<BB")
#: lane, number of who waits
TOLD = struct.Struct("<BBQ")
ENDING = struct.Struct("<BB")

WORD = struct.Struct("<BB")
#: lane, batches
TAKEN = struct.Struct("<BBQ")
#: lane, number of who waits
TELL = struct.Struct("<BBQ")
#: word, lane, session, 1 where the request is kept, number of the first item
ANSWER = struct.Struct("<BBIBQ")
#: outcome, items that may be PUT without asking from now on
OUTCOME = struct.Struct("<BI")
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
