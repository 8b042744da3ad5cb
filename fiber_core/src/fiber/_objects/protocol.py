"""Messages about shared objects, queues and pipes foremost; layouts only.

Each message goes to the object's target. Its first byte is an ``Op`` or a ``Notice``; all numbers
are little-endian. ``ATTACH``, ``OFFER``, ``SIZE``, ``TASK_DONE``, ``JOIN``, ``FETCH``, ``FETCH_BYPASS`` and ``OPEN_STREAM`` are calls; all others
are casts, both ways.

A reader's items are numbered from 1 as they are delivered. ``REQUEST`` and ``SETTLE`` have the number
up to which the reader has handed them to its user; ``GIVE_BACK`` gives back those after the first number
and up to the second. The first ``ITEMS`` answer a ``REQUEST``, unless they are marked as kept: then
later items are sent as they come, up to the number asked for.

A writer sends ``PUT`` while fewer than ``WINDOW`` batches are not acknowledged by ``TAKEN``, or
``SMALL_WINDOW`` of up to ``SMALL_BYTES`` in all: items are often answered one by one, and who waits for an
answer is not to be sent an acknowledgement before it. Where the number of items is limited the writer makes
an ``OFFER`` first, whose answer is the number that it may ``PUT`` from then on.
"""

from __future__ import annotations

import enum
import struct
from typing import Any

from fiber._wire.frames import Buffer
from fiber.exceptions import WireError


class Op(enum.IntEnum):
    """Operations that other processes send to the owner."""

    ATTACH = 1
    DETACH = 2
    REFERENCE = 3
    VOID = 4
    PUT = 16
    OFFER = 17
    REQUEST = 18
    SETTLE = 19
    GIVE_BACK = 20
    CANCEL = 21
    WITHDRAW = 22
    RETURN_CREDIT = 23
    SIZE = 24
    #: of a queue of tasks, see task_channel.py
    TASKS_DONE = 25
    TASK_DONE = 26
    JOIN = 27
    PUTS_CONFIRMED = 28
    ENDING = 29
    #: of an end of a pipe: send a descriptor of its socket
    FETCH = 30
    #: of a queue: make a stream for descriptors of items, see queue/descriptor_stream.py
    OPEN_STREAM = 31
    #: an item and its number in a bypass, through which it was sent as well, see queue/bypass.py
    PUT_COPY = 32
    #: send an end of a bypass
    FETCH_BYPASS = 33


class Notice(enum.IntEnum):
    """Notices that the owner sends to other processes."""

    #: another reader waits: give undelivered items back
    RECALL = 1
    #: the owner is about to exit: report deliveries at once
    REPORT_NOW = 2
    #: no reader is left
    BROKEN = 3
    #: so many batches have arrived
    TAKEN = 4
    #: the items asked for
    ITEMS = 5
    #: there are no items now
    NOTHING = 6
    #: there are no items and will be none
    END = 7
    #: another writer waits: give up reserved room
    REVOKE = 8
    #: there are items for the first reader that asks
    READY = 10
    #: there are no items any more
    UNREADY = 11
    #: a thread waits for all tasks: confirm once all puts are sent
    CONFIRM_PUTS = 9
    #: of a bypass, see ``Step``
    BYPASS = 12


class Step(enum.IntEnum):
    """What a process is to do with a bypass."""

    #: fetch an end, to send items through
    SEND = 0
    #: fetch an end, to receive items later on
    RECEIVE = 1
    #: the items that come next come through it: in place of an answer to the request
    OPEN = 2


class Mode(enum.IntEnum):
    """Mode of a ``REQUEST``."""

    #: a thread waits
    WAIT = 0
    #: answer at once
    NOWAIT = 1
    #: no thread waits; a descriptor is to become readable when items come
    STANDING = 2


class Outcome(enum.IntEnum):
    """The answer to ``OFFER``."""

    ACCEPTED = 0
    FULL = 1
    BROKEN = 2


#: most batches without acknowledgement, and after how many the owner acknowledges
WINDOW = 8
TAKEN_AFTER = 4
#: the same while they have fewer bytes
SMALL_WINDOW = 64
SMALL_TAKEN_AFTER = 32
SMALL_BYTES = 64 * 2**10

#: end, reference id, slot of the reader or -1, 16 bytes that identify its page, page's name
ATTACH = struct.Struct("<BBQi16s")
#: the answer: 1 where the owner can read the reader's progress page
ATTACHED = struct.Struct("<B")
DETACH = struct.Struct("<BB")
#: end, reference id, uses
REFERENCE = struct.Struct("<BBQI")
VOID = struct.Struct("<BQ")
#: direction
PUT = struct.Struct("<BB")
#: direction, 1 to wait for room
OFFER = struct.Struct("<BBB")
#: direction, mode, items wanted, settled, the reader's number for the session
REQUEST = struct.Struct("<BBBIQI")
SETTLE = struct.Struct("<BBQ")
#: direction, handed out, up to, number of the bypass that ends with it or 0
GIVE_BACK = struct.Struct("<BBQQI")
CANCEL = struct.Struct("<BB")
#: direction, number of the OFFER
WITHDRAW = struct.Struct("<BBQ")
#: direction, items
RETURN_CREDIT = struct.Struct("<BBI")
SIZE = struct.Struct("<BB")
#: direction, handed out, done
TASKS_DONE = struct.Struct("<BBQQ")
TASK_DONE = struct.Struct("<BB")
#: the answer: 0 where all tasks were done already
COUNTED = struct.Struct("<B")
JOIN = struct.Struct("<BB")
#: direction, number of the waiting thread
PUTS_CONFIRMED = struct.Struct("<BBQ")
ENDING = struct.Struct("<BB")
#: reference id, name of the abstract socket of the process that asks, token for the message to it
FETCH = struct.Struct("<BQ16s16s")
#: the answer: 1 where that was sent; 0 where a pickle follows: address, end and reference id of a bridge
FETCHED = struct.Struct("<B")
#: direction, name and token as of FETCH
OPEN_STREAM = struct.Struct("<BB16s16s")
#: direction, number of the bypass, number of the item in it
PUT_COPY = struct.Struct("<BBIQ")
#: direction, number of the bypass, name and token as of FETCH; the answer is FETCHED
FETCH_BYPASS = struct.Struct("<BBI16s16s")
#: the answer: 1 where one side of the stream was sent
STREAM_OPENED = struct.Struct("<B")

NOTICE = struct.Struct("<BB")
#: direction, batches
TAKEN = struct.Struct("<BBQ")
#: direction, number of the waiting thread
CONFIRM_PUTS = struct.Struct("<BBQ")
#: notice, direction, session, 1 where the request is kept, number of the first item
ANSWER = struct.Struct("<BBIBQ")
#: direction, step, number of the bypass, the reader's number for its session, number in the bypass of its next item
BYPASS = struct.Struct("<BBBIIQ")
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
