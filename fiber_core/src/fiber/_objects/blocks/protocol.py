"""What processes tell each other about a block that nobody changes; layouts only.

``LOCATE`` and ``FETCH`` are calls. ``LOCATE`` is answered with a place on the asker's host where the
block is, or with nothing: then the asker is to ``FETCH`` it, and nobody else on its host is told to
until it says where it ``HAS`` it, gives it up or is gone. A ``FETCH`` is answered with a digest of
the bytes, which says where in the block they are, and the bytes. A holder that maps the block says
where it ``HAS`` it. It may keep that when it holds the block no more, and says ``GIVE_UP`` when it
has it no more; when nobody holds the block, all who have it are told that it is ``FREED``.
"""

from __future__ import annotations

import enum
import hashlib
import struct

from fiber._objects.memory.backing import Place
from fiber._wire.frames import Buffer


class Op(enum.IntEnum):
    """What a holder says to the owner."""

    LOCATE = 144
    FETCH = 145
    HAS = 146
    GIVE_UP = 147


class Word(enum.IntEnum):
    """What the owner says to a holder."""

    #: get the block now: the owner is about to end
    HURRY = 148
    #: nobody holds the block any more: let go of the copy
    FREED = 149


#: bytes of one answer at most, so that the owner never does much at once
MOST = 2**20
#: bytes of a digest
DIGEST = 32

#: 1 where what is on the host cannot be mapped by the asker
LOCATE = struct.Struct("<BB")
#: where, how many
FETCH = struct.Struct("<BQQ")
GIVE_UP = struct.Struct("<B")
WORD = struct.Struct("<B")
_HAS = struct.Struct("<B")
_SPAN = struct.Struct("<QQ")


def has(place: Place) -> bytes:
    """A HAS message."""
    return _HAS.pack(Op.HAS) + place.packed()


def read_has(body: Buffer) -> Place:
    """The place of a HAS message.

    Raises:
        WireError: it makes no sense.
    """
    return Place.unpack(memoryview(body)[_HAS.size :])


def digest(begin: int, data: Buffer) -> bytes:
    """What tells that bytes are those of the block from ``begin`` on."""
    return hashlib.sha256(_SPAN.pack(begin, len(data)) + data).digest()
